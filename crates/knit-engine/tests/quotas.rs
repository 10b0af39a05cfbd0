//! Quotas of namespaces: nothing new beyond them, and nothing that is there goes because of them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::IntentSpec;
use knit_model::provenance::Dialect;
use knit_model::quota::{Counts, QuotaIntent};
use support::node::{Node, key, object, sandbox, veth};

fn quota(interfaces: u64, addresses: u64, bridges: u64) -> StoredObject {
    let want =
        QuotaIntent { interfaces: Some(interfaces), addresses: Some(addresses), bridges: Some(bridges) };
    object("NetworkQuota", "shop", "most", vec![IntentSpec::Quota(want)])
}

fn counts(interfaces: u64, addresses: u64, bridges: u64) -> Counts {
    Counts { interfaces, addresses, bridges }
}

/// An object that gives each of two pods an interface.
fn network(name: &str, bridge: &str) -> StoredObject {
    object("Veth", "shop", name, vec![veth("x", name, bridge, "10.0.0.0/24")])
}

fn node() -> Node {
    let mut node = Node::holding(NetState::default());
    node.hear(Event::SandboxSeen(sandbox("a", 7, "shop", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 8, "shop", "x")));
    node
}

#[test]
fn a_quota_of_a_file_is_the_nodes_own_and_what_goes_makes_room() {
    let mut node = node();
    node.hear(Event::ObjectApplied(quota(3, 9, 9)));
    let (first, second) = (network("one", "br0"), network("two", "br0"));
    node.hear(Event::ObjectApplied(first.clone()));
    node.hear(Event::ObjectApplied(second.clone()));
    assert_eq!(node.state.used_by("shop"), counts(3, 3, 1));
    assert_eq!(node.state.refused_to("shop"), counts(1, 1, 0));
    let words = node.problems("two");
    let said =
        "namespace shop may have 3 interfaces on this node (networkquota most), and 1 more would be too many";
    assert!(words.len() == 1 && words[0].ends_with(said), "{words:?}");
    // Another namespace is not concerned.
    node.hear(Event::SandboxSeen(sandbox("c", 9, "other", "x")));
    node.hear(Event::ObjectApplied(object(
        "Veth",
        "other",
        "far",
        vec![veth("x", "far", "br1", "10.9.0.0/24")],
    )));
    assert_eq!(node.problems("far"), Vec::<String>::new());

    node.hear(Event::ObjectDeleted(key(&first)));
    assert_eq!(node.problems("two"), Vec::<String>::new());
    assert_eq!(
        (node.state.used_by("shop"), node.state.refused_to("shop")),
        (counts(2, 2, 1), counts(0, 0, 0))
    );
}

#[test]
fn what_is_there_stays_when_the_quota_is_lowered() {
    let mut node = node();
    node.hear(Event::ObjectApplied(network("one", "br0")));
    node.hear(Event::ObjectApplied(quota(0, 0, 0)));
    node.hear(Event::Resync);
    assert_eq!(node.problems("one"), Vec::<String>::new());
    assert_eq!(node.state.used_by("shop"), counts(2, 2, 1));
    // One more address than it has is too many; the interface and its address stay.
    let mut more = network("one", "br0");
    let IntentSpec::Interface(want) = &mut more.intents[0].spec else { unreachable!() };
    want.ranges.push("10.1.0.0/24".parse().unwrap());
    more.object.generation = 2;
    node.hear(Event::ObjectApplied(more));
    assert_eq!(node.problems("one").len(), 2, "one for each pod");
    assert_eq!(node.state.used_by("shop"), counts(2, 2, 1));
    assert!(node.link("a", "one7").is_some());

    node.hear(Event::ObjectDeleted(key(&quota(0, 0, 0))));
    assert_eq!(node.state.used_by("shop"), counts(2, 4, 1));
}

#[test]
fn a_bridge_too_many_is_refused_with_what_would_be_on_it() {
    let mut node = node();
    node.hear(Event::ObjectApplied(quota(9, 9, 1)));
    node.hear(Event::ObjectApplied(network("one", "br0")));
    let second = network("two", "br1");
    node.hear(Event::ObjectApplied(second.clone()));
    assert!(node.host_link("br0").is_some() && node.host_link("br1").is_none());
    let words = node.problems("two");
    assert!(words.iter().all(|words| words.contains("shop may have 1 bridges on this node")), "{words:?}");
    node.hear(Event::ObjectApplied(quota(9, 9, 2)));
    assert!(node.host_link("br1").is_some(), "{:?}", node.problems("two"));
    assert_eq!(node.problems("two"), Vec::<String>::new());
}

#[test]
fn of_a_quota_for_all_nodes_nothing_new_is_used_before_it_was_claimed() {
    let mut node = node();
    let mut shared = quota(100, 100, 100);
    shared.intents[0].origin.dialect = Dialect::Kubernetes;
    node.hear(Event::ObjectApplied(shared.clone()));
    node.hear(Event::ObjectApplied(network("one", "br0")));
    assert_eq!(node.state.used_by("shop"), counts(0, 0, 0));
    assert_eq!(node.state.refused_to("shop").bridges, 1);
    let allow = |node: &mut Node, counts| node.hear(Event::Allowed { quota: key(&shared), counts });
    allow(&mut node, counts(0, 0, 1));
    assert_eq!(node.state.used_by("shop"), counts(0, 0, 1));
    allow(&mut node, counts(1, 1, 1));
    assert_eq!(
        (node.state.used_by("shop"), node.state.refused_to("shop")),
        (counts(1, 1, 1), counts(1, 1, 0))
    );
    allow(&mut node, counts(2, 2, 1));
    assert_eq!(
        (node.state.used_by("shop"), node.state.refused_to("shop")),
        (counts(2, 2, 1), counts(0, 0, 0))
    );
    assert_eq!(node.problems("one"), Vec::<String>::new());
    // What is there stays, whatever is allowed by now.
    allow(&mut node, counts(0, 0, 0));
    node.hear(Event::Resync);
    assert_eq!(node.state.used_by("shop"), counts(2, 2, 1));
}
