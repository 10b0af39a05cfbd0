//! A fault at every step of a plan.

use knit_kernel::fault::{Fault, FaultAt};
use knit_kernel::{Deletes, RollBack};
use knit_model::{NetState, Plan, Scope};
use nix::errno::Errno;

use super::world::{World, sandbox};

/// Fails at every step, and crashes at every step; either way the world is as before.
pub fn survive_every_fault(world: &World, plan: &Plan, deletes: Deletes) {
    assert!(!plan.is_empty(), "{plan}");
    let before = world.dumps();
    let seen = world.observe();
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = world.apply_with(plan, deletes, &mut fail).unwrap_err();
        assert_eq!((error.step, &error.roll_back), (step, &RollBack::Complete), "{error}\n{plan}");
        let text = error.to_string();
        assert!(text.contains(&plan.steps[step].step.to_string()) && text.contains("EIO"), "{text}");
        world.assert_as_before(&before, &format!("after failing at step {step} of\n{plan}"));

        let mut stop = FaultAt { step, fault: Fault::Stop };
        let error = world.apply_with(plan, deletes, &mut stop).unwrap_err();
        assert_eq!(error.roll_back, RollBack::Left);
        // A new process finds the plan in its journal, and does not know how far it came.
        let left = world.kernel().take_back(plan, &mut world.places());
        assert!(left.is_empty(), "step {step}: {left:?}\n{plan}");
        reap(world);
        world.assert_as_before(&before, &format!("after a crash at step {step} of\n{plan}"));
    }
    let after = world.observe();
    for (scope, state) in &seen.scopes {
        assert_eq!(after.scopes[scope].links, state.links);
        assert_eq!(after.scopes[scope].rules, state.rules);
    }
}

/// The same where looking is slow: after each fault only what Knit sees is compared, and all that `ip` shows once at
/// the end. Whatever a fault leaves behind is still there then.
pub fn survive_every_fault_leanly(world: &World, plan: &Plan) {
    assert!(!plan.is_empty());
    let before = world.dumps();
    let seen = essence(world.observe());
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = world.apply_with(plan, Deletes::Now, &mut fail).unwrap_err();
        assert_eq!((error.step, &error.roll_back), (step, &RollBack::Complete), "{error}\n{plan}");
        assert_eq!(essence(world.observe()), seen, "after failing at step {step} of\n{plan}");
        let mut stop = FaultAt { step, fault: Fault::Stop };
        let error = world.apply_with(plan, Deletes::Now, &mut stop).unwrap_err();
        assert_eq!(error.roll_back, RollBack::Left);
        let left = world.kernel().take_back(plan, &mut world.places());
        assert!(left.is_empty(), "step {step}: {left:?}\n{plan}");
        assert_eq!(essence(world.observe()), seen, "after a crash at step {step} of\n{plan}");
    }
    world.assert_as_before(&before, &format!("after every fault of\n{plan}"));
}

/// What does not come and go by itself.
fn essence(mut state: NetState) -> NetState {
    for scope in state.scopes.values_mut() {
        scope.addresses.retain(|_, address| address.owned);
        scope.routes.retain(|_, route| route.owned);
        scope.neighbours.retain(|_, neighbour| neighbour.owned);
    }
    state
}

/// What a process does at its start.
pub fn reap(world: &World) {
    let sandboxes = world.sandboxes.iter().map(|namespace| sandbox(namespace.label()));
    let scopes = std::iter::once(Scope::Host).chain(sandboxes).collect();
    world.kernel().reap(&scopes, &mut world.places()).unwrap();
}
