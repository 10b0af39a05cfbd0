//! Extensions in an attach: called one after the other, each within its deadline, before the attach is answered.
//!
//! Who is called next is decided anew after each answer, from the registry as it is then. So an attach that is answered
//! has called every extension that was registered at that moment, in its old or its new generation.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, Sandbox, SandboxId};

use super::{Attaching, Stage, What, answer, attach, chain, problem};
use crate::call::{Answer, CallId};
use crate::event::{Effect, Record, Unit};
use crate::extension::{FailPolicy, Invocation, NotDone, Outcome, Phase, Receipt, Registered, Told};
use crate::extensions::{self, Flying, ReceiptsEnded};
use crate::state::State;
use crate::step::Effects;

/// An attach at the point where extensions are called.
struct Run {
    phase: Phase,
    sandbox: Sandbox,
    /// The interfaces that they are called for, each with the number of the attach that brought it.
    interfaces: Vec<(IfName, u64)>,
    ticket: u64,
}

/// The numbers of the attaches of a sandbox that are under way and not being taken back.
pub(crate) fn attaching(state: &State, id: &SandboxId) -> BTreeSet<u64> {
    let of = state.calls.of(id).into_iter().filter_map(|call| state.calls.waiting.get(&call));
    of.filter_map(|waiting| match (&waiting.what, &waiting.stage) {
        (_, Stage::Host | Stage::TakingBack { .. } | Stage::Abandoned | Stage::Removing | Stage::Held(_)) => {
            None
        }
        (What::Attach(attaching), _) => Some(attaching.attach.ticket),
        _ => None,
    })
    .collect()
}

/// Calls extensions before anything is changed; then the attach goes on.
pub(super) fn before(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    state.calls.stage(call, Stage::Before);
    advance(state, call, now, effects);
}

/// Calls extensions for what stands; then the attach is answered.
pub(super) fn after(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    state.calls.stage(call, Stage::After);
    advance(state, call, now, effects);
}

/// Calls the next extension, or goes on when none is left.
fn advance(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    let Some(run) = run(state, call) else { return };
    let id = run.sandbox.id.clone();
    extensions::settle(state, &id, now, effects);
    let Some(next) = next(state, &run).cloned() else { return go_on(state, call, &run, now, effects) };
    let name = next.spec.name.clone();
    if state.extensions.is_called(&name, &id) {
        // Someone else's call for the same sandbox; its end brings this one on.
        return;
    }
    if let Some(owed) = state.extensions.owed_to(&name, &id).cloned() {
        // What it is told late must not undo what it does now.
        return extensions::tell(state, &owed, Some(call), effects);
    }
    invoke(state, &run, call, &next, now, effects);
}

fn run(state: &State, call: &CallId) -> Option<Run> {
    let waiting = state.calls.waiting.get(call)?;
    let What::Attach(attaching) = &waiting.what else { return None };
    let Attaching { attach, found, .. } = &**attaching;
    let id = SandboxId(attach.sandbox.id.clone());
    let names = attach.interfaces.iter().map(|(name, ..)| name);
    let attached = |name: &IfName| state.called.ticket(&id, name);
    let (phase, sandbox, interfaces) = match waiting.stage {
        Stage::Before => {
            let sandbox = attach::described(state, &id, found.as_ref()?, attach);
            let fresh = names.filter(|name| attached(name).is_none());
            (Phase::BeforeAttach, sandbox, fresh.map(|name| (name.clone(), attach.ticket)).collect())
        }
        Stage::After => {
            let sandbox = state.sandboxes.get(&id)?.clone();
            let there = names.filter_map(|name| Some((name.clone(), attached(name)?)));
            (Phase::AfterAttach, sandbox, there.collect())
        }
        _ => return None,
    };
    Some(Run { phase, sandbox, interfaces, ticket: attach.ticket })
}

/// The first extension that takes part in this and has not done so yet.
fn next<'a>(state: &'a State, run: &Run) -> Option<&'a Registered> {
    let did = |one: &Registered, pair: &(IfName, u64)| {
        state.extensions.receipts(&run.sandbox.id).any(|receipt| {
            let counts = match &receipt.outcome {
                Some(Outcome::Done(_)) => true,
                // Ignored once is ignored for this attach; the next attach asks again, and so does a new generation.
                Some(Outcome::Ignored(_)) => {
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
    let lacks = |one: &&Registered| !run.interfaces.iter().all(|pair| did(one, pair));
    let takes_part = |one: &&Registered| one.spec.phases.contains(&run.phase) && one.spec.means(&run.sandbox);
    state.extensions.in_order().into_iter().filter(takes_part).find(lacks)
}

/// Writes down that the extension is called, and has it called.
fn invoke(state: &mut State, run: &Run, call: &CallId, one: &Registered, now: Time, effects: &mut Effects) {
    let receipt = write_down(state, run, call, one, now, effects);
    let id = &run.sandbox.id;
    let flying = Flying {
        extension: one.spec.name.clone(),
        generation: one.generation,
        sandbox: id.clone(),
        phase: run.phase,
        waits: Some(call.clone()),
    };
    state.extensions.flying.insert(receipt.clone(), flying);
    let concerns = |other: &&Receipt| {
        other.is_done() && other.interfaces.iter().any(|pair| run.interfaces.contains(pair))
    };
    let earlier = state.extensions.receipts(id).filter(concerns).cloned().collect();
    effects.list.push(Effect::Invoke(Box::new(Invocation {
        id: receipt,
        to: one.spec.clone(),
        generation: one.generation,
        phase: run.phase,
        attach: call.clone(),
        sandbox: run.sandbox.clone(),
        interfaces: run.interfaces.iter().map(|(name, _)| extensions::went(state, id, name)).collect(),
        earlier,
    })));
}

/// The receipt begins before the call is made: after a crash it says who may have acted.
fn write_down(
    state: &mut State,
    run: &Run,
    call: &CallId,
    one: &Registered,
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

/// No extension is left: the attach begins, or is answered.
fn go_on(state: &mut State, call: &CallId, run: &Run, now: Time, effects: &mut Effects) {
    if run.phase == Phase::BeforeAttach {
        if let Some(What::Attach(attaching)) = state.calls.waiting.get_mut(call).map(|one| &mut one.what) {
            attaching.prepared = true;
        }
        state.calls.stage(call, Stage::Clearing);
        return attach::try_clear(state, call, now, effects);
    }
    let required = if run.interfaces.is_empty() { Ok(()) } else { state.check_required() };
    match required.and_then(|()| attach::result(state, call)) {
        Err(why) => attach::fail(state, call, why, effects),
        Ok(done) => {
            close(state, &run.sandbox.id, run.ticket, effects);
            answer(state, call, done, effects);
        }
    }
}

/// The attach is about to be answered: from here on it stands, also after a crash.
fn close(state: &mut State, id: &SandboxId, ticket: u64, effects: &mut Effects) {
    if !state.extensions.is_open(id, ticket) {
        return;
    }
    let open = state.extensions.open_of(id).filter(|other| *other != ticket).collect();
    let (gone, owed) = (Vec::new(), Vec::new());
    effects.record(
        state,
        Record::ReceiptsEnded(Box::new(ReceiptsEnded { sandbox: id.clone(), gone, open, owed })),
    );
}

/// After a start: nobody waits for attaches that called extensions and were not answered. What they brought goes.
pub(super) fn restarted(state: &mut State, call: &CallId, effects: &mut Effects) {
    for (sandbox, ticket) in state.extensions.open() {
        let brought = state.called.of(&sandbox).filter(|there| there.ticket == ticket);
        let brought: Vec<IfName> = brought.map(|there| there.interface.clone()).collect();
        for interface in brought {
            let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
            effects.record(state, record);
        }
        state.dirty.insert(Unit::Sandbox(sandbox.clone()));
        // One whose namespace Knit made was known before the attach, and stays so.
        let netns = state.sandboxes.get(&sandbox).map(|known| known.netns.as_str());
        let is_made = state.called.domains().any(|domain| Some(domain.path.as_str()) == netns);
        let chained = chain::of(state, &sandbox);
        if state.called.of(&sandbox).next().is_none() && chained.is_empty() && !is_made {
            super::leave(state, call, &sandbox, effects);
        }
    }
    let visited = state.extensions.visited();
    // What went may still be there: nobody is told before it was looked at.
    let owed: Vec<SandboxId> = state.extensions.owed().map(|owed| owed.sandbox.id.clone()).collect();
    state.dirty.extend(visited.iter().cloned().chain(owed).map(Unit::Sandbox));
    state.extensions.stale.extend(visited);
}

/// An extension has answered, or has not.
pub(super) fn invoked(state: &mut State, id: &str, told: Told, now: Time, effects: &mut Effects) {
    let Some(flying) = state.extensions.flying.remove(id) else { return };
    let failure = match flying.phase {
        Phase::AfterDetach => {
            extensions::told(state, id, told.is_ok(), now, effects);
            told.err().map(|not| NotDone {
                why: format!("it has not acknowledged an earlier detach: {}", not.why),
                reached: false,
            })
        }
        _ => judge(state, id, &flying, told, now, effects),
    };
    for call in state.calls.of(&flying.sandbox) {
        match &failure {
            Some(not) if flying.waits.as_ref() == Some(&call) => {
                failed(state, &call, &flying.extension, not.clone(), now, effects);
            }
            _ => advance(state, &call, now, effects),
        }
    }
}

/// What an answer means for its receipt; the failure, if it is one that the attach has to hear.
fn judge(
    state: &mut State,
    id: &str,
    flying: &Flying,
    told: Told,
    now: Time,
    effects: &mut Effects,
) -> Option<NotDone> {
    // The attach may have been taken back meanwhile; then the extension is told that.
    state.extensions.receipts(&flying.sandbox).find(|receipt| receipt.id == id)?;
    let current = state.extensions.get(&flying.extension);
    let is_current = current.is_some_and(|one| one.generation == flying.generation);
    let policy = current.map(|one| one.spec.fail);
    let (outcome, failure) = match told {
        Ok(data) => (Outcome::Done(data), None),
        Err(not) if is_current && policy == Some(FailPolicy::Ignore) => (Outcome::Ignored(not), None),
        // Removed or replaced while it was called: whoever is registered now is asked instead.
        Err(not) if !is_current => (Outcome::Failed(not), None),
        Err(not) => (Outcome::Failed(not.clone()), Some(not)),
    };
    let sandbox = flying.sandbox.clone();
    effects.record(state, Record::ExtensionAnswered { sandbox, id: id.to_owned(), outcome, at: now });
    failure
}

/// An extension that an attach waits for has failed.
fn failed(state: &mut State, call: &CallId, extension: &str, not: NotDone, now: Time, effects: &mut Effects) {
    let Some(run) = run(state, call) else { return };
    let Some(one) = state.extensions.get(extension).cloned() else {
        return advance(state, call, now, effects);
    };
    if one.spec.fail == FailPolicy::Ignore {
        let id = write_down(state, &run, call, &one, now, effects);
        let (sandbox, outcome) = (run.sandbox.id.clone(), Outcome::Ignored(not));
        effects.record(state, Record::ExtensionAnswered { sandbox, id, outcome, at: now });
        return advance(state, call, now, effects);
    }
    let why = problem("", Reason::ExtensionFailed, words(&one, run.phase, &not));
    fail(state, &run, call, why, effects);
}

fn words(one: &Registered, phase: Phase, not: &NotDone) -> String {
    format!("extension {} (generation {}) failed {phase}: {}", one.spec.name, one.generation, not.why)
}

fn fail(state: &mut State, run: &Run, call: &CallId, why: Problem, effects: &mut Effects) {
    state.extensions.stale.insert(run.sandbox.id.clone());
    match run.phase {
        Phase::BeforeAttach => answer(state, call, Answer::Failed(why), effects),
        _ => attach::fail(state, call, why, effects),
    }
}
