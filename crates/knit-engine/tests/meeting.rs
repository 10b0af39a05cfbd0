//! What the engine decides where names, ranges and links below meet, with a kernel made of plain data.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
}

use knit_engine::Event;
use knit_model::Scope;
use knit_model::intent::{IntentSpec, NetworkIntent};
use support::node::{Node, key, object, sandbox, scope, veth, with_eth0};

fn sample(name: &str, label: &str) -> knit_engine::StoredObject {
    object("PodConfig", "cnf", name, vec![veth(label, "pc0", "pcbr0", "192.168.100.0/24")])
}

fn two_pods() -> Node {
    let mut node = Node::holding(with_eth0(&["a", "b"]));
    node.hear(Event::SandboxSeen(sandbox("a", 2_841_804, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 2_841_798, "cnf", "x")));
    node
}

#[test]
fn host_ends_of_the_same_name_are_told_apart_and_keep_their_names() {
    let mut node = Node::holding(with_eth0(&["a", "b"]));
    node.hear(Event::SandboxSeen(sandbox("a", 12, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 2, "cnf", "y")));
    let (first, second) = (
        object("PodConfig", "cnf", "first", vec![veth("x", "pc", "br0", "10.0.0.0/24")]),
        object("PodConfig", "cnf", "second", vec![veth("y", "pc1", "br0", "10.0.0.0/24")]),
    );
    node.hear(Event::ObjectApplied(first.clone()));
    node.hear(Event::ObjectApplied(second.clone()));
    assert_eq!((node.problems("first"), node.problems("second")), (vec![], vec![]));
    let peer = |node: &Node| {
        let report = node.state.report(&key(&second)).unwrap();
        report.pods[0].interfaces[0].peer.clone().unwrap()
    };
    let derived = peer(&node);
    assert!(derived.as_str().starts_with("knit"), "{derived}");
    assert!(node.host_link("hpc12").is_some() && node.host_link(derived.as_str()).is_some());
    // The name is free now, but a new name would be a new pair.
    node.hear(Event::ObjectDeleted(key(&first)));
    let steps = node.steps;
    node.hear(Event::Resync);
    assert_eq!((peer(&node), node.steps), (derived, steps));
    assert!(node.host_link("hpc12").is_none());
}

#[test]
fn names_are_told_apart_also_when_all_are_made_at_once() {
    let mut node = Node::holding(with_eth0(&["a", "b", "c"]));
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "o",
        vec![veth("x", "pc", "br0", "10.0.0.0/24"), veth("y", "pc1", "br0", "10.0.0.0/24")],
    )));
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "other",
        "o",
        vec![veth("x", "pc", "br0", "10.0.0.0/24")],
    )));
    // The sandboxes are known, and nothing is made yet: a start with the journal's tail lost.
    for sandbox in [sandbox("a", 12, "cnf", "x"), sandbox("b", 2, "cnf", "y"), sandbox("c", 3, "other", "x")]
    {
        node.state.record(&knit_engine::Record::SandboxSeen(sandbox));
    }
    node.hear(Event::Resync);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    let mut names: Vec<_> = node.state.made.values().flat_map(|made| &made.host_links).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5, "two bridges and three ends: {names:?}");
}

#[test]
fn a_network_that_moves_to_another_bridge_takes_its_address_along() {
    let mut node = two_pods();
    let on = |bridge: &str| object("Veth", "cnf", "net", vec![veth("x", "n", bridge, "10.0.0.0/24")]);
    node.hear(Event::ObjectApplied(on("br1")));
    node.hear(Event::ObjectApplied(on("br2")));
    let report = node.state.report(&key(&on("br2"))).unwrap();
    assert_eq!(report.bridges[0].addresses[0].to_string(), "10.0.0.1/24");
    assert_eq!(report.warnings, Vec::<String>::new());
    assert!(node.host_link("br1").is_none());
}

#[test]
fn an_interface_made_again_as_another_kind_has_its_sysctls_again() {
    let mut node = two_pods();
    let ra = |node: &Node| {
        let state = node.kernel.observe();
        state.scopes[&scope("a")].sysctls.get("net/ipv6/conf/n2841804/accept_ra").cloned()
    };
    let kind = |parent: Option<&str>| {
        let IntentSpec::Interface(mut want) = veth("x", "n", "br1", "10.0.0.0/24") else { unreachable!() };
        if let Some(parent) = parent {
            want.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
            (want.parent, want.master) = (Some(parent.to_owned()), None);
        }
        object("Veth", "cnf", "net", vec![IntentSpec::Interface(want)])
    };
    node.hear(Event::ObjectApplied(kind(None)));
    assert_eq!(ra(&node).as_deref(), Some("0"));
    let mut changed = kind(None);
    let IntentSpec::Interface(want) = &mut changed.intents[0].spec else { unreachable!() };
    want.sysctls = [("ipv6/accept_ra".to_owned(), "2".to_owned())].into();
    node.hear(Event::ObjectApplied(changed));
    assert_eq!(ra(&node).as_deref(), Some("2"));
    node.hear(Event::ObjectApplied(kind(Some("eth0"))));
    assert_eq!(node.problems("net"), Vec::<String>::new());
    assert_eq!(ra(&node).as_deref(), Some("0"));
    assert!(node.state.held.is_empty(), "nothing of Knit's own is given back: {:?}", node.state.held);
    // What sits on another link is as large as that one.
    assert_eq!(node.link("a", "n2841804").unwrap().attrs.mtu, Some(1450));
    // A parent that is not there is said, what was there goes, and nothing else is held up.
    node.hear(Event::ObjectApplied(kind(Some("eth9"))));
    let said = node.problems("net");
    assert!(
        said[0].contains("link n2841804 has nothing to sit on: there is no link eth9 on sandbox a"),
        "{said:?}"
    );
    assert!(node.link("a", "n2841804").is_none());
}

#[test]
fn a_macvlan_on_a_macvlan_sits_where_the_kernel_puts_it() {
    let mut node = two_pods();
    let macvlan = |prefix: &str, parent: &str| {
        let IntentSpec::Interface(mut want) = veth("x", prefix, "br1", "10.0.0.0/24") else { unreachable!() };
        want.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
        (want.parent, want.master) = (Some(parent.to_owned()), None);
        IntentSpec::Interface(want)
    };
    node.hear(Event::ObjectApplied(object(
        "Macvlan",
        "cnf",
        "tower",
        vec![macvlan("t", "l"), macvlan("l", "eth0")],
    )));
    assert_eq!(node.problems("tower"), Vec::<String>::new());
    let top = node.link("a", "t2841804").unwrap();
    assert_eq!(top.kind.parent().unwrap().as_str(), "eth0");
}

#[test]
fn a_network_that_comes_after_its_interfaces_reaches_their_bridge() {
    let mut node = two_pods();
    let IntentSpec::Interface(mut want) = veth("x", "n", "vn-blue", "10.0.0.0/24") else { unreachable!() };
    (want.ranges, want.network) = (Vec::new(), Some("blue".to_owned()));
    node.hear(Event::ObjectApplied(object("Veth", "cnf", "net", vec![IntentSpec::Interface(want)])));
    assert!(node.problems("net")[0].contains("there is no VirtualNetwork blue"));
    let blue = |isolated| {
        let ranges = vec!["10.0.0.0/24".parse().unwrap()];
        let want = NetworkIntent { name: "blue".to_owned(), ranges, isolated, mtu: None, span: None };
        object("VirtualNetwork", "cnf", "blue", vec![IntentSpec::Network(want)])
    };
    for isolated in [false, true, false] {
        node.hear(Event::ObjectApplied(blue(isolated)));
        let steps = node.steps;
        node.hear(Event::Resync);
        assert_eq!(node.steps, steps, "nothing was left to do");
        let host = &node.kernel.observe().scopes[&Scope::Host];
        assert_eq!(host.addresses.len(), usize::from(!isolated));
    }
}

#[test]
fn an_address_of_an_interface_that_could_not_be_made_is_free_again() {
    let mut node = two_pods();
    let both = |range: &str| {
        let IntentSpec::Interface(mut want) = veth("x", "t", "t0", "10.0.0.0/24") else { unreachable!() };
        want.ranges.push(range.parse().unwrap());
        object("PodConfig", "cnf", "tiny", vec![IntentSpec::Interface(want)])
    };
    node.hear(Event::ObjectApplied(both("10.9.0.0/30")));
    // The second pod has an address of the first range and none of the second.
    assert!(node.problems("tiny")[0].contains("10.9.0.0/30 is exhausted"), "{:?}", node.problems("tiny"));
    assert_eq!(node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 2);
    assert_eq!(node.replayed(), node.state.remembered());
}

#[test]
fn what_cannot_be_taken_away_is_told_and_tried_again() {
    let mut node = two_pods();
    let before = node.kernel.observe();
    let object = sample("sample-a", "x");
    node.hear(Event::ObjectApplied(object.clone()));
    node.broken = Some("sandbox a".to_owned());
    node.hear(Event::ObjectDeleted(key(&object)));
    let told: Vec<_> =
        node.state.problems.values().flatten().map(|(object, _)| object.name.as_str()).collect();
    assert_eq!(told, ["sample-a"]);
    node.broken = None;
    node.hear(Event::Resync);
    assert_eq!(node.kernel.observe(), before);
    assert!(node.state.problems.is_empty());
}
