//! Source addresses that objects choose: a port accepts them only if they are no other pod's.

use knit_engine::{ObjectKey, Settings};
use knit_model::Mac;
use knit_model::intent::{InterfaceIntent, NameRule};
use knit_model::link::{Bond, Dummy, Ipvlan, IpvlanMode, Kind, Macvlan, MacvlanMode, Veth, Vxlan};
use knit_model::report::Phase;

use super::*;
use crate::support::settings;

const RANGE: &str = "10.9.0.0/24";
const CHOSEN: &str = "02:00:5e:00:53:01";

/// An interface in pods with `net: <label>`.
fn interface(label: &str, name: &str, kind: Kind, edit: impl FnOnce(&mut InterfaceIntent)) -> IntentSpec {
    let IntentSpec::Interface(mut intent) = node::veth(label, "unused", "unused", RANGE) else {
        unreachable!()
    };
    intent.name = NameRule::Exact(name.parse().unwrap());
    intent.kind = kind;
    intent.master = None;
    intent.ranges.clear();
    edit(&mut intent);
    IntentSpec::Interface(intent)
}

/// A macvlan with these addresses. Without a MAC address it has one that Knit assigns.
fn macvlan(label: &str, name: &str, parent: &str, mac: Option<Mac>, addresses: &[&str]) -> IntentSpec {
    let kind = Kind::Macvlan(Macvlan { parent: None, mode: Some(MacvlanMode::Bridge) });
    interface(label, name, kind, |intent| {
        intent.parent = Some(parent.to_owned());
        intent.attrs.mac = mac;
        intent.fixed = addresses.iter().map(|text| text.parse().unwrap()).collect();
    })
}

/// A port of a bridge.
fn port(label: &str, name: &str, bridge: &str, edit: impl FnOnce(&mut InterfaceIntent)) -> IntentSpec {
    interface(label, name, Kind::Veth(Veth::default()), |intent| {
        intent.master = Some(bridge.to_owned());
        edit(intent);
    })
}

/// An interface `net1` on `br0` with an address of the range, in pods with each of these labels.
fn ports(labels: &[&str]) -> StoredObject {
    let in_range = |intent: &mut InterfaceIntent| intent.ranges = vec![RANGE.parse().unwrap()];
    let ports = labels.iter().map(|label| port(label, "net1", "br0", in_range));
    object("Veth", "shop", "net", [node::bridge("br0", RANGE)].into_iter().chain(ports).collect())
}

fn mac(text: &str) -> Mac {
    text.parse().unwrap()
}

/// The MAC address that Knit assigns to an interface of a pod of namespace `shop`.
fn assigned_mac(pod: &str, interface: &str) -> Mac {
    Mac::derived(&format!("shop/{pod}/{interface}"))
}

impl Node {
    fn start(&mut self, pod: &str, label: &str) {
        self.handle(Event::SandboxUpdated(node::sandbox(pod, 1, "shop", label)));
    }

    fn stop(&mut self, pod: &str) {
        self.handle(Event::SandboxRemoved(SandboxId(pod.to_owned())));
    }

    fn apply(&mut self, name: &str, specs: Vec<IntentSpec>) -> ObjectKey {
        let object = object("Macvlan", "shop", name, specs);
        let key = object.key();
        self.handle(Event::ObjectApplied(object));
        assert_eq!(self.state.report(&key).unwrap().phase, Phase::Configured, "{:?}", self.state.problems);
        key
    }

    fn warnings(&self, object: &ObjectKey) -> Vec<String> {
        self.state.report(object).unwrap().warnings
    }

    /// The MAC and IPv4 addresses that the port of an interface accepts. A port that accepts any address has `*`.
    fn accepted(&self, pod: &str, interface: &str) -> (BTreeSet<Mac>, Vec<String>) {
        let interfaces = &self.state.units[&sandbox(pod)].interfaces;
        let mut reports = interfaces.iter().map(|(_, report)| report);
        let report = reports.find(|report| report.name.as_str() == interface).unwrap();
        let prefix = format!("{} . ", report.peer.as_ref().unwrap());
        let of_port = |set: &str| -> Vec<String> {
            let all = self.elements(set).into_iter();
            all.filter_map(|text| Some(text.strip_prefix(&prefix)?.to_owned())).collect()
        };
        let l2 = of_port("l2_ports");
        let macs = of_port("port_macs").iter().chain(&l2).map(|text| mac(text)).collect();
        let addresses: BTreeSet<String> = of_port("port_addresses4")
            .iter()
            .map(|text| text.rsplit(' ').next().unwrap().to_owned())
            .chain(l2.first().map(|_| "*".to_owned()))
            .collect();
        (macs, addresses.into_iter().collect())
    }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn an_interface_on_another_adds_its_addresses_to_the_port_below_only() {
    let mut node = Node::empty();
    node.start("a", "x");
    let second = node::bridge("br1", "10.10.0.0/24");
    let in_second = port("x", "net2", "br1", |intent| intent.ranges = vec!["10.10.0.0/24".parse().unwrap()]);
    node.handle(Event::ObjectApplied(ports(&["x"])));
    node.apply("second", vec![second, in_second]);
    let dummy = interface("x", "d0", Kind::Dummy(Dummy::default()), |intent| {
        intent.fixed = vec!["10.30.0.1/32".parse().unwrap()];
    });
    let tunnel = interface("x", "vx0", Kind::Vxlan(Vxlan::full_for_tests()), |intent| {
        intent.parent = Some("net1".to_owned());
        intent.fixed = vec!["10.31.0.1/24".parse().unwrap()];
    });
    let stacked = vec![
        macvlan("x", "mv0", "net1", Some(mac(CHOSEN)), &["10.20.0.1/24"]),
        macvlan("x", "mv1", "mv0", None, &["10.21.0.1/24"]),
        dummy,
        tunnel,
    ];
    let stacked = node.apply("stacked", stacked);
    let macs = BTreeSet::from([assigned_mac("a", "net1"), mac(CHOSEN), assigned_mac("a", "mv1")]);
    assert_eq!(node.accepted("a", "net1"), (macs, texts(&["10.20.0.1", "10.21.0.1", "10.9.0.2"])));
    assert_eq!(node.accepted("a", "net2"), ([assigned_mac("a", "net2")].into(), texts(&["10.10.0.2"])));
    assert_eq!(node.warnings(&stacked), [""; 0]);
    node.check_owners();
}

#[test]
fn the_addresses_of_a_bond_are_accepted_on_the_ports_of_its_members() {
    let mut node = Node::empty();
    node.start("a", "x");
    let bond = interface("x", "bond0", Kind::Bond(Bond::default()), |intent| {
        intent.ports = vec!["m1".to_owned(), "m2".to_owned()];
        intent.fixed = vec!["10.9.0.7/24".parse().unwrap()];
    });
    let member = |name| port("x", name, "br0", |_| ());
    node.apply("bond", vec![node::bridge("br0", RANGE), bond, member("m1"), member("m2"), member("net1")]);
    let of_bond = ([assigned_mac("a", "bond0")].into(), texts(&["10.9.0.7"]));
    assert_eq!((node.accepted("a", "m1"), node.accepted("a", "m2")), (of_bond.clone(), of_bond));
    assert_eq!(node.accepted("a", "net1"), ([assigned_mac("a", "net1")].into(), texts(&["*"])));
}

#[test]
fn an_object_cannot_choose_the_addresses_of_another_pod_or_of_the_bridge() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x", "y"])));
    node.start("a", "x");
    node.start("b", "y");
    let victim = assigned_mac("a", "net1");
    let bridge = Mac::derived("bridge/shop/br0");
    let key = node.apply(
        "attack",
        vec![
            macvlan("y", "mv0", "net1", Some(victim), &["10.9.0.2/24"]),
            macvlan("y", "mv1", "net1", Some(bridge), &["10.9.0.1/32"]),
        ],
    );
    let own = ([assigned_mac("b", "net1")].into(), texts(&["10.9.0.3"]));
    assert_eq!(node.accepted("b", "net1"), own);
    assert_eq!(node.accepted("a", "net1"), ([victim].into(), texts(&["10.9.0.2"])));
    let dropped = |interface: &str, what: &str| {
        format!("interface {interface} of pod shop/b: {what}: packets from it are dropped")
    };
    let mut warnings = node.warnings(&key);
    warnings.sort();
    assert_eq!(
        warnings,
        [
            dropped("mv0", &format!("MAC address {victim} is in use by another pod on bridge br0")),
            dropped("mv0", "address 10.9.0.2 is leased to another pod on bridge br0"),
            dropped("mv1", &format!("MAC address {bridge} is that of bridge br0")),
            dropped("mv1", "address 10.9.0.1 is that of bridge br0"),
        ]
    );
    // Unused addresses are accepted.
    node.apply("attack", vec![macvlan("y", "mv0", "net1", Some(mac(CHOSEN)), &["10.9.0.77/24"])]);
    let macs = BTreeSet::from([assigned_mac("b", "net1"), mac(CHOSEN)]);
    assert_eq!(node.accepted("b", "net1"), (macs, texts(&["10.9.0.3", "10.9.0.77"])));
    assert_eq!(node.warnings(&key), [""; 0]);
    node.check_owners();
}

#[test]
fn a_port_whose_only_address_is_dropped_does_not_accept_all() {
    let mut node = Node::empty();
    let fixed = |address: &'static str| {
        move |intent: &mut InterfaceIntent| intent.fixed = vec![address.parse().unwrap()]
    };
    node.start("a", "x");
    node.start("b", "y");
    let gateway = port("x", "net1", "br0", fixed("10.9.0.1/32"));
    let service = port("y", "net1", "br0", fixed("10.96.0.1/32"));
    node.handle(Event::ServiceRanges(vec!["10.96.0.0/16".parse().unwrap()]));
    let first = node.apply("gateway", vec![node::bridge("br0", RANGE), gateway]);
    let second = node.apply("service", vec![service]);
    assert_eq!(node.accepted("a", "net1"), ([assigned_mac("a", "net1")].into(), texts(&[])));
    assert_eq!(node.accepted("b", "net1"), ([assigned_mac("b", "net1")].into(), texts(&[])));
    assert_eq!((node.warnings(&first).len(), node.warnings(&second).len()), (1, 1));
}

#[test]
fn a_pod_that_is_removed_during_its_change_leaves_its_addresses_to_others() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x", "y"])));
    node.start("a", "x");
    node.start("b", "y");
    node.held = Some(sandbox("a"));
    let choose = |label: &str| macvlan(label, "mv0", "net1", Some(mac(CHOSEN)), &["10.20.0.1/24"]);
    node.handle(Event::ObjectApplied(object("Macvlan", "shop", "one", vec![choose("x")])));
    let second = node.apply("two", vec![choose("y")]);
    assert_eq!(node.warnings(&second).len(), 2);
    node.held = None;
    node.pending.clear();
    node.stop("a");
    assert_eq!(node.warnings(&second), [""; 0]);
    assert!(node.accepted("b", "net1").0.contains(&mac(CHOSEN)));
}

#[test]
fn an_assigned_mac_address_takes_precedence_over_a_chosen_one() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x", "y"])));
    let victim = assigned_mac("a", "net1");
    node.start("b", "y");
    // The pod with this MAC address does not exist yet.
    let key = node.apply("early", vec![macvlan("y", "mv0", "net1", Some(victim), &["10.9.0.3/24"])]);
    let both = BTreeSet::from([assigned_mac("b", "net1"), victim]);
    assert_eq!(node.accepted("b", "net1"), (both.clone(), texts(&["10.9.0.2", "10.9.0.3"])));
    node.start("a", "x");
    assert_eq!(node.accepted("a", "net1"), ([victim].into(), texts(&["10.9.0.3"])));
    assert_eq!(
        node.accepted("b", "net1"),
        ([assigned_mac("b", "net1")].into(), texts(&["10.9.0.2"])),
        "both addresses are assigned to the other pod now"
    );
    assert_eq!(node.warnings(&key).len(), 2, "{:?}", node.warnings(&key));
    node.restart();
    assert_eq!(node.accepted("a", "net1"), ([victim].into(), texts(&["10.9.0.3"])));
    node.stop("a");
    assert_eq!(node.accepted("b", "net1"), (both, texts(&["10.9.0.2", "10.9.0.3"])));
    assert_eq!(node.warnings(&key), [""; 0]);
    node.check_owners();
}

#[test]
fn of_two_pods_that_choose_an_address_the_first_keeps_it() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x", "y"])));
    node.start("b", "y");
    node.start("a", "x");
    let choose = |label: &str| vec![macvlan(label, "mv0", "net1", Some(mac(CHOSEN)), &["10.20.0.1/24"])];
    let first = node.apply("first", choose("y"));
    let second = node.apply("second", choose("x"));
    let has_it = |node: &Node, pod: &str| {
        let (macs, addresses) = node.accepted(pod, "net1");
        (macs.contains(&mac(CHOSEN)), addresses.contains(&"10.20.0.1".to_owned()))
    };
    for _ in 0..2 {
        assert_eq!((has_it(&node, "b"), has_it(&node, "a")), ((true, true), (false, false)));
        assert_eq!((node.warnings(&first).len(), node.warnings(&second).len()), (0, 2));
        node.restart();
    }
    node.handle(Event::ObjectDeleted(first));
    assert_eq!(has_it(&node, "a"), (true, true), "it is free now");
    assert_eq!(node.warnings(&second), [""; 0]);
    node.check_owners();
}

#[test]
fn a_change_that_fails_leaves_its_addresses_to_the_other_pod() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x", "y"])));
    node.start("a", "x");
    node.start("b", "y");
    node.held = Some(sandbox("a"));
    let choose = |label: &str| macvlan(label, "mv0", "net1", Some(mac(CHOSEN)), &["10.20.0.1/24"]);
    node.handle(Event::ObjectApplied(object("Macvlan", "shop", "one", vec![choose("x")])));
    let second = node.apply("two", vec![choose("y")]);
    // It is tried once more, because the other pod's change may have helped.
    for _ in 0..2 {
        assert_eq!(node.warnings(&second).len(), 2, "the first is in flight");
        node.pending.clear();
        let problem = Problem::new("", Reason::KernelError, "out of memory".to_owned());
        let failure = ApplyFailure { problem, rolled_back: true, missing_tables: false, unsupported: None };
        node.handle(Event::PlanApplied(PlanResult { unit: sandbox("a"), result: Err(failure) }));
    }
    assert_eq!(node.warnings(&second), [""; 0]);
    assert!(node.accepted("b", "net1").0.contains(&mac(CHOSEN)));
    node.held = None;
    node.handle(Event::Resync);
    assert!(!node.accepted("a", "net1").0.contains(&mac(CHOSEN)));
    node.check_owners();
}

#[test]
fn another_sandbox_of_the_same_pod_has_its_addresses() {
    let mut node = Node::empty();
    node.handle(Event::ObjectApplied(ports(&["x"])));
    node.start("a", "x");
    let mut next = node::sandbox("b", 1, "shop", "x");
    next.pod = "a".to_owned();
    node.handle(Event::SandboxUpdated(next));
    assert_eq!(node.accepted("b", "net1"), ([assigned_mac("a", "net1")].into(), texts(&["10.9.0.3"])));
}

/// An ipvlan with the MAC address of the interface below, which stays on the fast path.
fn ipvlan(parent: &str, addresses: &[&str]) -> IntentSpec {
    let kind = Kind::Ipvlan(Ipvlan { parent: None, mode: Some(IpvlanMode::L2), flag: None });
    interface("y", "iv0", kind, |intent| {
        intent.parent = Some(parent.to_owned());
        intent.fixed = addresses.iter().map(|text| text.parse().unwrap()).collect();
    })
}

/// Addresses of a neighbour, of a range of the cluster network, of a Service, and two others.
const CHOSEN_ADDRESSES: [&str; 5] =
    ["10.75.0.2/29", "10.75.0.6/29", "10.96.0.1/16", "172.18.0.5/16", "10.20.0.1/24"];

/// A cluster network with a pod of namespace lab, and one of namespace shop with `net: y`.
fn node_with_cluster_network() -> Node {
    let mut node = Node::new(true);
    node.attach_in("lab", "a");
    node.attach_in("shop", "b");
    let mut pod = node.state.sandboxes[&SandboxId("b".to_owned())].clone();
    pod.labels = [("net".to_owned(), "y".to_owned())].into();
    node.handle(Event::SandboxUpdated(pod));
    node.handle(Event::ServiceRanges(vec!["10.96.0.0/16".parse().unwrap()]));
    node
}

#[test]
fn an_address_on_the_cluster_network_is_one_that_it_leased() {
    let mut node = node_with_cluster_network();
    let key = node.apply("attack", vec![ipvlan("eth0", &CHOSEN_ADDRESSES)]);
    let own = assigned_mac("b", "eth0");
    assert_eq!(node.accepted("b", "eth0"), (BTreeSet::from([own]), texts(&["10.75.0.3"])));
    let warnings = node.warnings(&key);
    assert_eq!(warnings.len(), 5, "{warnings:?}");
    let is_outside = |warning: &String| warning.contains("10.20.0.1 is not assigned on the cluster network");
    assert!(warnings.iter().any(is_outside), "{warnings:?}");
    assert_eq!(node.fast_path_addresses(), ["10.75.0.2", "10.75.0.3"].map(String::from).into());
    node.check_owners();
}

#[test]
fn an_address_on_a_bridge_is_no_pods_nodes_or_services() {
    let mut node = node_with_cluster_network();
    node.handle(Event::ObjectApplied(ports(&["y"])));
    let key = node.apply("attack", vec![ipvlan("net1", &CHOSEN_ADDRESSES)]);
    let chosen = |node: &Node| {
        let (_, mut accepted) = node.accepted("b", "net1");
        accepted.retain(|address| !address.starts_with("10.9.0."));
        accepted
    };
    assert_eq!(chosen(&node), texts(&["10.20.0.1", "172.18.0.5"]));
    assert_eq!(node.warnings(&key).len(), 3, "{:?}", node.warnings(&key));
    // The range becomes one of the node.
    let forbidden = vec![("node's range".to_owned(), "172.18.0.0/16".parse().unwrap())];
    node.handle(Event::SettingsChanged(Settings { forbidden, ..settings() }));
    assert_eq!(chosen(&node), texts(&["10.20.0.1"]));
    let is_reported = |warning: &String| warning.contains("172.18.0.5/32 overlaps the node's range");
    assert!(node.warnings(&key).iter().any(is_reported), "{:?}", node.warnings(&key));
    node.check_owners();
}
