//! A small change observes links only, and everything when that is not enough.

use knit_engine::{Event, StoredObject};
use knit_model::intent::IntentSpec;
use knit_model::link::Attrs;

use crate::support::node::{Node, object, sandbox, scope, veth, with_eth0};

/// A veth with these attributes.
fn veth_object(attrs: Attrs) -> StoredObject {
    let mut intent = veth("x", "pc0", "pcbr0", "192.168.100.0/24");
    let IntentSpec::Interface(interface) = &mut intent else { panic!("veth() returns an interface") };
    interface.attrs = attrs;
    object("PodConfig", "cnf", "sample", vec![intent])
}

fn mtu(mtu: u32) -> Attrs {
    Attrs { mtu: Some(mtu), ..Attrs::default() }
}

/// A node with one pod that has the veth.
fn node() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    node.handle(Event::ObjectApplied(veth_object(mtu(1400))));
    assert_eq!(node.link("a", "pc07").unwrap().attrs.mtu, Some(1400));
    node
}

/// For each observation of the sandbox caused by an event, whether it covered links only.
fn observations(node: &mut Node, event: Event) -> Vec<bool> {
    node.links_only.clear();
    node.handle(event);
    std::mem::take(&mut node.links_only)
}

#[test]
fn attribute_change_observes_links_only() {
    let mut node = node();
    let before = node.kernel.observe();
    assert_eq!(observations(&mut node, Event::ObjectApplied(veth_object(mtu(1300)))), [true]);
    assert_eq!(node.link("a", "pc07").unwrap().attrs.mtu, Some(1300));
    assert_eq!(node.host_link("hpc07").unwrap().attrs.mtu, Some(1300));
    let after = node.kernel.observe();
    let rest = |state: &knit_model::NetState| {
        let sandbox = state.scopes[&scope("a")].clone();
        (sandbox.addresses, sandbox.routes, sandbox.sysctls)
    };
    assert_eq!(rest(&before), rest(&after));
    assert!(!rest(&after).0.is_empty());
    // And so does the next change.
    assert_eq!(observations(&mut node, Event::ObjectApplied(veth_object(mtu(1400)))), [true]);
}

#[test]
fn wider_change_observes_everything() {
    let up = Attrs { up: Some(false), ..mtu(1400) };
    let mac = Attrs { mac: Some("02:00:00:00:00:09".parse().unwrap()), ..mtu(1400) };
    // The kernel removes IPv6 from a link whose MTU is below 1280.
    for attrs in [up, mac, mtu(1200)] {
        assert_eq!(
            observations(&mut node(), Event::ObjectApplied(veth_object(attrs.clone()))),
            [false],
            "{attrs:?}"
        );
    }
    let mut routed = veth_object(mtu(1300));
    if let IntentSpec::Interface(intent) = &mut routed.intents[0].spec {
        intent.gateways.push("192.168.100.1".parse().unwrap());
    }
    assert_eq!(observations(&mut node(), Event::ObjectApplied(routed)), [false]);
    // A label without effect, and a resync.
    let mut labelled = sandbox("a", 7, "cnf", "x");
    labelled.labels.insert("more".to_owned(), "so".to_owned());
    assert_eq!(observations(&mut node(), Event::SandboxUpdated(labelled)), [false]);
    assert_eq!(observations(&mut node(), Event::Resync), [false]);
}

#[test]
fn after_a_failure_or_restart_everything_is_observed() {
    let mut node = node();
    node.failing_unit = Some("sandbox".to_owned());
    node.handle(Event::ObjectApplied(veth_object(mtu(1300))));
    node.failing_unit = None;
    assert_eq!(observations(&mut node, Event::ObjectApplied(veth_object(mtu(1290)))), [false]);
    node.state = node.replayed();
    assert_eq!(observations(&mut node, Event::ObjectApplied(veth_object(mtu(1300)))), [false]);
}

#[test]
fn deleted_or_downed_link_is_fully_restored() {
    for by_hand in [true, false] {
        let mut node = node();
        if by_hand {
            node.kernel.delete_link(&scope("a"), "pc07");
        } else {
            let mut kernel = node.kernel.observe();
            kernel.scope(&scope("a")).links.get_mut(&"pc07".parse().unwrap()).unwrap().attrs.up = Some(false);
            kernel.scope(&scope("a")).addresses.clear();
            node.kernel = crate::support::kernel::FakeKernel::with_state(kernel);
        }
        // Links alone do not show what else is missing.
        assert_eq!(observations(&mut node, Event::ObjectApplied(veth_object(mtu(1300)))), [true, false]);
        let link = node.link("a", "pc07").unwrap();
        assert_eq!((link.attrs.mtu, link.attrs.up), (Some(1300), Some(true)));
        assert_eq!(node.kernel.observe().scopes[&scope("a")].addresses.len(), 1);
    }
}
