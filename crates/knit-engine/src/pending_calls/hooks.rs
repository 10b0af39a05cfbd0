//! Extensions in an attach: invoked one after the other, each within its deadline, before the attach is completed.
//!
//! The next extension is chosen after each invocation from the current registry. So a completed attach has invoked
//! every extension that is registered at that moment, in its old or new generation.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, Sandbox, SandboxId};

use super::{AttachCall, CallKind, Stage, attach, plugin_chain, problem, respond};
use crate::call::{CallId, CallResult};
use crate::event::{Effect, Record, Unit};
use crate::extension::{
    FailPolicy, HookPhase, Invocation, InvocationError, InvocationOutcome, InvocationResult, Receipt,
    RegisteredExtension,
};
use crate::extensions::{self, InFlightInvocation, ReceiptsEnded};
use crate::state::State;
use crate::step::Effects;

/// An attach in a phase in which extensions are invoked.
struct HookRun {
    phase: HookPhase,
    sandbox: Sandbox,
    /// The interfaces, each with the ticket of the attach that created it.
    interfaces: Vec<(IfName, u64)>,
    ticket: u64,
}

/// The tickets of attaches of a sandbox that are in progress and not being rolled back.
pub(crate) fn attaching(state: &State, id: &SandboxId) -> BTreeSet<u64> {
    let of = state.pending_calls.of(id).into_iter().filter_map(|call| state.pending_calls.waiting.get(&call));
    of.filter_map(|waiting| match (&waiting.kind, &waiting.stage) {
        (
            _,
            Stage::Inspecting
            | Stage::RollingBack { .. }
            | Stage::Abandoned
            | Stage::Removing
            | Stage::Deferred(_),
        ) => None,
        (CallKind::Attach(attaching), _) => Some(attaching.attach.ticket),
        _ => None,
    })
    .collect()
}

/// Invokes extensions before anything is changed; then the attach continues.
pub(super) fn run_before(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    state.pending_calls.stage(call, Stage::BeforeHooks);
    advance(state, call, now, effects);
}

/// Invokes extensions for the ready interfaces; then the attach is completed.
pub(super) fn run_after(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    state.pending_calls.stage(call, Stage::AfterHooks);
    advance(state, call, now, effects);
}

/// Invokes the next extension, or continues if none is left.
fn advance(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    let Some(run) = hook_run(state, call) else { return };
    let id = run.sandbox.id.clone();
    extensions::end_receipts(state, &id, now, effects);
    let Some(next) = next_extension(state, &run).cloned() else {
        return proceed(state, call, &run, now, effects);
    };
    let name = next.spec.name.clone();
    if state.extensions.is_called(&name, &id) {
        // Another call is invoking it for the same sandbox; when that ends, this one continues.
        return;
    }
    if let Some(notification) = state.extensions.oldest_notification(&name, &id).cloned() {
        // A late notification must not undo the new attach.
        return extensions::notify(state, &notification, Some(call), effects);
    }
    invoke(state, &run, call, &next, now, effects);
}

fn hook_run(state: &State, call: &CallId) -> Option<HookRun> {
    let waiting = state.pending_calls.waiting.get(call)?;
    let CallKind::Attach(attaching) = &waiting.kind else { return None };
    let AttachCall { attach, netns_info, .. } = &**attaching;
    let id = SandboxId(attach.sandbox.id.clone());
    let names = attach.interfaces.iter().map(|(name, ..)| name);
    let attached = |name: &IfName| state.attachments.ticket(&id, name);
    let (phase, sandbox, interfaces) = match waiting.stage {
        Stage::BeforeHooks => {
            let sandbox = attach::describe_sandbox(state, &id, netns_info.as_ref()?, attach);
            let fresh = names.filter(|name| attached(name).is_none());
            (HookPhase::BeforeAttach, sandbox, fresh.map(|name| (name.clone(), attach.ticket)).collect())
        }
        Stage::AfterHooks => {
            let sandbox = state.sandboxes.get(&id)?.clone();
            let there = names.filter_map(|name| Some((name.clone(), attached(name)?)));
            (HookPhase::AfterAttach, sandbox, there.collect())
        }
        _ => return None,
    };
    Some(HookRun { phase, sandbox, interfaces, ticket: attach.ticket })
}

/// The first extension that takes part and has not been invoked yet.
fn next_extension<'a>(state: &'a State, run: &HookRun) -> Option<&'a RegisteredExtension> {
    let did = |one: &RegisteredExtension, pair: &(IfName, u64)| {
        state.extensions.receipts(&run.sandbox.id).any(|receipt| {
            let counts = match &receipt.outcome {
                Some(InvocationOutcome::Done(_)) => true,
                // An ignored failure counts for this attach only; the next attach and a new generation try again.
                Some(InvocationOutcome::Ignored(_)) => {
                    receipt.ticket == run.ticket && receipt.generation == one.generation
                }
                _ => false,
            };
            counts
                && receipt.extension == one.spec.name
                && receipt.phase == run.phase
                && receipt.interfaces.contains(pair)
        })
    };
    let lacks = |one: &&RegisteredExtension| !run.interfaces.iter().all(|pair| did(one, pair));
    let takes_part =
        |one: &&RegisteredExtension| one.spec.phases.contains(&run.phase) && one.spec.selects(&run.sandbox);
    state.extensions.in_order().into_iter().filter(takes_part).find(lacks)
}

/// Records and requests an invocation.
fn invoke(
    state: &mut State,
    run: &HookRun,
    call: &CallId,
    one: &RegisteredExtension,
    now: Time,
    effects: &mut Effects,
) {
    let receipt = record_call(state, run, call, one, now, effects);
    let id = &run.sandbox.id;
    let in_flight = InFlightInvocation {
        extension: one.spec.name.clone(),
        generation: one.generation,
        sandbox: id.clone(),
        phase: run.phase,
        waits: Some(call.clone()),
    };
    state.extensions.in_flight.insert(receipt.clone(), in_flight);
    let concerns = |other: &&Receipt| {
        other.is_done() && other.interfaces.iter().any(|pair| run.interfaces.contains(pair))
    };
    let earlier = state.extensions.receipts(id).filter(concerns).cloned().collect();
    effects.list.push(Effect::InvokeExtension(Box::new(Invocation {
        id: receipt,
        to: one.spec.clone(),
        generation: one.generation,
        phase: run.phase,
        attach: call.clone(),
        sandbox: run.sandbox.clone(),
        interfaces: run.interfaces.iter().map(|(name, _)| extensions::last_report(state, id, name)).collect(),
        earlier,
    })));
}

/// Records the receipt before the invocation: after a crash it shows which extensions may have acted.
fn record_call(
    state: &mut State,
    run: &HookRun,
    call: &CallId,
    one: &RegisteredExtension,
    now: Time,
    effects: &mut Effects,
) -> String {
    let receipt = Receipt {
        id: state.extensions.next_id(now, 0),
        extension: one.spec.name.clone(),
        generation: one.generation,
        phase: run.phase,
        interfaces: run.interfaces.clone(),
        attach: call.clone(),
        ticket: run.ticket,
        at: now,
        outcome: None,
        touched: false,
    };
    let id = receipt.id.clone();
    let sandbox = Box::new(run.sandbox.clone());
    effects.record(state, Record::ExtensionCalled { sandbox, receipt: Box::new(receipt) });
    id
}

/// No extension is left: the attach starts, or is completed.
fn proceed(state: &mut State, call: &CallId, run: &HookRun, now: Time, effects: &mut Effects) {
    if run.phase == HookPhase::BeforeAttach {
        if let Some(CallKind::Attach(attaching)) =
            state.pending_calls.waiting.get_mut(call).map(|one| &mut one.kind)
        {
            attaching.before_hooks_done = true;
        }
        state.pending_calls.stage(call, Stage::ClearingPrevious);
        return attach::try_clear(state, call, now, effects);
    }
    let required = if run.interfaces.is_empty() { Ok(()) } else { state.check_required() };
    match required.and_then(|()| attach::result(state, call)) {
        Err(error) => attach::fail(state, call, error, effects),
        Ok(done) => {
            close_attach(state, &run.sandbox.id, run.ticket, effects);
            respond(state, call, done, effects);
        }
    }
}

/// Closes the attach just before it is completed: from here on it survives a crash.
fn close_attach(state: &mut State, id: &SandboxId, ticket: u64, effects: &mut Effects) {
    if !state.extensions.is_open(id, ticket) {
        return;
    }
    let open = state.extensions.open_of(id).filter(|other| *other != ticket).collect();
    let (gone, notifications) = (Vec::new(), Vec::new());
    effects.record(
        state,
        Record::ReceiptsEnded(Box::new(ReceiptsEnded { sandbox: id.clone(), gone, open, notifications })),
    );
}

/// After a restart: removes what attaches created that invoked extensions and were not completed.
pub(super) fn restarted(state: &mut State, call: &CallId, effects: &mut Effects) {
    for (sandbox, ticket) in state.extensions.open() {
        let interfaces_of_call = state.attachments.of(&sandbox).filter(|there| there.ticket == ticket);
        let interfaces_of_call: Vec<IfName> =
            interfaces_of_call.map(|there| there.interface.clone()).collect();
        for interface in interfaces_of_call {
            let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
            effects.record(state, record);
        }
        state.dirty.insert(Unit::Sandbox(sandbox.clone()));
        // A sandbox in a namespace that Knit created existed before the attach.
        let netns = state.sandboxes.get(&sandbox).map(|known| known.netns.as_str());
        let is_made = state.attachments.managed_netns().any(|managed| Some(managed.path.as_str()) == netns);
        let chained = plugin_chain::keys_of(state, &sandbox);
        if state.attachments.of(&sandbox).next().is_none() && chained.is_empty() && !is_made {
            super::detach_all(state, call, &sandbox, effects);
        }
    }
    let sandboxes_with_receipts = state.extensions.sandboxes_with_receipts();
    // Removed interfaces may still exist: observe before notifying extensions.
    let notification: Vec<SandboxId> = state
        .extensions
        .pending_notifications()
        .map(|notification| notification.sandbox.id.clone())
        .collect();
    state.dirty.extend(sandboxes_with_receipts.iter().cloned().chain(notification).map(Unit::Sandbox));
    state.extensions.stale.extend(sandboxes_with_receipts);
}

/// An invocation finished.
pub(super) fn invoked(
    state: &mut State,
    id: &str,
    result: InvocationResult,
    now: Time,
    effects: &mut Effects,
) {
    let Some(in_flight) = state.extensions.in_flight.remove(id) else { return };
    let failure = match in_flight.phase {
        HookPhase::AfterDetach => {
            extensions::notified(state, id, result.is_ok(), now, effects);
            result.err().map(|not| InvocationError {
                message: format!("it has not acknowledged an earlier detach: {}", not.message),
                reached: false,
            })
        }
        _ => record_outcome(state, id, &in_flight, result, now, effects),
    };
    for call in state.pending_calls.of(&in_flight.sandbox) {
        match &failure {
            Some(not) if in_flight.waits.as_ref() == Some(&call) => {
                failed(state, &call, &in_flight.extension, not.clone(), now, effects);
            }
            _ => advance(state, &call, now, effects),
        }
    }
}

/// Records the outcome; returns the error if the attach has to fail.
fn record_outcome(
    state: &mut State,
    id: &str,
    in_flight: &InFlightInvocation,
    result: InvocationResult,
    now: Time,
    effects: &mut Effects,
) -> Option<InvocationError> {
    // If the attach was rolled back meanwhile, the extension is notified of that.
    state.extensions.receipts(&in_flight.sandbox).find(|receipt| receipt.id == id)?;
    let current = state.extensions.get(&in_flight.extension);
    let is_current = current.is_some_and(|one| one.generation == in_flight.generation);
    let policy = current.map(|one| one.spec.fail);
    let (outcome, failure) = match result {
        Ok(data) => (InvocationOutcome::Done(data), None),
        Err(not) if is_current && policy == Some(FailPolicy::Ignore) => {
            (InvocationOutcome::Ignored(not), None)
        }
        // Removed or replaced during the invocation: the current registration is invoked instead.
        Err(not) if !is_current => (InvocationOutcome::Failed(not), None),
        Err(not) => (InvocationOutcome::Failed(not.clone()), Some(not)),
    };
    let sandbox = in_flight.sandbox.clone();
    effects.record(state, Record::ExtensionAnswered { sandbox, id: id.to_owned(), outcome, at: now });
    failure
}

/// An extension that an attach waits for has failed.
fn failed(
    state: &mut State,
    call: &CallId,
    extension: &str,
    not: InvocationError,
    now: Time,
    effects: &mut Effects,
) {
    let Some(run) = hook_run(state, call) else { return };
    let Some(one) = state.extensions.get(extension).cloned() else {
        return advance(state, call, now, effects);
    };
    if one.spec.fail == FailPolicy::Ignore {
        let id = record_call(state, &run, call, &one, now, effects);
        let (sandbox, outcome) = (run.sandbox.id.clone(), InvocationOutcome::Ignored(not));
        effects.record(state, Record::ExtensionAnswered { sandbox, id, outcome, at: now });
        return advance(state, call, now, effects);
    }
    let error = problem("", Reason::ExtensionFailed, failure_message(&one, run.phase, &not));
    fail(state, &run, call, error, effects);
}

fn failure_message(one: &RegisteredExtension, phase: HookPhase, not: &InvocationError) -> String {
    format!("extension {} (generation {}) failed {phase}: {}", one.spec.name, one.generation, not.message)
}

fn fail(state: &mut State, run: &HookRun, call: &CallId, error: Problem, effects: &mut Effects) {
    state.extensions.stale.insert(run.sandbox.id.clone());
    match run.phase {
        HookPhase::BeforeAttach => respond(state, call, CallResult::Failed(error), effects),
        _ => attach::fail(state, call, error, effects),
    }
}
