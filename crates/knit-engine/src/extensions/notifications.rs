//! Notifications of extensions about removed interfaces.
//!
//! They are asynchronous: journalled, sent when the sandbox is settled, and repeated with exponential backoff until
//! the extension acknowledges them or is removed.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::report::InterfaceReport;
use knit_model::{IfName, SandboxId};

use super::{InFlightInvocation, ReceiptsEnded, Retry};
use crate::call::{ATTACHMENT_KIND, CallId};
use crate::event::{Effect, Record, Unit};
use crate::extension::{HookPhase, Invocation, PendingNotification, Receipt};
use crate::pending_calls;
use crate::state::State;
use crate::step::Effects;

/// The backoff after the first failure, in milliseconds; it doubles with every attempt.
const INITIAL_BACKOFF_MS: u64 = 100;
/// The upper bound of the backoff.
const MAX_BACKOFF_MS: u64 = 30_000;

/// Ends the receipts of removed interfaces in marked sandboxes.
pub(crate) fn end_stale_receipts(state: &mut State, now: Time, effects: &mut Effects) {
    for id in std::mem::take(&mut state.extensions.stale) {
        end_receipts(state, &id, now, effects);
    }
}

/// Ends the receipts of detached interfaces of one sandbox.
pub(crate) fn end_receipts(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    state.extensions.stale.remove(id);
    let Some(entry) = state.extensions.by_sandbox.get(id) else { return };
    let active = pending_calls::attaching(state, id);
    let open: BTreeSet<u64> = entry.open.intersection(&active).copied().collect();
    let lives = |(name, ticket): &(IfName, u64)| {
        state.attachments.ticket(id, name) == Some(*ticket) || active.contains(ticket)
    };
    let mut gone: Vec<(IfName, u64)> = Vec::new();
    for pair in entry.receipts.iter().flat_map(|receipt| &receipt.interfaces) {
        if !lives(pair) && !gone.contains(pair) {
            gone.push(pair.clone());
        }
    }
    if gone.is_empty() && open == entry.open {
        return;
    }
    // An interface that another attach created again in the same sandbox instance is not removed.
    let same_life = state.sandboxes.get(id).is_some_and(|now| now.instance == entry.sandbox.instance);
    let is_back = |(name, _): &(IfName, u64)| same_life && state.attachments.ticket(id, name).is_some();
    let lost: Vec<(IfName, u64)> = gone.iter().filter(|pair| !is_back(pair)).cloned().collect();
    let notifications = notifications(state, id, &lost, now);
    let ended = ReceiptsEnded { sandbox: id.clone(), gone, open, notifications };
    effects.record(state, Record::ReceiptsEnded(Box::new(ended)));
}

/// The notifications about these interfaces: for every extension that may have acted and has the phase, in reverse
/// order.
fn notifications(
    state: &State,
    id: &SandboxId,
    gone: &[(IfName, u64)],
    now: Time,
) -> Vec<PendingNotification> {
    let Some(entry) = state.extensions.by_sandbox.get(id) else { return Vec::new() };
    let mut all: Vec<PendingNotification> = Vec::new();
    for one in state.extensions.in_order().into_iter().rev() {
        let name = &one.spec.name;
        let is_mine = |receipt: &&Receipt| {
            receipt.extension == *name
                && receipt.may_have_acted()
                && receipt.interfaces.iter().any(|pair| gone.contains(pair))
        };
        let receipts: Vec<Receipt> = entry.receipts.iter().filter(is_mine).cloned().collect();
        if receipts.is_empty() || !one.spec.phases.contains(&HookPhase::AfterDetach) {
            continue;
        }
        let touched =
            |pair: &&(IfName, u64)| receipts.iter().any(|receipt| receipt.interfaces.contains(pair));
        let interfaces = gone.iter().filter(touched).map(|(name, _)| last_report(state, id, name)).collect();
        all.push(PendingNotification {
            id: state.extensions.next_id(now, all.len() as u64),
            extension: name.clone(),
            sandbox: entry.sandbox.clone(),
            interfaces,
            receipts,
            since: now,
        });
    }
    all
}

/// The current or last report of an interface that a call requested.
pub(crate) fn last_report(state: &State, id: &SandboxId, name: &IfName) -> InterfaceReport {
    let unit_state = state.units.get(&Unit::Sandbox(id.clone()));
    let mut reports = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
    let report = reports.find(|(object, report)| object.kind == ATTACHMENT_KIND && report.name == *name);
    let chained = || state.attachments.chained(&(id.clone(), name.clone())).map(|chained| chained.report());
    let report = report.map(|(_, report)| report.clone()).or_else(chained);
    report.unwrap_or_else(|| InterfaceReport::named(name.clone()))
}

impl State {
    /// The milliseconds until the next notification is due; `None` without one.
    pub fn next_notification_in(&self, now: Time) -> Option<u64> {
        let waits = self
            .extensions
            .pending_notifications
            .values()
            .filter(|notification| self.can_notify(notification));
        waits.map(|notification| self.backoff_left(notification, now)).min()
    }

    /// Whether the extension is registered, has no older notification for this sandbox, is not being invoked for it,
    /// and the sandbox is settled, including its plugin chains.
    fn can_notify(&self, notification: &PendingNotification) -> bool {
        let unit = Unit::Sandbox(notification.sandbox.id.clone());
        let oldest = self.extensions.oldest_notification(&notification.extension, &notification.sandbox.id);
        self.extensions.get(&notification.extension).is_some()
            && oldest.is_some_and(|oldest| oldest.id == notification.id)
            && !self.extensions.is_called(&notification.extension, &notification.sandbox.id)
            && !self.in_flight.contains_key(&unit)
            && !self.dirty.contains(&unit)
            && !self
                .attachments
                .all_chained()
                .any(|there| there.sandbox == notification.sandbox.id && there.removing)
    }

    fn backoff_left(&self, notification: &PendingNotification, now: Time) -> u64 {
        let at = self.extensions.retries.get(&notification.id).map_or(Time(0), |retry| retry.at);
        let left = at.0.saturating_sub(now.0);
        // A clock that was set back must not prolong the wait.
        if left > MAX_BACKOFF_MS { 0 } else { left }
    }
}

/// Sends all notifications that are due.
pub(crate) fn send_due(state: &mut State, now: Time, effects: &mut Effects) {
    let due = state.extensions.pending_notifications.values();
    let due = due
        .filter(|notification| state.can_notify(notification) && state.backoff_left(notification, now) == 0);
    let due: Vec<PendingNotification> = due.cloned().collect();
    for notification in due {
        if state.can_notify(&notification) {
            notify(state, &notification, None, effects);
        }
    }
}

/// Sends a notification. An attach may wait for it.
pub(crate) fn notify(
    state: &mut State,
    notification: &PendingNotification,
    waits: Option<&CallId>,
    effects: &mut Effects,
) {
    let Some(one) = state.extensions.get(&notification.extension).cloned() else { return };
    let attach = notification.receipts.last().map(|receipt| receipt.attach.clone());
    let in_flight = InFlightInvocation {
        extension: notification.extension.clone(),
        generation: one.generation,
        sandbox: notification.sandbox.id.clone(),
        phase: HookPhase::AfterDetach,
        waits: waits.cloned(),
    };
    state.extensions.in_flight.insert(notification.id.clone(), in_flight);
    effects.list.push(Effect::InvokeExtension(Box::new(Invocation {
        id: notification.id.clone(),
        to: one.spec,
        generation: one.generation,
        phase: HookPhase::AfterDetach,
        attach: attach.unwrap_or_else(|| CallId(String::new())),
        sandbox: notification.sandbox.clone(),
        interfaces: notification.interfaces.clone(),
        earlier: notification.receipts.clone(),
    })));
}

/// The extension acknowledged the notification, or failed.
pub(crate) fn notified(state: &mut State, id: &str, done: bool, now: Time, effects: &mut Effects) {
    if !state.extensions.pending_notifications.contains_key(id) {
        return;
    }
    if done {
        state.extensions.retries.remove(id);
        effects.record(state, Record::ExtensionNotified { id: id.to_owned() });
        return;
    }
    let tries = state.extensions.retries.get(id).map_or(0, |retry| retry.tries);
    let wait = (INITIAL_BACKOFF_MS << tries.min(16)).min(MAX_BACKOFF_MS);
    state.extensions.retries.insert(id.to_owned(), Retry { tries: tries + 1, at: Time(now.0 + wait) });
}
