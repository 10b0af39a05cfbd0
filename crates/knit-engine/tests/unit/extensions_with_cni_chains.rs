//! Extensions on networks of CNI plugins: the same guarantees as on Knit's own networks.

use knit_engine::call::DetachScope;
use knit_engine::extension::HookPhase;
use knit_engine::{CallResult, Event};
use knit_model::SandboxId;
use knit_model::problem::Reason;

use crate::support::extension_node::{Behavior, ExtensionNode, extension_spec};

/// More steps than such an attach takes.
const MAX_STEPS: usize = 12;

fn id(name: &str) -> SandboxId {
    SandboxId(name.to_owned())
}

/// A node with two extensions; `early` is called before `late`.
fn node() -> ExtensionNode {
    let mut node = ExtensionNode::new();
    node.register("late", extension_spec("late", 20), "");
    node.register("early", extension_spec("early", 10), "");
    node.results.clear();
    node
}

#[test]
fn extensions_run_before_add_after_add_with_its_result_and_after_del() {
    let mut node = node();
    node.attach_plugin_chain("1", "a", "eth0");
    while node.extensions["late"].invocations.is_empty() {
        assert!(node.plugin_interfaces.is_empty(), "plugins ran before all extensions were called");
        assert!(node.run_next());
    }
    node.run_until_idle();
    assert_eq!(node.take_result("1"), CallResult::ChainAttached);
    let after = node.extensions["early"].invocations.last().unwrap().clone();
    assert_eq!(after.phase, HookPhase::AfterAttach);
    assert_eq!(after.interfaces[0].addresses, ["10.9.0.2/24".parse().unwrap()]);
    // A repeated attach calls no extension.
    node.attach_plugin_chain("2", "a", "eth0");
    node.run_until_idle();
    assert_eq!((node.take_result("2"), node.invocations_of("early").len()), (CallResult::ChainAttached, 2));
    assert_eq!(node.state.without_extension(&id("a"), "early"), None);
    node.detach("3", "a", DetachScope::All);
    while !node.plugin_interfaces.is_empty() {
        assert_eq!(node.invocations_of("early").len(), 2, "called before the plugins finished");
        assert!(node.run_next());
    }
    node.run_until_idle();
    assert_eq!(node.take_result("3"), CallResult::Detached);
    let detached = node.extensions["early"].invocations.last().unwrap().clone();
    assert_eq!(detached.phase, HookPhase::AfterDetach);
    assert_eq!(detached.interfaces[0].addresses, ["10.9.0.2/24".parse().unwrap()]);
    assert_eq!(node.invocations_of("late").len(), 3);
    node.assert_consistent();
    assert!(node.state.sandboxes.is_empty());
}

#[test]
fn failing_extension_rolls_back_with_del() {
    for behavior in [Behavior::Die, Behavior::Fail, Behavior::Unreachable] {
        for step in 0..MAX_STEPS {
            let mut node = node();
            node.attach_plugin_chain("1", "a", "eth0");
            for _ in 0..step {
                node.run_next();
            }
            if !node.results.is_empty() {
                continue;
            }
            node.extensions.get_mut("late").unwrap().behavior = behavior;
            while node.run_next() {}
            let is_over =
                node.extensions["late"].invocations.iter().any(|one| one.phase == HookPhase::AfterAttach);
            match node.take_result("1") {
                CallResult::Failed(why) => assert_eq!(why.reason, Reason::ExtensionFailed),
                other => assert!(
                    other == CallResult::ChainAttached && is_over,
                    "{behavior:?} at {step}: {other:?}"
                ),
            }
            node.assert_consistent();
        }
    }
}

#[test]
fn interruption_at_any_step_leaves_nothing_half_configured() {
    for what in ["cancel", "detach", "restart", "netns deleted"] {
        for step in 0..MAX_STEPS {
            let mut node = node();
            node.attach_plugin_chain("1", "a", "eth0");
            for _ in 0..step {
                node.run_next();
            }
            let answered = !node.results.is_empty();
            match what {
                "cancel" => node.cancel("1"),
                "detach" => node.detach("2", "a", DetachScope::All),
                "netns deleted" => node.handle(Event::SandboxRemoved(id("a"))),
                _ => node.restart(),
            }
            node.run_until_idle();
            let is_kept = answered && what == "restart";
            // Before the plugins run the engine has no such sandbox, so its deletion has no effect.
            let is_unknown = what == "netns deleted" && node.plugin_interfaces.len() == 1;
            if !is_kept && !is_unknown {
                assert!(
                    node.plugin_interfaces.is_empty() && node.state.sandboxes.is_empty(),
                    "{what} at {step}"
                );
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
fn configured_interface_survives_a_failed_or_interrupted_attach_of_the_same_pod() {
    for restart in [false, true] {
        let mut node = node();
        node.attach_plugin_chain("1", "a", "net1");
        node.run_until_idle();
        assert_eq!(node.take_result("1"), CallResult::ChainAttached);
        node.extensions.get_mut("late").unwrap().behavior = Behavior::Fail;
        node.attach("2", "a", &["eth0"]);
        node.run_next();
        if restart {
            node.run_next();
            node.restart();
        }
        while node.run_next() {}
        if !restart {
            assert_eq!(node.take_error("2").reason, Reason::ExtensionFailed);
        }
        node.assert_consistent();
        assert_eq!(node.plugin_interfaces.len(), 1, "restart: {restart}");
        assert_eq!(node.extensions["early"].configured.len(), 1);
    }
}

#[test]
fn failed_del_is_retried_before_extensions_are_notified() {
    let mut node = node();
    node.attach_plugin_chain("1", "a", "eth0");
    node.run_until_idle();
    node.plans_fail = true;
    node.detach("2", "a", DetachScope::All);
    node.run_until_idle();
    assert_eq!((node.take_error("2").reason, node.invocations_of("late").len()), (Reason::KernelError, 2));
    node.plans_fail = false;
    node.handle(Event::Resync);
    node.run_until_idle();
    assert_eq!(node.invocations_of("late").len(), 3);
    node.assert_consistent();
}
