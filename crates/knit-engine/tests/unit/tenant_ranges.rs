//! Ranges that are open to tenants: a network outside of them has no address on the node.

use ipnet::IpNet;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::{
    AttachRequest, CallId, CallResult, Effect, Event, Settings, StoredObject, Unit, pod_annotations, step,
    tenant_ranges,
};
use knit_ipam::Time;
use knit_model::intent::{IntentSpec, NameRule, NetworkDefinition, NetworkIntent, Selector};
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;
use knit_model::{NetState, Scope};

use crate::support::blocks_cluster::{BlockCluster, interface_on_network, overlay_network};
use crate::support::executor::{cluster_network, new_sandboxes};
use crate::support::node::{Node, bridge, key, object, sandbox, veth};

/// A range that no admin opened.
const OUTSIDE: &str = "1.1.1.0/30";
const DENIED: &str = "the node has no address of 1.1.1.0/30, because it is not within a range that is open to tenants \
     (192.168.96.0/19, fd74:6b6e:6974::/48): choose another, or have an admin open it in ClusterRanges or by `tenantRanges` of the agents";

fn settings(ranges: &[&str]) -> Settings {
    let tenant_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Settings { tenant_ranges, ..Settings::default() }
}

/// The settings of an agent without any configuration.
fn default_settings() -> Settings {
    Settings { tenant_ranges: tenant_ranges::default_ranges().to_vec(), ..Settings::default() }
}

/// A node with the default settings and a pod that interfaces with the label `x` select.
fn node() -> Node {
    let mut node = Node::with_kernel(new_sandboxes(&["a"]));
    start(&mut node, default_settings());
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "shop", "x")));
    node
}

/// Starts the agent again, with these settings.
fn start(node: &mut Node, settings: Settings) {
    node.state = node.replayed();
    node.settings = settings;
    node.handle(Event::Restarted);
    node.handle(Event::Resync);
}

fn opened(ranges: Option<&[&str]>) -> Event {
    let parse = |ranges: &[&str]| ranges.iter().map(|range| range.parse().unwrap()).collect();
    Event::TenantRanges(ranges.map(parse))
}

/// The addresses of a link of the host.
fn addresses(node: &Node, link: &str) -> Vec<String> {
    let state = node.kernel.observe();
    let all = state.scopes[&Scope::Host].addresses.values().filter(|one| one.link.as_str() == link);
    all.map(|one| one.address.to_string()).collect()
}

/// Nothing of a range is on the host: no address, route or rule.
#[track_caller]
fn assert_not_on_host(node: &Node, range: &str) {
    let range: IpNet = range.parse().unwrap();
    let state = node.kernel.observe();
    let host = &state.scopes[&Scope::Host];
    let overlaps = |other: &IpNet| knit_ipam::overlaps(range, *other);
    assert!(!host.addresses.values().any(|one| overlaps(&one.address)), "{:?}", host.addresses);
    assert!(!host.routes.values().any(|one| overlaps(&one.to)), "{:?}", host.routes);
    let of_rule = |rule: &knit_model::Rule| rule.from.iter().chain(&rule.to).any(overlaps);
    assert!(!host.rules.iter().any(of_rule), "{:?}", host.rules);
}

/// The reason and message of each problem of an object.
fn problems(node: &Node, name: &str) -> Vec<(Reason, String)> {
    let key = node.state.objects.keys().find(|key| key.name == name).unwrap();
    let problems = node.state.report(key).unwrap().problems;
    problems.into_iter().map(|problem| (problem.reason, problem.message)).collect()
}

fn denied(bridge: &str) -> Vec<(Reason, String)> {
    vec![(Reason::RangeNotOpen, format!("bridge {bridge}: {DENIED}"))]
}

fn network(name: &str, range: &str) -> StoredObject {
    let ranges = vec![range.parse().unwrap()];
    let network = NetworkIntent { name: name.to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    object("VirtualNetwork", "shop", name, vec![IntentSpec::Network(network)])
}

#[test]
fn a_bridge_outside_of_open_ranges_exists_without_an_address() {
    let mut node = node();
    node.handle(Event::ObjectApplied(object("Bridge", "shop", "b", vec![bridge("br0", OUTSIDE)])));
    assert!(node.host_link("br0").is_some(), "its ports reach each other");
    assert_not_on_host(&node, OUTSIDE);
    assert_eq!(problems(&node, "b"), denied("br0"));
}

#[test]
fn a_veth_outside_of_open_ranges_is_attached_without_a_gateway_on_the_node() {
    let mut node = node();
    node.handle(Event::ObjectApplied(object("Veth", "shop", "v", vec![veth("x", "net", "br0", OUTSIDE)])));
    assert!(node.host_link("br0").is_some() && node.link("a", "net1").is_some());
    assert_not_on_host(&node, OUTSIDE);
    assert_eq!(problems(&node, "v"), denied("br0"));
}

#[test]
fn a_network_outside_of_open_ranges_and_its_interfaces_report_that_it_has_no_gateway() {
    let mut node = node();
    node.handle(Event::ObjectApplied(network("blue", OUTSIDE)));
    assert_eq!(problems(&node, "blue"), [], "no pod is on it yet");
    node.handle(Event::ObjectApplied(interface_on_network("shop", "blue", "x", &[])));
    assert!(node.link("a", "net1").is_some());
    assert_not_on_host(&node, OUTSIDE);
    assert_eq!(problems(&node, "x"), denied("vn-blue"));
    assert_eq!(problems(&node, "blue"), denied("vn-blue"));
    node.handle(opened(Some(&["1.1.1.0/24"])));
    assert_eq!(addresses(&node, "vn-blue"), ["1.1.1.1/30"]);
    assert_eq!([problems(&node, "x"), problems(&node, "blue")], [[], []]);
}

#[test]
fn an_overlay_outside_of_open_ranges_connects_nodes_without_a_gateway() {
    let objects = [overlay_network("shop", "blue", OUTSIDE), interface_on_network("shop", "blue", "x", &[])];
    let mut cluster = BlockCluster::with_objects(1, &objects);
    cluster.nodes[0].handle(Event::SettingsChanged(default_settings()));
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.update_underlay(0);
    let node = &cluster.nodes[0];
    let link = node.link("p1", "net1");
    assert!(node.host_link("vn-blue").is_some() && link.is_some());
    assert!(node.state.units.values().any(|unit| unit.tunnel.is_some()));
    assert_not_on_host(node, OUTSIDE);
    assert_eq!(problems(node, "blue"), denied("vn-blue"));
}

#[test]
fn a_definition_outside_of_open_ranges_is_attached_with_a_warning() {
    let mut node = node();
    let pod = sandbox("a", 1, "shop", "x");
    let IntentSpec::Interface(mut intent) = veth("x", "unused", "br0", OUTSIDE) else { unreachable!() };
    (intent.pods, intent.name) = (Selector::pod(pod.uid.as_str()), NameRule::Exact("net1".parse().unwrap()));
    intent.definition = Some(Box::new(NetworkDefinition {
        namespace: "lab".to_owned(),
        name: "blue".to_owned(),
        gateway: true,
        ..NetworkDefinition::default()
    }));
    let mut annotation = object(pod_annotations::KIND, "shop", "a", vec![IntentSpec::Interface(intent)]);
    annotation.object.uid.clone_from(&pod.uid);
    annotation.intents[0].origin.dialect = Dialect::Annotation;
    node.handle(Event::ObjectApplied(annotation));
    assert!(node.link("a", "net1").is_some());
    assert_not_on_host(&node, OUTSIDE);
    let reports = node.state.pod_states().into_iter().flat_map(|pod| pod.objects);
    let warnings: Vec<String> = reports.flat_map(|report| report.warnings).collect();
    assert_eq!(warnings, [format!("bridge br0: {DENIED}")]);
}

#[test]
fn a_network_of_a_call_outside_of_open_ranges_has_no_gateway() {
    let mut node = node();
    node.handle(Event::ObjectApplied(network("blue", OUTSIDE)));
    node.handle(Event::AttachRequested(Box::new(AttachRequest {
        call: CallId("attach".to_owned()),
        dialect: Dialect::Kni,
        sandbox: SandboxRequest {
            id: "b".to_owned(),
            netns: "/b".to_owned(),
            namespace: "shop".to_owned(),
            ..SandboxRequest::default()
        },
        interfaces: vec![("net1".parse().unwrap(), "blue".to_owned(), InterfaceRequest::default())],
        metadata: AttachmentMetadata::default(),
        fail_if_present: false,
        ticket: 1,
        started_at: 0,
    })));
    assert!(matches!(node.results.pop(), Some(CallResult::Attached { .. })));
    assert_not_on_host(&node, OUTSIDE);
    assert_eq!(problems(&node, "blue"), denied("vn-blue"));
}

#[test]
fn the_default_opens_one_range_of_each_family() {
    let mut node = node();
    for (index, (range, is_open)) in [
        ("192.168.96.0/19", true),
        ("192.168.127.0/24", true),
        ("192.168.95.0/24", false),
        ("192.168.128.0/24", false),
        // Larger than what is open.
        ("192.168.64.0/18", false),
        ("fd74:6b6e:6974:7::/64", true),
        ("fd74:6b6e:6975::/64", false),
        ("10.0.0.0/24", false),
        ("2001:4860:4860::/64", false),
    ]
    .into_iter()
    .enumerate()
    {
        let (name, link) = (format!("b{index}"), format!("br{index}"));
        let applied = object("Bridge", "shop", &name, vec![bridge(&link, range)]);
        node.handle(Event::ObjectApplied(applied.clone()));
        assert_eq!(addresses(&node, &link).len(), usize::from(is_open), "{range}");
        let reasons: Vec<Reason> = problems(&node, &name).into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(reasons, if is_open { vec![] } else { vec![Reason::RangeNotOpen] }, "{range}");
        node.handle(Event::ObjectDeleted(key(&applied)));
    }
}

#[test]
fn bridges_follow_the_open_ranges_of_the_cluster() {
    let mut node = node();
    let own = object("Bridge", "shop", "b", vec![bridge("br0", "192.168.100.0/24")]);
    node.handle(Event::ObjectApplied(own));
    assert_eq!(addresses(&node, "br0"), ["192.168.100.1/24"]);
    // The cluster's list replaces that of the agent.
    node.handle(opened(Some(&["10.10.0.0/16"])));
    assert_not_on_host(&node, "192.168.100.0/24");
    assert!(problems(&node, "b")[0].1.contains("open to tenants (10.10.0.0/16)"));
    node.handle(opened(Some(&[])));
    assert!(problems(&node, "b")[0].1.contains("because no range is open to tenants"));
    // Also after a restart without an API server.
    start(&mut node, default_settings());
    assert_not_on_host(&node, "192.168.100.0/24");
    node.handle(opened(None));
    assert_eq!(addresses(&node, "br0"), ["192.168.100.1/24"]);
    assert_eq!(problems(&node, "b"), []);
    // The agent's own list changes while it runs.
    node.handle(Event::SettingsChanged(settings(&["10.10.0.0/16"])));
    assert_eq!(problems(&node, "b").len(), 1);
    node.handle(Event::SettingsChanged(settings(&["192.168.100.0/24"])));
    assert_eq!(problems(&node, "b"), []);
}

#[test]
fn a_change_in_flight_does_not_keep_an_address_of_a_range_that_is_closed_meanwhile() {
    let mut node = node();
    // The packet filter is ready: the next bridge is changed at once.
    let first = object("Bridge", "shop", "first", vec![bridge("br1", "192.168.101.0/24")]);
    node.handle(Event::ObjectApplied(first));
    let own = object("Bridge", "shop", "b", vec![bridge("br0", "192.168.100.0/24")]);
    let pending = step(&mut node.state, Event::ObjectApplied(own), Time(1));
    let is_observed = |effect: &Effect| matches!(effect, Effect::Observe { unit: Unit::Bridge(_), .. });
    assert!(pending.iter().any(is_observed), "{pending:?}");
    node.handle(opened(Some(&[])));
    node.resume(pending);
    assert!(node.host_link("br0").is_some());
    assert_not_on_host(&node, "192.168.100.0/24");
    assert_eq!(problems(&node, "b").len(), 1);
}

#[test]
fn an_upgrade_removes_addresses_outside_of_open_ranges_and_reports_it() {
    let mut node = Node::with_kernel(new_sandboxes(&["a"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "shop", "x")));
    node.handle(Event::ObjectApplied(object("Bridge", "shop", "b", vec![bridge("br0", OUTSIDE)])));
    node.handle(Event::ObjectApplied(object("Veth", "shop", "v", vec![veth("x", "net", "br0", OUTSIDE)])));
    assert_eq!(addresses(&node, "br0"), ["1.1.1.1/30"]);
    let before = node.link("a", "net1");
    start(&mut node, default_settings());
    assert_not_on_host(&node, OUTSIDE);
    assert!(node.host_link("br0").is_some() && before.is_some());
    assert_eq!(node.link("a", "net1"), before, "pods keep their interfaces");
    assert_eq!([problems(&node, "b"), problems(&node, "v")], [denied("br0"), denied("br0")]);
}

#[test]
fn an_open_range_must_not_overlap_ranges_in_use() {
    let mut node = node();
    node.handle(opened(Some(&["10.0.0.0/8"])));
    node.handle(Event::ServiceRanges(vec!["10.96.0.0/16".parse().unwrap()]));
    node.handle(Event::ObjectApplied(object("Bridge", "shop", "b", vec![bridge("br0", "10.96.0.0/30")])));
    assert_not_on_host(&node, "10.96.0.0/16");
    assert_eq!(problems(&node, "b")[0].0, Reason::RangeOverlap);
}

#[test]
fn the_cluster_network_needs_no_open_range() {
    let mut node = Node::with_kernel(NetState::default());
    start(&mut node, settings(&[]));
    node.handle(Event::ObjectApplied(cluster_network("10.75.0.0/24")));
    assert_eq!(addresses(&node, "knit0"), ["10.75.0.1/24"]);
}

#[test]
fn a_message_lists_a_few_open_ranges() {
    let mut node = node();
    let ranges: Vec<String> = (0..20).map(|number| format!("10.{number}.0.0/16")).collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    node.handle(opened(Some(&ranges)));
    node.handle(Event::ObjectApplied(object("Bridge", "shop", "b", vec![bridge("br0", OUTSIDE)])));
    assert!(problems(&node, "b")[0].1.contains("10.7.0.0/16, 12 more)"), "{:?}", problems(&node, "b"));
}
