//! Attach and detach with chains of CNI plugins.
//!
//! The journalled state determines what to run: an interface without a result needs an ADD, one that is being removed
//! needs a DEL. One command runs at a time per interface.

mod from_objects;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use super::{CallKind, Stage, hooks, problem, respond};
use crate::call::{AttachRequest, CallId, CallResult};
use crate::event::{Effect, Record};
use crate::plugin_chain::{ChainKey, ChainedInterface, CniCommand, PluginChain};
use crate::state::{ObjectKey, State};
use crate::step::Effects;

pub(super) use from_objects::is_from_object;
pub(crate) use from_objects::reconcile;

/// Commands in flight, and the calls that wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChainRuns {
    #[serde(with = "knit_model::serde_pairs")]
    running: BTreeMap<ChainKey, CniCommand>,
    /// Calls that are completed once these interfaces are removed.
    #[serde(with = "knit_model::serde_pairs")]
    awaited: BTreeMap<ChainKey, CallId>,
    /// Interfaces whose DEL failed. It is retried on resync.
    stuck: BTreeSet<ChainKey>,
    /// Interfaces of objects whose ADD failed, with the chain and the error. It is retried on resync.
    #[serde(with = "knit_model::serde_pairs")]
    failed: BTreeMap<ChainKey, (PluginChain, Problem)>,
}

impl ChainRuns {
    /// Whether interfaces of a call are still being removed.
    pub(super) fn is_awaited_by(&self, call: &CallId) -> bool {
        self.awaited.values().any(|awaiting| awaiting == call)
    }

    /// Why plugins failed to create an interface that an object requests.
    pub(super) fn failed(&self, key: &ChainKey) -> Option<&Problem> {
        self.failed.get(key).map(|(_, error)| error)
    }
}

/// The plugin chain of an attach, if its network has one.
pub(super) fn chain_for<'a>(
    state: &'a State,
    attach: &AttachRequest,
) -> Option<(&'a String, &'a PluginChain)> {
    let namespace = Some(&attach.sandbox.namespace).filter(|name| !name.is_empty());
    let namespace = namespace.map_or("default", String::as_str);
    let networks = attach.interfaces.iter().map(|(_, network, _)| network);
    // A network of the tenant takes precedence over the node's.
    let mut networks = networks.filter(|name| state.network(namespace, name).is_none());
    networks.find_map(|name| state.attachments.chains().get_key_value(name))
}

/// Validates an attach; `false` if the interface is ready already.
pub(super) fn check(state: &State, attach: &AttachRequest, sandbox: &Sandbox) -> Result<bool, Problem> {
    let [(interface, network, request)] = attach.interfaces.as_slice() else {
        let message = "an interface on a CNI plugin network needs a separate call";
        return Err(problem("interfaces", Reason::InvalidValue, message));
    };
    if attach.sandbox.machine.is_some() || sandbox.netns.is_empty() {
        let message = "CNI plugins need a network namespace, which a virtual machine does not have";
        return Err(problem("interfaces[0].network", Reason::InvalidValue, message));
    }
    let title = format!("interface {interface} of sandbox {}", sandbox.id);
    let key = (sandbox.id.clone(), interface.clone());
    if let Some(chained) = state.attachments.chained(&key) {
        let same = chained.network == *network && chained.request == *request && !chained.removing;
        if attach.fail_if_present || !same || chained.result.is_none() {
            let message = format!("{title} is attached already, or is being removed");
            return Err(problem("interfaces[0].name", Reason::AlreadyPresent, message));
        }
        return Ok(false);
    }
    if state.attachments.get(&sandbox.id, interface).is_some() {
        let message = format!("{title} is attached already, to another network");
        return Err(problem("interfaces[0].name", Reason::AlreadyPresent, message));
    }
    Ok(true)
}

/// Journals the interface before plugins run. On an error nothing has changed.
pub(super) fn admit(
    state: &mut State,
    call: &CallId,
    attach: &AttachRequest,
    sandbox: &Sandbox,
    now: Time,
    effects: &mut Effects,
) -> Result<(), Problem> {
    let fresh = check(state, attach, sandbox)?;
    if let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get_mut(call).map(|one| &mut one.kind)
    {
        attaching.chained = true;
    }
    if !fresh {
        hooks::run_after(state, call, now, effects);
        return Ok(());
    }
    let Some((interface, network, request)) = attach.interfaces.first() else { return Ok(()) };
    let Some(chain) = state.attachments.chains().get(network).cloned() else { return Ok(()) };
    let field = "interfaces[0]".to_owned();
    let chained = ChainedInterface {
        sandbox: sandbox.id.clone(),
        interface: interface.clone(),
        network: network.clone(),
        chain,
        netns: sandbox.netns.clone(),
        pod: (sandbox.namespace.clone(), sandbox.pod.clone(), sandbox.uid.clone()),
        request: request.clone(),
        metadata: attach.metadata.clone(),
        origin: Provenance { dialect: attach.dialect, object: None, field, call: Some(call.0.clone()) },
        since: now,
        ticket: attach.ticket,
        result: None,
        removing: false,
        created_sandbox: !state.sandboxes.contains_key(&sandbox.id),
    };
    if state.sandboxes.get(&sandbox.id) != Some(sandbox) {
        effects.record(state, Record::SandboxUpdated(sandbox.clone()));
    }
    state.pending_calls.removing.remove(&sandbox.id);
    effects.record(state, Record::ChainAddStarted(Box::new(chained)));
    state.pending_calls.stage(call, Stage::RunningPlugins);
    Ok(())
}

/// Starts the removal of an interface; the call, if any, is completed when it is gone.
pub(super) fn start_del(state: &mut State, key: &ChainKey, call: Option<&CallId>, effects: &mut Effects) {
    if let Some(call) = call {
        state.pending_calls.chain_runs.awaited.insert(key.clone(), call.clone());
    }
    state.pending_calls.chain_runs.stuck.remove(key);
    if state.attachments.chained(key).is_some_and(|chained| !chained.removing) {
        effects.record(state, Record::ChainDelStarted { sandbox: key.0.clone(), interface: key.1.clone() });
    }
}

/// The plugin chain interfaces of a sandbox.
pub(super) fn keys_of(state: &State, id: &SandboxId) -> Vec<ChainKey> {
    state
        .attachments
        .all_chained()
        .filter(|chained| chained.sandbox == *id)
        .map(ChainedInterface::key)
        .collect()
}

/// Runs plugins for every interface that needs it.
pub(crate) fn start_ready(state: &mut State, effects: &mut Effects) {
    let chain_runs = &state.pending_calls.chain_runs;
    let waits = |chained: &&ChainedInterface| {
        let key = chained.key();
        let needed = chained.removing || chained.result.is_none();
        needed && !chain_runs.running.contains_key(&key) && !chain_runs.stuck.contains(&key)
    };
    let waiting: Vec<ChainedInterface> = state.attachments.all_chained().filter(waits).cloned().collect();
    for chained in waiting {
        let command = if chained.removing { CniCommand::Del } else { CniCommand::Add };
        state.pending_calls.chain_runs.running.insert(chained.key(), command);
        effects.list.push(Effect::RunPluginChain { command, interface: Box::new(chained) });
    }
}

/// Retries failed commands.
pub(crate) fn retry_failed(state: &mut State) {
    state.pending_calls.chain_runs.stuck.clear();
    state.pending_calls.chain_runs.failed.clear();
}

/// A command finished.
pub(super) fn finished(
    state: &mut State,
    key: &ChainKey,
    command: CniCommand,
    result: Result<String, Problem>,
    now: Time,
    effects: &mut Effects,
) {
    state.pending_calls.chain_runs.running.remove(key);
    let Some(chained) = state.attachments.chained(key) else { return };
    let (sandbox, interface) = key.clone();
    let (created_sandbox, chain) = (chained.created_sandbox, chained.chain.clone());
    let requested_by = chained.origin.call.clone().map(CallId);
    let object = chained.origin.object.as_ref().map(ObjectKey::of);
    match (command, result) {
        (CniCommand::Add, Ok(_)) if chained.removing => {}
        (CniCommand::Add, Ok(result)) => {
            effects.record(state, Record::ChainAddDone { sandbox, interface, result });
            if let Some(call) = requested_by {
                hooks::run_after(state, &call, now, effects);
            }
        }
        (CniCommand::Add, Err(error)) => {
            // A partial ADD is undone by a DEL of the whole chain.
            start_del(state, key, requested_by.as_ref(), effects);
            if object.is_some() {
                state.pending_calls.chain_runs.failed.insert(key.clone(), (chain, error.clone()));
            }
            if let Some(call) = requested_by {
                respond(state, &call, CallResult::Failed(error), effects);
            }
        }
        (CniCommand::Del, Ok(_)) => {
            effects.record(state, Record::ChainDelDone { sandbox: sandbox.clone(), interface });
            let call = state.pending_calls.chain_runs.awaited.remove(key);
            release(state, call, None, effects);
            if created_sandbox {
                forget_empty(state, &sandbox, now, effects);
            }
        }
        (CniCommand::Del, Err(error)) => {
            state.pending_calls.chain_runs.stuck.insert(key.clone());
            let call = state.pending_calls.chain_runs.awaited.remove(key);
            release(state, call, Some(error), effects);
        }
    }
    effects.changed(object.into_iter().collect());
}

/// Forgets a sandbox without interfaces as soon as it has settled.
fn forget_empty(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    let empty = state.attachments.of(id).next().is_none() && keys_of(state, id).is_empty();
    let unit = crate::event::Unit::Sandbox(id.clone());
    let bare = state.sandboxes.get(id).is_some_and(|sandbox| sandbox.labels.is_empty());
    // An attach in progress is about to add an interface.
    let busy = !state.pending_calls.of(id).is_empty();
    if !empty || !bare || busy || state.units.contains_key(&unit) {
        return;
    }
    if state.in_flight.contains_key(&unit) || state.dirty.contains(&unit) {
        state.pending_calls.removing.insert(id.clone());
    } else {
        effects.record(state, Record::SandboxRemoved { id: id.clone(), at: now });
    }
}

/// Completes a call when its last interface is removed.
fn release(state: &mut State, call: Option<CallId>, failed: Option<Problem>, effects: &mut Effects) {
    let Some(call) = call else { return };
    let Some(waiting) = state.pending_calls.waiting.get_mut(&call) else { return };
    let Stage::Deferred(held) = &mut waiting.stage else { return };
    if let (Some(error), CallResult::Detached | CallResult::Collected(_)) = (failed, &**held) {
        **held = CallResult::Failed(error);
    }
    let held = (**held).clone();
    if !state.pending_calls.chain_runs.is_awaited_by(&call) {
        respond(state, &call, held, effects);
    }
}

/// Removes what an attach created whose caller is gone.
pub(super) fn abandon(state: &mut State, call: &CallId, effects: &mut Effects) {
    interfaces_of_call(state, call).iter().for_each(|key| start_del(state, key, None, effects));
}

/// An attach with a ready interface failed: it is completed once the interface is removed.
pub(super) fn fail(state: &mut State, call: &CallId, error: Problem, effects: &mut Effects) {
    interfaces_of_call(state, call).iter().for_each(|key| start_del(state, key, Some(call), effects));
    respond(state, call, CallResult::Failed(error), effects);
}

/// The interfaces that a call created itself.
fn interfaces_of_call(state: &State, call: &CallId) -> Vec<ChainKey> {
    let mine =
        state.attachments.all_chained().filter(|chained| chained.origin.call.as_deref() == Some(&call.0));
    mine.map(ChainedInterface::key).collect()
}

/// The result was sent, but the caller was gone.
pub(super) fn roll_back_unacknowledged(state: &mut State, ticket: u64, effects: &mut Effects) {
    let mine = state.attachments.all_chained().filter(|chained| ticket != 0 && chained.ticket == ticket);
    let mine: Vec<ChainKey> = mine.map(ChainedInterface::key).collect();
    mine.iter().for_each(|key| start_del(state, key, None, effects));
}

/// After a restart: removes interfaces whose ADD may be incomplete or whose attach was not completed.
pub(super) fn restarted(state: &mut State, effects: &mut Effects) {
    let answered = |chained: &ChainedInterface| {
        chained.result.is_some() && !state.extensions.is_open(&chained.sandbox, chained.ticket)
    };
    let unanswered = state.attachments.all_chained().filter(|chained| !answered(chained));
    let unanswered: Vec<ChainKey> = unanswered.map(ChainedInterface::key).collect();
    unanswered.iter().for_each(|key| start_del(state, key, None, effects));
}
