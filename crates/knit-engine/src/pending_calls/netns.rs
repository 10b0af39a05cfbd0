//! Network namespaces that Knit creates and removes. Foreign ones are never removed.

use std::collections::BTreeSet;

use knit_model::problem::{Problem, Reason};
use knit_model::{Sandbox, SandboxId};

use super::{AfterRemoval, CallKind, Stage, detach_all, enqueue, problem, respond};
use crate::call::{CallId, CallResult, ManagedNetns, NetnsOutcome};
use crate::event::{Effect, Record};
use crate::state::State;
use crate::step::Effects;

/// The request is journalled before the namespace is created, so that none is leaked.
pub(super) fn requested(state: &mut State, call: CallId, netns: ManagedNetns, effects: &mut Effects) {
    let path = netns.path.clone();
    let known = state.attachments.managed_netns().find(|known| known.path == path).cloned();
    if let Some(known) = known.as_ref().filter(|known| known.uid != netns.uid) {
        let message = format!("{path} is already used by pod {}/{}", known.namespace, known.pod);
        effects.respond(&call, CallResult::Failed(problem("name", Reason::Conflict, message)));
        return;
    }
    if !enqueue(state, &call, CallKind::Netns(netns.clone()), Stage::Inspecting, effects) {
        return;
    }
    if known.is_none() {
        effects.record(state, Record::NetnsRequested(netns));
    }
    effects.list.push(Effect::CreateNetns { call, path });
}

/// Removes everything of the sandboxes inside, then the namespace.
pub(super) fn removal_requested(state: &mut State, call: CallId, path: String, effects: &mut Effects) {
    // Virtual machines have no network namespace.
    let is_in_netns = |sandbox: &&Sandbox| sandbox.isolation.is_netns() && sandbox.netns == path;
    let sandboxes = state.sandboxes.values().filter(is_in_netns);
    let sandboxes: BTreeSet<SandboxId> = sandboxes.map(|sandbox| sandbox.id.clone()).collect();
    let kind = CallKind::RemoveSandboxes {
        remaining: sandboxes.clone(),
        then: AfterRemoval::RemoveNetns(path.clone()),
    };
    if !enqueue(state, &call, kind, Stage::Queued, effects) {
        return;
    }
    sandboxes.iter().for_each(|id| detach_all(state, &call, id, effects));
    if sandboxes.is_empty() {
        remove(state, &call, path, effects);
    }
}

/// Removes the namespace, if Knit created it.
pub(super) fn remove(state: &mut State, call: &CallId, path: String, effects: &mut Effects) {
    let Some(netns) = state.attachments.managed_netns().find(|known| known.path == path).cloned() else {
        return respond(state, call, CallResult::Detached, effects);
    };
    if let Some(waiting) = state.pending_calls.waiting.get_mut(call) {
        waiting.stage = Stage::Removing;
        waiting.kind = CallKind::Netns(netns);
    }
    effects.list.push(Effect::RemoveNetns { call: call.clone(), path });
}

/// The namespace was created or removed, or the operation failed.
pub(super) fn finished(
    state: &mut State,
    call: &CallId,
    result: Result<NetnsOutcome, Problem>,
    effects: &mut Effects,
) {
    let Some(waiting) = state.pending_calls.waiting.get(call) else { return };
    let (CallKind::Netns(netns), stage) = (waiting.kind.clone(), waiting.stage.clone()) else { return };
    match result {
        // Created for a caller that is gone.
        Ok(NetnsOutcome::Created) if stage == Stage::Abandoned => remove(state, call, netns.path, effects),
        Ok(NetnsOutcome::Created) => respond(state, call, CallResult::Netns(netns), effects),
        Ok(NetnsOutcome::Removed(instance)) => {
            effects.record(state, Record::NetnsRemoved { path: netns.path, instance });
            respond(state, call, CallResult::Detached, effects);
        }
        Err(error) => {
            if stage != Stage::Removing {
                effects.record(state, Record::NetnsRemoved { path: netns.path, instance: None });
            }
            respond(state, call, CallResult::Failed(error), effects);
        }
    }
}
