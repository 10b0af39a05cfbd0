//! Limits of links: made with the link, changed and taken away while it lives, taken back after any fault.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod faults;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_model::link::{Limit, Rate};
use knit_model::{NetState, Scope};
use support::faults::survive_every_fault;
use support::states::{add_bridge, add_veth, name};
use support::world::{World, sandbox};

/// A pair of which each end has a limit, or says that it has none.
fn limited(host: Option<u64>, pod: Option<u64>) -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let limit =
        |bits: Option<u64>| Some(bits.map_or(Limit::Nothing, |bits| Limit::To(Rate::new(bits, None, 1500))));
    state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.limit = limit(host);
    state.scope(&sandbox("a")).links.get_mut(&name("net1")).unwrap().attrs.limit = limit(pod);
    state
}

#[test]
fn limits_are_made_changed_and_taken_away_whatever_fails() {
    let world = World::new("limits", &["a"]);
    let (both, other, none) =
        (limited(Some(10_000_000), Some(5_000_000)), limited(Some(64_000), None), limited(None, None));
    survive_every_fault(&world, &world.plan(&both), Deletes::Now);
    world.make(&both);
    let shown = world.host.output("tc", &["qdisc", "show", "dev", "ha"]).unwrap();
    assert!(shown.contains("qdisc tbf 7500: root") && shown.contains("rate 10Mbit burst 28Kb"), "{shown}");
    let shown = world.sandboxes[0].output("tc", &["qdisc", "show", "dev", "net1"]).unwrap();
    assert!(shown.contains("qdisc tbf 7500: root") && shown.contains("rate 5Mbit burst 16Kb"), "{shown}");

    let plan = world.plan(&other);
    let text = plan.to_string();
    assert!(text.contains("limit.bits: 10000000 -> 64000"), "{text}");
    assert!(text.contains("limit: (bits 5000000 burst 16384) -> nothing"), "{text}");
    survive_every_fault(&world, &plan, Deletes::Now);
    world.make(&other);
    survive_every_fault(&world, &world.plan(&none), Deletes::Now);
    world.make(&none);
    let shown = world.host.output("tc", &["qdisc", "show", "dev", "ha"]).unwrap();
    assert!(!shown.contains("tbf"), "{shown}");
    survive_every_fault(&world, &world.plan(&both), Deletes::Now);
    world.make(&both);
    survive_every_fault(&world, &world.plan(&NetState::default()), Deletes::Now);
}

#[test]
fn every_rate_is_told_back_as_it_was_asked_for() {
    let world = World::new("rates", &["a"]);
    for bits in [1_000, 64_000, 1_000_001, 999_999_999, 10_000_000_000, 123_456_789_012, u64::MAX] {
        world.make(&limited(Some(bits), Some(bits)));
    }
    let mut state = limited(Some(1_000_000), None);
    for burst in [1, 100_000, 10_000_000, u64::MAX] {
        let limit = Limit::To(Rate::new(1_000_000_000, Some(burst), 9_000));
        state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.limit = Some(limit);
        world.make(&state);
    }
}

#[test]
fn what_somebody_changes_is_seen_and_made_good_and_a_stranger_s_queue_stays() {
    let world = World::new("hand", &["a"]);
    let (both, none) = (limited(Some(10_000_000), Some(5_000_000)), limited(None, None));
    world.make(&both);
    let tc = |arguments: &[&str]| world.host.output("tc", arguments).unwrap();
    tc(&["qdisc", "del", "dev", "ha", "root"]);
    assert_eq!(world.make(&both).steps.len(), 1);
    tc(&[
        "qdisc", "change", "dev", "ha", "root", "handle", "7500:", "tbf", "rate", "1gbit", "burst", "1m",
        "latency", "9ms",
    ]);
    assert_eq!(world.make(&both).steps.len(), 1);
    // Another's queue in its place: what is asked for wins, and where nothing is asked for it stays.
    tc(&["qdisc", "replace", "dev", "ha", "root", "handle", "1:", "htb"]);
    assert_eq!(world.make(&both).steps.len(), 1);
    world.make(&none);
    tc(&[
        "qdisc", "replace", "dev", "ha", "root", "handle", "1:", "tbf", "rate", "1gbit", "burst", "1m",
        "latency", "9ms",
    ]);
    assert!(world.plan(&none).is_empty());
    // Taking back a limit that never came does not touch it either.
    let plan = world.plan(&both);
    assert_eq!(world.kernel().take_back(&plan, &mut world.places()), Vec::<String>::new());
    assert!(tc(&["qdisc", "show", "dev", "ha"]).contains("tbf 1: root"));
}
