//! A change of a field looks at links alone, and at everything when that is not enough.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
}

use knit_engine::{Event, StoredObject};
use knit_model::intent::IntentSpec;
use knit_model::link::Attrs;
use support::node::{Node, object, sandbox, scope, veth, with_eth0};

/// A veth with these attributes.
fn wish(attrs: Attrs) -> StoredObject {
    let mut want = veth("x", "pc0", "pcbr0", "192.168.100.0/24");
    let IntentSpec::Interface(interface) = &mut want else { panic!("a veth is an interface") };
    interface.attrs = attrs;
    object("PodConfig", "cnf", "sample", vec![want])
}

fn mtu(mtu: u32) -> Attrs {
    Attrs { mtu: Some(mtu), ..Attrs::default() }
}

/// A node with one pod that has the veth.
fn node() -> Node {
    let mut node = Node::holding(with_eth0(&["a"]));
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    node.hear(Event::ObjectApplied(wish(mtu(1400))));
    assert_eq!(node.link("a", "pc07").unwrap().attrs.mtu, Some(1400));
    node
}

/// Whether each look at the sandbox because of an event is at links alone.
fn looks(node: &mut Node, event: Event) -> Vec<bool> {
    node.links_only.clear();
    node.hear(event);
    std::mem::take(&mut node.links_only)
}

#[test]
fn a_change_of_a_field_looks_at_links_alone() {
    let mut node = node();
    let before = node.kernel.observe();
    assert_eq!(looks(&mut node, Event::ObjectApplied(wish(mtu(1300)))), [true]);
    assert_eq!(node.link("a", "pc07").unwrap().attrs.mtu, Some(1300));
    assert_eq!(node.host_link("hpc07").unwrap().attrs.mtu, Some(1300));
    let after = node.kernel.observe();
    let rest = |state: &knit_model::NetState| {
        let there = state.scopes[&scope("a")].clone();
        (there.addresses, there.routes, there.sysctls)
    };
    assert_eq!(rest(&before), rest(&after));
    assert!(!rest(&after).0.is_empty());
    // And the next one again, from there.
    assert_eq!(looks(&mut node, Event::ObjectApplied(wish(mtu(1400)))), [true]);
}

#[test]
fn whatever_may_touch_more_looks_at_everything() {
    let up = Attrs { up: Some(false), ..mtu(1400) };
    let mac = Attrs { mac: Some("02:00:00:00:00:09".parse().unwrap()), ..mtu(1400) };
    // IPv6 goes from a link that is too small for it.
    for attrs in [up, mac, mtu(1200)] {
        assert_eq!(looks(&mut node(), Event::ObjectApplied(wish(attrs.clone()))), [false], "{attrs:?}");
    }
    let mut routed = wish(mtu(1300));
    if let IntentSpec::Interface(want) = &mut routed.intents[0].spec {
        want.gateways.push("192.168.100.1".parse().unwrap());
    }
    assert_eq!(looks(&mut node(), Event::ObjectApplied(routed)), [false]);
    // A label that changes nothing, and a full comparison.
    let mut labelled = sandbox("a", 7, "cnf", "x");
    labelled.labels.insert("more".to_owned(), "so".to_owned());
    assert_eq!(looks(&mut node(), Event::SandboxSeen(labelled)), [false]);
    assert_eq!(looks(&mut node(), Event::Resync), [false]);
}

#[test]
fn after_a_failure_or_a_restart_nothing_is_known() {
    let mut node = node();
    node.broken = Some("sandbox".to_owned());
    node.hear(Event::ObjectApplied(wish(mtu(1300))));
    node.broken = None;
    assert_eq!(looks(&mut node, Event::ObjectApplied(wish(mtu(1290)))), [false]);
    node.state = node.replayed();
    assert_eq!(looks(&mut node, Event::ObjectApplied(wish(mtu(1300)))), [false]);
}

#[test]
fn a_link_that_is_gone_or_down_comes_back_whole() {
    for by_hand in [true, false] {
        let mut node = node();
        if by_hand {
            node.kernel.drop_link(&scope("a"), "pc07");
        } else {
            let mut kernel = node.kernel.observe();
            kernel.scope(&scope("a")).links.get_mut(&"pc07".parse().unwrap()).unwrap().attrs.up = Some(false);
            kernel.scope(&scope("a")).addresses.clear();
            node.kernel = support::kernel::Kernel::holding(kernel);
        }
        // Links alone do not tell what else is missing.
        assert_eq!(looks(&mut node, Event::ObjectApplied(wish(mtu(1300)))), [true, false]);
        let link = node.link("a", "pc07").unwrap();
        assert_eq!((link.attrs.mtu, link.attrs.up), (Some(1300), Some(true)));
        assert_eq!(node.kernel.observe().scopes[&scope("a")].addresses.len(), 1);
    }
}
