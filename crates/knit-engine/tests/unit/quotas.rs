//! Namespace quotas: nothing new beyond the quota, and nothing existing is deleted because of it.

use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::IntentSpec;
use knit_model::quota::{QuotaIntent, ResourceCounts};

use crate::support::node::{Node, key, object, sandbox, veth};

fn quota(interfaces: u64, addresses: u64, bridges: u64) -> StoredObject {
    let intent =
        QuotaIntent { interfaces: Some(interfaces), addresses: Some(addresses), bridges: Some(bridges) };
    object("NetworkQuota", "shop", "most", vec![IntentSpec::Quota(intent)])
}

fn counts(interfaces: u64, addresses: u64, bridges: u64) -> ResourceCounts {
    ResourceCounts { interfaces, addresses, bridges }
}

/// An object that gives each of two pods an interface.
fn network(name: &str, bridge: &str) -> StoredObject {
    object("Veth", "shop", name, vec![veth("x", name, bridge, "10.0.0.0/24")])
}

fn node() -> Node {
    let mut node = Node::with_kernel(NetState::default());
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 8, "shop", "x")));
    node
}

#[test]
fn file_quota_applies_to_this_node_and_deletion_frees_it() {
    let mut node = node();
    node.handle(Event::ObjectApplied(quota(3, 9, 9)));
    let (first, second) = (network("one", "br0"), network("two", "br0"));
    node.handle(Event::ObjectApplied(first.clone()));
    node.handle(Event::ObjectApplied(second.clone()));
    assert_eq!(node.state.used_by("shop"), counts(3, 3, 1));
    assert_eq!(node.state.denied_to("shop"), counts(1, 1, 0));
    let problems = node.problems("two");
    let expected =
        "namespace shop may have 3 interfaces on this node (networkquota most): 1 more would exceed it";
    assert!(problems.len() == 1 && problems[0].ends_with(expected), "{problems:?}");
    // Another namespace is not affected.
    node.handle(Event::SandboxUpdated(sandbox("c", 9, "other", "x")));
    node.handle(Event::ObjectApplied(object(
        "Veth",
        "other",
        "far",
        vec![veth("x", "far", "br1", "10.9.0.0/24")],
    )));
    assert_eq!(node.problems("far"), Vec::<String>::new());

    node.handle(Event::ObjectDeleted(key(&first)));
    assert_eq!(node.problems("two"), Vec::<String>::new());
    assert_eq!(
        (node.state.used_by("shop"), node.state.denied_to("shop")),
        (counts(2, 2, 1), counts(0, 0, 0))
    );
}

#[test]
fn existing_interfaces_survive_a_lowered_quota() {
    let mut node = node();
    node.handle(Event::ObjectApplied(network("one", "br0")));
    node.handle(Event::ObjectApplied(quota(0, 0, 0)));
    node.handle(Event::Resync);
    assert_eq!(node.problems("one"), Vec::<String>::new());
    assert_eq!(node.state.used_by("shop"), counts(2, 2, 1));
    // One address more exceeds the quota; the interface and its address are kept.
    let mut more = network("one", "br0");
    let IntentSpec::Interface(intent) = &mut more.intents[0].spec else { unreachable!() };
    intent.ranges.push("10.1.0.0/24".parse().unwrap());
    more.object.generation = 2;
    node.handle(Event::ObjectApplied(more));
    assert_eq!(node.problems("one").len(), 2, "one per pod");
    assert_eq!(node.state.used_by("shop"), counts(2, 2, 1));
    assert!(node.link("a", "one7").is_some());

    node.handle(Event::ObjectDeleted(key(&quota(0, 0, 0))));
    assert_eq!(node.state.used_by("shop"), counts(2, 4, 1));
}

#[test]
fn bridge_beyond_the_quota_is_rejected_with_its_interfaces() {
    let mut node = node();
    node.handle(Event::ObjectApplied(quota(9, 9, 1)));
    node.handle(Event::ObjectApplied(network("one", "br0")));
    let second = network("two", "br1");
    node.handle(Event::ObjectApplied(second.clone()));
    assert!(node.host_link("br0").is_some() && node.host_link("br1").is_none());
    let problems = node.problems("two");
    assert!(
        problems.iter().all(|problem| problem.contains("shop may have 1 bridges on this node")),
        "{problems:?}"
    );
    node.handle(Event::ObjectApplied(quota(9, 9, 2)));
    assert!(node.host_link("br1").is_some(), "{:?}", node.problems("two"));
    assert_eq!(node.problems("two"), Vec::<String>::new());
}
