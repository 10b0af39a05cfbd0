//! Link counters, NICs and connected routes.

use std::collections::BTreeSet;

use knit_kernel::Netns;
use knit_kernel::connected_routes::{connected_routes, link_by_address};
use knit_kernel::counters::link_counters;
use knit_kernel::nics::nics;
use knit_model::NetState;

use crate::support::node::TestNode;
use crate::support::states::{add_bridge, add_veth, name};

fn node(test: &str) -> TestNode {
    let node = TestNode::new(test, &["a", "b"]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24"]);
    node.converge(&state);
    node
}

#[test]
fn link_traffic_is_counted_in_its_namespace() {
    let node = node("counters");
    let netns = Netns::open(node.sandboxes[0].path()).unwrap();
    let cookie = netns.cookie().unwrap();
    let count = || link_counters(&netns, cookie).unwrap().unwrap()[&name("net1")];
    let before = count();
    node.sandboxes[0].output("ping", &["-c", "3", "-i", "0.01", "-s", "1000", "10.50.0.3"]).unwrap();
    let after = count();
    for (before, after) in [(before.rx, after.rx), (before.tx, after.tx)] {
        assert!(after.packets >= before.packets + 3, "{before:?} {after:?}");
        assert!(after.bytes >= before.bytes + 3_000, "{before:?} {after:?}");
        assert_eq!(after.errors, 0);
    }
    assert_eq!(link_counters(&netns, cookie + 1).unwrap(), None, "another namespace");
}

#[test]
fn virtual_links_are_nics_only_if_named() {
    let node = node("nics");
    let host = Netns::open(node.host.path()).unwrap();
    assert_eq!(nics(&host, &BTreeSet::new()).unwrap(), []);
    let all = nics(&host, &BTreeSet::from([name("br0"), name("none")])).unwrap();
    let [bridge] = &all[..] else { panic!("{all:?}") };
    assert_eq!((bridge.name.as_str(), bridge.mtu, bridge.up), ("br0", 1500, true));
    assert!(bridge.mac.is_some());
}

#[test]
fn connected_routes_and_the_link_of_an_address() {
    let node = node("routes");
    let netns = Netns::open(node.sandboxes[0].path()).unwrap();
    node.sandboxes[0].output("ip", &["route", "add", "10.60.0.0/16", "via", "10.50.0.1"]).unwrap();
    let routes = connected_routes(&netns).unwrap();
    let link_for = |address: &str| routes.link_for(address.parse().unwrap()).cloned();
    assert_eq!(link_for("10.50.0.3"), Some(name("net1")));
    assert_eq!([link_for("10.60.7.7"), link_for("10.70.0.1"), link_for("2001:db8::1")], [None, None, None]);
    assert_eq!(link_by_address(&netns, "10.50.0.2".parse().unwrap()).unwrap(), Some(name("net1")));
    assert_eq!(
        link_by_address(&netns, "10.50.0.3".parse().unwrap()).unwrap(),
        None,
        "it belongs to another pod"
    );
}
