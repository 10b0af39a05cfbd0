//! Extensions on networks that CNI plugins make: the same guarantees as on Knit's own.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "shared by several test programs")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod meshed;
    pub mod node;
    pub mod tasks;
}

use knit_engine::call::Which;
use knit_engine::extension::Phase;
use knit_engine::{Answer, Event};
use knit_model::SandboxId;
use knit_model::problem::Reason;
use support::meshed::{Meshed, Mood, spec};

/// More moments than such an attach has.
const MOMENTS: usize = 12;

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// A node with two extensions, `late` after `early`.
fn node() -> Meshed {
    let mut node = Meshed::new();
    node.register("late", spec("late", 20), "");
    node.register("early", spec("early", 10), "");
    node.answers.clear();
    node
}

#[test]
fn extensions_are_called_before_the_add_and_with_its_result_and_after_the_del() {
    let mut node = node();
    node.attach_plugged("1", "a", "eth0");
    while node.worlds["late"].called.is_empty() {
        assert!(node.plugged.is_empty(), "plugins run before every extension was called");
        assert!(node.work());
    }
    node.rest();
    assert_eq!(node.answer("1"), Answer::Chained);
    let after = node.worlds["early"].called.last().unwrap().clone();
    assert_eq!(after.phase, Phase::AfterAttach);
    assert_eq!(after.interfaces[0].addresses, ["10.9.0.2/24".parse().unwrap()]);
    // The same again calls nobody, and is answered.
    node.attach_plugged("2", "a", "eth0");
    node.rest();
    assert_eq!((node.answer("2"), node.calls_of("early").len()), (Answer::Chained, 2));
    assert_eq!(node.state.without_extension(&id("a"), "early"), None);
    node.detach("3", "a", Which::All);
    while !node.plugged.is_empty() {
        assert_eq!(node.calls_of("early").len(), 2, "told before the plugins were done");
        assert!(node.work());
    }
    node.rest();
    assert_eq!(node.answer("3"), Answer::Detached);
    let detached = node.worlds["early"].called.last().unwrap().clone();
    assert_eq!(detached.phase, Phase::AfterDetach);
    assert_eq!(detached.interfaces[0].addresses, ["10.9.0.2/24".parse().unwrap()]);
    assert_eq!(node.calls_of("late").len(), 3);
    node.assert_consistent();
    assert!(node.state.sandboxes.is_empty());
}

#[test]
fn one_that_fails_is_away_or_dies_has_the_del_run_and_nothing_is_left() {
    for mood in [Mood::Dies, Mood::Refuses, Mood::Away] {
        for moment in 0..MOMENTS {
            let mut node = node();
            node.attach_plugged("1", "a", "eth0");
            for _ in 0..moment {
                node.work();
            }
            if !node.answers.is_empty() {
                continue;
            }
            node.worlds.get_mut("late").unwrap().mood = mood;
            while node.work() {}
            let is_over = node.worlds["late"].called.iter().any(|one| one.phase == Phase::AfterAttach);
            match node.answer("1") {
                Answer::Failed(why) => assert_eq!(why.reason, Reason::ExtensionFailed),
                other => assert!(other == Answer::Chained && is_over, "{mood:?} at {moment}: {other:?}"),
            }
            node.assert_consistent();
        }
    }
}

#[test]
fn cancelled_detached_gone_or_crashed_at_any_moment_nothing_is_half_done() {
    for what in ["cancel", "detach", "crash", "gone"] {
        for moment in 0..MOMENTS {
            let mut node = node();
            node.attach_plugged("1", "a", "eth0");
            for _ in 0..moment {
                node.work();
            }
            let answered = !node.answers.is_empty();
            match what {
                "cancel" => node.cancel("1"),
                "detach" => node.detach("2", "a", Which::All),
                "gone" => node.tell(Event::SandboxGone(id("a"))),
                _ => node.crash(),
            }
            node.rest();
            let stays = answered && what == "crash";
            // Before the plugins run nobody knows the sandbox: its end is not seen.
            let unseen = what == "gone" && node.plugged.len() == 1;
            if !stays && !unseen {
                assert!(node.plugged.is_empty() && node.state.sandboxes.is_empty(), "{what} at {moment}");
                node.assert_consistent();
                assert!(node.worlds.values().all(|world| world.has.is_empty()), "{what} at {moment}");
            }
            node.assert_consistent();
        }
    }
}

#[test]
fn what_stands_stays_when_another_attach_of_the_same_pod_fails_or_is_cut_short() {
    for crash in [false, true] {
        let mut node = node();
        node.attach_plugged("1", "a", "net1");
        node.rest();
        assert_eq!(node.answer("1"), Answer::Chained);
        node.worlds.get_mut("late").unwrap().mood = Mood::Refuses;
        node.attach("2", "a", &["eth0"]);
        node.work();
        if crash {
            node.work();
            node.crash();
        }
        while node.work() {}
        if !crash {
            assert_eq!(node.refused("2").reason, Reason::ExtensionFailed);
        }
        node.assert_consistent();
        assert_eq!(node.plugged.len(), 1, "crash: {crash}");
        assert_eq!(node.worlds["early"].has.len(), 1);
    }
}

#[test]
fn a_del_that_fails_is_run_again_before_extensions_are_told() {
    let mut node = node();
    node.attach_plugged("1", "a", "eth0");
    node.rest();
    node.broken = true;
    node.detach("2", "a", Which::All);
    node.rest();
    assert_eq!((node.refused("2").reason, node.calls_of("late").len()), (Reason::KernelRefused, 2));
    node.broken = false;
    node.tell(Event::Resync);
    node.rest();
    assert_eq!(node.calls_of("late").len(), 3);
    node.assert_consistent();
}
