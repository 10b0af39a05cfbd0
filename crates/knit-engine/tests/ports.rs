//! VLANs of ports: who has a bridge filter, and what each port is then.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::{BridgePortIntent, IntentSpec};
use knit_model::link::{Kind, PortVlans};
use support::node::{Node, bridge, key, object, sandbox, veth};

/// A pair on `br0` for pods with `net: <label>`, with these VLANs.
fn port(name: &str, label: &str, native: Option<u16>, tagged: &str) -> StoredObject {
    let IntentSpec::Interface(mut want) = veth(label, name, "br0", "10.1.0.0/24") else { unreachable!() };
    want.port = Some(BridgePortIntent { native, tagged: tagged.parse().unwrap() });
    object("Veth", "cnf", name, vec![IntentSpec::Interface(want)])
}

fn plain(name: &str, label: &str) -> StoredObject {
    object("Veth", "cnf", name, vec![veth(label, name, "br0", "10.1.0.0/24")])
}

fn node() -> Node {
    let mut node = Node::holding(NetState::default());
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 2, "cnf", "y")));
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
fn a_bridge_filters_as_long_as_a_port_needs_it() {
    let mut node = node();
    node.hear(Event::ObjectApplied(plain("p", "y")));
    assert!(!filters(&node));
    let access = port("q", "x", Some(100), "");
    node.hear(Event::ObjectApplied(access.clone()));
    assert!(filters(&node));
    assert_eq!((vlans(&node, "hq1"), vlans(&node, "hp2")), (PortVlans::access(100), PortVlans::access(1)));
    let report = node.state.report(&key(&access)).unwrap();
    assert_eq!(report.pods[0].interfaces[0].vlans, Some(PortVlans::access(100)));

    // Changed while it lives, and back to the bridge's default when nothing is said.
    node.hear(Event::ObjectApplied(port("q", "x", Some(7), "200-300")));
    assert_eq!(vlans(&node, "hq1"), PortVlans::trunk("200-300".parse().unwrap(), 7));
    node.hear(Event::ObjectDeleted(key(&access)));
    assert!(!filters(&node) && node.host_link("hq1").is_none() && node.host_link("hp2").is_some());
    assert_eq!(node.replayed(), node.state.remembered());
}

#[test]
fn a_label_is_enough_to_begin_and_to_end() {
    let mut node = node();
    node.hear(Event::ObjectApplied(plain("p", "y")));
    node.hear(Event::ObjectApplied(port("q", "z", Some(100), "")));
    assert!(!filters(&node), "no pod is meant yet");
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "z")));
    assert!(filters(&node));
    assert_eq!(vlans(&node, "hq1"), PortVlans::access(100));
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "x")));
    assert!(!filters(&node));
    // The same when the pod itself goes.
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "z")));
    assert!(filters(&node));
    node.hear(Event::SandboxGone(knit_model::SandboxId("a".to_owned())));
    assert!(!filters(&node));
}

#[test]
fn a_port_that_only_lets_tags_through_makes_no_bridge_filter() {
    let mut node = node();
    node.hear(Event::ObjectApplied(port("q", "x", None, "100")));
    assert!(!filters(&node));
    node.hear(Event::ObjectApplied(port("r", "y", Some(5), "")));
    assert_eq!(vlans(&node, "hq1"), PortVlans::trunk("100".parse().unwrap(), 1));
}

#[test]
fn the_bridges_object_has_the_first_word() {
    let mut node = node();
    let says = |filters: Option<bool>, default: Option<u16>| {
        let IntentSpec::Bridge(mut want) = bridge("br0", "10.1.0.0/24") else { unreachable!() };
        want.bridge.vlan_filtering = filters;
        want.bridge.default_pvid = default;
        want.port = filters
            .filter(|on| *on)
            .map(|_| BridgePortIntent { native: Some(9), ..BridgePortIntent::default() });
        object("Bridge", "cnf", "br0", vec![IntentSpec::Bridge(want)])
    };
    node.hear(Event::ObjectApplied(says(Some(false), None)));
    node.hear(Event::ObjectApplied(plain("p", "y")));
    let access = port("q", "x", Some(100), "");
    node.hear(Event::ObjectApplied(access));
    assert_eq!(
        node.problems("q"),
        ["spec.entries[0]: bridge br0 does not filter VLANs: its Bridge says `vlanFiltering: false`"]
    );
    assert!(node.host_link("hq1").is_none());

    node.hear(Event::ObjectApplied(says(Some(true), Some(5))));
    assert_eq!(node.problems("q"), Vec::<String>::new());
    assert_eq!(vlans(&node, "br0"), PortVlans::access(9));
    assert_eq!((vlans(&node, "hq1"), vlans(&node, "hp2")), (PortVlans::access(100), PortVlans::access(5)));
    // No default: a port that says nothing lets nothing through.
    node.hear(Event::ObjectApplied(says(Some(true), Some(0))));
    assert_eq!(vlans(&node, "hp2"), PortVlans::default());
}
