//! Extensions: who is called when, what a failure means, and what is left after a crash at any moment.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "shared by several test programs")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod meshed;
    pub mod node;
    pub mod tasks;
}

use std::collections::BTreeSet;

use knit_engine::call::Which;
use knit_engine::extension::{FailPolicy, Outcome, Phase};
use knit_engine::{Answer, Event};
use knit_model::SandboxId;
use knit_model::intent::{IntentSpec, RequiredExtensionsIntent};
use knit_model::problem::Reason;
use proptest::prelude::*;
use support::meshed::{Meshed, Mood, PODS, spec};
use support::node::object;

/// More moments than an attach with two extensions has.
const MOMENTS: usize = 16;

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// A node with two extensions, `late` after `early`.
fn node() -> Meshed {
    let mut node = Meshed::new();
    node.register("late", spec("late", 20), "");
    node.register("early", spec("early", 10), "");
    for (name, generation) in [("late", 1), ("early", 2)] {
        let expected =
            Answer::Registered { name: name.to_owned(), generation, new_token: true, changed: true };
        assert_eq!(node.answer(name), expected);
    }
    node
}

#[test]
fn every_attach_calls_them_in_order_and_each_is_told_what_the_others_said() {
    let mut node = node();
    node.attach("1", "a", &["eth0", "net1"]);
    assert!(node.answers.is_empty());
    node.rest();
    node.attached("1");
    let both = ["before-attach a eth0,net1", "after-attach a eth0,net1"];
    assert_eq!(
        (node.calls_of("early"), node.calls_of("late")),
        (both.map(String::from).into(), both.map(String::from).into())
    );
    let last = node.worlds["late"].called.last().unwrap();
    let said: Vec<String> =
        last.earlier.iter().map(|receipt| format!("{} {}", receipt.extension, receipt.phase)).collect();
    assert_eq!(said, ["early before-attach", "late before-attach", "early after-attach"]);
    assert_eq!(last.earlier[2].data().unwrap()["by"], "early");
    assert_eq!(last.interfaces[0].addresses.len(), 1, "the addresses are told");
    assert_eq!(last.sandbox.netns, "/a");

    // What goes is told to the last one first, interface by interface.
    node.detach("2", "a", Which::These(["net1".parse().unwrap()].into()));
    node.rest();
    assert_eq!(node.answer("2"), Answer::Detached);
    assert_eq!(node.calls_of("early").last().unwrap(), "after-detach a net1");
    let receipts: Vec<usize> =
        node.state.extensions.receipts(&id("a")).map(|receipt| receipt.interfaces.len()).collect();
    assert_eq!(receipts, [1; 4]);
    node.detach("3", "a", Which::All);
    node.rest();
    assert_eq!(node.calls_of("early").last().unwrap(), "after-detach a eth0");
    assert_eq!(node.worlds["early"].called.last().unwrap().interfaces[0].addresses.len(), 1);
    assert_eq!(node.state.extensions.receipts(&id("a")).count(), 0);
    node.assert_consistent();
}

#[test]
fn one_that_fails_is_away_or_dies_fails_the_attach_and_nothing_is_left() {
    for mood in [Mood::Refuses, Mood::Away, Mood::Dies] {
        for name in ["early", "late"] {
            let mut node = node();
            node.worlds.get_mut(name).unwrap().mood = mood;
            node.attach("1", "a", &["eth0"]);
            node.rest();
            let why = node.refused("1");
            assert_eq!(why.reason, Reason::ExtensionFailed, "{why}");
            assert!(why.message.contains(name), "{why}");
            assert!(node.state.sandboxes.is_empty() && node.state.called.all().next().is_none());
            node.assert_consistent();
            assert!(node.worlds.values().all(|world| world.has.is_empty()));
            node.attach("2", "a", &["eth0"]);
            node.rest();
            node.attached("2");
        }
    }
}

#[test]
fn one_that_may_be_ignored_leaves_a_receipt_that_says_so_and_is_asked_again() {
    for mood in [Mood::Refuses, Mood::Away] {
        let mut node = Meshed::new();
        node.register(
            "m",
            knit_engine::extension::ExtensionSpec { fail: FailPolicy::Ignore, ..spec("m", 1) },
            "",
        );
        node.worlds.get_mut("m").unwrap().mood = mood;
        node.attach("1", "a", &["eth0"]);
        node.rest();
        node.attached("1");
        let receipts: Vec<_> = node.state.extensions.receipts(&id("a")).cloned().collect();
        assert!(
            receipts.iter().all(|receipt| matches!(receipt.outcome, Some(Outcome::Ignored(_)))),
            "{receipts:?}"
        );
        assert!(node.state.without_extension(&id("a"), "m").unwrap().contains("ignored"));
        // The same attach again asks it again.
        node.worlds.get_mut("m").unwrap().mood = Mood::Well;
        node.attach("2", "a", &["eth0"]);
        node.rest();
        node.attached("2");
        assert_eq!(node.state.without_extension(&id("a"), "m"), None);
        node.assert_consistent();
    }
}

#[test]
fn only_pods_that_are_meant_are_its_business() {
    let mut node = Meshed::new();
    let mut selected = spec("m", 1);
    selected.labels = [("mesh".to_owned(), "on".to_owned())].into();
    selected.namespaces = ["default".to_owned()].into();
    node.register("m", selected, "");
    node.attach("1", "a", &["eth0"]);
    node.attach_labelled("2", "b", &["eth0"], &[("mesh", "on")]);
    node.rest();
    node.attached("1");
    node.attached("2");
    assert_eq!(node.calls_of("m"), ["before-attach b eth0", "after-attach b eth0"]);
    assert_eq!(node.state.without_extension(&id("a"), "m"), None);
}

#[test]
fn a_pod_from_before_is_found_and_the_same_attach_again_makes_up_for_it() {
    let mut node = Meshed::new();
    node.attach("1", "a", &["eth0"]);
    node.rest();
    node.attached("1");
    node.register("m", spec("m", 1), "");
    assert!(node.state.without_extension(&id("a"), "m").unwrap().contains("before the extension"));
    node.worlds.get_mut("m").unwrap().mood = Mood::Refuses;
    node.attach("2", "a", &["eth0"]);
    node.rest();
    assert_eq!(node.refused("2").reason, Reason::ExtensionFailed);
    assert_eq!(node.state.called.of(&id("a")).count(), 1, "what was told to be there stays");
    node.worlds.get_mut("m").unwrap().mood = Mood::Well;
    node.attach("3", "a", &["eth0"]);
    node.rest();
    node.attached("3");
    assert_eq!(node.state.without_extension(&id("a"), "m"), None);
    node.detach("4", "a", Which::All);
    node.rest();
    assert_eq!(node.calls_of("m").last().unwrap(), "after-detach a eth0");
    node.assert_consistent();
}

#[test]
fn a_change_or_a_removal_shows_the_token_or_is_an_admins() {
    let mut node = node();
    let other = spec("late", 5);
    node.register("1", other.clone(), "wrong");
    assert_eq!(node.refused("1").reason, Reason::NotAllowed);
    node.register("2", other.clone(), "");
    assert_eq!(node.refused("2").reason, Reason::NotAllowed);
    node.remove("3", "late", "wrong", false);
    assert_eq!(node.refused("3").reason, Reason::NotAllowed);
    // One that comes back and has lost its token changes nothing.
    node.register("4", spec("late", 20), "");
    let name = || "late".to_owned();
    assert_eq!(
        node.answer("4"),
        Answer::Registered { name: name(), generation: 1, new_token: false, changed: false }
    );
    node.register("5", other, "token of late");
    assert_eq!(
        node.answer("5"),
        Answer::Registered { name: name(), generation: 3, new_token: false, changed: true }
    );
    node.remove("6", "late", "token of late", false);
    assert_eq!(node.answer("6"), Answer::Removed { was_there: true });
    node.remove("7", "late", "", false);
    assert_eq!(node.answer("7"), Answer::Removed { was_there: false });
    node.remove("8", "early", "", true);
    assert_eq!(node.answer("8"), Answer::Removed { was_there: true });
    node.register("9", spec("late", 20), "");
    let again = Answer::Registered { name: name(), generation: 4, new_token: true, changed: true };
    assert_eq!(node.answer("9"), again, "generations are never used twice");
}

#[test]
fn a_restart_of_the_agent_forgets_no_registration() {
    let mut node = node();
    node.crash();
    assert_eq!(node.state.extensions.in_order().len(), 2);
    node.attach("1", "a", &["eth0"]);
    node.rest();
    node.attached("1");
    node.crash();
    node.rest();
    assert_eq!(node.state.called.of(&id("a")).count(), 1, "what was answered stands");
    assert_eq!(node.state.extensions.receipts(&id("a")).count(), 4);
    node.assert_consistent();
}

#[test]
fn an_upgrade_at_any_moment_leaves_no_gap_even_if_the_old_one_dies() {
    for moment in 0..MOMENTS {
        for mood in [Mood::Well, Mood::Dies, Mood::Away] {
            let mut node = node();
            node.attach("1", "a", &["eth0"]);
            for _ in 0..moment {
                node.work();
            }
            if matches!(node.answers.first(), Some((_, Answer::Attached { .. }))) {
                return;
            }
            let mut newer = spec("early", 10);
            newer.socket = "/run/newer.sock".to_owned();
            node.register("up", newer, "token of early");
            assert!(matches!(node.answer("up"), Answer::Registered { generation: 3, .. }));
            // Whatever was on its way to the old one fails; the new one is well.
            node.worlds.get_mut("early").unwrap().mood = mood;
            if matches!(node.tasks.front(), Some(knit_engine::Effect::Invoke(one)) if one.to.name == "early")
            {
                node.work();
            }
            node.worlds.get_mut("early").unwrap().mood = Mood::Well;
            node.rest();
            node.attached("1");
            node.assert_consistent();
        }
    }
    panic!("an attach has fewer than {MOMENTS} moments");
}

#[test]
fn a_removal_at_any_moment_ends_all_calls_to_it_and_the_attach_goes_on() {
    for moment in 0..MOMENTS {
        let mut node = node();
        node.attach("1", "a", &["eth0"]);
        for _ in 0..moment {
            node.work();
        }
        node.remove("gone", "early", "", true);
        let calls = node.tasks.iter().filter(|task| matches!(task, knit_engine::Effect::Invoke(_))).count();
        assert!(calls <= 1);
        node.rest();
        node.attached("1");
        node.detach("2", "a", Which::All);
        node.rest();
        assert!(!node.calls_of("early").contains(&"after-detach a eth0".to_owned()));
        node.assert_consistent();
    }
}

#[test]
fn a_required_one_that_is_missing_refuses_every_attach_in_words() {
    let mut node = Meshed::new();
    let want = IntentSpec::RequiredExtensions(RequiredExtensionsIntent { required: vec!["m".to_owned()] });
    let required = object("Extension", "", "needed", vec![want]);
    node.tell(Event::ObjectApplied(required.clone()));
    node.attach("1", "a", &["eth0"]);
    node.rest();
    let why = node.refused("1");
    assert_eq!(why.reason, Reason::NotReady);
    assert_eq!(why.message, "extension m is required by extension/needed and is not registered on this node");
    assert_eq!(node.state.report(&required.key()).unwrap().problems.len(), 1);
    node.register("m", spec("m", 1), "");
    assert!(node.state.report(&required.key()).unwrap().problems.is_empty());
    node.attach("2", "a", &["eth0"]);
    // An admin removes it while an attach is under way: that one must not be answered without it.
    node.work();
    node.remove("gone", "m", "", true);
    node.rest();
    assert_eq!(node.refused("2").reason, Reason::NotReady);
    node.assert_consistent();
    assert!(node.state.sandboxes.is_empty());
}

#[test]
fn cancelled_detached_or_crashed_at_any_moment_nothing_is_half_done() {
    for what in ["cancel", "detach", "crash", "gone"] {
        for moment in 0..MOMENTS {
            let mut node = node();
            node.attach("1", "a", &["eth0"]);
            for _ in 0..moment {
                node.work();
            }
            let answered = !node.answers.is_empty();
            match what {
                "cancel" => node.cancel("1"),
                "detach" => node.detach("2", "a", Which::All),
                "gone" if node.tasks.is_empty() => node.tell(Event::SandboxGone(id("a"))),
                "gone" => continue,
                _ => node.crash(),
            }
            node.rest();
            if what == "crash" && answered {
                assert_eq!(node.state.called.of(&id("a")).count(), 1, "what was answered stands");
            } else {
                assert!(node.state.sandboxes.is_empty(), "{what} at moment {moment}");
                node.assert_consistent();
                assert!(node.worlds.values().all(|world| world.has.is_empty()), "{what} at {moment}");
            }
            node.assert_consistent();
        }
    }
}

#[test]
fn a_detach_does_not_wait_and_what_is_owed_is_told_later_and_later_and_before_the_next_attach() {
    let mut node = node();
    node.attach("1", "a", &["eth0"]);
    node.rest();
    node.attached("1");
    node.worlds.get_mut("early").unwrap().mood = Mood::Away;
    node.detach("2", "a", Which::All);
    node.rest();
    assert_eq!(node.answer("2"), Answer::Detached);
    assert_eq!(node.state.extensions.owed().count(), 1);
    // Each try waits longer than the one before.
    let mut waits = Vec::new();
    for _ in 0..12 {
        let wait = node.state.owed_in(knit_ipam::Time(node.clock)).unwrap();
        waits.push(wait);
        node.clock += wait;
        node.tell(Event::Woken);
        node.work();
    }
    assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    assert_eq!(*waits.last().unwrap(), 30_000);
    // It survives a crash, and an attach of the same pod cannot overtake it.
    node.crash();
    node.attach("3", "a", &["eth0"]);
    while node.work() {}
    assert_eq!(node.refused("3").reason, Reason::ExtensionFailed);
    node.worlds.get_mut("early").unwrap().mood = Mood::Well;
    node.attach("4", "a", &["eth0"]);
    node.rest();
    node.attached("4");
    let calls = node.calls_of("early");
    assert_eq!(calls[2..], ["after-detach a eth0", "before-attach a eth0", "after-attach a eth0"]);
    node.assert_consistent();
    assert_eq!(node.worlds["early"].has.len(), 1);
}

#[test]
fn what_is_owed_later_waits_for_what_is_owed_first() {
    let mut node = Meshed::new();
    for name in ["m", "n"] {
        let mut wanted = spec(name, 0);
        wanted.fail = FailPolicy::Ignore;
        node.register(name, wanted, "");
    }
    node.worlds.entry("m".to_owned()).or_default().mood = Mood::Dies;
    node.attach("1", PODS[0], &["eth0"]);
    node.attach_plugged("2", PODS[0], "net2");
    node.broken = true;
    (0..6).for_each(|_| _ = node.work());
    for call in ["3", "4", "5"] {
        node.attach(call, PODS[0], &["eth0"]);
    }
    (0..6).for_each(|_| _ = node.work());
    node.attach("6", PODS[0], &["eth0"]);
    node.broken = false;
    node.rest();
    node.tell(Event::Resync);
    node.assert_consistent();
}

/// What can happen to a node with extensions.
#[derive(Clone, Debug)]
enum Deed {
    Attach(usize, bool),
    Plug(usize, bool),
    Detach(usize),
    Register(usize, i32, bool),
    Remove(usize),
    Mood(usize, Mood),
    Work(usize),
    Break(bool),
    Crash,
}

fn deed() -> impl Strategy<Value = Deed> {
    let mood = prop_oneof![
        3 => Just(Mood::Well),
        1 => Just(Mood::Dies),
        1 => Just(Mood::Refuses),
        1 => Just(Mood::Away)
    ];
    prop_oneof![
        4 => (0..PODS.len(), any::<bool>()).prop_map(|(pod, two)| Deed::Attach(pod, two)),
        2 => (0..PODS.len(), any::<bool>()).prop_map(|(pod, first)| Deed::Plug(pod, first)),
        3 => (0..PODS.len()).prop_map(Deed::Detach),
        2 => (0..2_usize, 0..3, any::<bool>()).prop_map(|(which, order, fail)| Deed::Register(which, order, fail)),
        1 => (0..2_usize).prop_map(Deed::Remove),
        2 => (0..2_usize, mood).prop_map(|(which, mood)| Deed::Mood(which, mood)),
        8 => (1..6_usize).prop_map(Deed::Work),
        1 => any::<bool>().prop_map(Deed::Break),
        1 => Just(Deed::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: who is answered has every receipt (checked with each answer), who is not has
    /// nothing, nobody is called who is not registered, and all of it is on record.
    #[test]
    fn nothing_is_ever_half_meshed(deeds in prop::collection::vec(deed(), 1..60)) {
        const NAMES: [&str; 2] = ["m", "n"];
        let mut node = Meshed::new();
        for (at, deed) in deeds.into_iter().enumerate() {
            let call = format!("c{at}");
            match deed {
                Deed::Attach(pod, false) => node.attach(&call, PODS[pod], &["eth0"]),
                Deed::Attach(pod, true) => node.attach(&call, PODS[pod], &["eth0", "net1"]),
                Deed::Plug(pod, true) => node.attach_plugged(&call, PODS[pod], "eth0"),
                Deed::Plug(pod, false) => node.attach_plugged(&call, PODS[pod], "net2"),
                Deed::Detach(pod) => node.detach(&call, PODS[pod], Which::All),
                Deed::Register(which, order, fail) => {
                    let mut wanted = spec(NAMES[which], order);
                    wanted.fail = if fail { FailPolicy::Fail } else { FailPolicy::Ignore };
                    let token = node.state.extensions.get(NAMES[which]).map(|one| one.digest.clone());
                    node.register(&call, wanted, &token.unwrap_or_default());
                }
                Deed::Remove(which) => {
                    node.remove(&call, NAMES[which], "", true);
                    node.ends(NAMES[which]);
                }
                Deed::Mood(which, mood) => node.worlds.entry(NAMES[which].to_owned()).or_default().mood = mood,
                Deed::Work(times) => (0..times).for_each(|_| _ = node.work()),
                Deed::Break(broken) => node.broken = broken,
                Deed::Crash => node.crash(),
            }
        }
        node.broken = false;
        node.rest();
        node.tell(Event::Resync);
        node.assert_consistent();
        let phases: BTreeSet<Phase> = [Phase::BeforeAttach, Phase::AfterAttach, Phase::AfterDetach].into();
        prop_assert!(node.state.extensions.in_order().iter().all(|one| one.spec.phases == phases));
    }
}
