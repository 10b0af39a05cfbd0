//! Changes whose callers wait until everything that follows from them is done.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::time::Instant;

use knit_engine::{Effect, Event, Record, Revision, Unit};

use super::super::local_api::ChangeRequest;
use super::{DEFERRED_DELETE_DELAY, EventLoop, StepResult};
use crate::error::Result;
use crate::node::Plans;
use crate::standalone::Decision;

/// A change in flight.
pub(super) struct PendingChange {
    /// Its events are being handled: all work that starts now belongs to it.
    begins: bool,
    /// Units with earlier changes of others in flight.
    others: BTreeSet<Unit>,
    /// Units with work in flight for this change.
    units: BTreeSet<Unit>,
    /// Plans that repaired drift.
    repairs: Plans,
    done: Sender<Plans>,
}

impl EventLoop<'_> {
    /// Decides a change and starts its work.
    pub(super) fn change(&mut self, request: ChangeRequest) -> Result<()> {
        if self.stopping.is_some() {
            // Dropping the reply channel rejects the caller.
            return Ok(());
        }
        let Some(Decision { record, events }) = (request.decide)(self.node.state()) else { return Ok(()) };
        if let Some(record) = record {
            self.node.record(&record)?;
            if let Record::Revision(Revision { what, .. }) = &record {
                tracing::info!(%what, changes = events.len(), "objects changed through the local API");
            }
        }
        if events.iter().any(|event| matches!(event, Event::Resync)) {
            self.unit_log.compared.extend(self.node.state().settled().cloned());
        }
        let others = self.node.state().pending().cloned().collect();
        let (units, repairs) = (BTreeSet::new(), Plans::new());
        self.pending_changes.push(PendingChange { begins: true, others, units, repairs, done: request.done });
        events.into_iter().try_for_each(|event| self.handle(event))?;
        self.pending_changes.iter_mut().for_each(|work| work.begins = false);
        self.finish_pending_changes();
        Ok(())
    }

    /// Assigns the work that follows from an event to the changes that caused it.
    pub(super) fn track_pending_changes(&mut self, cause: Option<&Unit>, result: &StepResult) {
        let state = self.node.state();
        for work in &mut self.pending_changes {
            if !work.begins && !cause.is_some_and(|unit| work.units.contains(unit)) {
                continue;
            }
            for effect in &result.effects {
                match effect {
                    Effect::Observe { unit, .. } => {
                        work.units.insert(unit.clone());
                    }
                    Effect::Apply { unit, plan } if !work.others.contains(unit) => {
                        work.repairs.push((unit.clone(), plan.clone()));
                    }
                    _ => {}
                }
            }
            work.units.extend(state.queued().cloned());
        }
    }

    /// Replies to the callers of changes that are done. Deferred deletions are executed first.
    pub(super) fn finish_pending_changes(&mut self) {
        if self.pending_changes.is_empty() {
            return;
        }
        let state = self.node.state();
        for work in &mut self.pending_changes {
            while let Some(first) = work.units.first()
                && !work.begins
                && !state.is_pending(first)
            {
                work.units.pop_first();
            }
        }
        let is_over = |work: &PendingChange| !work.begins && work.units.is_empty();
        if !self.pending_changes.iter().any(is_over) {
            return;
        }
        if self.node.has_deferred_deletes() {
            self.delete_deferred();
        }
        if self.deletes_in_flight > 0 {
            return;
        }
        let (over, left) = std::mem::take(&mut self.pending_changes).into_iter().partition(is_over);
        self.pending_changes = left;
        for PendingChange { repairs, done, .. } in over {
            // The caller may be gone.
            let _ = done.send(repairs);
        }
    }

    /// Schedules deferred deletions.
    pub(super) fn schedule_deferred_delete(&mut self) {
        if self.node.has_deferred_deletes() {
            self.deferred_delete_at.get_or_insert_with(|| Instant::now() + DEFERRED_DELETE_DELAY);
        }
    }
}

/// The unit that an event is about.
pub(super) fn unit_of(event: &Event) -> Option<Unit> {
    match event {
        Event::Observed { unit, .. } => Some(unit.clone()),
        Event::PlanApplied(applied) => Some(applied.unit.clone()),
        Event::SandboxRemoved(id) => Some(Unit::Sandbox(id.clone())),
        _ => None,
    }
}
