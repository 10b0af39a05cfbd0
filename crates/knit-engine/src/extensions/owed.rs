//! What extensions have to be told afterwards: interfaces that they took part in are gone.
//!
//! Nobody waits for it. It is written down, told once the sandbox has come to rest, and tried again, later and later,
//! until the extension has acknowledged it or is removed.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::{IfName, SandboxId};

use super::{Flying, ReceiptsEnded, Retry};
use crate::call::{ATTACHMENT, CallId};
use crate::calls;
use crate::event::{Effect, Record, Unit};
use crate::extension::{Invocation, Owed, Phase, Receipt, Went};
use crate::state::State;
use crate::step::Effects;

/// The first try after one that failed comes so many milliseconds later; each one waits twice as long.
const FIRST_WAIT: u64 = 100;
/// But never longer than this.
const LONGEST_WAIT: u64 = 30_000;

/// Ends the receipts of what is gone, in the sandboxes where something went.
pub(crate) fn settle_stale(state: &mut State, now: Time, effects: &mut Effects) {
    for id in std::mem::take(&mut state.extensions.stale) {
        settle(state, &id, now, effects);
    }
}

/// Ends the receipts of interfaces of one sandbox that no call asks for any more.
pub(crate) fn settle(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    state.extensions.stale.remove(id);
    let Some(visit) = state.extensions.visits.get(id) else { return };
    let active = calls::attaching(state, id);
    let open: BTreeSet<u64> = visit.open.intersection(&active).copied().collect();
    let lives = |(name, ticket): &(IfName, u64)| {
        state.called.ticket(id, name) == Some(*ticket) || active.contains(ticket)
    };
    let mut gone: Vec<(IfName, u64)> = Vec::new();
    for pair in visit.receipts.iter().flat_map(|receipt| &receipt.interfaces) {
        if !lives(pair) && !gone.contains(pair) {
            gone.push(pair.clone());
        }
    }
    if gone.is_empty() && open == visit.open {
        return;
    }
    // One that another attach brought meanwhile, in the same life of the sandbox, is not gone.
    let same_life = state.sandboxes.get(id).is_some_and(|now| now.instance == visit.sandbox.instance);
    let is_back = |(name, _): &(IfName, u64)| same_life && state.called.ticket(id, name).is_some();
    let lost: Vec<(IfName, u64)> = gone.iter().filter(|pair| !is_back(pair)).cloned().collect();
    let owed = owed(state, id, &lost, now);
    let ended = ReceiptsEnded { sandbox: id.clone(), gone, open, owed };
    effects.record(state, Record::ReceiptsEnded(Box::new(ended)));
}

/// Who has to be told that these are gone: every extension that may have acted for them and wants to know, the last one
/// in first.
fn owed(state: &State, id: &SandboxId, gone: &[(IfName, u64)], now: Time) -> Vec<Owed> {
    let Some(visit) = state.extensions.visits.get(id) else { return Vec::new() };
    let mut all: Vec<Owed> = Vec::new();
    for one in state.extensions.in_order().into_iter().rev() {
        let name = &one.spec.name;
        let is_mine = |receipt: &&Receipt| {
            receipt.extension == *name
                && receipt.may_have_acted()
                && receipt.interfaces.iter().any(|pair| gone.contains(pair))
        };
        let receipts: Vec<Receipt> = visit.receipts.iter().filter(is_mine).cloned().collect();
        if receipts.is_empty() || !one.spec.phases.contains(&Phase::AfterDetach) {
            continue;
        }
        let touched =
            |pair: &&(IfName, u64)| receipts.iter().any(|receipt| receipt.interfaces.contains(pair));
        let interfaces = gone.iter().filter(touched).map(|(name, _)| went(state, id, name)).collect();
        all.push(Owed {
            id: state.extensions.next_id(now, all.len() as u64),
            extension: name.clone(),
            sandbox: visit.sandbox.clone(),
            interfaces,
            receipts,
            since: now,
        });
    }
    all
}

/// An interface with the addresses that it has, or had until a moment ago.
pub(crate) fn went(state: &State, id: &SandboxId, name: &IfName) -> Went {
    let made = state.made.get(&Unit::Sandbox(id.clone()));
    let mut reports = made.into_iter().flat_map(|made| &made.interfaces);
    let report = reports.find(|(object, report)| object.kind == ATTACHMENT && report.name == *name);
    let addresses = match report {
        Some((_, report)) => report.addresses.clone(),
        None => state
            .called
            .chained(&(id.clone(), name.clone()))
            .map(|there| there.addresses())
            .unwrap_or_default(),
    };
    Went { name: name.clone(), addresses }
}

impl State {
    /// In how many milliseconds something owed is to be told; nothing when nothing is.
    pub fn owed_in(&self, now: Time) -> Option<u64> {
        let waits = self.extensions.owed.values().filter(|owed| self.can_be_told(owed));
        waits.map(|owed| self.wait_for(owed, now)).min()
    }

    /// Whether the extension is there, has been told everything older about this sandbox, nobody calls it for the sandbox,
    /// and the sandbox is at rest: also plugins have taken away what they made.
    fn can_be_told(&self, owed: &Owed) -> bool {
        let unit = Unit::Sandbox(owed.sandbox.id.clone());
        let oldest = self.extensions.owed_to(&owed.extension, &owed.sandbox.id);
        self.extensions.get(&owed.extension).is_some()
            && oldest.is_some_and(|oldest| oldest.id == owed.id)
            && !self.extensions.is_called(&owed.extension, &owed.sandbox.id)
            && !self.flights.contains_key(&unit)
            && !self.dirty.contains(&unit)
            && !self.called.all_chained().any(|there| there.sandbox == owed.sandbox.id && there.leaving)
    }

    fn wait_for(&self, owed: &Owed, now: Time) -> u64 {
        let at = self.extensions.retries.get(&owed.id).map_or(Time(0), |retry| retry.at);
        let left = at.0.saturating_sub(now.0);
        // A clock that was put back is no reason to wait longer.
        if left > LONGEST_WAIT { 0 } else { left }
    }
}

/// Time has passed: what is owed and due is told.
pub(crate) fn woken(state: &mut State, now: Time, effects: &mut Effects) {
    let due = state.extensions.owed.values();
    let due = due.filter(|owed| state.can_be_told(owed) && state.wait_for(owed, now) == 0);
    let due: Vec<Owed> = due.cloned().collect();
    for owed in due {
        if state.can_be_told(&owed) {
            tell(state, &owed, None, effects);
        }
    }
}

/// Has an extension told what it is owed. An attach may wait for that.
pub(crate) fn tell(state: &mut State, owed: &Owed, waits: Option<&CallId>, effects: &mut Effects) {
    let Some(one) = state.extensions.get(&owed.extension).cloned() else { return };
    let attach = owed.receipts.last().map(|receipt| receipt.attach.clone());
    let flying = Flying {
        extension: owed.extension.clone(),
        generation: one.generation,
        sandbox: owed.sandbox.id.clone(),
        phase: Phase::AfterDetach,
        waits: waits.cloned(),
    };
    state.extensions.flying.insert(owed.id.clone(), flying);
    effects.list.push(Effect::Invoke(Box::new(Invocation {
        id: owed.id.clone(),
        to: one.spec,
        generation: one.generation,
        phase: Phase::AfterDetach,
        attach: attach.unwrap_or_else(|| CallId(String::new())),
        sandbox: owed.sandbox.clone(),
        interfaces: owed.interfaces.clone(),
        earlier: owed.receipts.clone(),
    })));
}

/// It was told, or could not be.
pub(crate) fn told(state: &mut State, id: &str, done: bool, now: Time, effects: &mut Effects) {
    if !state.extensions.owed.contains_key(id) {
        return;
    }
    if done {
        state.extensions.retries.remove(id);
        effects.record(state, Record::ExtensionTold { id: id.to_owned() });
        return;
    }
    let tries = state.extensions.retries.get(id).map_or(0, |retry| retry.tries);
    let wait = (FIRST_WAIT << tries.min(16)).min(LONGEST_WAIT);
    state.extensions.retries.insert(id.to_owned(), Retry { tries: tries + 1, at: Time(now.0 + wait) });
}
