//! The decisions of the controller, without an API server.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod segments;
mod service_addresses;

use knit_controller_engine::labels::Labels;
use knit_controller_engine::{Effect, Event, HeldBlock, State, step};
use knit_crds::states::{NodeNetworkStatus, PodNetworkStateStatus};
use knit_crds::{Object, WatchUpdate};
use serde_json::{Value, json};

const MINE: &str = "podconfig.finalizers.opdev.io";

/// A controller with synced watches and two nodes.
struct Controller {
    state: State,
    now: i64,
}

impl Controller {
    fn new() -> Self {
        Self::with_state(State::default())
    }

    fn with_state(state: State) -> Self {
        let mut controller = Self { state, now: 1_000_000 };
        for kind in Object::kinds() {
            controller.handle(Event::Objects(&kind.kind, Box::new(WatchUpdate::Listed(Vec::new()))));
        }
        controller.handle(Event::PodStates(WatchUpdate::Listed(Vec::new())));
        controller.handle(Event::NodeNetworks(WatchUpdate::Listed(Vec::new())));
        controller.handle(Event::Samples(WatchUpdate::Listed(Vec::new())));
        controller.handle(Event::Blocks(WatchUpdate::Listed(Vec::new())));
        assert_eq!(controller.reconcile(0), [], "nothing is reconciled before nodes have synced");
        controller.handle(Event::ClusterNodes(WatchUpdate::Listed(vec![node("node1"), node("node2")])));
        controller
    }

    fn handle(&mut self, event: Event) {
        assert_eq!(step(&mut self.state, event, self.now), []);
    }

    fn reconcile(&mut self, later: i64) -> Vec<Effect> {
        self.now += later;
        step(&mut self.state, Event::Reconcile, self.now)
    }

    fn apply(&mut self, object: Value) {
        let object = Object::from_manifest(&object).unwrap();
        let kind = Object::find_kind(object.kind()).unwrap();
        self.handle(Event::Objects(&kind.kind, Box::new(WatchUpdate::Applied(object))));
    }

    /// An agent's report about a pod.
    fn pod(&mut self, name: &str, node: &str, objects: Value) {
        let status = json!({"node": node, "podUID": name, "objects": objects});
        let status: PodNetworkStateStatus = serde_json::from_value(status).unwrap();
        self.handle(Event::PodStates(WatchUpdate::Applied((("tenant".to_owned(), name.to_owned()), status))));
    }
}

fn config(generation: i64, metadata: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "podconfig.opdev.io/v1alpha1",
        "kind": "PodConfig",
        "metadata": {"name": "a", "namespace": "tenant", "uid": "u", "generation": generation, "resourceVersion": "7",
            "finalizers": [MINE]},
        "spec": {"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.0/24"}]},
    });
    merge(&mut object["metadata"], metadata);
    merge(&mut object["spec"], spec);
    object
}

fn node(name: &str) -> (String, Labels) {
    (name.to_owned(), Labels::new())
}

fn merge(to: &mut Value, from: Value) {
    to.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
}

fn applied(generation: i64, number: u32, last: u32) -> Value {
    json!([{"kind": "PodConfig", "namespace": "tenant", "name": "a", "uid": "u", "generation": generation, "ready": true,
        "interfaces": [{"field": "spec.networkAttachments[0]", "name": format!("pc0{number}"), "linkType": "veth",
            "addresses": [format!("192.168.100.{last}/24")], "peer": format!("hpc0{number}"), "master": "pcbr0",
            "ready": true}]}])
}

fn status(effects: &[Effect]) -> Value {
    let written = effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus(_, status) => Some(status.clone()),
        _ => None,
    });
    written.unwrap_or_else(|| panic!("no status in {effects:?}"))
}

fn ready(status: &Value) -> (&str, &str, &str) {
    let ready = &status["conditions"][0];
    let text = |field: &str| ready[field].as_str().unwrap();
    (text("status"), text("reason"), text("message"))
}

#[test]
fn the_pods_of_two_nodes_are_aggregated_into_one_status() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    controller.pod("b", "node2", applied(1, 28, 2));
    controller.pod("a", "node1", applied(1, 27, 2));
    let effects = controller.reconcile(0);
    let status = status(&effects);
    assert_eq!(status["phase"], "configured");
    let lines = |pod: usize| {
        let pod = &status["podConfigurations"][pod];
        (pod["podName"].clone(), pod["configList"].clone())
    };
    let expected = |pod: &str, line: &str| (json!(pod), json!([line]));
    assert_eq!(
        lines(0),
        expected("a", "{podVethName:pc027 podIPAddr:192.168.100.2/24 peerVethName:hpc027 bridge:pcbr0}")
    );
    assert_eq!(
        lines(1),
        expected("b", "{podVethName:pc028 podIPAddr:192.168.100.2/24 peerVethName:hpc028 bridge:pcbr0}")
    );
    assert_eq!(status["podConfigurations"][1]["interfaces"][0]["master"], "pcbr0");
    assert_eq!(status["podConfigurations"].as_array().unwrap().len(), 2);
    assert_eq!(ready(&status), ("True", "Configured", "2 pods configured"));
    assert!(
        matches!(&effects[1], Effect::PublishEvent { reason, .. } if reason == "Configured"),
        "{effects:?}"
    );
    // A status is written once, even before the watch returns it.
    controller.pod("a", "node1", applied(1, 27, 2));
    assert_eq!(controller.reconcile(0), []);
}

#[test]
fn a_status_waits_for_agents_for_a_limited_time() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    assert_eq!(controller.reconcile(0), [], "within the grace period");
    assert_eq!(ready(&status(&controller.reconcile(1_000))).1, "NoPods");
    controller.pod("a", "node1", applied(1, 27, 2));
    assert_eq!(ready(&status(&controller.reconcile(0))).0, "True");
    controller.apply(config(2, json!({}), json!({})));
    assert_eq!(controller.reconcile(500), [], "the report is of the previous generation");
    let late = status(&controller.reconcile(500));
    assert_eq!((ready(&late).0, late["observedGeneration"].as_i64()), ("False", Some(2)));
    controller.pod("a", "node1", applied(2, 27, 2));
    assert_eq!(ready(&status(&controller.reconcile(0))).0, "True");
}

#[test]
fn a_problem_on_any_node_is_in_the_status_and_published_once() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    let problem = json!({"reason": "NotOwned", "message": "link pcbr0 exists and is not owned by Knit"});
    let object = json!({"kind": "PodConfig", "namespace": "tenant", "name": "a", "uid": "u", "generation": 1,
        "ready": false, "problems": [problem]});
    let node: NodeNetworkStatus = serde_json::from_value(json!({"objects": [object]})).unwrap();
    for name in ["node1", "node2"] {
        controller.handle(Event::NodeNetworks(WatchUpdate::Applied((name.to_owned(), node.clone()))));
    }
    let effects = controller.reconcile(0);
    assert_eq!(ready(&status(&effects)), ("False", "NotOwned", "link pcbr0 exists and is not owned by Knit"));
    assert!(
        matches!(&effects[1], Effect::PublishEvent { reason, .. } if reason == "NotOwned"),
        "{effects:?}"
    );
}

#[test]
fn the_status_of_a_gateway_follows_the_node_that_holds_the_address() {
    let mut controller = Controller::new();
    controller.apply(json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "EgressGateway",
        "metadata": {"name": "shop", "uid": "g", "generation": 1, "resourceVersion": "7"},
        "spec": {"namespaces": ["shop"], "addresses": ["192.0.2.10"], "nodes": ["node1", "node2"]},
    }));
    let item = json!({"field": "spec.addresses[0]", "what": "192.0.2.10 on eth0", "ready": true});
    let object = json!({"kind": "EgressGateway", "name": "shop", "uid": "g", "generation": 1, "ready": true, "items": [item]});
    let report = |objects: &[&Value]| -> NodeNetworkStatus {
        serde_json::from_value(json!({"objects": objects})).unwrap()
    };
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied(("node1".to_owned(), report(&[&object])))));
    assert_eq!(status(&controller.reconcile(0))["activeNode"], "node1");
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied(("node1".to_owned(), report(&[])))));
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied(("node2".to_owned(), report(&[&object])))));
    let status = status(&controller.reconcile(0));
    assert_eq!((&status["activeNode"], &status["held"]), (&json!("node2"), &json!(["192.0.2.10 on eth0"])));
}

#[test]
fn validation_errors_are_in_the_status() {
    let mut controller = Controller::new();
    let bad = json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.7/24"}]});
    controller.apply(config(1, json!({}), bad));
    let status = status(&controller.reconcile(0));
    assert_eq!(ready(&status).1, "InvalidValue");
    assert!(ready(&status).2.contains("spec.networkAttachments[0].cidr"), "{status}");
}

#[test]
fn a_finalizer_is_removed_when_no_node_uses_the_object() {
    let mut controller = Controller::new();
    let set = |finalizers: &[&str], version: &str| Effect::SetFinalizers {
        key: knit_engine::ObjectKey {
            kind: "PodConfig".to_owned(),
            namespace: "tenant".to_owned(),
            name: "a".to_owned(),
        },
        finalizers: finalizers.iter().map(ToString::to_string).collect(),
        version: version.to_owned(),
    };
    controller.apply(config(1, json!({"finalizers": ["other"]}), json!({})));
    assert_eq!(controller.reconcile(0), [set(&["other", MINE], "7")]);
    controller.apply(config(1, json!({"finalizers": ["other"]}), json!({})));
    assert_eq!(controller.reconcile(0), [], "it is patched once");
    controller.pod("a", "node1", applied(1, 27, 2));
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "8", "finalizers": ["other", MINE]});
    controller.apply(config(1, deleting, json!({})));
    assert_eq!(controller.reconcile(0), [], "a pod still uses it");
    controller.pod("a", "node1", json!([]));
    assert_eq!(controller.reconcile(0), [set(&["other"], "8")]);
}

#[test]
fn an_object_without_pods_is_deleted_immediately() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({})));
    assert!(
        matches!(&controller.reconcile(0)[..], [Effect::SetFinalizers { finalizers, .. }] if finalizers.is_empty())
    );
}

#[test]
fn deleted_nodes_and_unavailable_agents_do_not_block_deletion() {
    let deleting = || config(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({}));
    let mut controller = Controller::new();
    controller.pod("a", "node1", applied(1, 27, 2));
    controller.apply(deleting());
    assert_eq!(controller.reconcile(0), []);
    controller.handle(Event::ClusterNodes(WatchUpdate::Deleted(node("node1"))));
    assert!(matches!(&controller.reconcile(0)[..], [Effect::SetFinalizers { .. }]));

    let mut controller = Controller::new();
    controller.pod("a", "node1", applied(1, 27, 2));
    controller.apply(deleting());
    assert!(controller.reconcile(29_999).is_empty());
    let effects = controller.reconcile(30_000);
    assert!(
        matches!(&effects[..], [Effect::PublishEvent { .. }, Effect::SetFinalizers { .. }]),
        "{effects:?}"
    );
}

#[test]
fn the_node_network_of_a_deleted_node_is_deleted() {
    let mut controller = Controller::new();
    controller
        .handle(Event::NodeNetworks(WatchUpdate::Applied(("old".to_owned(), NodeNetworkStatus::default()))));
    assert_eq!(controller.reconcile(0), [Effect::DeleteNodeNetwork("old".to_owned())]);
}

#[test]
fn a_sample_deployment_is_created_once_and_deleted_on_request() {
    let mut controller = Controller::new();
    let samples = |effects: Vec<Effect>| {
        effects.into_iter().find_map(|effect| match effect {
            Effect::CreateSample { name, .. } => Some(format!("+{name}")),
            Effect::DeleteSample(_, (_, name)) => Some(format!("-{name}")),
            _ => None,
        })
    };
    controller.apply(config(1, json!({}), json!({"sampleDeployment": {"create": true, "name": "cnf"}})));
    assert_eq!(samples(controller.reconcile(0)), Some("+cnf".to_owned()));
    let sample = (("tenant".to_owned(), "cnf".to_owned()), "a".to_owned());
    controller.handle(Event::Samples(WatchUpdate::Applied(sample)));
    assert_eq!(samples(controller.reconcile(0)), None);
    controller.apply(config(2, json!({}), json!({"sampleDeployment": {"create": false, "name": "cnf"}})));
    assert_eq!(samples(controller.reconcile(0)), Some("-cnf".to_owned()));
}

#[test]
fn a_failed_write_is_retried() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    controller.pod("a", "node1", applied(1, 27, 2));
    let effects = controller.reconcile(0);
    let Effect::WriteStatus(key, first) = &effects[0] else { panic!("{effects:?}") };
    controller.handle(Event::WriteFailed(key.clone()));
    assert_eq!(status(&controller.reconcile(0)), *first);
}

#[test]
fn quota_claims_of_deleted_nodes_are_released_and_claims_are_not_in_the_status_patch() {
    let mut controller = Controller::new();
    let claims =
        json!({"node1": {"interfaces": 2, "addresses": 3}, "node9": {"interfaces": 5, "bridges": 1}});
    controller.apply(json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "NetworkQuota",
        "metadata": {"name": "most", "namespace": "tenant", "uid": "u", "generation": 1, "resourceVersion": "7"},
        "spec": {"interfaces": 9},
        "status": {"claims": claims, "used": {"interfaces": 7, "addresses": 3, "bridges": 1}},
    }));
    let effects = controller.reconcile(0);
    let released = effects.iter().find_map(|effect| match effect {
        Effect::ReleaseClaims { nodes, used, version, .. } => Some((nodes.clone(), *used, version.clone())),
        _ => None,
    });
    let (nodes, used, version) = released.unwrap();
    assert_eq!((nodes, version.as_str()), (vec!["node9".to_owned()], "7"));
    assert_eq!((used.interfaces, used.addresses, used.bridges), (2, 3, 0));
    let status = status(&effects);
    assert_eq!(ready(&status).0, "True");
    assert!(status.get("claims").is_none() && status.get("used").is_none(), "{status}");
}

#[test]
fn blocks_of_a_deleted_node_are_deleted_after_the_retention() {
    let mut controller = Controller::new();
    for (name, node) in [("a-0", "node1"), ("a-1", "node2"), ("b-0", "node2")] {
        let block = HeldBlock { uid: format!("uid-{name}"), node: node.to_owned() };
        controller.handle(Event::Blocks(WatchUpdate::Applied((name.to_owned(), block))));
    }
    let minute = 60_000;
    assert_eq!(controller.reconcile(60 * minute), []);
    assert!(!controller.state.has_missing_nodes());
    controller.handle(Event::ClusterNodes(WatchUpdate::Deleted(node("node2"))));
    assert_eq!(controller.reconcile(0), []);
    assert!(controller.state.has_missing_nodes());
    assert_eq!(controller.reconcile(4 * minute), []);
    // The node returned: the retention restarts.
    controller.handle(Event::ClusterNodes(WatchUpdate::Applied(node("node2"))));
    assert_eq!(controller.reconcile(0), []);
    controller.handle(Event::ClusterNodes(WatchUpdate::Deleted(node("node2"))));
    assert_eq!(controller.reconcile(2 * minute), []);
    assert_eq!(controller.reconcile(4 * minute), []);
    let delete = |name: &str| Effect::DeleteBlock { name: name.to_owned(), uid: format!("uid-{name}") };
    assert_eq!(controller.reconcile(minute), [delete("a-1"), delete("b-0")]);
    for name in ["a-1", "b-0"] {
        let block = HeldBlock { uid: format!("uid-{name}"), node: "node2".to_owned() };
        controller.handle(Event::Blocks(WatchUpdate::Deleted((name.to_owned(), block))));
    }
    assert_eq!(controller.reconcile(60 * minute), []);
    assert!(!controller.state.has_missing_nodes());
}

#[test]
fn a_clock_that_is_set_back_does_not_extend_the_retention() {
    let mut controller = Controller::new();
    let block = HeldBlock { uid: "uid-a".to_owned(), node: "node2".to_owned() };
    controller.handle(Event::Blocks(WatchUpdate::Applied(("a".to_owned(), block))));
    controller.handle(Event::ClusterNodes(WatchUpdate::Deleted(node("node2"))));
    let minute = 60_000;
    assert_eq!(controller.reconcile(0), []);
    assert_eq!(controller.reconcile(-600 * minute), []);
    assert_eq!(controller.reconcile(4 * minute), []);
    assert_eq!(
        controller.reconcile(minute),
        [Effect::DeleteBlock { name: "a".to_owned(), uid: "uid-a".to_owned() }]
    );
}

/// The report of a node: whether its kernel supports vlan, and its NICs.
fn node_network(has_vlan: bool, nics: &[&str]) -> NodeNetworkStatus {
    let nics: Vec<Value> = nics.iter().map(|name| json!({"name": name, "mtu": 1500, "up": true})).collect();
    let status = json!({
        "agent": "1",
        "kernel": {"release": "6", "links": [{"kind": "vlan", "present": has_vlan}]},
        "uplinks": nics,
    });
    serde_json::from_value(status).unwrap()
}

fn uplink(name: &str, link: &str) -> Value {
    json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "Uplink",
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {"link": link},
    })
}

fn labelled(effects: &[Effect]) -> Vec<String> {
    let labels = effects.iter().filter_map(|effect| match effect {
        Effect::LabelNode { node, labels } => Some(labels.iter().map(move |(key, value)| match value {
            Some(value) => format!("{node} {key}={value}"),
            None => format!("{node} {key}-"),
        })),
        _ => None,
    });
    labels.flatten().collect()
}

#[test]
fn a_node_is_labelled_with_link_types_and_uplinks() {
    let mut controller = Controller::new();
    assert_eq!(labelled(&controller.reconcile(0)), [""; 0], "a node without a report has no labels");
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied((
        "node1".to_owned(),
        node_network(true, &["eth1"]),
    ))));
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied((
        "node2".to_owned(),
        node_network(false, &["eth9"]),
    ))));
    controller.apply(uplink("fabric", "eth1"));
    let expected = [
        "node1 link.knit.opdev.io/vlan=true",
        "node1 uplink.knit.opdev.io/fabric=true",
        "node2 link.knit.opdev.io/vlan=false",
        "node2 uplink.knit.opdev.io/fabric=false",
    ];
    assert_eq!(labelled(&controller.reconcile(0)), expected);
    assert_eq!(labelled(&controller.reconcile(0)), [""; 0], "once");
    // The watch returns the labels, and then a label is removed.
    let labels = |vlan: &[(&str, &str)]| {
        vlan.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>()
    };
    let all = [("link.knit.opdev.io/vlan", "true"), ("uplink.knit.opdev.io/fabric", "true")];
    controller.handle(Event::ClusterNodes(WatchUpdate::Applied(("node1".to_owned(), labels(&all)))));
    assert_eq!(labelled(&controller.reconcile(0)), [""; 0]);
    controller.handle(Event::ClusterNodes(WatchUpdate::Applied(("node1".to_owned(), labels(&all[1..])))));
    assert_eq!(labelled(&controller.reconcile(0)), ["node1 link.knit.opdev.io/vlan=true"]);
}

#[test]
fn labels_follow_nics_uplinks_and_node_networks() {
    let mut controller = Controller::new();
    controller.apply(uplink("fabric", "eth1"));
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied((
        "node1".to_owned(),
        node_network(true, &["eth1"]),
    ))));
    assert_eq!(labelled(&controller.reconcile(0)).len(), 2);
    controller
        .handle(Event::NodeNetworks(WatchUpdate::Applied(("node1".to_owned(), node_network(true, &[])))));
    assert_eq!(
        labelled(&controller.reconcile(0)),
        ["node1 uplink.knit.opdev.io/fabric=false"],
        "its NIC was removed"
    );
    let fabric = Object::from_manifest(&uplink("fabric", "eth1")).unwrap();
    controller.handle(Event::Objects("Uplink", Box::new(WatchUpdate::Deleted(fabric))));
    assert_eq!(
        labelled(&controller.reconcile(0)),
        ["node1 uplink.knit.opdev.io/fabric-"],
        "the Uplink was deleted"
    );
    let gone = ("node1".to_owned(), NodeNetworkStatus::default());
    controller.handle(Event::NodeNetworks(WatchUpdate::Deleted(gone)));
    assert_eq!(
        labelled(&controller.reconcile(0)),
        ["node1 link.knit.opdev.io/vlan-"],
        "the NodeNetwork was deleted"
    );
}

#[test]
fn failed_label_writes_are_retried() {
    let mut controller = Controller::new();
    controller
        .handle(Event::NodeNetworks(WatchUpdate::Applied(("node1".to_owned(), node_network(true, &[])))));
    let first = labelled(&controller.reconcile(0));
    assert_eq!(first, ["node1 link.knit.opdev.io/vlan=true"]);
    controller.handle(Event::LabelWriteFailed("node1".to_owned()));
    assert!(controller.state.needs_reconcile());
    assert_eq!(labelled(&controller.reconcile(0)), first);
}

#[test]
fn an_uplink_whose_name_is_no_label_name_is_skipped() {
    let mut controller = Controller::new();
    controller.apply(uplink(&"u".repeat(64), "eth1"));
    controller.handle(Event::NodeNetworks(WatchUpdate::Applied((
        "node1".to_owned(),
        node_network(true, &["eth1"]),
    ))));
    assert_eq!(labelled(&controller.reconcile(0)), ["node1 link.knit.opdev.io/vlan=true"]);
}
