//! Attaching to networks that chains of CNI plugins make, and detaching from them.
//!
//! What is remembered says what is to be run: what has no result and is not to go needs an ADD, what is to go needs a DEL.
//! One of them at a time for each interface.

mod kept;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::{Sandbox, SandboxId};

use super::{Stage, What, answer, extend, problem};
use crate::call::{Answer, Attach, CallId};
use crate::chain::{Chain, ChainKey, Chained, Verb};
use crate::event::{Effect, Record};
use crate::state::{ObjectKey, State};
use crate::step::Effects;

pub(super) use kept::is_kept;
pub(crate) use kept::keep;

/// What is being run, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chaining {
    running: BTreeMap<ChainKey, Verb>,
    /// Calls that are answered once these are gone.
    awaited: BTreeMap<ChainKey, CallId>,
    /// A DEL of these failed. It is tried again when everything is compared.
    stuck: BTreeSet<ChainKey>,
    /// An ADD of these failed that an object asks for, by which chain and why. It is tried again in the same way.
    failed: BTreeMap<ChainKey, (Chain, Problem)>,
}

impl Chaining {
    /// Whether a call's interfaces are still being taken away.
    pub(super) fn holds(&self, call: &CallId) -> bool {
        self.awaited.values().any(|awaiting| awaiting == call)
    }

    /// Why plugins did not make what an object asks for.
    pub(super) fn failed(&self, key: &ChainKey) -> Option<&Problem> {
        self.failed.get(key).map(|(_, why)| why)
    }
}

/// The chain that an attach means, if it means one.
pub(super) fn meant<'a>(state: &'a State, attach: &Attach) -> Option<(&'a String, &'a Chain)> {
    let namespace = Some(&attach.sandbox.namespace).filter(|name| !name.is_empty());
    let namespace = namespace.map_or("default", String::as_str);
    let networks = attach.interfaces.iter().map(|(_, network, _)| network);
    // A tenant's own network goes before the node's.
    let mut networks = networks.filter(|name| state.network(namespace, name).is_none());
    networks.find_map(|name| state.called.chains().get_key_value(name))
}

/// Why nothing can be made of what an attach asks for; `false` when it stands already.
pub(super) fn check(state: &State, attach: &Attach, sandbox: &Sandbox) -> Result<bool, Problem> {
    let [(interface, network, asked)] = attach.interfaces.as_slice() else {
        let message = "an interface on a network of CNI plugins is asked for alone, in a call of its own";
        return Err(problem("interfaces", Reason::InvalidValue, message));
    };
    if attach.sandbox.machine.is_some() || sandbox.netns.is_empty() {
        let message = "CNI plugins work in network namespaces: a virtual machine has none";
        return Err(problem("interfaces[0].network", Reason::InvalidValue, message));
    }
    let title = format!("interface {interface} of sandbox {}", sandbox.id);
    let key = (sandbox.id.clone(), interface.clone());
    if let Some(there) = state.called.chained(&key) {
        let same = there.network == *network && there.asked == *asked && !there.leaving;
        if attach.fail_if_present || !same || there.result.is_none() {
            let message = format!("{title} is attached already, or is being taken away");
            return Err(problem("interfaces[0].name", Reason::AlreadyPresent, message));
        }
        return Ok(false);
    }
    if state.called.get(&sandbox.id, interface).is_some() {
        let message = format!("{title} is attached already, to another network");
        return Err(problem("interfaces[0].name", Reason::AlreadyPresent, message));
    }
    Ok(true)
}

/// Remembers that something is about to be made, or says why not; then nothing has changed.
pub(super) fn admit(
    state: &mut State,
    call: &CallId,
    attach: &Attach,
    sandbox: &Sandbox,
    now: Time,
    effects: &mut Effects,
) -> Result<(), Problem> {
    let fresh = check(state, attach, sandbox)?;
    if let Some(What::Attach(attaching)) = state.calls.waiting.get_mut(call).map(|one| &mut one.what) {
        attaching.chained = true;
    }
    if !fresh {
        extend::after(state, call, now, effects);
        return Ok(());
    }
    let Some((interface, network, asked)) = attach.interfaces.first() else { return Ok(()) };
    let Some(chain) = state.called.chains().get(network).cloned() else { return Ok(()) };
    let field = "interfaces[0]".to_owned();
    let chained = Chained {
        sandbox: sandbox.id.clone(),
        interface: interface.clone(),
        network: network.clone(),
        chain,
        netns: sandbox.netns.clone(),
        pod: (sandbox.namespace.clone(), sandbox.pod.clone(), sandbox.uid.clone()),
        asked: asked.clone(),
        notes: attach.notes.clone(),
        why: Provenance { dialect: attach.dialect, object: None, field, call: Some(call.0.clone()) },
        since: now,
        ticket: attach.ticket,
        result: None,
        leaving: false,
        introduced: !state.sandboxes.contains_key(&sandbox.id),
    };
    if state.sandboxes.get(&sandbox.id) != Some(sandbox) {
        effects.record(state, Record::SandboxSeen(sandbox.clone()));
    }
    state.calls.leaving.remove(&sandbox.id);
    effects.record(state, Record::Chained(Box::new(chained)));
    state.calls.stage(call, Stage::Chaining);
    Ok(())
}

/// An interface is to go; the call, if there is one, is answered once it has.
pub(super) fn leave(state: &mut State, key: &ChainKey, call: Option<&CallId>, effects: &mut Effects) {
    if let Some(call) = call {
        state.calls.chaining.awaited.insert(key.clone(), call.clone());
    }
    state.calls.chaining.stuck.remove(key);
    if state.called.chained(key).is_some_and(|there| !there.leaving) {
        effects.record(state, Record::ChainLeaves { sandbox: key.0.clone(), interface: key.1.clone() });
    }
}

/// The interfaces of a sandbox that chains made.
pub(super) fn of(state: &State, id: &SandboxId) -> Vec<ChainKey> {
    state.called.all_chained().filter(|there| there.sandbox == *id).map(Chained::key).collect()
}

/// Begins everything that waits for its plugins.
pub(crate) fn start_what_can(state: &mut State, effects: &mut Effects) {
    let chaining = &state.calls.chaining;
    let waits = |there: &&Chained| {
        let key = there.key();
        let needed = there.leaving || there.result.is_none();
        needed && !chaining.running.contains_key(&key) && !chaining.stuck.contains(&key)
    };
    let waiting: Vec<Chained> = state.called.all_chained().filter(waits).cloned().collect();
    for there in waiting {
        let verb = if there.leaving { Verb::Del } else { Verb::Add };
        state.calls.chaining.running.insert(there.key(), verb);
        effects.list.push(Effect::RunChain { verb, chained: Box::new(there) });
    }
}

/// What failed is tried again.
pub(crate) fn try_again(state: &mut State) {
    state.calls.chaining.stuck.clear();
    state.calls.chaining.failed.clear();
}

/// Plugins have been run.
pub(super) fn done(
    state: &mut State,
    key: &ChainKey,
    verb: Verb,
    result: Result<String, Problem>,
    now: Time,
    effects: &mut Effects,
) {
    state.calls.chaining.running.remove(key);
    let Some(there) = state.called.chained(key) else { return };
    let (sandbox, interface) = key.clone();
    let (introduced, chain) = (there.introduced, there.chain.clone());
    let asked_by = there.why.call.clone().map(CallId);
    let object = there.why.object.as_ref().map(ObjectKey::of);
    match (verb, result) {
        (Verb::Add, Ok(_)) if there.leaving => {}
        (Verb::Add, Ok(result)) => {
            effects.record(state, Record::ChainStands { sandbox, interface, result });
            if let Some(call) = asked_by {
                extend::after(state, &call, now, effects);
            }
        }
        (Verb::Add, Err(why)) => {
            // A chain that failed in its middle is taken back from its beginning.
            leave(state, key, asked_by.as_ref(), effects);
            if object.is_some() {
                state.calls.chaining.failed.insert(key.clone(), (chain, why.clone()));
            }
            if let Some(call) = asked_by {
                answer(state, &call, Answer::Failed(why), effects);
            }
        }
        (Verb::Del, Ok(_)) => {
            effects.record(state, Record::ChainGone { sandbox: sandbox.clone(), interface });
            let call = state.calls.chaining.awaited.remove(key);
            release(state, call, None, effects);
            if introduced {
                forget_empty(state, &sandbox, now, effects);
            }
        }
        (Verb::Del, Err(why)) => {
            state.calls.chaining.stuck.insert(key.clone());
            let call = state.calls.chaining.awaited.remove(key);
            release(state, call, Some(why), effects);
        }
    }
    effects.changed(object.into_iter().collect());
}

/// A sandbox of which nothing is left is forgotten, as soon as it is at rest.
fn forget_empty(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    let empty = state.called.of(id).next().is_none() && of(state, id).is_empty();
    let unit = crate::event::Unit::Sandbox(id.clone());
    let bare = state.sandboxes.get(id).is_some_and(|sandbox| sandbox.labels.is_empty());
    // An attach that is under way brings something in a moment.
    let busy = !state.calls.of(id).is_empty();
    if !empty || !bare || busy || state.made.contains_key(&unit) {
        return;
    }
    if state.flights.contains_key(&unit) || state.dirty.contains(&unit) {
        state.calls.leaving.insert(id.clone());
    } else {
        effects.record(state, Record::SandboxGone { id: id.clone(), at: now });
    }
}

/// Answers a call that waited for the last of its interfaces to go.
fn release(state: &mut State, call: Option<CallId>, failed: Option<Problem>, effects: &mut Effects) {
    let Some(call) = call else { return };
    let Some(waiting) = state.calls.waiting.get_mut(&call) else { return };
    let Stage::Held(held) = &mut waiting.stage else { return };
    if let (Some(why), Answer::Detached | Answer::Collected(_)) = (failed, &**held) {
        **held = Answer::Failed(why);
    }
    let held = (**held).clone();
    if !state.calls.chaining.holds(&call) {
        answer(state, &call, held, effects);
    }
}

/// Nobody waits for an attach any more: what it brought goes.
pub(super) fn abandon(state: &mut State, call: &CallId, effects: &mut Effects) {
    brought(state, call).iter().for_each(|key| leave(state, key, None, effects));
}

/// An attach whose interface stands has failed: it is answered once that is gone.
pub(super) fn fail(state: &mut State, call: &CallId, why: Problem, effects: &mut Effects) {
    brought(state, call).iter().for_each(|key| leave(state, key, Some(call), effects));
    answer(state, call, Answer::Failed(why), effects);
}

/// What a call brought: what it found there already is not its own.
fn brought(state: &State, call: &CallId) -> Vec<ChainKey> {
    let mine = state.called.all_chained().filter(|there| there.why.call.as_deref() == Some(&call.0));
    mine.map(Chained::key).collect()
}

/// The answer was given, and nobody heard it.
pub(super) fn unheard(state: &mut State, ticket: u64, effects: &mut Effects) {
    let mine = state.called.all_chained().filter(|there| ticket != 0 && there.ticket == ticket);
    let mine: Vec<ChainKey> = mine.map(Chained::key).collect();
    mine.iter().for_each(|key| leave(state, key, None, effects));
}

/// After a start: what may have been begun, or was never answered because extensions were being called, is taken away.
pub(super) fn restarted(state: &mut State, effects: &mut Effects) {
    let answered =
        |there: &Chained| there.result.is_some() && !state.extensions.is_open(&there.sandbox, there.ticket);
    let begun = state.called.all_chained().filter(|there| !answered(there));
    let begun: Vec<ChainKey> = begun.map(Chained::key).collect();
    begun.iter().for_each(|key| leave(state, key, None, effects));
}
