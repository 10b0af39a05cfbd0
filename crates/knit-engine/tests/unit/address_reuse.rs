//! An address is reused once the interface of its previous pod is deleted, and not before.

use knit_engine::{Event, Record, Unit};
use knit_model::SandboxId;

use crate::support::node::{Node, object, sandbox, veth, with_eth0};

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// Two pods that request the only address of a range; the first has it.
fn two_pods_one_address() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    let links = object("Veth", "shop", "net", vec![veth("x", "net", "br0", "10.0.0.0/30")]);
    node.handle(Event::ObjectApplied(links));
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 8, "shop", "x")));
    assert!(node.problems("net")[0].contains("exhausted"), "{:?}", node.problems("net"));
    node
}

fn has_address(node: &Node, pod: &str) -> bool {
    node.state.leases.iter().any(|(_, _, lease)| lease.is_live() && lease.owner.sandbox == id(pod))
}

#[test]
fn next_pod_gets_the_address_once_the_previous_interface_is_deleted() {
    let mut node = two_pods_one_address();
    let before = node.journal.len();
    node.handle(Event::SandboxRemoved(id("a")));
    assert_eq!(node.problems("net"), [""; 0]);
    assert!(has_address(&node, "b") && !has_address(&node, "a"));
    let position = |is_it: &dyn Fn(&Record) -> bool| node.journal[before..].iter().position(is_it).unwrap();
    let deleted = position(
        &|record| matches!(record, Record::ChangeEnded(ended) if ended.unit == Unit::Sandbox(id("a"))),
    );
    let allocated =
        position(&|record| matches!(record, Record::ChangeStarted(began) if !began.leases.is_empty()));
    assert!(deleted < allocated, "{:?}", &node.journal[before..]);
    assert_eq!(node.replayed().persistent(), node.state.persistent());
}

#[test]
fn address_is_kept_while_the_interface_cannot_be_deleted() {
    let mut node = two_pods_one_address();
    node.failing_unit = Some("sandbox a".to_owned());
    node.handle(Event::SandboxRemoved(id("a")));
    assert!(has_address(&node, "a") && !has_address(&node, "b"));
    assert!(node.problems("net").iter().any(|problem| problem.contains("exhausted")));
    node.failing_unit = None;
    node.handle(Event::Resync);
    assert!(has_address(&node, "b") && !has_address(&node, "a"));
}
