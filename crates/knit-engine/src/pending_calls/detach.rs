//! Detach and garbage collection. Detaching something unknown succeeds.

use knit_ipam::AttachmentId;
use knit_model::problem::Reason;
use knit_model::{IfName, Sandbox, SandboxId};

use super::{AfterRemoval, CallKind, Stage, attach, detach_all, enqueue, problem, respond};
use crate::call::{
    ATTACHMENT_KIND, Attachment, AttachmentMetadata, CallId, CallResult, DetachRequest, DetachScope,
    GcRequest, GcResult,
};
use crate::event::{Effect, Record, Unit};
use crate::state::State;
use crate::step::Effects;

pub(super) fn requested(state: &mut State, detach: DetachRequest, effects: &mut Effects) {
    let (call, path) = (detach.call.clone(), detach.netns.clone());
    let is_other_netns = state.sandboxes.get(&detach.sandbox).is_some_and(|known| known.netns != path);
    let stage = if is_other_netns && !path.is_empty() { Stage::Inspecting } else { Stage::Queued };
    let inspects = stage == Stage::Inspecting;
    state.pending_calls.recent_detaches.note(&detach);
    if !enqueue(state, &call, CallKind::Detach(detach), stage, effects) {
        return;
    }
    if inspects {
        effects.list.push(Effect::InspectNetns { call, path });
    } else {
        remove_interfaces(state, &call, effects);
    }
}

/// Removes the interfaces from the desired state.
pub(super) fn remove_interfaces(state: &mut State, call: &CallId, effects: &mut Effects) {
    let Some(CallKind::Detach(detach)) = state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return;
    };
    let DetachRequest { sandbox: id, scope, forget_sandbox, .. } = detach.clone();
    supersede(state, &id, &scope, effects);
    let unit = Unit::Sandbox(id.clone());
    let mut chained = super::plugin_chain::keys_of(state, &id);
    // Chains requested by objects stay as long as the sandbox exists.
    chained.retain(|key| {
        scope.is_all() || !state.attachments.chained(key).is_some_and(super::plugin_chain::is_from_object)
    });
    for key in chained.iter().filter(|(_, interface)| scope.covers(interface)) {
        super::plugin_chain::start_del(state, key, Some(call), effects);
    }
    let stays = |attachment: &Attachment| !scope.covers(&attachment.interface);
    let stays =
        state.attachments.of(&id).any(stays) || chained.iter().any(|(_, interface)| !scope.covers(interface));
    let last = forget_sandbox && state.attachments.of(&id).next().is_some() && !stays;
    if scope.is_all() || last {
        let sandbox = state.sandboxes.get(&id).filter(|_| scope == DetachScope::Sandbox);
        let path = sandbox.map(|sandbox| sandbox.netns.clone()).unwrap_or_default();
        if let Some(waiting) = state.pending_calls.waiting.get_mut(call) {
            waiting.kind = CallKind::RemoveSandboxes {
                remaining: [id.clone()].into(),
                then: AfterRemoval::RemoveNetns(path.clone()),
            };
            waiting.stage = Stage::Queued;
        }
        if state.sandboxes.contains_key(&id) || state.units.contains_key(&unit) {
            detach_all(state, call, &id, effects);
        } else {
            super::netns::remove(state, call, path, effects);
        }
        return;
    }
    let called = state.attachments.of(&id).map(|attachment| attachment.interface.clone());
    let detached: Vec<IfName> = called.filter(|interface| scope.covers(interface)).collect();
    if detached.is_empty() {
        return respond(state, call, CallResult::Detached, effects);
    }
    for interface in detached {
        effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
    }
    state.dirty.insert(unit);
    state.pending_calls.stage(call, Stage::Queued);
}

/// Rolls back attaches of the same interfaces that are in progress: the detach wins.
fn supersede(state: &mut State, id: &SandboxId, scope: &DetachScope, effects: &mut Effects) {
    for call in state.pending_calls.of(id) {
        let Some(waiting) = state.pending_calls.waiting.get(&call) else { continue };
        let CallKind::Attach(attaching) = &waiting.kind else { continue };
        let mut names = attaching.attach.interfaces.iter().map(|(name, ..)| name);
        if !scope.is_all() && !names.any(|name| scope.covers(name)) {
            continue;
        }
        let message = format!("sandbox {id} was detached while it was being attached");
        let error = problem("", Reason::Superseded, message);
        match waiting.stage {
            Stage::RunningPlugins | Stage::AfterHooks if attach::is_chained(state, &call) => {
                super::plugin_chain::abandon(state, &call, effects);
                respond(state, &call, CallResult::Failed(error), effects);
            }
            Stage::Inspecting | Stage::ClearingPrevious => {
                respond(state, &call, CallResult::Failed(error), effects)
            }
            Stage::BeforeHooks => {
                state.extensions.stale.insert(id.clone());
                respond(state, &call, CallResult::Failed(error), effects);
            }
            Stage::RunningPlugins | Stage::Queued | Stage::InFlight | Stage::AfterHooks => {
                attach::roll_back(state, &call, effects);
                state.pending_calls.stage(&call, Stage::RollingBack { error, in_flight: false });
            }
            Stage::RollingBack { .. } | Stage::Abandoned | Stage::Removing | Stage::Deferred(_) => {}
        }
    }
}

/// The change of this call has ended.
pub(super) fn change_ended(state: &mut State, call: &CallId, effects: &mut Effects) {
    let Some(CallKind::Detach(detach)) = state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return;
    };
    let id = detach.sandbox.clone();
    let unit = Unit::Sandbox(id.clone());
    let unit_state = state.units.get(&unit).into_iter().flat_map(|unit_state| &unit_state.interfaces);
    let mut remaining = unit_state.filter(|(object, report)| {
        object.kind == ATTACHMENT_KIND
            && detach.scope.covers(&report.name)
            && state.attachments.get(&id, &report.name).is_none()
    });
    let outcome = match remaining.next() {
        None => CallResult::Detached,
        Some((_, report)) => {
            let known = state.problems.get(&unit).and_then(|problems| problems.first());
            let message = format!("interface {} of sandbox {id} could not be removed", report.name);
            let unknown = || problem("", Reason::KernelError, message);
            CallResult::Failed(known.map_or_else(unknown, |(_, problem)| problem.clone()))
        }
    };
    respond(state, call, outcome, effects);
}

pub(super) fn gc(state: &mut State, gc: GcRequest, effects: &mut Effects) {
    let call = gc.call.clone();
    let is_dead = |attachment: &&Attachment| {
        gc.covers(&attachment.sandbox, &attachment.interface, &attachment.metadata)
    };
    let mut dead: Vec<GcResult> = Vec::new();
    for attachment in state.attachments.all().filter(is_dead) {
        // Attaches in progress are newer than the caller's list.
        if !state.pending_calls.of(&attachment.sandbox).is_empty() {
            continue;
        }
        let owner =
            AttachmentId { sandbox: attachment.sandbox.clone(), interface: attachment.interface.clone() };
        let addresses: Vec<_> = state.leases.held_by(&owner).map(|key| key.address).collect();
        match dead.last_mut().filter(|last| last.sandbox == attachment.sandbox) {
            Some(last) => {
                last.interfaces.push(attachment.interface.clone());
                last.addresses.extend(addresses);
            }
            None => dead.push(GcResult {
                sandbox: attachment.sandbox.clone(),
                pod: state.sandboxes.get(&attachment.sandbox).map_or_else(Default::default, |sandbox| {
                    (sandbox.namespace.clone(), sandbox.pod.clone())
                }),
                interfaces: vec![attachment.interface.clone()],
                addresses,
            }),
        }
    }
    let remaining = dead.iter().map(|one| one.sandbox.clone()).collect();
    if !enqueue(
        state,
        &call,
        CallKind::RemoveSandboxes { remaining, then: AfterRemoval::Report(dead.clone()) },
        Stage::Queued,
        effects,
    ) {
        return;
    }
    for one in &dead {
        let all = state.attachments.of(&one.sandbox).count() == one.interfaces.len()
            && super::plugin_chain::keys_of(state, &one.sandbox).is_empty();
        // A group covers only its attachments: what objects request stays while the sandbox exists.
        let sandbox = state.sandboxes.get(&one.sandbox).filter(|_| !gc.group.is_empty());
        let is_meant = |sandbox: &Sandbox| {
            !sandbox.labels.is_empty() || state.objects_selecting(sandbox).next().is_some()
        };
        if all && !sandbox.is_some_and(is_meant) {
            detach_all(state, &call, &one.sandbox, effects);
            continue;
        }
        for interface in one.interfaces.clone() {
            let record = Record::Detached { sandbox: one.sandbox.clone(), interface, call: call.clone() };
            effects.record(state, record);
        }
        state.dirty.insert(Unit::Sandbox(one.sandbox.clone()));
    }
    let chains = gc_chained(state, &gc, effects);
    if let Some(waiting) = state.pending_calls.waiting.get_mut(&call)
        && let CallKind::RemoveSandboxes { then: AfterRemoval::Report(collected), .. } = &mut waiting.kind
    {
        collected.extend(chains.iter().cloned());
    }
    if dead.is_empty() {
        respond(state, &call, CallResult::Collected(chains), effects);
    }
}

/// Garbage-collects interfaces of plugin chains.
fn gc_chained(state: &mut State, gc: &GcRequest, effects: &mut Effects) -> Vec<GcResult> {
    let call = &gc.call;
    let is_dead = |attachment: &&crate::plugin_chain::ChainedInterface| {
        // Attaches in progress are newer than the caller's list.
        let busy = state.pending_calls.of(&attachment.sandbox).iter().any(|other| other != call);
        !super::plugin_chain::is_from_object(attachment)
            && !busy
            && !attachment.removing
            && gc.covers(&attachment.sandbox, &attachment.interface, &attachment.metadata)
    };
    let dead: Vec<_> = state.attachments.all_chained().filter(is_dead).cloned().collect();
    let mut collected = Vec::new();
    for attachment in dead {
        super::plugin_chain::start_del(state, &attachment.key(), Some(call), effects);
        let (namespace, pod, _) = attachment.pod;
        let interfaces = vec![attachment.interface];
        collected.push(GcResult {
            sandbox: attachment.sandbox,
            pod: (namespace, pod),
            interfaces,
            addresses: Vec::new(),
        });
    }
    collected
}

/// A sandbox from which a call removes something has settled.
pub(super) fn sandbox_removed(state: &mut State, call: &CallId, id: &SandboxId, effects: &mut Effects) {
    let unit = Unit::Sandbox(id.clone());
    if state.dirty.contains(&unit) || state.pending_calls.removing.contains(id) {
        return;
    }
    let Some(CallKind::RemoveSandboxes { remaining, then }) =
        state.pending_calls.waiting.get_mut(call).map(|waiting| &mut waiting.kind)
    else {
        return;
    };
    remaining.remove(id);
    if !remaining.is_empty() {
        return;
    }
    match then.clone() {
        AfterRemoval::Report(all) => respond(state, call, CallResult::Collected(all), effects),
        AfterRemoval::RemoveNetns(path) => super::netns::remove(state, call, path, effects),
    }
}

impl GcRequest {
    /// Whether an interface is in the group of the request and not among the live ones.
    fn covers(&self, sandbox: &SandboxId, interface: &IfName, metadata: &AttachmentMetadata) -> bool {
        let is_alive = self.alive.contains(&(sandbox.clone(), None))
            || self.alive.contains(&(sandbox.clone(), Some(interface.clone())));
        !is_alive && (self.group.is_empty() || metadata.group == self.group)
    }
}

impl DetachScope {
    pub(super) fn covers(&self, interface: &IfName) -> bool {
        match self {
            Self::Interfaces(interfaces) => interfaces.contains(interface),
            Self::Attached | Self::All | Self::Sandbox => true,
        }
    }

    fn is_all(&self) -> bool {
        matches!(self, Self::All | Self::Sandbox)
    }
}
