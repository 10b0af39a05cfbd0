//! Calls that wait for an answer: who waits for which unit, and what becomes of them when it comes to rest.
//!
//! A call is answered by the flight that carried its change, never by a later one: another call that fails on the same
//! sandbox must not take back what this one was told is there.

mod attach;
pub(crate) mod chain;
mod detach;
mod domain;
mod extend;
mod late;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, SandboxId};

use crate::call::{Answer, Attach, Attachment, CallId, Collected, Detach, Domain, Found};
use crate::chain::ChainKey;
use crate::event::{Event, Record, Unit};
use crate::extensions;
use crate::forward::{self, Turn};
use crate::spans;
use crate::state::State;
use crate::step::Effects;

pub(crate) use extend::attaching;

/// So many calls wait at once; the next one is refused.
const MOST_CALLS: usize = 1_024;

/// Everything that is known about calls while the program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    waiting: BTreeMap<CallId, Waiting>,
    /// Sandboxes that are forgotten as soon as nothing of theirs is left inside.
    leaving: BTreeSet<SandboxId>,
    /// Detaches that attaches may come too late for.
    ended: late::Ended,
    /// Plugins that are being run.
    chaining: chain::Chaining,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    what: What,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Attach(Box<Attaching>),
    Detach(Detach),
    /// Sandboxes of which something is to go, and what follows once it is gone.
    Leave {
        left: BTreeSet<SandboxId>,
        then: Then,
    },
    Domain(Domain),
}

/// What follows once sandboxes are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    /// This is told.
    Tell(Vec<Collected>),
    /// The namespace goes, if Knit made it.
    RemoveDomain(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Attaching {
    attach: Attach,
    found: Option<Found>,
    /// Interfaces that this call brought; others were there before it.
    added: Vec<IfName>,
    /// Interfaces that were there and whose limits it changes, as they were.
    before: Vec<Attachment>,
    /// Whether nobody knew the sandbox before.
    introduced: bool,
    /// Whether an older life of it was to be taken away.
    cleared: bool,
    /// Whether extensions were called before it.
    prepared: bool,
    /// Whether plugins make what it asks for.
    chained: bool,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The namespace, or the domain, is being looked at or made.
    Host,
    /// What an older life of the sandbox left is being taken away.
    Clearing,
    /// Extensions are called before anything is changed.
    Before,
    /// What it asks for is in desired, and no flight has taken it up yet.
    Waiting,
    /// A flight carries it.
    Flying,
    /// It failed; what it brought is being taken back, and then it is answered with this.
    TakingBack { why: Problem, flying: bool },
    /// It stands; the node's part of the way to it and from it is being made: what was asked by then.
    Forwarding(Turn),
    /// It stands; extensions are called, and then it is answered.
    After,
    /// Nobody waits any more; what is being made goes as soon as it is there.
    Abandoned,
    /// The namespace is being removed.
    Removing,
    /// Plugins are being run for it.
    Chaining,
    /// It is answered with this once plugins have taken its interfaces away.
    Held(Box<Answer>),
}

impl Calls {
    /// The calls about one sandbox.
    fn of(&self, id: &SandboxId) -> Vec<CallId> {
        let about = |waiting: &Waiting| match &waiting.what {
            What::Attach(attaching) => attaching.attach.sandbox.id == id.0,
            What::Detach(detach) => detach.sandbox == *id,
            What::Leave { left, .. } => left.contains(id),
            What::Domain(_) => false,
        };
        self.waiting.iter().filter(|(_, waiting)| about(waiting)).map(|(call, _)| call.clone()).collect()
    }

    /// Why plugins did not make what an object asks for.
    pub(crate) fn failed(&self, key: &ChainKey) -> Option<&Problem> {
        self.chaining.failed(key)
    }

    fn stage(&mut self, call: &CallId, stage: Stage) {
        if let Some(waiting) = self.waiting.get_mut(call) {
            waiting.stage = stage;
        }
    }
}

/// Hears an event that is about calls.
pub(crate) fn hear(state: &mut State, event: Event, now: Time, effects: &mut Effects) {
    match event {
        Event::AttachRequested(attach) => attach::requested(state, *attach, now, effects),
        Event::DetachRequested(detach) => detach::requested(state, detach, effects),
        Event::CollectRequested(collect) => detach::collect(state, collect, effects),
        Event::DomainRequested { call, domain } => domain::requested(state, call, domain, effects),
        Event::DomainUnwanted { call, path } => domain::unwanted(state, call, path, effects),
        Event::DomainDone { call, result } => domain::done(state, &call, result, effects),
        Event::Inspected { call, found } => inspected(state, &call, found, now, effects),
        Event::CallCancelled { call, ticket } => cancelled(state, &call, ticket, effects),
        Event::ExtensionWanted(asked) => extensions::register(state, *asked, now, effects),
        Event::ExtensionUnwanted(asked) => extensions::remove(state, asked, effects),
        Event::Invoked { id, told } => extend::invoked(state, &id, told, now, effects),
        Event::Woken => extensions::woken(state, now, effects),
        Event::ChainsConfigured(chains) if chains != *state.called.chains() => {
            effects.record(state, Record::Chains(chains));
        }
        Event::ChainDone { key, verb, result } => chain::done(state, &key, verb, result, now, effects),
        Event::Restarted => restarted(state, effects),
        Event::Reforward => forward::repeat(state, effects),
        Event::Forwarded(result) => forwarded(state, &result, now, effects),
        _ => {}
    }
}

/// A flight begins with everything that calls asked of this sandbox so far.
pub(crate) fn begun(state: &mut State, id: &SandboxId) {
    for call in state.calls.of(id) {
        let Some(waiting) = state.calls.waiting.get_mut(&call) else { continue };
        match &mut waiting.stage {
            Stage::Waiting => waiting.stage = Stage::Flying,
            Stage::TakingBack { flying, .. } => *flying = true,
            _ => {}
        }
    }
}

/// A flight has ended, well or not: calls that waited for its sandbox are answered, or go on.
pub(crate) fn landed(state: &mut State, unit: &Unit, now: Time, effects: &mut Effects) {
    let Unit::Sandbox(id) = unit else { return };
    if state.calls.leaving.contains(id) && !state.dirty.contains(unit) {
        state.calls.leaving.remove(id);
        forget(state, id, now, effects);
    }
    forward::refresh(state, id, effects);
    for call in state.calls.of(id) {
        let Some(waiting) = state.calls.waiting.get(&call) else { continue };
        match (&waiting.what, waiting.stage.clone()) {
            (_, Stage::TakingBack { why, flying: true }) => {
                answer(state, &call, Answer::Failed(why), effects);
            }
            (What::Attach(_), Stage::Clearing) => attach::try_clear(state, &call, now, effects),
            (What::Attach(_), Stage::Flying) => attach::landed(state, &call, now, effects),
            (What::Detach(_), Stage::Flying) => detach::landed(state, &call, effects),
            (What::Leave { .. }, _) => detach::left(state, &call, id, effects),
            _ => {}
        }
    }
}

/// The sandbox is gone. Whoever attaches to it is told; whoever detaches waits until the host is clean.
pub(crate) fn lost(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    state.calls.leaving.remove(id);
    for call in state.calls.of(id) {
        let Some(waiting) = state.calls.waiting.get_mut(&call) else { continue };
        match (&waiting.what, &waiting.stage) {
            (What::Attach(_), Stage::TakingBack { why, .. }) => {
                let why = why.clone();
                answer(state, &call, Answer::Failed(why), effects);
            }
            (
                What::Attach(_),
                Stage::Before
                | Stage::Chaining
                | Stage::Waiting
                | Stage::Flying
                | Stage::Forwarding(_)
                | Stage::After,
            ) => {
                let message = format!("sandbox {id}: its namespace is gone");
                if attach::is_chained(state, &call) {
                    chain::abandon(state, &call, effects);
                }
                answer(
                    state,
                    &call,
                    Answer::Failed(problem("sandbox", Reason::SandboxGone, message)),
                    effects,
                );
            }
            (What::Detach(_), Stage::Flying) => waiting.stage = Stage::Waiting,
            _ => {}
        }
    }
}

fn inspected(
    state: &mut State,
    call: &CallId,
    found: Result<Found, Problem>,
    now: Time,
    effects: &mut Effects,
) {
    let Some(Waiting { what, stage: Stage::Host }) = state.calls.waiting.get_mut(call) else { return };
    match (what, found) {
        (What::Attach(_), Err(why)) => answer(state, call, Answer::Failed(why), effects),
        (What::Attach(attaching), Ok(found)) => {
            attaching.found = Some(found);
            state.calls.stage(call, Stage::Clearing);
            attach::try_clear(state, call, now, effects);
        }
        (What::Detach(detach), found) => {
            let known = state.sandboxes.get(&detach.sandbox).map(|sandbox| &sandbox.instance);
            let is_known = found.is_ok_and(|found| Some(&found.instance) == known);
            if is_known {
                detach::go(state, call, effects);
            } else {
                // It speaks of another life of the sandbox, which is gone: the one that is there is not meant.
                answer(state, call, Answer::Detached, effects);
            }
        }
        _ => {}
    }
}

fn cancelled(state: &mut State, call: &CallId, ticket: u64, effects: &mut Effects) {
    let Some(waiting) = state.calls.waiting.get_mut(call) else {
        return unheard(state, call, ticket, effects);
    };
    match (&waiting.what, &waiting.stage) {
        (What::Domain(_), Stage::Host) => waiting.stage = Stage::Abandoned,
        (
            What::Attach(_),
            Stage::Waiting | Stage::Chaining | Stage::Flying | Stage::Forwarding(_) | Stage::After,
        ) => {
            attach::take_back(state, call, effects);
            state.calls.waiting.remove(call);
        }
        (What::Attach(attaching), Stage::Before) => {
            // What extensions did before it is undone.
            state.extensions.stale.insert(SandboxId(attaching.attach.sandbox.id.clone()));
            state.calls.waiting.remove(call);
        }
        // What a detach or a collection began goes on without whoever asked.
        (What::Leave { .. } | What::Domain(_), _) => {}
        _ => {
            state.calls.waiting.remove(call);
        }
    }
}

/// The answer was given, and nobody was there to hear it: what the call brought is taken back all the same.
fn unheard(state: &mut State, call: &CallId, ticket: u64, effects: &mut Effects) {
    chain::unheard(state, ticket, effects);
    let brought = state.called.all().filter(|there| ticket != 0 && there.ticket == ticket);
    let brought: Vec<(SandboxId, IfName)> =
        brought.map(|there| (there.sandbox.clone(), there.interface.clone())).collect();
    for (sandbox, interface) in brought {
        let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
        effects.record(state, record);
        if state.called.of(&sandbox).next().is_none() {
            leave(state, call, &sandbox, effects);
        }
        state.dirty.insert(Unit::Sandbox(sandbox));
    }
}

/// The node's part is as asked, or could not be made so: whoever waits for it is answered.
fn forwarded(state: &mut State, result: &Result<(), Problem>, now: Time, effects: &mut Effects) {
    if let Err(why) = result {
        spans::unfiltered(state, why);
    }
    let done = forward::done(state, effects);
    let waits = |waiting: &Waiting| matches!(waiting.stage, Stage::Forwarding(turn) if turn <= done);
    let waiting = state.calls.waiting.iter().filter(|(_, waiting)| waits(waiting));
    let waiting: Vec<CallId> = waiting.map(|(call, _)| call.clone()).collect();
    for call in waiting {
        attach::forwarded(state, &call, result.clone(), now, effects);
    }
}

/// What was asked for and never stood is taken back: whoever asked was never told that it is there, and is gone.
fn restarted(state: &mut State, effects: &mut Effects) {
    forward::remember(state);
    extend::restarted(state, &CallId("restart".to_owned()), effects);
    chain::restarted(state, effects);
    let never_stood = state.called.all().filter(|there| !there.stood);
    let never_stood: Vec<(SandboxId, IfName)> =
        never_stood.map(|there| (there.sandbox.clone(), there.interface.clone())).collect();
    for (sandbox, interface) in never_stood {
        let call = CallId("restart".to_owned());
        let record = Record::Detached { sandbox: sandbox.clone(), interface, call: call.clone() };
        effects.record(state, record);
        let unit = Unit::Sandbox(sandbox.clone());
        if state.called.of(&sandbox).next().is_none() && !state.made.contains_key(&unit) {
            leave(state, &call, &sandbox, effects);
        }
        state.dirty.insert(unit);
    }
}

/// Takes a call in, unless there are too many.
fn take_in(state: &mut State, call: &CallId, what: What, stage: Stage, effects: &mut Effects) -> bool {
    let refusal = if state.calls.waiting.len() >= MOST_CALLS {
        Some((Reason::Busy, format!("{MOST_CALLS} calls are under way: try again later")))
    } else if state.calls.waiting.contains_key(call) {
        Some((Reason::Conflict, format!("a call {call} is under way already")))
    } else {
        None
    };
    if let Some((reason, message)) = refusal {
        effects.answer(call, Answer::Failed(problem("", reason, message)));
        return false;
    }
    state.calls.waiting.insert(call.clone(), Waiting { what, stage });
    true
}

fn answer(state: &mut State, call: &CallId, answer: Answer, effects: &mut Effects) {
    if state.calls.chaining.holds(call) {
        return state.calls.stage(call, Stage::Held(Box::new(answer)));
    }
    if state.calls.waiting.remove(call).is_some() {
        effects.answer(call, answer);
    }
}

/// Takes everything of a sandbox back that lies inside it; when that is done the sandbox is forgotten.
fn leave(state: &mut State, call: &CallId, id: &SandboxId, effects: &mut Effects) {
    for key in chain::of(state, id) {
        chain::leave(state, &key, Some(call), effects);
    }
    let interfaces: Vec<IfName> =
        state.called.of(id).map(|attachment| attachment.interface.clone()).collect();
    for interface in interfaces {
        effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
    }
    if let Some(sandbox) = state.sandboxes.get(id)
        && (!sandbox.labels.is_empty() || state.asking(sandbox).next().is_some())
    {
        // Objects that mean its pod mean it no longer.
        let uid = String::new();
        let sandbox = knit_model::Sandbox { labels: BTreeMap::new(), uid, ..sandbox.clone() };
        effects.record(state, Record::SandboxSeen(sandbox));
    }
    if state.sandboxes.contains_key(id) {
        state.calls.leaving.insert(id.clone());
    }
    state.dirty.insert(Unit::Sandbox(id.clone()));
}

/// The sandbox is not known any more. What it still has on the host is cut off as a change of its own.
fn forget(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    if !state.sandboxes.contains_key(id) {
        return;
    }
    effects.record(state, Record::SandboxGone { id: id.clone(), at: now });
    let unit = Unit::Sandbox(id.clone());
    if state.made.contains_key(&unit) {
        state.dirty.insert(unit);
    }
}

fn problem(field: &str, reason: Reason, message: impl Into<String>) -> Problem {
    Problem { field: field.to_owned(), reason, message: message.into() }
}
