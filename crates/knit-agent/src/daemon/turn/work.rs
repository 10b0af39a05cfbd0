//! Changes that someone waits for until everything that follows from them has ended.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::time::Instant;

use knit_engine::{Event, Record, Revision, Unit};

use super::super::desk::Work;
use super::{Heard, REAP_AFTER, Task, Turn};
use crate::error::Result;
use crate::node::Plans;
use crate::standalone::Decision;

/// A change that has been heard and has not ended.
pub(super) struct UnderWay {
    /// It is being heard: whatever begins now follows from it.
    begins: bool,
    /// Units that were worked on before, for others.
    others: BTreeSet<Unit>,
    /// Units that are worked on for it.
    units: BTreeSet<Unit>,
    /// What was done that nobody else had asked for.
    repairs: Plans,
    done: Sender<Plans>,
}

impl Turn<'_> {
    /// Decides a change, and has all done that follows.
    pub(super) fn work(&mut self, work: Work) -> Result<()> {
        if self.stopping.is_some() {
            // Dropping what whoever asks waits for tells them.
            return Ok(());
        }
        let Some(Decision { record, events }) = (work.decide)(self.node.state()) else { return Ok(()) };
        if let Some(record) = record {
            self.node.record(&record)?;
            if let Record::Revision(Revision { what, .. }) = &record {
                tracing::info!(%what, changes = events.len(), "objects changed by hand");
            }
        }
        if events.iter().any(|event| matches!(event, Event::Resync)) {
            self.told.compared.extend(self.node.state().at_rest().cloned());
        }
        let others = self.node.state().pending().cloned().collect();
        let (units, repairs) = (BTreeSet::new(), Plans::new());
        self.works.push(UnderWay { begins: true, others, units, repairs, done: work.done });
        events.into_iter().try_for_each(|event| self.hear(event))?;
        self.works.iter_mut().for_each(|work| work.begins = false);
        self.end_works();
        Ok(())
    }

    /// Notes what follows from an event for whoever waits.
    pub(super) fn follow_works(&mut self, cause: Option<&Unit>, heard: &Heard) {
        let state = self.node.state();
        for work in &mut self.works {
            if !work.begins && !cause.is_some_and(|unit| work.units.contains(unit)) {
                continue;
            }
            for task in &heard.tasks {
                match task {
                    Task::Observe { unit, .. } => {
                        work.units.insert(unit.clone());
                    }
                    Task::Apply { unit, plan } if !work.others.contains(unit) => {
                        work.repairs.push((unit.clone(), plan.clone()));
                    }
                    _ => {}
                }
            }
            work.units.extend(state.waiting().cloned());
        }
    }

    /// Answers whoever waits for what has ended. What was cut off is deleted before that.
    pub(super) fn end_works(&mut self) {
        if self.works.is_empty() {
            return;
        }
        let state = self.node.state();
        for work in &mut self.works {
            while let Some(first) = work.units.first()
                && !work.begins
                && !state.is_pending(first)
            {
                work.units.pop_first();
            }
        }
        let is_over = |work: &UnderWay| !work.begins && work.units.is_empty();
        if !self.works.iter().any(is_over) {
            return;
        }
        if self.node.waits_to_reap() {
            self.reap();
        }
        if self.reaping > 0 {
            return;
        }
        let (over, left) = std::mem::take(&mut self.works).into_iter().partition(is_over);
        self.works = left;
        for UnderWay { repairs, done, .. } in over {
            // Whoever asked may be gone by now.
            let _ = done.send(repairs);
        }
    }

    /// Links that wait to be deleted are, a little later.
    pub(super) fn reap_soon(&mut self) {
        if self.node.waits_to_reap() {
            self.reap_at.get_or_insert_with(|| Instant::now() + REAP_AFTER);
        }
    }
}

/// The unit that an event is about.
pub(super) fn unit_of(event: &Event) -> Option<Unit> {
    match event {
        Event::Observed { unit, .. } => Some(unit.clone()),
        Event::Applied(applied) => Some(applied.unit.clone()),
        Event::SandboxGone(id) => Some(Unit::Sandbox(id.clone())),
        _ => None,
    }
}
