//! Jobs that were done: what the engine is told of them.

use std::time::Instant;

use knit_engine::{Applied, Event, Failure, Unit};
use knit_model::problem::{Problem, Reason};

use super::super::pool::{Errand, Finished};
use super::{REAP_AFTER, SOON, Turn};
use crate::error::{Error, Result};

impl Turn<'_> {
    pub(super) fn finished(&mut self, finished: Finished) -> Result<()> {
        if finished.errand == Errand::Reap {
            self.reaping = self.reaping.saturating_sub(1);
        }
        let events = self.events_of(finished)?;
        events.into_iter().try_for_each(|event| self.hear(event))
    }

    /// What the engine is told of a job. A kernel that does not answer is a failed change, and is asked again soon.
    pub(super) fn events_of(&mut self, finished: Finished) -> Result<Vec<Event>> {
        let Finished { errand, result, took, .. } = finished;
        self.ends.metrics.job(&errand, took);
        match (result, errand) {
            (Ok(done), errand) => {
                if matches!(errand, Errand::Apply(_)) && !done.to_reap.is_empty() {
                    self.reap_at.get_or_insert_with(|| Instant::now() + REAP_AFTER);
                }
                let events = self.node.end(done);
                Ok(if errand == Errand::Census { self.not_busy(events) } else { events })
            }
            (Err(why @ Error::Stopped { .. }), _) => Err(why),
            (Err(why), Errand::Observe(unit) | Errand::Apply(unit)) => {
                tracing::warn!(%unit, %why, "the kernel could not be asked");
                self.resync_at = self.resync_at.min(Instant::now() + SOON);
                let message = format!("{unit}: {why}");
                let problem = Problem { field: String::new(), reason: Reason::KernelRefused, message };
                let result = Err(Failure { problem, taken_back: false, lacks: None });
                Ok(vec![Event::Applied(Applied { unit, result })])
            }
            (Err(why), Errand::Forward) => {
                let message = why.to_string();
                let reason = Reason::KernelRefused;
                Ok(vec![Event::Forwarded(Err(Problem { field: String::new(), reason, message }))])
            }
            (Err(why), errand) => {
                tracing::warn!(?errand, %why, "could not be done");
                Ok(Vec::new())
            }
        }
    }

    /// Of sandboxes that are gone, those that nobody works on: whoever does finds out by itself.
    fn not_busy(&self, events: Vec<Event>) -> Vec<Event> {
        let state = self.node.state();
        let is_idle = |event: &Event| match event {
            Event::SandboxGone(id) => !state.is_busy(&Unit::Sandbox(id.clone())),
            _ => true,
        };
        let idle: Vec<Event> = events.into_iter().filter(is_idle).collect();
        for event in &idle {
            if let Event::SandboxGone(id) = event {
                tracing::info!(sandbox = %id, "its namespace is gone: what it had is taken back");
            }
        }
        idle
    }
}
