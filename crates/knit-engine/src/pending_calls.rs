//! Calls that wait for a result: which units each waits for, and how it continues when these settle.
//!
//! A call is completed by the change that carried it, never by a later one: another call that fails on the same
//! sandbox must not roll back what this call reported as attached.

mod attach;
mod detach;
mod hooks;
mod late_attach;
mod netns;
pub(crate) mod plugin_chain;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::{
    AttachRequest, Attachment, CallId, CallResult, DetachRequest, GcResult, ManagedNetns, NetnsInfo,
};
use crate::event::{Event, Record, Unit};
use crate::extensions;
use crate::packet_filter;
use crate::plugin_chain::ChainKey;
use crate::state::State;
use crate::step::Effects;

pub(crate) use hooks::attaching;

/// How many calls can wait at once; further calls are rejected.
const MAX_CALLS: usize = 1_024;

/// The state of calls. Not persistent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingCalls {
    #[serde(skip)]
    waiting: BTreeMap<CallId, PendingCall>,
    /// Sandboxes that are forgotten as soon as nothing is left inside.
    removing: BTreeSet<SandboxId>,
    /// Recent detaches, to reject attaches that arrive late.
    recent_detaches: late_attach::RecentDetaches,
    /// CNI plugins that are being run.
    chain_runs: plugin_chain::ChainRuns,
}

impl PendingCalls {
    /// Whether no call waits for a result.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingCall {
    kind: CallKind,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CallKind {
    Attach(Box<AttachCall>),
    Detach(DetachRequest),
    /// Sandboxes from which something is removed, and what follows.
    RemoveSandboxes {
        remaining: BTreeSet<SandboxId>,
        then: AfterRemoval,
    },
    Netns(ManagedNetns),
}

/// What follows once sandboxes are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterRemoval {
    /// Respond with these results.
    Report(Vec<GcResult>),
    /// Remove the network namespace, if Knit created it.
    RemoveNetns(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AttachCall {
    attach: AttachRequest,
    netns_info: Option<NetnsInfo>,
    /// Interfaces that this call created; others existed before.
    added: Vec<IfName>,
    /// Previous versions of existing attachments whose limits it changes.
    before: Vec<Attachment>,
    /// Whether this call created the sandbox.
    created_sandbox: bool,
    /// Whether the removal of a previous sandbox instance was requested.
    cleared: bool,
    /// Whether the before-attach extensions have run.
    before_hooks_done: bool,
    /// Whether CNI plugins create the interface.
    chained: bool,
}

/// The progress of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The network namespace is being inspected or created.
    Inspecting,
    /// Remains of a previous sandbox instance are being removed.
    ClearingPrevious,
    /// Extensions are invoked before anything is changed.
    BeforeHooks,
    /// The request is part of the desired state; no change has picked it up yet.
    Queued,
    /// A change that includes the request is in flight.
    InFlight,
    /// The call failed; it is rolled back and then completed with this error.
    RollingBack { error: Problem, in_flight: bool },
    /// The interfaces are ready; extensions are invoked before the call is completed.
    AfterHooks,
    /// The caller is gone; what is being created is removed once it exists.
    Abandoned,
    /// The network namespace is being removed.
    Removing,
    /// CNI plugins are running.
    RunningPlugins,
    /// The result is sent once plugins have removed the interfaces.
    Deferred(Box<CallResult>),
}

impl PendingCalls {
    /// The calls for one sandbox.
    fn of(&self, id: &SandboxId) -> Vec<CallId> {
        let concerns = |waiting: &PendingCall| match &waiting.kind {
            CallKind::Attach(attaching) => attaching.attach.sandbox.id == id.0,
            CallKind::Detach(detach) => detach.sandbox == *id,
            CallKind::RemoveSandboxes { remaining, .. } => remaining.contains(id),
            CallKind::Netns(_) => false,
        };
        self.waiting.iter().filter(|(_, waiting)| concerns(waiting)).map(|(call, _)| call.clone()).collect()
    }

    /// Why plugins failed to create an interface that an object requests.
    pub(crate) fn failed(&self, key: &ChainKey) -> Option<&Problem> {
        self.chain_runs.failed(key)
    }

    fn stage(&mut self, call: &CallId, stage: Stage) {
        if let Some(waiting) = self.waiting.get_mut(call) {
            waiting.stage = stage;
        }
    }
}

/// Handles an event of a call.
pub(crate) fn handle(state: &mut State, event: Event, now: Time, effects: &mut Effects) {
    match event {
        Event::AttachRequested(attach) => attach::requested(state, *attach, now, effects),
        Event::DetachRequested(detach) => detach::requested(state, detach, effects),
        Event::GcRequested(gc) => detach::gc(state, gc, effects),
        Event::NetnsRequested { call, netns } => netns::requested(state, call, netns, effects),
        Event::NetnsRemovalRequested { call, path } => netns::removal_requested(state, call, path, effects),
        Event::NetnsDone { call, result } => netns::finished(state, &call, result, effects),
        Event::NetnsInspected { call, result } => inspected(state, &call, result, now, effects),
        Event::CallCancelled { call, ticket } => cancelled(state, &call, ticket, effects),
        Event::ExtensionRegistrationRequested(request) => extensions::register(state, *request, now, effects),
        Event::ExtensionRemovalRequested(request) => extensions::remove(state, request, effects),
        Event::ExtensionInvoked { id, result } => hooks::invoked(state, &id, result, now, effects),
        Event::NotificationTimer => extensions::send_due(state, now, effects),
        Event::PluginChainsConfigured(chains) if chains != *state.attachments.chains() => {
            effects.record(state, Record::PluginChains(chains));
        }
        Event::PluginChainDone { key, command, result } => {
            plugin_chain::finished(state, &key, command, result, now, effects)
        }
        Event::Restarted => restarted(state, effects),
        _ => {}
    }
}

/// A change starts that includes all requests for this sandbox so far.
pub(crate) fn change_started(state: &mut State, id: &SandboxId) {
    for call in state.pending_calls.of(id) {
        let Some(waiting) = state.pending_calls.waiting.get_mut(&call) else { continue };
        match &mut waiting.stage {
            Stage::Queued => waiting.stage = Stage::InFlight,
            Stage::RollingBack { in_flight, .. } => *in_flight = true,
            _ => {}
        }
    }
}

/// A change ended, successfully or not: calls for its sandbox are completed or continue.
pub(crate) fn change_ended(state: &mut State, unit: &Unit, now: Time, effects: &mut Effects) {
    let Unit::Sandbox(id) = unit else { return };
    if state.pending_calls.removing.contains(id) && !state.dirty.contains(unit) {
        state.pending_calls.removing.remove(id);
        forget(state, id, now, effects);
    }
    for call in state.pending_calls.of(id) {
        let Some(waiting) = state.pending_calls.waiting.get(&call) else { continue };
        match (&waiting.kind, waiting.stage.clone()) {
            (_, Stage::RollingBack { error, in_flight: true }) => {
                respond(state, &call, CallResult::Failed(error), effects);
            }
            (CallKind::Attach(_), Stage::ClearingPrevious) => attach::try_clear(state, &call, now, effects),
            (CallKind::Attach(_), Stage::InFlight) => attach::change_ended(state, &call, now, effects),
            (CallKind::Detach(_), Stage::InFlight) => detach::change_ended(state, &call, effects),
            (CallKind::RemoveSandboxes { .. }, _) => detach::sandbox_removed(state, &call, id, effects),
            _ => {}
        }
    }
}

/// The sandbox is gone. Attaches fail; detaches wait until the host is clean.
pub(crate) fn sandbox_lost(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    state.pending_calls.removing.remove(id);
    for call in state.pending_calls.of(id) {
        let Some(waiting) = state.pending_calls.waiting.get_mut(&call) else { continue };
        match (&waiting.kind, &waiting.stage) {
            (CallKind::Attach(_), Stage::RollingBack { error, .. }) => {
                let error = error.clone();
                respond(state, &call, CallResult::Failed(error), effects);
            }
            (
                CallKind::Attach(_),
                Stage::BeforeHooks
                | Stage::RunningPlugins
                | Stage::Queued
                | Stage::InFlight
                | Stage::AfterHooks,
            ) => {
                let message = format!("sandbox {id}: its namespace is gone");
                if attach::is_chained(state, &call) {
                    plugin_chain::abandon(state, &call, effects);
                }
                respond(
                    state,
                    &call,
                    CallResult::Failed(problem("sandbox", Reason::SandboxGone, message)),
                    effects,
                );
            }
            (CallKind::Detach(_), Stage::InFlight) => waiting.stage = Stage::Queued,
            _ => {}
        }
    }
}

fn inspected(
    state: &mut State,
    call: &CallId,
    netns_info: Result<NetnsInfo, Problem>,
    now: Time,
    effects: &mut Effects,
) {
    let Some(PendingCall { kind, stage: Stage::Inspecting }) = state.pending_calls.waiting.get_mut(call)
    else {
        return;
    };
    match (kind, netns_info) {
        (CallKind::Attach(_), Err(error)) => respond(state, call, CallResult::Failed(error), effects),
        (CallKind::Attach(attaching), Ok(netns_info)) => {
            attaching.netns_info = Some(netns_info);
            state.pending_calls.stage(call, Stage::ClearingPrevious);
            attach::try_clear(state, call, now, effects);
        }
        (CallKind::Detach(detach), netns_info) => {
            let known = state.sandboxes.get(&detach.sandbox).map(|sandbox| &sandbox.instance);
            let is_known = netns_info.is_ok_and(|netns_info| Some(&netns_info.instance) == known);
            if is_known {
                detach::remove_interfaces(state, call, effects);
            } else {
                // The caller means another instance of the sandbox, which is gone already.
                respond(state, call, CallResult::Detached, effects);
            }
        }
        _ => {}
    }
}

fn cancelled(state: &mut State, call: &CallId, ticket: u64, effects: &mut Effects) {
    if state.pod_starts.remove(call).is_some() {
        return;
    }
    let Some(waiting) = state.pending_calls.waiting.get_mut(call) else {
        return roll_back_unacknowledged(state, call, ticket, effects);
    };
    match (&waiting.kind, &waiting.stage) {
        (CallKind::Netns(_), Stage::Inspecting) => waiting.stage = Stage::Abandoned,
        (
            CallKind::Attach(_),
            Stage::Queued | Stage::RunningPlugins | Stage::InFlight | Stage::AfterHooks,
        ) => {
            attach::roll_back(state, call, effects);
            state.pending_calls.waiting.remove(call);
        }
        (CallKind::Attach(attaching), Stage::BeforeHooks) => {
            // Extensions undo what they did before the attach.
            state.extensions.stale.insert(SandboxId(attaching.attach.sandbox.id.clone()));
            state.pending_calls.waiting.remove(call);
        }
        // Detaches and garbage collection continue without their caller.
        (CallKind::RemoveSandboxes { .. } | CallKind::Netns(_), _) => {}
        _ => {
            state.pending_calls.waiting.remove(call);
        }
    }
}

/// The result was sent, but the caller was gone: roll back what the call created.
fn roll_back_unacknowledged(state: &mut State, call: &CallId, ticket: u64, effects: &mut Effects) {
    plugin_chain::roll_back_unacknowledged(state, ticket, effects);
    let interfaces_of_call =
        state.attachments.all().filter(|attachment| ticket != 0 && attachment.ticket == ticket);
    let interfaces_of_call: Vec<(SandboxId, IfName)> = interfaces_of_call
        .map(|attachment| (attachment.sandbox.clone(), attachment.interface.clone()))
        .collect();
    for (sandbox, interface) in interfaces_of_call {
        let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
        effects.record(state, record);
        if state.attachments.of(&sandbox).next().is_none() {
            detach_all(state, call, &sandbox, effects);
        }
        state.dirty.insert(Unit::Sandbox(sandbox));
    }
}

/// Rolls back attachments that were never ready: their callers never got a result and are gone.
fn restarted(state: &mut State, effects: &mut Effects) {
    packet_filter::rebuild(state);
    hooks::restarted(state, &CallId("restart".to_owned()), effects);
    plugin_chain::restarted(state, effects);
    let never_ready = state.attachments.all().filter(|attachment| !attachment.was_ready);
    let never_ready: Vec<(SandboxId, IfName)> =
        never_ready.map(|attachment| (attachment.sandbox.clone(), attachment.interface.clone())).collect();
    for (sandbox, interface) in never_ready {
        let call = CallId("restart".to_owned());
        let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
        effects.record(state, record);
        let unit = Unit::Sandbox(sandbox.clone());
        if state.attachments.of(&sandbox).next().is_none() && !state.units.contains_key(&unit) {
            detach_all(state, &call, &sandbox, effects);
        }
        state.dirty.insert(unit);
    }
}

/// Adds a call, unless there are too many.
fn enqueue(state: &mut State, call: &CallId, kind: CallKind, stage: Stage, effects: &mut Effects) -> bool {
    let rejection = if state.pending_calls.waiting.len() >= MAX_CALLS {
        Some((Reason::Busy, format!("{MAX_CALLS} calls are in progress: try again later")))
    } else if state.pending_calls.waiting.contains_key(call) {
        Some((Reason::Conflict, format!("call {call} is already in progress")))
    } else {
        None
    };
    if let Some((reason, message)) = rejection {
        effects.respond(call, CallResult::Failed(problem("", reason, message)));
        return false;
    }
    state.pending_calls.waiting.insert(call.clone(), PendingCall { kind, stage });
    true
}

fn respond(state: &mut State, call: &CallId, result: CallResult, effects: &mut Effects) {
    if state.pending_calls.chain_runs.is_awaited_by(call) {
        return state.pending_calls.stage(call, Stage::Deferred(Box::new(result)));
    }
    if state.pending_calls.waiting.remove(call).is_some() {
        effects.respond(call, result);
    }
}

/// Removes everything inside a sandbox, which is then forgotten.
fn detach_all(state: &mut State, call: &CallId, id: &SandboxId, effects: &mut Effects) {
    for key in plugin_chain::keys_of(state, id) {
        plugin_chain::start_del(state, &key, Some(call), effects);
    }
    let interfaces: Vec<IfName> =
        state.attachments.of(id).map(|attachment| attachment.interface.clone()).collect();
    for interface in interfaces {
        effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
    }
    if let Some(sandbox) = state.sandboxes.get(id)
        && (!sandbox.labels.is_empty() || state.objects_selecting(sandbox).next().is_some())
    {
        // Objects no longer select its pod.
        let uid = String::new();
        let sandbox = knit_model::Sandbox { labels: BTreeMap::new(), uid, ..sandbox.clone() };
        effects.record(state, Record::SandboxUpdated(sandbox));
    }
    if state.sandboxes.contains_key(id) {
        state.pending_calls.removing.insert(id.clone());
    }
    state.dirty.insert(Unit::Sandbox(id.clone()));
}

/// Forgets the sandbox. What remains on the host is removed in a separate change.
fn forget(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    if !state.sandboxes.contains_key(id) {
        return;
    }
    effects.record(state, Record::SandboxRemoved { id: id.clone(), at: now });
    let unit = Unit::Sandbox(id.clone());
    if state.units.contains_key(&unit) {
        state.dirty.insert(unit);
    }
}

fn problem(field: &str, reason: Reason, message: impl Into<String>) -> Problem {
    Problem::new(field.to_owned(), reason, message.into())
}
