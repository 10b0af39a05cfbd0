//! Network namespaces that Knit makes for whoever has none, and removes again. Others' are never removed.

use std::collections::BTreeSet;

use knit_model::problem::{Problem, Reason};
use knit_model::{Sandbox, SandboxId};

use super::{Stage, Then, What, answer, leave, problem, take_in};
use crate::call::{Answer, CallId, Domain, DomainDone};
use crate::event::{Effect, Record};
use crate::state::State;
use crate::step::Effects;

/// The intent is written down before the namespace is made, so that none is left behind that nobody knows.
pub(super) fn requested(state: &mut State, call: CallId, domain: Domain, effects: &mut Effects) {
    let path = domain.path.clone();
    let known = state.called.domains().find(|known| known.path == path).cloned();
    if let Some(known) = known.as_ref().filter(|known| known.uid != domain.uid) {
        let message = format!("{path} is pod {}/{}'s already", known.namespace, known.pod);
        effects.answer(&call, Answer::Failed(problem("name", Reason::Conflict, message)));
        return;
    }
    if !take_in(state, &call, What::Domain(domain.clone()), Stage::Host, effects) {
        return;
    }
    if known.is_none() {
        effects.record(state, Record::Domain(domain));
    }
    effects.list.push(Effect::MakeDomain { call, path });
}

/// First everything of the sandboxes inside goes, then the namespace.
pub(super) fn unwanted(state: &mut State, call: CallId, path: String, effects: &mut Effects) {
    // Virtual machines are in no namespace, and have no path.
    let is_inside = |sandbox: &&Sandbox| sandbox.isolation.is_netns() && sandbox.netns == path;
    let inside = state.sandboxes.values().filter(is_inside);
    let inside: BTreeSet<SandboxId> = inside.map(|sandbox| sandbox.id.clone()).collect();
    let what = What::Leave { left: inside.clone(), then: Then::RemoveDomain(path.clone()) };
    if !take_in(state, &call, what, Stage::Waiting, effects) {
        return;
    }
    inside.iter().for_each(|id| leave(state, &call, id, effects));
    if inside.is_empty() {
        remove(state, &call, path, effects);
    }
}

/// Removes the namespace, if Knit made it.
pub(super) fn remove(state: &mut State, call: &CallId, path: String, effects: &mut Effects) {
    let Some(domain) = state.called.domains().find(|known| known.path == path).cloned() else {
        return answer(state, call, Answer::Detached, effects);
    };
    if let Some(waiting) = state.calls.waiting.get_mut(call) {
        waiting.stage = Stage::Removing;
        waiting.what = What::Domain(domain);
    }
    effects.list.push(Effect::RemoveDomain { call: call.clone(), path });
}

/// The namespace was made or removed, or could not be.
pub(super) fn done(
    state: &mut State,
    call: &CallId,
    result: Result<DomainDone, Problem>,
    effects: &mut Effects,
) {
    let Some(waiting) = state.calls.waiting.get(call) else { return };
    let (What::Domain(domain), stage) = (waiting.what.clone(), waiting.stage.clone()) else { return };
    match result {
        // Made for whoever does not wait any more.
        Ok(DomainDone::Made) if stage == Stage::Abandoned => remove(state, call, domain.path, effects),
        Ok(DomainDone::Made) => answer(state, call, Answer::Domain(domain), effects),
        Ok(DomainDone::Removed(instance)) => {
            effects.record(state, Record::DomainGone { path: domain.path, instance });
            answer(state, call, Answer::Detached, effects);
        }
        Err(why) => {
            if stage != Stage::Removing {
                effects.record(state, Record::DomainGone { path: domain.path, instance: None });
            }
            answer(state, call, Answer::Failed(why), effects);
        }
    }
}
