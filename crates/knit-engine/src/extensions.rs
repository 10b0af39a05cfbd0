//! The state of extensions: registrations, receipts, and pending notifications.

mod notifications;
mod registry;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::intent::IntentSpec;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::CallId;
use crate::event::Record;
use crate::extension::{
    HookPhase, InvocationError, InvocationOutcome, PendingNotification, Receipt, RegisteredExtension,
};
use crate::object_index::Feature;
use crate::state::{ObjectKey, State};

pub(crate) use notifications::{end_receipts, end_stale_receipts, last_report, notified, notify, send_due};
pub use registry::{ExtensionRegistration, ExtensionRemoval};
pub(crate) use registry::{register, remove};

/// Registrations, receipts and pending notifications.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extensions {
    registered: BTreeMap<String, RegisteredExtension>,
    /// The highest generation so far.
    generation: u64,
    /// How many invocations were made.
    call_count: u64,
    by_sandbox: BTreeMap<SandboxId, SandboxReceipts>,
    pending_notifications: BTreeMap<String, PendingNotification>,
    /// Sandboxes from which interfaces were removed. Not persistent: after a start all are checked.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) stale: BTreeSet<SandboxId>,
    /// Invocations in flight, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) in_flight: BTreeMap<String, InFlightInvocation>,
    /// Backoff of failed notifications.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) retries: BTreeMap<String, Retry>,
}

/// The receipts of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SandboxReceipts {
    /// The sandbox, as passed to the extensions.
    sandbox: Sandbox,
    receipts: Vec<Receipt>,
    /// Tickets of attaches that invoked extensions and are not completed.
    open: BTreeSet<u64>,
}

/// An invocation in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InFlightInvocation {
    pub(crate) extension: String,
    pub(crate) generation: u64,
    pub(crate) sandbox: SandboxId,
    pub(crate) phase: HookPhase,
    /// The attach that waits for it.
    pub(crate) waits: Option<CallId>,
}

/// When a notification is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retry {
    tries: u32,
    at: Time,
}

/// Receipts of a sandbox that ended, and the resulting notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptsEnded {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Removed interfaces, each with the ticket of the attach that created it.
    pub gone: Vec<(IfName, u64)>,
    /// Attaches in progress.
    pub open: BTreeSet<u64>,
    /// Notifications to send.
    pub notifications: Vec<PendingNotification>,
}

impl Extensions {
    /// All registered extensions, in the order of invocation.
    pub fn in_order(&self) -> Vec<&RegisteredExtension> {
        let mut all: Vec<&RegisteredExtension> = self.registered.values().collect();
        all.sort_by_key(|one| (one.spec.order, one.spec.name.as_str()));
        all
    }

    /// A registered extension.
    pub fn get(&self, name: &str) -> Option<&RegisteredExtension> {
        self.registered.get(name)
    }

    /// The receipts of a sandbox, in the order of invocation.
    pub fn receipts(&self, id: &SandboxId) -> impl Iterator<Item = &Receipt> {
        self.by_sandbox.get(id).into_iter().flat_map(|entry| &entry.receipts)
    }

    /// Notifications that are not acknowledged yet.
    pub fn pending_notifications(&self) -> impl Iterator<Item = &PendingNotification> {
        self.pending_notifications.values()
    }

    /// Whether an attach invoked extensions and is not completed.
    pub(crate) fn is_open(&self, id: &SandboxId, ticket: u64) -> bool {
        self.by_sandbox.get(id).is_some_and(|entry| entry.open.contains(&ticket))
    }

    /// The attaches of one sandbox that invoked extensions and are not completed.
    pub(crate) fn open_of(&self, id: &SandboxId) -> impl Iterator<Item = u64> {
        self.by_sandbox.get(id).into_iter().flat_map(|entry| entry.open.iter().copied())
    }

    /// All attaches that invoked extensions and are not completed.
    pub(crate) fn open(&self) -> Vec<(SandboxId, u64)> {
        let all = self.by_sandbox.iter();
        all.flat_map(|(id, entry)| entry.open.iter().map(|ticket| (id.clone(), *ticket))).collect()
    }

    /// Sandboxes with receipts.
    pub(crate) fn sandboxes_with_receipts(&self) -> Vec<SandboxId> {
        self.by_sandbox.keys().cloned().collect()
    }

    /// The oldest pending notification of this extension for this sandbox.
    pub(crate) fn oldest_notification(
        &self,
        extension: &str,
        id: &SandboxId,
    ) -> Option<&PendingNotification> {
        let mine = self
            .pending_notifications
            .values()
            .filter(|notification| notification.extension == extension && notification.sandbox.id == *id);
        mine.min_by_key(|notification| (notification.since, notification.id.as_str()))
    }

    /// Whether this extension is being invoked for this sandbox.
    pub(crate) fn is_called(&self, extension: &str, id: &SandboxId) -> bool {
        self.in_flight.values().any(|in_flight| in_flight.extension == extension && in_flight.sandbox == *id)
    }

    /// An id that is unique even if the state is lost.
    pub(crate) fn next_id(&self, now: Time, offset: u64) -> String {
        format!("{:x}-{}", now.0, self.call_count + offset)
    }

    /// The persistent part.
    pub(crate) fn persistent(&self) -> Self {
        Self { stale: BTreeSet::new(), in_flight: BTreeMap::new(), retries: BTreeMap::new(), ..self.clone() }
    }

    /// Marks a sandbox whose interfaces were removed.
    pub(crate) fn mark_stale(&mut self, record: &Record) {
        if let Record::Detached { sandbox: id, .. }
        | Record::ChainDelStarted { sandbox: id, .. }
        | Record::SandboxRemoved { id, .. } = record
        {
            self.stale.insert(id.clone());
        }
    }

    pub(crate) fn registered(&mut self, one: &RegisteredExtension) {
        self.generation = self.generation.max(one.generation);
        let name = &one.spec.name;
        if !one.spec.phases.contains(&HookPhase::AfterDetach) {
            self.pending_notifications.retain(|_, notification| notification.extension != *name);
        }
        self.registered.insert(name.clone(), one.clone());
    }

    pub(crate) fn removed(&mut self, name: &str) {
        self.registered.remove(name);
        self.pending_notifications.retain(|_, notification| notification.extension != name);
        // An extension registered later under the same name is a different one.
        for entry in self.by_sandbox.values_mut() {
            entry.receipts.retain(|receipt| receipt.extension != name);
        }
        self.by_sandbox.retain(|_, entry| !entry.receipts.is_empty() || !entry.open.is_empty());
    }

    /// Records an invocation that is about to start. It replaces earlier failed attempts.
    pub(crate) fn called(&mut self, sandbox: &Sandbox, receipt: &Receipt) {
        self.call_count += 1;
        let new =
            || SandboxReceipts { sandbox: sandbox.clone(), receipts: Vec::new(), open: BTreeSet::new() };
        let entry = self.by_sandbox.entry(sandbox.id.clone()).or_insert_with(new);
        entry.sandbox = sandbox.clone();
        entry.open.insert(receipt.ticket);
        let mut receipt = receipt.clone();
        let open = &entry.open;
        let is_earlier = |old: &Receipt| {
            let same = |pair| receipt.interfaces.contains(pair);
            // Other attaches in progress have their own receipts.
            let is_over = old.ticket == receipt.ticket || !open.contains(&old.ticket);
            old.extension == receipt.extension
                && old.phase == receipt.phase
                && !old.is_done()
                && is_over
                && old.interfaces.iter().all(same)
        };
        let touched = entry.receipts.iter().filter(|old| is_earlier(old)).any(|old| old.may_have_acted());
        entry.receipts.retain(|old| !is_earlier(old));
        receipt.touched = touched;
        entry.receipts.push(receipt);
    }

    pub(crate) fn answered(&mut self, id: &SandboxId, call: &str, outcome: &InvocationOutcome, at: Time) {
        let Some(entry) = self.by_sandbox.get_mut(id) else { return };
        if let Some(receipt) = entry.receipts.iter_mut().find(|receipt| receipt.id == call) {
            receipt.outcome = Some(outcome.clone());
            receipt.at = at;
        }
        // An extension that was not reached has nothing to undo.
        entry.receipts.retain(|receipt| {
            receipt.id != call || receipt.may_have_acted() || !matches!(outcome, InvocationOutcome::Failed(_))
        });
    }

    pub(crate) fn ended(&mut self, ended: &ReceiptsEnded) {
        self.call_count += ended.notifications.len() as u64;
        self.pending_notifications.extend(
            ended.notifications.iter().map(|notification| (notification.id.clone(), notification.clone())),
        );
        let Some(entry) = self.by_sandbox.get_mut(&ended.sandbox) else { return };
        entry.open.clone_from(&ended.open);
        for receipt in &mut entry.receipts {
            receipt.interfaces.retain(|pair| !ended.gone.contains(pair));
        }
        entry.receipts.retain(|receipt| !receipt.interfaces.is_empty());
        if entry.receipts.is_empty() && entry.open.is_empty() {
            self.by_sandbox.remove(&ended.sandbox);
        }
    }

    pub(crate) fn notification_sent(&mut self, id: &str) {
        self.pending_notifications.remove(id);
    }
}

impl Receipt {
    /// Whether the extension may have something to undo.
    pub(crate) fn may_have_acted(&self) -> bool {
        let reached = match &self.outcome {
            None | Some(InvocationOutcome::Done(_)) => true,
            Some(
                InvocationOutcome::Ignored(InvocationError { reached, .. })
                | InvocationOutcome::Failed(InvocationError { reached, .. }),
            ) => *reached,
        };
        reached || self.touched
    }
}

impl State {
    /// The extensions that objects require, each with the requiring object.
    pub fn required_extensions(&self) -> BTreeMap<&str, &ObjectKey> {
        let mut required = BTreeMap::new();
        for (key, object) in self.objects.with(Feature::RequiredExtensions) {
            for intent in &object.intents {
                if let IntentSpec::RequiredExtensions(spec) = &intent.spec {
                    required.extend(spec.required.iter().map(|name| (name.as_str(), key)));
                }
            }
        }
        required
    }

    /// Required extensions that are not registered: attaches fail while there is one.
    pub fn missing_extensions(&self) -> Vec<(&str, &ObjectKey)> {
        let required = self.required_extensions().into_iter();
        required.filter(|(name, _)| self.extensions.get(name).is_none()).collect()
    }

    /// Rejects an attach if a required extension is missing.
    pub(crate) fn check_required(&self) -> Result<(), Problem> {
        match self.missing_extensions().first() {
            None => Ok(()),
            Some((name, object)) => {
                let message =
                    format!("extension {name} is required by {object} and is not registered on this node");
                Err(Problem::new("", Reason::NotReady, message))
            }
        }
    }

    /// Why a pod counts as attached without this extension; `None` if the extension took part or does not select the
    /// pod.
    pub fn without_extension(&self, id: &SandboxId, name: &str) -> Option<String> {
        let sandbox = self.sandboxes.get(id)?;
        let spec = self.extensions.get(name).map(|one| &one.spec);
        if spec.is_some_and(|spec| !spec.selects(sandbox)) {
            return None;
        }
        let attaches = |phase: &&HookPhase| **phase != HookPhase::AfterDetach;
        // The last phase before the attach is completed decides.
        let phase = spec.and_then(|spec| spec.phases.iter().rfind(attaches).copied());
        let mine = || {
            let all = self.extensions.receipts(id).filter(|receipt| receipt.extension == name);
            all.filter(|receipt| phase.is_none_or(|phase| receipt.phase == phase))
        };
        let has = |interface: &IfName, ticket: u64| {
            mine()
                .any(|receipt| receipt.is_done() && receipt.interfaces.contains(&(interface.clone(), ticket)))
        };
        let own = self.attachments.of(id).filter(|attachment| attachment.was_ready);
        let own = own.map(|attachment| (&attachment.interface, attachment.ticket, attachment.since));
        let chained = self
            .attachments
            .all_chained()
            .filter(|attachment| attachment.sandbox == *id && attachment.is_ready());
        let chained = chained.map(|attachment| (&attachment.interface, attachment.ticket, attachment.since));
        let (_, _, since) = own.chain(chained).find(|(name, ticket, _)| !has(name, *ticket))?;
        let ignored = mine().find_map(|receipt| match &receipt.outcome {
            Some(InvocationOutcome::Ignored(not)) => {
                Some(format!("it failed and was ignored: {}", not.message))
            }
            _ => None,
        });
        let before = || match self.extensions.get(name) {
            Some(one) if attached_before(one, since) => "it was attached before the extension was registered",
            Some(_) => "the extension did not take part",
            None => "the extension is not registered",
        };
        Some(ignored.unwrap_or_else(|| before().to_owned()))
    }
}

fn attached_before(one: &RegisteredExtension, since: Time) -> bool {
    since <= one.since
}
