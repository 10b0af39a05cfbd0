//! VLANs of bridge ports: when a bridge filters, and the VLANs of each port.

use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::{BridgePortIntent, IntentSpec};
use knit_model::link::{Kind, PortVlans};

use crate::support::node::{Node, bridge, key, object, sandbox, veth};

/// A veth on `br0` for pods with `net: <label>`, with these VLANs.
fn port(name: &str, label: &str, native: Option<u16>, tagged: &str) -> StoredObject {
    let IntentSpec::Interface(mut intent) = veth(label, name, "br0", "10.1.0.0/24") else { unreachable!() };
    intent.port = Some(BridgePortIntent { native, tagged: tagged.parse().unwrap() });
    object("Veth", "cnf", name, vec![IntentSpec::Interface(intent)])
}

fn plain(name: &str, label: &str) -> StoredObject {
    object("Veth", "cnf", name, vec![veth(label, name, "br0", "10.1.0.0/24")])
}

fn node() -> Node {
    let mut node = Node::with_kernel(NetState::default());
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 2, "cnf", "y")));
    node
}

fn filters(node: &Node) -> bool {
    let Kind::Bridge(bridge) = node.host_link("br0").unwrap().kind else { panic!("no bridge") };
    bridge.vlan_filtering.unwrap()
}

fn vlans(node: &Node, link: &str) -> PortVlans {
    node.host_link(link).unwrap().attrs.vlans.unwrap()
}

#[test]
fn bridge_filters_vlans_while_a_port_needs_it() {
    let mut node = node();
    node.handle(Event::ObjectApplied(plain("p", "y")));
    assert!(!filters(&node));
    let access = port("q", "x", Some(100), "");
    node.handle(Event::ObjectApplied(access.clone()));
    assert!(filters(&node));
    assert_eq!((vlans(&node, "hq1"), vlans(&node, "hp2")), (PortVlans::access(100), PortVlans::access(1)));
    let report = node.state.report(&key(&access)).unwrap();
    assert_eq!(report.pods[0].interfaces[0].vlans, Some(PortVlans::access(100)));

    // A live change, and back to the bridge's default without a setting.
    node.handle(Event::ObjectApplied(port("q", "x", Some(7), "200-300")));
    assert_eq!(vlans(&node, "hq1"), PortVlans::trunk("200-300".parse().unwrap(), 7));
    node.handle(Event::ObjectDeleted(key(&access)));
    assert!(!filters(&node) && node.host_link("hq1").is_none() && node.host_link("hp2").is_some());
    assert_eq!(node.replayed(), node.state.persistent());
}

#[test]
fn label_change_starts_and_ends_filtering() {
    let mut node = node();
    node.handle(Event::ObjectApplied(plain("p", "y")));
    node.handle(Event::ObjectApplied(port("q", "z", Some(100), "")));
    assert!(!filters(&node), "no pod is selected yet");
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "z")));
    assert!(filters(&node));
    assert_eq!(vlans(&node, "hq1"), PortVlans::access(100));
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "x")));
    assert!(!filters(&node));
    // The same when the pod is deleted.
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "z")));
    assert!(filters(&node));
    node.handle(Event::SandboxRemoved(knit_model::SandboxId("a".to_owned())));
    assert!(!filters(&node));
}

#[test]
fn tagged_only_port_does_not_enable_filtering() {
    let mut node = node();
    node.handle(Event::ObjectApplied(port("q", "x", None, "100")));
    assert!(!filters(&node));
    node.handle(Event::ObjectApplied(port("r", "y", Some(5), "")));
    assert_eq!(vlans(&node, "hq1"), PortVlans::trunk("100".parse().unwrap(), 1));
}

#[test]
fn bridge_object_takes_precedence() {
    let mut node = node();
    let bridge_object = |filters: Option<bool>, default: Option<u16>| {
        let IntentSpec::Bridge(mut intent) = bridge("br0", "10.1.0.0/24") else { unreachable!() };
        intent.bridge.vlan_filtering = filters;
        intent.bridge.default_pvid = default;
        intent.port = filters
            .filter(|on| *on)
            .map(|_| BridgePortIntent { native: Some(9), ..BridgePortIntent::default() });
        object("Bridge", "cnf", "br0", vec![IntentSpec::Bridge(intent)])
    };
    node.handle(Event::ObjectApplied(bridge_object(Some(false), None)));
    node.handle(Event::ObjectApplied(plain("p", "y")));
    let access = port("q", "x", Some(100), "");
    node.handle(Event::ObjectApplied(access));
    assert_eq!(
        node.problems("q"),
        ["spec.entries[0]: bridge br0 does not filter VLANs: its Bridge says `vlanFiltering: false`"]
    );
    assert!(node.host_link("hq1").is_none());

    node.handle(Event::ObjectApplied(bridge_object(Some(true), Some(5))));
    assert_eq!(node.problems("q"), Vec::<String>::new());
    assert_eq!(vlans(&node, "br0"), PortVlans::access(9));
    assert_eq!((vlans(&node, "hq1"), vlans(&node, "hp2")), (PortVlans::access(100), PortVlans::access(5)));
    // Without a default a port without a setting passes nothing.
    node.handle(Event::ObjectApplied(bridge_object(Some(true), Some(0))));
    assert_eq!(vlans(&node, "hp2"), PortVlans::default());
}
