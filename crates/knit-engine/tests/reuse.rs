//! An address is the next one's once the last one's interface is cut off, and not before.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, Record, Unit};
use knit_model::SandboxId;
use support::node::{Node, object, sandbox, veth, with_eth0};

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// Two pods that want the only address of a range; the first has it.
fn two_for_one() -> Node {
    let mut node = Node::holding(with_eth0(&["a", "b"]));
    let links = object("Veth", "shop", "net", vec![veth("x", "net", "br0", "10.0.0.0/30")]);
    node.hear(Event::ObjectApplied(links));
    node.hear(Event::SandboxSeen(sandbox("a", 7, "shop", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 8, "shop", "x")));
    assert!(node.problems("net")[0].contains("exhausted"), "{:?}", node.problems("net"));
    node
}

fn has_address(node: &Node, pod: &str) -> bool {
    node.state.leases.iter().any(|(_, _, lease)| lease.is_live() && lease.owner.sandbox == id(pod))
}

#[test]
fn the_next_pod_has_an_address_when_the_last_one_is_cut_off() {
    let mut node = two_for_one();
    let before = node.journal.len();
    node.hear(Event::SandboxGone(id("a")));
    assert_eq!(node.problems("net"), [""; 0]);
    assert!(has_address(&node, "b") && !has_address(&node, "a"));
    let place = |is_it: &dyn Fn(&Record) -> bool| node.journal[before..].iter().position(is_it).unwrap();
    let cut_off =
        place(&|record| matches!(record, Record::Ended(ended) if ended.unit == Unit::Sandbox(id("a"))));
    let given = place(&|record| matches!(record, Record::Began(began) if !began.leases.is_empty()));
    assert!(cut_off < given, "{:?}", &node.journal[before..]);
    assert_eq!(node.replayed().remembered(), node.state.remembered());
}

#[test]
fn what_cannot_be_cut_off_keeps_its_address() {
    let mut node = two_for_one();
    node.broken = Some("sandbox a".to_owned());
    node.hear(Event::SandboxGone(id("a")));
    assert!(has_address(&node, "a") && !has_address(&node, "b"));
    assert!(node.problems("net").iter().any(|words| words.contains("exhausted")));
    node.broken = None;
    node.hear(Event::Resync);
    assert!(has_address(&node, "b") && !has_address(&node, "a"));
}
