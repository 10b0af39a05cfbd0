//! Completed work: the events that follow for the engine.

use std::time::{Duration, Instant};

use knit_engine::{ApplyFailure, Effect, Event, PlanResult, Unit};
use knit_model::problem::{Problem, Reason};

use super::{DEFERRED_DELETE_DELAY, EventLoop};
use crate::error::{Error, Result};
use crate::executor::{Completion, Work};

impl EventLoop<'_> {
    /// Handles work that an executor of the pool has completed.
    pub(super) fn completed(
        &mut self,
        work: &Work,
        result: Result<Completion>,
        took: Duration,
    ) -> Result<()> {
        if matches!(work, Work::DeferredDelete { .. }) {
            self.deletes_in_flight = self.deletes_in_flight.saturating_sub(1);
        }
        let events = self.events_of(work, result, took)?;
        events.into_iter().try_for_each(|event| self.handle(event))
    }

    /// The events of completed work. An error of the kernel is a failed change, which is retried soon.
    pub(super) fn events_of(
        &mut self,
        work: &Work,
        result: Result<Completion>,
        took: Duration,
    ) -> Result<Vec<Event>> {
        self.channels.metrics.work_completed(work, took);
        match (result, work) {
            (Ok(completion), work) => {
                let is_apply = matches!(work, Work::Effect { effect: Effect::Apply { .. }, .. });
                if is_apply && !completion.deferred_deletes.is_empty() {
                    self.deferred_delete_at.get_or_insert_with(|| Instant::now() + DEFERRED_DELETE_DELAY);
                }
                let events = self.node.complete(completion);
                Ok(if matches!(work, Work::CheckSandboxes(_)) { self.without_busy(events) } else { events })
            }
            (Err(why @ Error::Stopped { .. }), _) => Err(why),
            (Err(why), work) => {
                let Some(unit) = work.unit().cloned() else {
                    tracing::warn!(%work, error = %why, "work failed");
                    return Ok(Vec::new());
                };
                tracing::warn!(%unit, error = %why, "kernel request failed");
                self.resync_soon();
                let message = format!("{unit}: {why}");
                let problem = Problem::new("", Reason::KernelError, message);
                let result = Err(ApplyFailure {
                    problem,
                    rolled_back: false,
                    missing_tables: false,
                    unsupported: None,
                });
                Ok(vec![Event::PlanApplied(PlanResult { unit, result })])
            }
        }
    }

    /// Drops the events of sandboxes with a change in flight: that change detects the missing namespace itself.
    fn without_busy(&self, events: Vec<Event>) -> Vec<Event> {
        let state = self.node.state();
        let is_idle = |event: &Event| match event {
            Event::SandboxRemoved(id) => !state.is_in_flight(&Unit::Sandbox(id.clone())),
            _ => true,
        };
        let idle: Vec<Event> = events.into_iter().filter(is_idle).collect();
        for event in &idle {
            if let Event::SandboxRemoved(id) = event {
                tracing::info!(sandbox = %id, "the sandbox's namespace is gone; removing its configuration");
            }
        }
        idle
    }
}
