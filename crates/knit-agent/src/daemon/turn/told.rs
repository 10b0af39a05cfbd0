//! What people are told of units: that someone's change was repaired, and what stands in the way. Each once, however often
//! it is compared.

use std::collections::{BTreeMap, BTreeSet};

use knit_engine::event::Ended;
use knit_engine::state::Made;
use knit_engine::{ObjectKey, Record, State, Unit};
use knit_model::problem::Problem;

use super::Turn;
use crate::daemon::feed::Repaired;
use crate::hands::Task;

/// What is under way, and what was said.
#[derive(Default)]
pub(super) struct Told {
    /// Units that are compared because time has passed, and nobody asked for a change of theirs.
    pub(super) compared: BTreeSet<Unit>,
    /// What is being done to those that are not as asked for, in words.
    repairs: BTreeMap<Unit, String>,
    /// The problems that were said last.
    problems: BTreeMap<Unit, Vec<(ObjectKey, Problem)>>,
    /// How pods of other nodes are reached, and those that are not, in the words that were said last.
    ways: BTreeSet<String>,
}

impl Told {
    /// What was known before is no news.
    pub(super) fn of(state: &State) -> Self {
        let ways = state.made.get(&Unit::NodeRoutes).map(ways).unwrap_or_default();
        Self { ways, ..Self::default() }
    }

    /// Says what is new in what was written down.
    pub(super) fn hear(&mut self, record: &Record) {
        match record {
            Record::Ended(ended) => self.ended(ended),
            Record::SandboxGone { id, .. } => drop(self.problems.remove(&Unit::Sandbox(id.clone()))),
            _ => {}
        }
    }

    /// A try came to its end. The next one may find the same problems again: they were said.
    fn ended(&mut self, ended: &Ended) {
        if let Some(made) = &ended.made {
            self.compared.remove(&ended.unit);
            if ended.unit == Unit::NodeRoutes {
                self.tell_ways(made);
            }
        }
        let said = self.problems.remove(&ended.unit).unwrap_or_default();
        for (object, problem) in ended.problems.iter().filter(|one| !said.contains(one)) {
            tracing::warn!(%object, reason = ?problem.reason, "{problem}");
        }
        if !ended.problems.is_empty() {
            self.problems.insert(ended.unit.clone(), ended.problems.clone());
        }
    }
}

impl Told {
    /// Says which way the pods of each node are reached, when it is another.
    fn tell_ways(&mut self, made: &Made) {
        let before = std::mem::replace(&mut self.ways, ways(made));
        for way in self.ways.difference(&before) {
            match made.warnings.iter().any(|(_, warning)| warning == way) {
                true => tracing::warn!("{way}"),
                false => tracing::info!("{way}"),
            }
        }
        let whose = |way: &String| way.split_once(": ").map(|(whose, _)| whose.to_owned());
        let now: BTreeSet<_> = self.ways.iter().map(whose).collect();
        for way in before.iter().filter(|way| !now.contains(&whose(way))) {
            tracing::info!("no longer: {way}");
        }
    }
}

fn ways(made: &Made) -> BTreeSet<String> {
    let reached = made.items.iter().map(|(_, item)| item.what.clone());
    reached.chain(made.warnings.iter().map(|(_, warning)| warning.clone())).collect()
}

impl Turn<'_> {
    /// Notes which of these tasks repair something, and says of a unit that was repaired that it was.
    pub(super) fn tell_repairs(&mut self, about: Option<&Unit>, is_done: bool, tasks: &[Task]) {
        if let Some(unit) = about {
            match self.told.repairs.remove(unit) {
                Some(what) if is_done => {
                    tracing::warn!(%unit, "was not as asked for, and is repaired: {what}");
                    self.ends.metrics.repaired();
                    // Nobody may listen.
                    let _ = self.ends.repairs.send(Repaired { unit: unit.clone(), what });
                }
                _ => {}
            }
            if !self.node.state().is_pending(unit) {
                // It was compared and is as asked for: whatever changes it next was asked for by someone.
                self.told.compared.remove(unit);
            }
        }
        for task in tasks {
            if let Task::Apply { unit, plan } = task
                && self.told.compared.contains(unit)
            {
                self.told.repairs.insert(unit.clone(), plan.summary());
            }
        }
    }
}
