//! Injects a fault at every step of a plan.

use knit_kernel::fault::{Fault, FaultAt};
use knit_kernel::{DeleteMode, Rollback};
use knit_model::{NetState, Plan, Scope};
use nix::errno::Errno;

use super::node::{TestNode, sandbox};

/// Fails and crashes at every step; the node must be unchanged afterwards.
pub fn survive_every_fault(node: &TestNode, plan: &Plan, delete_mode: DeleteMode) {
    assert!(!plan.is_empty(), "{plan}");
    let before = node.dumps();
    let observed = node.observe();
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = node.apply_with(plan, delete_mode, &mut fail).unwrap_err();
        assert_eq!((error.step, &error.rollback), (step, &Rollback::Complete), "{error}\n{plan}");
        let text = error.to_string();
        assert!(text.contains(&plan.steps[step].step.to_string()) && text.contains("EIO"), "{text}");
        node.assert_unchanged(&before, &format!("after failing at step {step} of\n{plan}"));

        let mut stop = FaultAt { step, fault: Fault::Crash };
        let error = node.apply_with(plan, delete_mode, &mut stop).unwrap_err();
        assert_eq!(error.rollback, Rollback::Skipped);
        // A new process finds the plan in its journal, and does not know how many steps were applied.
        let left = node.kernel().roll_back(plan, &mut node.namespaces());
        assert!(left.is_empty(), "step {step}: {left:?}\n{plan}");
        delete_deferred(node);
        node.assert_unchanged(&before, &format!("after a crash at step {step} of\n{plan}"));
    }
    let after = node.observe();
    for (scope, state) in &observed.scopes {
        assert_eq!(after.scopes[scope].links, state.links);
        assert_eq!(after.scopes[scope].rules, state.rules);
    }
}

/// The same for slow machines: after each fault only the observed state is compared, and the full dumps once at the
/// end. Whatever a fault leaves behind still exists then.
pub fn survive_every_fault_fast(node: &TestNode, plan: &Plan) {
    let before = node.dumps();
    roll_back_every_fault(node, plan);
    node.assert_unchanged(&before, &format!("after every fault of\n{plan}"));
}

/// Compares only the observed state, for plans that delete members of a bond: the kernel also shows which hardware address
/// a member had before, and which member is active.
pub fn roll_back_every_fault(node: &TestNode, plan: &Plan) {
    assert!(!plan.is_empty());
    let observed = essence(node.observe());
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = node.apply_with(plan, DeleteMode::Immediate, &mut fail).unwrap_err();
        assert_eq!((error.step, &error.rollback), (step, &Rollback::Complete), "{error}\n{plan}");
        assert_eq!(essence(node.observe()), observed, "after failing at step {step} of\n{plan}");
        let mut stop = FaultAt { step, fault: Fault::Crash };
        let error = node.apply_with(plan, DeleteMode::Immediate, &mut stop).unwrap_err();
        assert_eq!(error.rollback, Rollback::Skipped);
        let left = node.kernel().roll_back(plan, &mut node.namespaces());
        assert!(left.is_empty(), "step {step}: {left:?}\n{plan}");
        assert_eq!(essence(node.observe()), observed, "after a crash at step {step} of\n{plan}");
    }
}

/// Only Knit's objects: the kernel adds and removes others.
fn essence(mut state: NetState) -> NetState {
    for scope in state.scopes.values_mut() {
        scope.addresses.retain(|_, address| address.owned);
        scope.routes.retain(|_, route| route.owned);
        scope.neighbours.retain(|_, neighbour| neighbour.owned);
    }
    state
}

/// Deletes detached links, as a process does at start.
pub fn delete_deferred(node: &TestNode) {
    let sandboxes = node.sandboxes.iter().map(|namespace| sandbox(namespace.label()));
    let scopes = std::iter::once(Scope::Host).chain(sandboxes).collect();
    node.kernel().delete_deferred(&scopes, &mut node.namespaces()).unwrap();
}
