//! What is remembered about extensions: who is registered, what each did for which pod, and what it has still to be told.

mod owed;
mod registry;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::intent::IntentSpec;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::CallId;
use crate::event::Record;
use crate::extension::{NotDone, Outcome, Owed, Phase, Receipt, Registered};
use crate::state::{ObjectKey, State};

pub(crate) use owed::{settle, settle_stale, tell, told, went, woken};
pub use registry::{Registration, Removal};
pub(crate) use registry::{register, remove};

/// The registry, the receipts and what is owed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extensions {
    registered: BTreeMap<String, Registered>,
    /// The highest generation ever given.
    generation: u64,
    /// How many calls were made.
    calls: u64,
    visits: BTreeMap<SandboxId, Visit>,
    owed: BTreeMap<String, Owed>,
    /// Sandboxes of which something went. Not remembered: after a start all are looked at.
    #[serde(skip)]
    pub(crate) stale: BTreeSet<SandboxId>,
    /// Calls that the host was asked to make, by their ids.
    #[serde(skip)]
    pub(crate) flying: BTreeMap<String, Flying>,
    /// What was owed and could not be told yet.
    #[serde(skip)]
    pub(crate) retries: BTreeMap<String, Retry>,
}

/// What extensions did for one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Visit {
    /// The sandbox as it was told to them.
    sandbox: Sandbox,
    receipts: Vec<Receipt>,
    /// Attaches, by their numbers, that called extensions and were not answered yet.
    open: BTreeSet<u64>,
}

/// A call that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flying {
    pub(crate) extension: String,
    pub(crate) generation: u64,
    pub(crate) sandbox: SandboxId,
    pub(crate) phase: Phase,
    /// The attach that waits for it.
    pub(crate) waits: Option<CallId>,
}

/// When something owed is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    tries: u32,
    at: Time,
}

/// Receipts of a sandbox that ended, with what follows from that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptsEnded {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Interfaces that are gone, each with the number of the attach that brought it.
    pub gone: Vec<(IfName, u64)>,
    /// Attaches that are still under way.
    pub open: BTreeSet<u64>,
    /// What extensions have to be told.
    pub owed: Vec<Owed>,
}

impl Extensions {
    /// All that are registered, in the order in which they are called.
    pub fn in_order(&self) -> Vec<&Registered> {
        let mut all: Vec<&Registered> = self.registered.values().collect();
        all.sort_by_key(|one| (one.spec.order, one.spec.name.as_str()));
        all
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&Registered> {
        self.registered.get(name)
    }

    /// Everything that extensions did for a sandbox, in the order in which they were called.
    pub fn receipts(&self, id: &SandboxId) -> impl Iterator<Item = &Receipt> {
        self.visits.get(id).into_iter().flat_map(|visit| &visit.receipts)
    }

    /// What extensions have still to be told.
    pub fn owed(&self) -> impl Iterator<Item = &Owed> {
        self.owed.values()
    }

    /// Whether an attach called extensions and was not answered.
    pub(crate) fn is_open(&self, id: &SandboxId, ticket: u64) -> bool {
        self.visits.get(id).is_some_and(|visit| visit.open.contains(&ticket))
    }

    /// Attaches of one sandbox that called extensions and were not answered.
    pub(crate) fn open_of(&self, id: &SandboxId) -> impl Iterator<Item = u64> {
        self.visits.get(id).into_iter().flat_map(|visit| visit.open.iter().copied())
    }

    /// Attaches that called extensions and were not answered.
    pub(crate) fn open(&self) -> Vec<(SandboxId, u64)> {
        let all = self.visits.iter();
        all.flat_map(|(id, visit)| visit.open.iter().map(|ticket| (id.clone(), *ticket))).collect()
    }

    /// Sandboxes that extensions did something for.
    pub(crate) fn visited(&self) -> Vec<SandboxId> {
        self.visits.keys().cloned().collect()
    }

    /// What this extension has still to be told about this sandbox, the oldest first.
    pub(crate) fn owed_to(&self, extension: &str, id: &SandboxId) -> Option<&Owed> {
        let mine = self.owed.values().filter(|owed| owed.extension == extension && owed.sandbox.id == *id);
        mine.min_by_key(|owed| (owed.since, owed.id.as_str()))
    }

    /// Whether this extension is being called for this sandbox.
    pub(crate) fn is_called(&self, extension: &str, id: &SandboxId) -> bool {
        self.flying.values().any(|flying| flying.extension == extension && flying.sandbox == *id)
    }

    /// An id that no call had before, also none from before the state was lost.
    pub(crate) fn next_id(&self, now: Time, beyond: u64) -> String {
        format!("{:x}-{}", now.0, self.calls + beyond)
    }

    /// What is remembered: without what is only known while the program runs.
    pub(crate) fn remembered(&self) -> Self {
        Self { stale: BTreeSet::new(), flying: BTreeMap::new(), retries: BTreeMap::new(), ..self.clone() }
    }

    /// Something of a sandbox went: its receipts are looked at.
    pub(crate) fn notice(&mut self, record: &Record) {
        if let Record::Detached { sandbox: id, .. }
        | Record::ChainLeaves { sandbox: id, .. }
        | Record::SandboxGone { id, .. } = record
        {
            self.stale.insert(id.clone());
        }
    }

    pub(crate) fn registered(&mut self, one: &Registered) {
        self.generation = self.generation.max(one.generation);
        let name = &one.spec.name;
        if !one.spec.phases.contains(&Phase::AfterDetach) {
            self.owed.retain(|_, owed| owed.extension != *name);
        }
        self.registered.insert(name.clone(), one.clone());
    }

    pub(crate) fn removed(&mut self, name: &str) {
        self.registered.remove(name);
        self.owed.retain(|_, owed| owed.extension != name);
        // One that comes under the same name later is another: it did nothing yet.
        for visit in self.visits.values_mut() {
            visit.receipts.retain(|receipt| receipt.extension != name);
        }
        self.visits.retain(|_, visit| !visit.receipts.is_empty() || !visit.open.is_empty());
    }

    /// An extension is about to be called. A try before this one that came to nothing is part of it.
    pub(crate) fn called(&mut self, sandbox: &Sandbox, receipt: &Receipt) {
        self.calls += 1;
        let new = || Visit { sandbox: sandbox.clone(), receipts: Vec::new(), open: BTreeSet::new() };
        let visit = self.visits.entry(sandbox.id.clone()).or_insert_with(new);
        visit.sandbox = sandbox.clone();
        visit.open.insert(receipt.ticket);
        let mut receipt = receipt.clone();
        let open = &visit.open;
        let is_earlier = |old: &Receipt| {
            let same = |pair| receipt.interfaces.contains(pair);
            // Another attach that is under way goes by its own receipts.
            let is_over = old.ticket == receipt.ticket || !open.contains(&old.ticket);
            old.extension == receipt.extension
                && old.phase == receipt.phase
                && !old.is_done()
                && is_over
                && old.interfaces.iter().all(same)
        };
        let touched = visit.receipts.iter().filter(|old| is_earlier(old)).any(|old| old.may_have_acted());
        visit.receipts.retain(|old| !is_earlier(old));
        receipt.touched = touched;
        visit.receipts.push(receipt);
    }

    pub(crate) fn answered(&mut self, id: &SandboxId, call: &str, outcome: &Outcome, at: Time) {
        let Some(visit) = self.visits.get_mut(id) else { return };
        if let Some(receipt) = visit.receipts.iter_mut().find(|receipt| receipt.id == call) {
            receipt.outcome = Some(outcome.clone());
            receipt.at = at;
        }
        // One that failed before it was reached leaves nothing to undo and nothing to show.
        visit.receipts.retain(|receipt| {
            receipt.id != call || receipt.may_have_acted() || !matches!(outcome, Outcome::Failed(_))
        });
    }

    pub(crate) fn ended(&mut self, ended: &ReceiptsEnded) {
        self.calls += ended.owed.len() as u64;
        self.owed.extend(ended.owed.iter().map(|owed| (owed.id.clone(), owed.clone())));
        let Some(visit) = self.visits.get_mut(&ended.sandbox) else { return };
        visit.open.clone_from(&ended.open);
        for receipt in &mut visit.receipts {
            receipt.interfaces.retain(|pair| !ended.gone.contains(pair));
        }
        visit.receipts.retain(|receipt| !receipt.interfaces.is_empty());
        if visit.receipts.is_empty() && visit.open.is_empty() {
            self.visits.remove(&ended.sandbox);
        }
    }

    pub(crate) fn is_told(&mut self, id: &str) {
        self.owed.remove(id);
    }
}

impl Receipt {
    /// Whether the extension may have something to undo.
    pub(crate) fn may_have_acted(&self) -> bool {
        let reached = match &self.outcome {
            None | Some(Outcome::Done(_)) => true,
            Some(Outcome::Ignored(NotDone { reached, .. }) | Outcome::Failed(NotDone { reached, .. })) => {
                *reached
            }
        };
        reached || self.touched
    }
}

impl State {
    /// The extensions that objects require, each with the object that does.
    pub fn required_extensions(&self) -> BTreeMap<&str, &ObjectKey> {
        let mut required = BTreeMap::new();
        for (key, object) in &self.objects {
            for intent in &object.intents {
                if let IntentSpec::RequiredExtensions(want) = &intent.spec {
                    required.extend(want.required.iter().map(|name| (name.as_str(), key)));
                }
            }
        }
        required
    }

    /// Required extensions that are not registered: no pod may come while there is one.
    pub fn missing_extensions(&self) -> Vec<(&str, &ObjectKey)> {
        let required = self.required_extensions().into_iter();
        required.filter(|(name, _)| self.extensions.get(name).is_none()).collect()
    }

    /// Why an attach is refused, when a required extension is missing.
    pub(crate) fn check_required(&self) -> Result<(), Problem> {
        match self.missing_extensions().first() {
            None => Ok(()),
            Some((name, object)) => {
                let message =
                    format!("extension {name} is required by {object} and is not registered on this node");
                Err(Problem { field: String::new(), reason: Reason::NotReady, message })
            }
        }
    }

    /// Why a pod that is attached counts as attached without this extension; nothing if the extension took part, or was
    /// not meant to.
    pub fn without_extension(&self, id: &SandboxId, name: &str) -> Option<String> {
        let sandbox = self.sandboxes.get(id)?;
        let spec = self.extensions.get(name).map(|one| &one.spec);
        if spec.is_some_and(|spec| !spec.means(sandbox)) {
            return None;
        }
        let attaches = |phase: &&Phase| **phase != Phase::AfterDetach;
        // What counts is the last moment before the attach was answered.
        let phase = spec.and_then(|spec| spec.phases.iter().rfind(attaches).copied());
        let mine = || {
            let all = self.extensions.receipts(id).filter(|receipt| receipt.extension == name);
            all.filter(|receipt| phase.is_none_or(|phase| receipt.phase == phase))
        };
        let has = |interface: &IfName, ticket: u64| {
            mine()
                .any(|receipt| receipt.is_done() && receipt.interfaces.contains(&(interface.clone(), ticket)))
        };
        let own = self.called.of(id).filter(|there| there.stood);
        let own = own.map(|there| (&there.interface, there.ticket, there.since));
        let chained = self.called.all_chained().filter(|there| there.sandbox == *id && there.stands());
        let chained = chained.map(|there| (&there.interface, there.ticket, there.since));
        let (_, _, since) = own.chain(chained).find(|(name, ticket, _)| !has(name, *ticket))?;
        let said = mine().find_map(|receipt| match &receipt.outcome {
            Some(Outcome::Ignored(not)) => Some(format!("it failed and was ignored: {}", not.why)),
            _ => None,
        });
        let before = || match self.extensions.get(name) {
            Some(one) if there_before(one, since) => "it was attached before the extension was registered",
            Some(_) => "the extension did not take part",
            None => "the extension is not registered",
        };
        Some(said.unwrap_or_else(|| before().to_owned()))
    }
}

fn there_before(one: &Registered, since: Time) -> bool {
    since <= one.since
}
