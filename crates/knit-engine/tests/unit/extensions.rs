//! Extensions: when each is called, what a failure means, and what is left after a crash at any step.

use std::collections::BTreeSet;

use knit_engine::call::DetachScope;
use knit_engine::extension::{FailPolicy, HookPhase, InvocationOutcome};
use knit_engine::{CallResult, Event};
use knit_model::SandboxId;
use knit_model::intent::{IntentSpec, RequiredExtensionsIntent};
use knit_model::problem::Reason;
use proptest::prelude::*;

use crate::support::cases;
use crate::support::extension_node::{Behavior, ExtensionNode, PODS, extension_spec};
use crate::support::node::object;

/// More steps than an attach with two extensions takes.
const MAX_STEPS: usize = 16;

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// A node with two extensions; `early` is called before `late`.
fn node() -> ExtensionNode {
    let mut node = ExtensionNode::new();
    node.register("late", extension_spec("late", 20), "");
    node.register("early", extension_spec("early", 10), "");
    for (name, generation) in [("late", 1), ("early", 2)] {
        let expected =
            CallResult::Registered { name: name.to_owned(), generation, new_token: true, changed: true };
        assert_eq!(node.take_result(name), expected);
    }
    node
}

#[test]
fn attach_calls_extensions_in_order_with_earlier_results() {
    let mut node = node();
    node.attach("1", "a", &["eth0", "net1"]);
    assert!(node.results.is_empty());
    node.run_until_idle();
    node.assert_attached("1");
    let both = ["before-attach a eth0,net1", "after-attach a eth0,net1"];
    assert_eq!(
        (node.invocations_of("early"), node.invocations_of("late")),
        (both.map(String::from).into(), both.map(String::from).into())
    );
    let last = node.extensions["late"].invocations.last().unwrap();
    let receipts: Vec<String> =
        last.earlier.iter().map(|receipt| format!("{} {}", receipt.extension, receipt.phase)).collect();
    assert_eq!(receipts, ["early before-attach", "late before-attach", "early after-attach"]);
    assert_eq!(last.earlier[2].data().unwrap()["by"], "early");
    assert_eq!(last.interfaces[0].addresses.len(), 1, "the call contains the addresses");
    assert_eq!(last.sandbox.netns, "/a");

    // Detach calls extensions in reverse order, per interface.
    node.detach("2", "a", DetachScope::Interfaces(["net1".parse().unwrap()].into()));
    node.run_until_idle();
    assert_eq!(node.take_result("2"), CallResult::Detached);
    assert_eq!(node.invocations_of("early").last().unwrap(), "after-detach a net1");
    let receipts: Vec<usize> =
        node.state.extensions.receipts(&id("a")).map(|receipt| receipt.interfaces.len()).collect();
    assert_eq!(receipts, [1; 4]);
    node.detach("3", "a", DetachScope::All);
    node.run_until_idle();
    assert_eq!(node.invocations_of("early").last().unwrap(), "after-detach a eth0");
    assert_eq!(node.extensions["early"].invocations.last().unwrap().interfaces[0].addresses.len(), 1);
    assert_eq!(node.state.extensions.receipts(&id("a")).count(), 0);
    node.assert_consistent();
}

#[test]
fn failing_unreachable_or_dying_extension_fails_the_attach_and_leaves_nothing() {
    for behavior in [Behavior::Fail, Behavior::Unreachable, Behavior::Die] {
        for name in ["early", "late"] {
            let mut node = node();
            node.extensions.get_mut(name).unwrap().behavior = behavior;
            node.attach("1", "a", &["eth0"]);
            node.run_until_idle();
            let why = node.take_error("1");
            assert_eq!(why.reason, Reason::ExtensionFailed, "{why}");
            assert!(why.message.contains(name), "{why}");
            assert!(node.state.sandboxes.is_empty() && node.state.attachments.all().next().is_none());
            node.assert_consistent();
            assert!(node.extensions.values().all(|extension| extension.configured.is_empty()));
            node.attach("2", "a", &["eth0"]);
            node.run_until_idle();
            node.assert_attached("2");
        }
    }
}

#[test]
fn ignored_failure_leaves_a_receipt_and_is_retried_on_the_next_attach() {
    for behavior in [Behavior::Fail, Behavior::Unreachable] {
        let mut node = ExtensionNode::new();
        node.register(
            "m",
            knit_engine::extension::ExtensionSpec { fail: FailPolicy::Ignore, ..extension_spec("m", 1) },
            "",
        );
        node.extensions.get_mut("m").unwrap().behavior = behavior;
        node.attach("1", "a", &["eth0"]);
        node.run_until_idle();
        node.assert_attached("1");
        let receipts: Vec<_> = node.state.extensions.receipts(&id("a")).cloned().collect();
        assert!(
            receipts.iter().all(|receipt| matches!(receipt.outcome, Some(InvocationOutcome::Ignored(_)))),
            "{receipts:?}"
        );
        assert!(node.state.without_extension(&id("a"), "m").unwrap().contains("ignored"));
        // A repeated attach calls the extension again.
        node.extensions.get_mut("m").unwrap().behavior = Behavior::Succeed;
        node.attach("2", "a", &["eth0"]);
        node.run_until_idle();
        node.assert_attached("2");
        assert_eq!(node.state.without_extension(&id("a"), "m"), None);
        node.assert_consistent();
    }
}

#[test]
fn extension_is_called_for_selected_pods_only() {
    let mut node = ExtensionNode::new();
    let mut selected = extension_spec("m", 1);
    selected.labels = [("mesh".to_owned(), "on".to_owned())].into();
    selected.namespaces = ["default".to_owned()].into();
    node.register("m", selected, "");
    node.attach("1", "a", &["eth0"]);
    node.attach_labelled("2", "b", &["eth0"], &[("mesh", "on")]);
    node.run_until_idle();
    node.assert_attached("1");
    node.assert_attached("2");
    assert_eq!(node.invocations_of("m"), ["before-attach b eth0", "after-attach b eth0"]);
    assert_eq!(node.state.without_extension(&id("a"), "m"), None);
}

#[test]
fn pod_attached_before_registration_is_reported_and_fixed_by_a_repeated_attach() {
    let mut node = ExtensionNode::new();
    node.attach("1", "a", &["eth0"]);
    node.run_until_idle();
    node.assert_attached("1");
    node.register("m", extension_spec("m", 1), "");
    assert!(node.state.without_extension(&id("a"), "m").unwrap().contains("before the extension"));
    node.extensions.get_mut("m").unwrap().behavior = Behavior::Fail;
    node.attach("2", "a", &["eth0"]);
    node.run_until_idle();
    assert_eq!(node.take_error("2").reason, Reason::ExtensionFailed);
    assert_eq!(node.state.attachments.of(&id("a")).count(), 1, "the attached interface is kept");
    node.extensions.get_mut("m").unwrap().behavior = Behavior::Succeed;
    node.attach("3", "a", &["eth0"]);
    node.run_until_idle();
    node.assert_attached("3");
    assert_eq!(node.state.without_extension(&id("a"), "m"), None);
    node.detach("4", "a", DetachScope::All);
    node.run_until_idle();
    assert_eq!(node.invocations_of("m").last().unwrap(), "after-detach a eth0");
    node.assert_consistent();
}

#[test]
fn change_or_removal_needs_the_token_or_an_admin() {
    let mut node = node();
    let other = extension_spec("late", 5);
    node.register("1", other.clone(), "wrong");
    assert_eq!(node.take_error("1").reason, Reason::NotAllowed);
    node.register("2", other.clone(), "");
    assert_eq!(node.take_error("2").reason, Reason::NotAllowed);
    node.remove("3", "late", "wrong", false);
    assert_eq!(node.take_error("3").reason, Reason::NotAllowed);
    // An unchanged registration without the token is accepted.
    node.register("4", extension_spec("late", 20), "");
    let name = || "late".to_owned();
    assert_eq!(
        node.take_result("4"),
        CallResult::Registered { name: name(), generation: 1, new_token: false, changed: false }
    );
    node.register("5", other, "token of late");
    assert_eq!(
        node.take_result("5"),
        CallResult::Registered { name: name(), generation: 3, new_token: false, changed: true }
    );
    node.remove("6", "late", "token of late", false);
    assert_eq!(node.take_result("6"), CallResult::Removed { was_there: true });
    node.remove("7", "late", "", false);
    assert_eq!(node.take_result("7"), CallResult::Removed { was_there: false });
    node.remove("8", "early", "", true);
    assert_eq!(node.take_result("8"), CallResult::Removed { was_there: true });
    node.register("9", extension_spec("late", 20), "");
    let again = CallResult::Registered { name: name(), generation: 4, new_token: true, changed: true };
    assert_eq!(node.take_result("9"), again, "generations are never reused");
}

#[test]
fn registrations_survive_a_restart() {
    let mut node = node();
    node.restart();
    assert_eq!(node.state.extensions.in_order().len(), 2);
    node.attach("1", "a", &["eth0"]);
    node.run_until_idle();
    node.assert_attached("1");
    node.restart();
    node.run_until_idle();
    assert_eq!(node.state.attachments.of(&id("a")).count(), 1, "an answered attach is kept");
    assert_eq!(node.state.extensions.receipts(&id("a")).count(), 4);
    node.assert_consistent();
}

#[test]
fn upgrade_at_any_step_leaves_no_gap_even_if_the_old_process_dies() {
    for step in 0..MAX_STEPS {
        for behavior in [Behavior::Succeed, Behavior::Die, Behavior::Unreachable] {
            let mut node = node();
            node.attach("1", "a", &["eth0"]);
            for _ in 0..step {
                node.run_next();
            }
            if matches!(node.results.first(), Some((_, CallResult::Attached { .. }))) {
                return;
            }
            let mut newer = extension_spec("early", 10);
            newer.socket = "/run/newer.sock".to_owned();
            node.register("up", newer, "token of early");
            assert!(matches!(node.take_result("up"), CallResult::Registered { generation: 3, .. }));
            // Calls in flight to the old process fail; the new one succeeds.
            node.extensions.get_mut("early").unwrap().behavior = behavior;
            if matches!(node.pending.front(), Some(knit_engine::Effect::InvokeExtension(one)) if one.to.name == "early")
            {
                node.run_next();
            }
            node.extensions.get_mut("early").unwrap().behavior = Behavior::Succeed;
            node.run_until_idle();
            node.assert_attached("1");
            node.assert_consistent();
        }
    }
    panic!("an attach takes fewer than {MAX_STEPS} steps");
}

#[test]
fn removal_at_any_step_ends_its_calls_and_the_attach_continues() {
    for step in 0..MAX_STEPS {
        let mut node = node();
        node.attach("1", "a", &["eth0"]);
        for _ in 0..step {
            node.run_next();
        }
        node.remove("remove", "early", "", true);
        let calls = node
            .pending
            .iter()
            .filter(|task| matches!(task, knit_engine::Effect::InvokeExtension(_)))
            .count();
        assert!(calls <= 1);
        node.run_until_idle();
        node.assert_attached("1");
        node.detach("2", "a", DetachScope::All);
        node.run_until_idle();
        assert!(!node.invocations_of("early").contains(&"after-detach a eth0".to_owned()));
        node.assert_consistent();
    }
}

#[test]
fn missing_required_extension_rejects_every_attach() {
    let mut node = ExtensionNode::new();
    let intent = IntentSpec::RequiredExtensions(RequiredExtensionsIntent { required: vec!["m".to_owned()] });
    let required = object("Extension", "", "needed", vec![intent]);
    node.handle(Event::ObjectApplied(required.clone()));
    node.attach("1", "a", &["eth0"]);
    node.run_until_idle();
    let why = node.take_error("1");
    assert_eq!(why.reason, Reason::NotReady);
    assert_eq!(why.message, "extension m is required by extension/needed and is not registered on this node");
    assert_eq!(node.state.report(&required.key()).unwrap().problems.len(), 1);
    node.register("m", extension_spec("m", 1), "");
    assert!(node.state.report(&required.key()).unwrap().problems.is_empty());
    node.attach("2", "a", &["eth0"]);
    // An admin removes it during an attach: that attach must not succeed without it.
    node.run_next();
    node.remove("remove", "m", "", true);
    node.run_until_idle();
    assert_eq!(node.take_error("2").reason, Reason::NotReady);
    node.assert_consistent();
    assert!(node.state.sandboxes.is_empty());
}

#[test]
fn interruption_at_any_step_leaves_nothing_half_configured() {
    for what in ["cancel", "detach", "restart", "netns deleted"] {
        for step in 0..MAX_STEPS {
            let mut node = node();
            node.attach("1", "a", &["eth0"]);
            for _ in 0..step {
                node.run_next();
            }
            let answered = !node.results.is_empty();
            match what {
                "cancel" => node.cancel("1"),
                "detach" => node.detach("2", "a", DetachScope::All),
                "netns deleted" if node.pending.is_empty() => node.handle(Event::SandboxRemoved(id("a"))),
                "netns deleted" => continue,
                _ => node.restart(),
            }
            node.run_until_idle();
            if what == "restart" && answered {
                assert_eq!(node.state.attachments.of(&id("a")).count(), 1, "an answered attach is kept");
            } else {
                assert!(node.state.sandboxes.is_empty(), "{what} at step {step}");
                node.assert_consistent();
                assert!(
                    node.extensions.values().all(|extension| extension.configured.is_empty()),
                    "{what} at {step}"
                );
            }
            node.assert_consistent();
        }
    }
}

#[test]
fn detach_does_not_wait_and_pending_notifications_are_retried_before_the_next_attach() {
    let mut node = node();
    node.attach("1", "a", &["eth0"]);
    node.run_until_idle();
    node.assert_attached("1");
    node.extensions.get_mut("early").unwrap().behavior = Behavior::Unreachable;
    node.detach("2", "a", DetachScope::All);
    node.run_until_idle();
    assert_eq!(node.take_result("2"), CallResult::Detached);
    assert_eq!(node.state.extensions.pending_notifications().count(), 1);
    // The retry interval grows.
    let mut waits = Vec::new();
    for _ in 0..12 {
        let wait = node.state.next_notification_in(knit_ipam::Time(node.clock)).unwrap();
        waits.push(wait);
        node.clock += wait;
        node.handle(Event::NotificationTimer);
        node.run_next();
    }
    assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    assert_eq!(*waits.last().unwrap(), 30_000);
    // The notification survives a crash, and an attach of the same pod does not overtake it.
    node.restart();
    node.attach("3", "a", &["eth0"]);
    while node.run_next() {}
    assert_eq!(node.take_error("3").reason, Reason::ExtensionFailed);
    node.extensions.get_mut("early").unwrap().behavior = Behavior::Succeed;
    node.attach("4", "a", &["eth0"]);
    node.run_until_idle();
    node.assert_attached("4");
    let calls = node.invocations_of("early");
    assert_eq!(calls[2..], ["after-detach a eth0", "before-attach a eth0", "after-attach a eth0"]);
    node.assert_consistent();
    assert_eq!(node.extensions["early"].configured.len(), 1);
}

#[test]
fn pending_notifications_are_delivered_in_order() {
    let mut node = ExtensionNode::new();
    for name in ["m", "n"] {
        let mut registered = extension_spec(name, 0);
        registered.fail = FailPolicy::Ignore;
        node.register(name, registered, "");
    }
    node.extensions.entry("m".to_owned()).or_default().behavior = Behavior::Die;
    node.attach("1", PODS[0], &["eth0"]);
    node.attach_plugin_chain("2", PODS[0], "net2");
    node.plans_fail = true;
    (0..6).for_each(|_| _ = node.run_next());
    for call in ["3", "4", "5"] {
        node.attach(call, PODS[0], &["eth0"]);
    }
    (0..6).for_each(|_| _ = node.run_next());
    node.attach("6", PODS[0], &["eth0"]);
    node.plans_fail = false;
    node.run_until_idle();
    node.handle(Event::Resync);
    node.assert_consistent();
}

/// An operation on a node with extensions.
#[derive(Clone, Debug)]
enum Operation {
    Attach(usize, bool),
    AttachPlugin(usize, bool),
    Detach(usize),
    Register(usize, i32, bool),
    Remove(usize),
    SetBehavior(usize, Behavior),
    Run(usize),
    FailPlans(bool),
    Restart,
}

fn operation() -> impl Strategy<Value = Operation> {
    let behavior = prop_oneof![
        3 => Just(Behavior::Succeed),
        1 => Just(Behavior::Die),
        1 => Just(Behavior::Fail),
        1 => Just(Behavior::Unreachable)
    ];
    prop_oneof![
        4 => (0..PODS.len(), any::<bool>()).prop_map(|(pod, two)| Operation::Attach(pod, two)),
        2 => (0..PODS.len(), any::<bool>()).prop_map(|(pod, first)| Operation::AttachPlugin(pod, first)),
        3 => (0..PODS.len()).prop_map(Operation::Detach),
        2 => (0..2_usize, 0..3, any::<bool>()).prop_map(|(which, order, fail)| Operation::Register(which, order, fail)),
        1 => (0..2_usize).prop_map(Operation::Remove),
        2 => (0..2_usize, behavior).prop_map(|(which, behavior)| Operation::SetBehavior(which, behavior)),
        8 => (1..6_usize).prop_map(Operation::Run),
        1 => any::<bool>().prop_map(Operation::FailPlans),
        1 => Just(Operation::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(80) })]

    /// For any order of operations: a successful attach has every receipt (checked with each result), a failed one
    /// leaves nothing, unregistered extensions are never called, and the journal has all of it.
    #[test]
    fn no_history_leaves_a_pod_half_configured(operations in prop::collection::vec(operation(), 1..60)) {
        const NAMES: [&str; 2] = ["m", "n"];
        let mut node = ExtensionNode::new();
        for (at, operation) in operations.into_iter().enumerate() {
            let call = format!("c{at}");
            match operation {
                Operation::Attach(pod, false) => node.attach(&call, PODS[pod], &["eth0"]),
                Operation::Attach(pod, true) => node.attach(&call, PODS[pod], &["eth0", "net1"]),
                Operation::AttachPlugin(pod, true) => node.attach_plugin_chain(&call, PODS[pod], "eth0"),
                Operation::AttachPlugin(pod, false) => node.attach_plugin_chain(&call, PODS[pod], "net2"),
                Operation::Detach(pod) => node.detach(&call, PODS[pod], DetachScope::All),
                Operation::Register(which, order, fail) => {
                    let mut registered = extension_spec(NAMES[which], order);
                    registered.fail = if fail { FailPolicy::Fail } else { FailPolicy::Ignore };
                    let token = node.state.extensions.get(NAMES[which]).map(|one| one.digest.clone());
                    node.register(&call, registered, &token.unwrap_or_default());
                }
                Operation::Remove(which) => {
                    node.remove(&call, NAMES[which], "", true);
                    node.stop_extension(NAMES[which]);
                }
                Operation::SetBehavior(which, behavior) => node.extensions.entry(NAMES[which].to_owned()).or_default().behavior = behavior,
                Operation::Run(times) => (0..times).for_each(|_| _ = node.run_next()),
                Operation::FailPlans(plans_fail) => node.plans_fail = plans_fail,
                Operation::Restart => node.restart(),
            }
        }
        node.plans_fail = false;
        node.run_until_idle();
        node.handle(Event::Resync);
        node.assert_consistent();
        let phases: BTreeSet<HookPhase> = [HookPhase::BeforeAttach, HookPhase::AfterAttach, HookPhase::AfterDetach].into();
        prop_assert!(node.state.extensions.in_order().iter().all(|one| one.spec.phases == phases));
    }
}
