//! What is reported about policies: which restrict the pods of a node, and why a connection is allowed or denied.

use std::net::IpAddr;

use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::policies::report::{
    ConnectionQuery, ConnectionReport, Endpoint, ExplainError, PodNode, PolicyEntry,
};
use knit_model::connected_routes::ConnectedRoutes;
use knit_policy::{Direction, DropReason, Outcome, Segment, Tier, Verdict};

use super::*;

fn pod_end(name: &str) -> Endpoint {
    Endpoint::Pod(PodKey { namespace: "shop".to_owned(), name: name.to_owned() })
}

fn address(text: &str) -> Endpoint {
    Endpoint::Address(text.parse().unwrap())
}

fn tcp(from: Endpoint, to: Endpoint, port: u16) -> ConnectionQuery {
    ConnectionQuery { from, to, protocol: 6, port, through_service: false }
}

/// Explains a connection in one family.
#[track_caller]
fn explain(node: &Node, from: Endpoint, to: Endpoint) -> ConnectionReport {
    let mut reports = node.state.explain_connection(&tcp(from, to, 80)).unwrap();
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

fn id(name: &str) -> PolicyId {
    PolicyId::namespaced("shop", name)
}

/// A node with the pods `a` (db) and `b` (web), and another one with the pod `far` (web).
fn node() -> Node {
    let mut node = Node::with_policies();
    node.attach_pod("a");
    node.attach_pod("b");
    let to = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 80}]}]});
    node.list(&[
        ("db", from_web()),
        ("out", to),
        ("unused", json!({"podSelector": {"matchLabels": {"app": "x"}}})),
    ]);
    let peer = PeerNode {
        name: "node2".to_owned(),
        ranges: vec!["10.80.0.0/24".parse().unwrap(), "fd80::/64".parse().unwrap()],
        addresses: Vec::new(),
        off_link_addresses: vec!["192.0.2.2".parse().unwrap()],
        key: None,
    };
    node.state.peers.insert(peer.name.clone(), peer);
    node
}

#[test]
fn policies_are_listed_with_the_pods_of_this_node() {
    let mut node = node();
    let list = node.state.policy_list();
    let entry = |directions: &[Direction], pods: usize| PolicyEntry {
        tier: Tier::Namespace,
        directions: directions.iter().copied().collect(),
        pods,
    };
    let expected = [(id("db"), entry(&[Direction::Ingress], 1)), (id("out"), entry(&[Direction::Egress], 2))];
    assert_eq!(list.policies.into_iter().collect::<Vec<_>>(), expected);
    assert!(list.segments.is_empty(), "{:?}", list.segments);
    let namespace = Some(PolicyNamespace { isolated: true, ..PolicyNamespace::default() });
    node.handle(Event::Policies(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace }));
    let segments = node.state.policy_list().segments;
    assert_eq!(segments, [(Segment::Namespace("shop".to_owned()), 2)].into());
}

#[test]
fn a_pod_is_shown_with_its_policies_and_chains() {
    let node = node();
    let shown = |id: &str| node.state.pod_policies(&SandboxId(id.to_owned()));
    let db = shown("a").unwrap();
    assert_eq!(db.ingress.policies, [(id("db"), Tier::Namespace, 1)]);
    assert_eq!(db.egress.policies, [(id("out"), Tier::Namespace, 1)]);
    assert_eq!((db.ingress.chains.len(), db.ingress.pods), (1, 1));
    assert_eq!((db.egress.chains.len(), db.egress.pods), (1, 2), "both pods share it");
    assert!(!db.is_closed && db.segment.is_none(), "{db:?}");
    let chains: Vec<String> = [db.egress.chains, db.ingress.chains].concat();
    assert_eq!(chains, node.policy_chains());
    let web = shown("b").unwrap();
    assert!(web.ingress.chains.is_empty() && web.ingress.policies.is_empty(), "{web:?}");
    assert_eq!(shown("none"), None);
    // Both chains have a rule that counts what no policy allows.
    let reasons: Vec<DropReason> =
        node.state.policy_drop_rules().into_iter().map(|rule| rule.reason).collect();
    let expected = ["db", "out"].map(|name| DropReason::NotAllowed(vec![id(name)]));
    assert_eq!(reasons, expected);
}

#[test]
fn a_connection_is_explained_with_the_rule_and_the_node_of_each_end() {
    let node = node();
    let allowed = explain(&node, pod_end("b"), pod_end("a"));
    assert!(allowed.is_allowed());
    assert_eq!(allowed.egress.verdict, Verdict::Allowed { policy: id("out"), rule: 0 });
    assert_eq!(allowed.ingress.verdict, Verdict::Allowed { policy: id("db"), rule: 0 });
    assert_eq!((&allowed.egress.node, &allowed.ingress.node), (&PodNode::Local, &PodNode::Local));
    let denied = explain(&node, pod_end("a"), pod_end("a"));
    assert_eq!(denied.ingress.verdict, Verdict::Itself);
    // To another port, and to a pod of another node.
    let denied = node.state.explain_connection(&tcp(pod_end("a"), pod_end("far"), 81)).unwrap().remove(0);
    assert!(!denied.is_allowed());
    assert_eq!(denied.egress.verdict, Verdict::Denied { policies: vec![id("out")] });
    assert_eq!(denied.egress.trace[0].outcome, Outcome::NoMatch);
    assert_eq!(denied.ingress.node, PodNode::Remote("node2".to_owned()));
    assert_eq!(denied.ingress.verdict, Verdict::Unrestricted);
    // From outside.
    let outside = explain(&node, address("203.0.113.9"), pod_end("a"));
    assert_eq!((outside.egress.pod, outside.egress.node), (None, PodNode::Unknown));
    assert_eq!(outside.ingress.verdict, Verdict::Denied { policies: vec![id("db")] });
}

#[test]
fn a_connection_is_explained_in_each_common_family() {
    let mut node = node();
    node.handle(changed(pod("a", "db", &["10.75.0.2", "fd75::2"])));
    let families = |from: Endpoint, to: Endpoint| -> Vec<IpAddr> {
        let reports = node.state.explain_connection(&tcp(from, to, 80)).unwrap();
        reports.iter().map(|report| report.flow.destination).collect()
    };
    let both: [IpAddr; 2] = ["10.75.0.2", "fd75::2"].map(|text| text.parse().unwrap());
    assert_eq!(families(pod_end("far"), pod_end("a")), both);
    assert_eq!(families(pod_end("b"), pod_end("a")), both[..1]);
    assert_eq!(families(address("2001:db8::1"), pod_end("a")), both[1..]);
    let query = tcp(address("2001:db8::1"), pod_end("b"), 80);
    assert_eq!(node.state.explain_connection(&query), Err(ExplainError::NoCommonFamily));
}

#[test]
fn no_policy_is_about_a_pod_and_its_own_node() {
    let mut node = node();
    node.handle(Event::Nodes(NodeEvent::Connected(ConnectedRoutes::new(Vec::new()))));
    let local = NodeInfo {
        name: "node1".to_owned(),
        is_local: true,
        addresses: vec!["192.0.2.1".parse().unwrap()],
        ..NodeInfo::default()
    };
    let remote = node.state.peers["node2"].clone();
    let far = NodeInfo {
        name: "node2".to_owned(),
        ranges: remote.ranges,
        addresses: remote.off_link_addresses,
        ..NodeInfo::default()
    };
    node.handle(Event::Nodes(NodeEvent::Listed(vec![local, far])));
    // Its own address, and that of its bridge.
    for own in ["192.0.2.1", "10.75.0.1"] {
        let report = explain(&node, address(own), pod_end("a"));
        assert!(report.ingress.is_own_node && report.is_allowed(), "{own}: {report:?}");
    }
    let report = explain(&node, pod_end("a"), address("192.0.2.1"));
    assert!(report.egress.is_own_node && report.is_allowed(), "{report:?}");
    for other in ["192.0.2.2", "10.80.0.1"] {
        let report = explain(&node, address(other), pod_end("a"));
        assert!(!report.ingress.is_own_node && !report.is_allowed(), "{other}: {report:?}");
    }
}

#[test]
fn an_isolated_destination_is_denied_except_through_a_service() {
    let mut node = node();
    for name in ["db", "out", "unused"] {
        node.handle(deleted(name));
    }
    let shop = PolicyNamespace { isolated: true, ..PolicyNamespace::default() };
    let event = PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace: Some(shop) };
    node.handle(Event::Policies(event));
    let key = PodKey { namespace: "other".to_owned(), name: "x".to_owned() };
    let other = pod("x", "x", &["10.80.0.9"]).1;
    node.handle(Event::Policies(PolicyEvent::PodChanged { key: key.clone(), pod: Some(other) }));
    let query = tcp(Endpoint::Pod(key), pod_end("a"), 80);
    let explained = |query: &ConnectionQuery| node.state.explain_connection(query).unwrap().remove(0);
    let report = explained(&query);
    assert_eq!(report.isolated, Some(Segment::Namespace("shop".to_owned())));
    assert_eq!(report.egress.node, PodNode::Remote("node2".to_owned()), "which enforces it");
    assert!(!report.is_allowed());
    assert!(explained(&ConnectionQuery { through_service: true, ..query }).is_allowed());
}

#[test]
fn nothing_is_explained_before_everything_is_listed() {
    let mut node = Node::with_policies();
    node.attach_pod("a");
    let query = tcp(pod_end("a"), address("192.0.2.9"), 80);
    let pending = node.state.policy_status().pending;
    assert_eq!(pending, ["NetworkPolicies", "ClusterNetworkPolicies", "Namespaces", "pods of apps"]);
    assert_eq!(node.state.explain_connection(&query), Err(ExplainError::Pending(pending)));
    assert!(node.state.pod_policies(&SandboxId("a".to_owned())).unwrap().is_closed);
    node.list(&[]);
    assert_eq!(node.state.policy_status().pending, [""; 0]);
    // Without policies, pods need not be known.
    assert_eq!(node.state.explain_connection(&query), Ok(Vec::new()));
    node.handle(applied("db", &from_web()));
    let unknown = tcp(pod_end("none"), pod_end("a"), 80);
    let key = PodKey { namespace: "shop".to_owned(), name: "none".to_owned() };
    assert_eq!(node.state.explain_connection(&unknown), Err(ExplainError::UnknownPod(key)));
    // A pod on the host network.
    node.handle(changed(pod("none", "x", &[])));
    assert!(matches!(node.state.explain_connection(&unknown), Err(ExplainError::NoAddress(_))));
}

#[test]
fn a_node_that_does_not_enforce_policies_reports_it() {
    let mut node = Node::new(true);
    let status = node.state.policy_status();
    assert!(!status.is_enforced && status.has_cluster_network && status.pending.is_empty(), "{status:?}");
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    assert!(node.state.policy_list().policies.is_empty());
    assert!(node.state.pod_policies(&SandboxId("a".to_owned())).unwrap().ingress.chains.is_empty());
    assert_eq!(node.state.policy_drop_rules(), []);
    let query = tcp(pod_end("b"), pod_end("a"), 80);
    assert_eq!(node.state.explain_connection(&query), Err(ExplainError::NotEnforced));
    assert!(!State::default().policy_status().has_cluster_network);
}
