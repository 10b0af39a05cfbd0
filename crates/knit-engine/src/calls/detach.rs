//! Detaching, and collecting what is not alive. What is not there is detached already.

use knit_ipam::AttachmentId;
use knit_model::problem::Reason;
use knit_model::{IfName, Sandbox, SandboxId};

use super::{Stage, Then, What, answer, attach, leave, problem, take_in};
use crate::call::{ATTACHMENT, Answer, Attachment, CallId, Collect, Collected, Detach, Which};
use crate::event::{Effect, Record, Unit};
use crate::state::State;
use crate::step::Effects;

pub(super) fn requested(state: &mut State, detach: Detach, effects: &mut Effects) {
    let (call, path) = (detach.call.clone(), detach.netns.clone());
    let elsewhere = state.sandboxes.get(&detach.sandbox).is_some_and(|known| known.netns != path);
    let stage = if elsewhere && !path.is_empty() { Stage::Host } else { Stage::Waiting };
    let asks = stage == Stage::Host;
    state.calls.ended.note(&detach);
    if !take_in(state, &call, What::Detach(detach), stage, effects) {
        return;
    }
    if asks {
        effects.list.push(Effect::Inspect { call, path });
    } else {
        go(state, &call, effects);
    }
}

/// Takes the interfaces out of desired.
pub(super) fn go(state: &mut State, call: &CallId, effects: &mut Effects) {
    let Some(What::Detach(detach)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return;
    };
    let Detach { sandbox: id, which, forget, .. } = detach.clone();
    supersede(state, &id, &which, effects);
    let unit = Unit::Sandbox(id.clone());
    let mut chained = super::chain::of(state, &id);
    // What objects ask for is theirs as long as the sandbox is there.
    chained.retain(|key| which.is_all() || !state.called.chained(key).is_some_and(super::chain::is_kept));
    for key in chained.iter().filter(|(_, interface)| which.means(interface)) {
        super::chain::leave(state, key, Some(call), effects);
    }
    let stays = |there: &Attachment| !which.means(&there.interface);
    let stays =
        state.called.of(&id).any(stays) || chained.iter().any(|(_, interface)| !which.means(interface));
    let last = forget && state.called.of(&id).next().is_some() && !stays;
    if which.is_all() || last {
        let sandbox = state.sandboxes.get(&id).filter(|_| which == Which::Sandbox);
        let path = sandbox.map(|sandbox| sandbox.netns.clone()).unwrap_or_default();
        if let Some(waiting) = state.calls.waiting.get_mut(call) {
            waiting.what = What::Leave { left: [id.clone()].into(), then: Then::RemoveDomain(path.clone()) };
            waiting.stage = Stage::Waiting;
        }
        if state.sandboxes.contains_key(&id) || state.made.contains_key(&unit) {
            leave(state, call, &id, effects);
        } else {
            super::domain::remove(state, call, path, effects);
        }
        return;
    }
    let called = state.called.of(&id).map(|there| there.interface.clone());
    let there: Vec<IfName> = called.filter(|interface| which.means(interface)).collect();
    if there.is_empty() {
        return answer(state, call, Answer::Detached, effects);
    }
    for interface in there {
        effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
    }
    state.dirty.insert(unit);
    state.calls.stage(call, Stage::Waiting);
}

/// Attaches of the same interfaces that are under way are taken back: a detach is the last word.
fn supersede(state: &mut State, id: &SandboxId, which: &Which, effects: &mut Effects) {
    for call in state.calls.of(id) {
        let Some(waiting) = state.calls.waiting.get(&call) else { continue };
        let What::Attach(attaching) = &waiting.what else { continue };
        let mut names = attaching.attach.interfaces.iter().map(|(name, ..)| name);
        if !which.is_all() && !names.any(|name| which.means(name)) {
            continue;
        }
        let message = format!("sandbox {id} was detached while it was being attached");
        let why = problem("", Reason::Superseded, message);
        match waiting.stage {
            Stage::Chaining | Stage::After if attach::is_chained(state, &call) => {
                super::chain::abandon(state, &call, effects);
                answer(state, &call, Answer::Failed(why), effects);
            }
            Stage::Host | Stage::Clearing => answer(state, &call, Answer::Failed(why), effects),
            Stage::Before => {
                state.extensions.stale.insert(id.clone());
                answer(state, &call, Answer::Failed(why), effects);
            }
            Stage::Chaining | Stage::Waiting | Stage::Flying | Stage::Forwarding(_) | Stage::After => {
                attach::take_back(state, &call, effects);
                state.calls.stage(&call, Stage::TakingBack { why, flying: false });
            }
            Stage::TakingBack { .. } | Stage::Abandoned | Stage::Removing | Stage::Held(_) => {}
        }
    }
}

/// The flight that carried the detach has ended.
pub(super) fn landed(state: &mut State, call: &CallId, effects: &mut Effects) {
    let Some(What::Detach(detach)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return;
    };
    let id = detach.sandbox.clone();
    let unit = Unit::Sandbox(id.clone());
    let made = state.made.get(&unit).into_iter().flat_map(|made| &made.interfaces);
    let mut left = made.filter(|(object, report)| {
        object.kind == ATTACHMENT
            && detach.which.means(&report.name)
            && state.called.get(&id, &report.name).is_none()
    });
    let outcome = match left.next() {
        None => Answer::Detached,
        Some((_, report)) => {
            let known = state.problems.get(&unit).and_then(|problems| problems.first());
            let message = format!("interface {} of sandbox {id} could not be taken away", report.name);
            let unknown = || problem("", Reason::KernelRefused, message);
            Answer::Failed(known.map_or_else(unknown, |(_, problem)| problem.clone()))
        }
    };
    answer(state, call, outcome, effects);
}

pub(super) fn collect(state: &mut State, collect: Collect, effects: &mut Effects) {
    let Collect { call, living, group } = collect;
    let is_dead = |there: &&Attachment| {
        let id = &there.sandbox;
        let lives = living.contains(&(id.clone(), None))
            || living.contains(&(id.clone(), Some(there.interface.clone())));
        !lives && (group.is_empty() || there.notes.group == group)
    };
    let mut dead: Vec<Collected> = Vec::new();
    for there in state.called.all().filter(is_dead) {
        // What is being attached right now was not there when the list was made.
        if !state.calls.of(&there.sandbox).is_empty() {
            continue;
        }
        let owner = AttachmentId { sandbox: there.sandbox.clone(), interface: there.interface.clone() };
        let addresses: Vec<_> = state.leases.held_by(&owner).map(|key| key.address).collect();
        match dead.last_mut().filter(|last| last.sandbox == there.sandbox) {
            Some(last) => {
                last.interfaces.push(there.interface.clone());
                last.addresses.extend(addresses);
            }
            None => dead.push(Collected {
                sandbox: there.sandbox.clone(),
                pod: state.sandboxes.get(&there.sandbox).map_or_else(Default::default, |sandbox| {
                    (sandbox.namespace.clone(), sandbox.pod.clone())
                }),
                interfaces: vec![there.interface.clone()],
                addresses,
            }),
        }
    }
    let left = dead.iter().map(|one| one.sandbox.clone()).collect();
    if !take_in(state, &call, What::Leave { left, then: Then::Tell(dead.clone()) }, Stage::Waiting, effects) {
        return;
    }
    for one in &dead {
        let all = state.called.of(&one.sandbox).count() == one.interfaces.len()
            && super::chain::of(state, &one.sandbox).is_empty();
        // A group's garbage is what its calls made: what objects ask for stays while the sandbox lives.
        let sandbox = state.sandboxes.get(&one.sandbox).filter(|_| !group.is_empty());
        let is_meant =
            |sandbox: &Sandbox| !sandbox.labels.is_empty() || state.asking(sandbox).next().is_some();
        if all && !sandbox.is_some_and(is_meant) {
            leave(state, &call, &one.sandbox, effects);
            continue;
        }
        for interface in one.interfaces.clone() {
            let record = Record::Detached { sandbox: one.sandbox.clone(), interface, call: call.clone() };
            effects.record(state, record);
        }
        state.dirty.insert(Unit::Sandbox(one.sandbox.clone()));
    }
    let chains = collect_chained(state, &call, &living, &group, effects);
    if let Some(waiting) = state.calls.waiting.get_mut(&call)
        && let What::Leave { then: Then::Tell(told), .. } = &mut waiting.what
    {
        told.extend(chains.iter().cloned());
    }
    if dead.is_empty() {
        answer(state, &call, Answer::Collected(chains), effects);
    }
}

/// What plugins made and is not alive.
fn collect_chained(
    state: &mut State,
    call: &CallId,
    living: &std::collections::BTreeSet<(SandboxId, Option<IfName>)>,
    group: &str,
    effects: &mut Effects,
) -> Vec<Collected> {
    let is_dead = |there: &&crate::chain::Chained| {
        let lives = living.contains(&(there.sandbox.clone(), None))
            || living.contains(&(there.sandbox.clone(), Some(there.interface.clone())));
        // What is being attached right now was not there when the list was made.
        let busy = state.calls.of(&there.sandbox).iter().any(|other| other != call);
        !super::chain::is_kept(there)
            && !lives
            && !busy
            && !there.leaving
            && (group.is_empty() || there.notes.group == *group)
    };
    let dead: Vec<_> = state.called.all_chained().filter(is_dead).cloned().collect();
    let mut told = Vec::new();
    for there in dead {
        super::chain::leave(state, &there.key(), Some(call), effects);
        let (namespace, pod, _) = there.pod;
        let interfaces = vec![there.interface];
        told.push(Collected {
            sandbox: there.sandbox,
            pod: (namespace, pod),
            interfaces,
            addresses: Vec::new(),
        });
    }
    told
}

/// A sandbox has come to rest of which a call wants something to go.
pub(super) fn left(state: &mut State, call: &CallId, id: &SandboxId, effects: &mut Effects) {
    let unit = Unit::Sandbox(id.clone());
    if state.dirty.contains(&unit) || state.calls.leaving.contains(id) {
        return;
    }
    let Some(What::Leave { left, then }) = state.calls.waiting.get_mut(call).map(|waiting| &mut waiting.what)
    else {
        return;
    };
    left.remove(id);
    if !left.is_empty() {
        return;
    }
    match then.clone() {
        Then::Tell(all) => answer(state, call, Answer::Collected(all), effects),
        Then::RemoveDomain(path) => super::domain::remove(state, call, path, effects),
    }
}

impl Which {
    pub(super) fn means(&self, interface: &IfName) -> bool {
        match self {
            Self::These(interfaces) => interfaces.contains(interface),
            Self::Called | Self::All | Self::Sandbox => true,
        }
    }

    fn is_all(&self) -> bool {
        matches!(self, Self::All | Self::Sandbox)
    }
}
