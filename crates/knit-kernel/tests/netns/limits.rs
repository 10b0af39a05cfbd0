//! Rate limits: created with the link, changed and removed on the existing link, rolled back after any fault.

use knit_kernel::DeleteMode;
use knit_model::link::{RateLimit, TokenBucket};
use knit_model::{NetState, Scope};

use crate::support::faults::survive_every_fault;
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{add_bridge, add_veth, name};

/// A pair whose ends have these limits, or explicitly none.
fn limited(host: Option<u64>, pod: Option<u64>) -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let limit = |bits: Option<u64>| {
        Some(bits.map_or(RateLimit::Unlimited, |bits| RateLimit::Limited(TokenBucket::new(bits, None, 1500))))
    };
    state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.limit = limit(host);
    state.scope(&sandbox("a")).links.get_mut(&name("net1")).unwrap().attrs.limit = limit(pod);
    state
}

#[test]
fn limits_are_created_changed_and_removed_despite_faults() {
    let node = TestNode::new("limits", &["a"]);
    let (both, other, none) =
        (limited(Some(10_000_000), Some(5_000_000)), limited(Some(64_000), None), limited(None, None));
    survive_every_fault(&node, &node.plan(&both), DeleteMode::Immediate);
    node.converge(&both);
    let shown = node.host.output("tc", &["qdisc", "show", "dev", "ha"]).unwrap();
    assert!(shown.contains("qdisc tbf 7500: root") && shown.contains("rate 10Mbit burst 28Kb"), "{shown}");
    let shown = node.sandboxes[0].output("tc", &["qdisc", "show", "dev", "net1"]).unwrap();
    assert!(shown.contains("qdisc tbf 7500: root") && shown.contains("rate 5Mbit burst 16Kb"), "{shown}");

    let plan = node.plan(&other);
    let text = plan.to_string();
    assert!(text.contains("limit.bits: 10000000 -> 64000"), "{text}");
    assert!(text.contains("limit: (bits 5000000 burst 16384) -> none"), "{text}");
    survive_every_fault(&node, &plan, DeleteMode::Immediate);
    node.converge(&other);
    survive_every_fault(&node, &node.plan(&none), DeleteMode::Immediate);
    node.converge(&none);
    let shown = node.host.output("tc", &["qdisc", "show", "dev", "ha"]).unwrap();
    assert!(!shown.contains("tbf"), "{shown}");
    survive_every_fault(&node, &node.plan(&both), DeleteMode::Immediate);
    node.converge(&both);
    survive_every_fault(&node, &node.plan(&NetState::default()), DeleteMode::Immediate);
}

#[test]
fn every_rate_is_observed_as_configured() {
    let node = TestNode::new("rates", &["a"]);
    for bits in [1_000, 64_000, 1_000_001, 999_999_999, 10_000_000_000, 123_456_789_012, u64::MAX] {
        node.converge(&limited(Some(bits), Some(bits)));
    }
    let mut state = limited(Some(1_000_000), None);
    for burst in [1, 100_000, 10_000_000, u64::MAX] {
        let limit = RateLimit::Limited(TokenBucket::new(1_000_000_000, Some(burst), 9_000));
        state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.limit = Some(limit);
        node.converge(&state);
    }
}

#[test]
fn drift_is_repaired_and_a_foreign_qdisc_is_kept() {
    let node = TestNode::new("hand", &["a"]);
    let (both, none) = (limited(Some(10_000_000), Some(5_000_000)), limited(None, None));
    node.converge(&both);
    let tc = |arguments: &[&str]| node.host.output("tc", arguments).unwrap();
    tc(&["qdisc", "del", "dev", "ha", "root"]);
    assert_eq!(node.converge(&both).steps.len(), 1);
    tc(&[
        "qdisc", "change", "dev", "ha", "root", "handle", "7500:", "tbf", "rate", "1gbit", "burst", "1m",
        "latency", "9ms",
    ]);
    assert_eq!(node.converge(&both).steps.len(), 1);
    // A foreign qdisc is replaced by a desired limit, and kept where none is desired.
    tc(&["qdisc", "replace", "dev", "ha", "root", "handle", "1:", "htb"]);
    assert_eq!(node.converge(&both).steps.len(), 1);
    node.converge(&none);
    tc(&[
        "qdisc", "replace", "dev", "ha", "root", "handle", "1:", "tbf", "rate", "1gbit", "burst", "1m",
        "latency", "9ms",
    ]);
    assert!(node.plan(&none).is_empty());
    // Rolling back a limit that was never applied does not touch it either.
    let plan = node.plan(&both);
    assert_eq!(node.kernel().roll_back(&plan, &mut node.namespaces()), Vec::<String>::new());
    assert!(tc(&["qdisc", "show", "dev", "ha"]).contains("tbf 1: root"));
}
