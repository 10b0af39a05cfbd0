//! Logs repairs and problems of units, each once, however often the unit is compared.

use std::collections::{BTreeMap, BTreeSet};

use knit_engine::event::ChangeEnded;
use knit_engine::state::UnitState;
use knit_engine::{Effect, ObjectKey, Record, State, Unit};
use knit_model::problem::Problem;

use super::EventLoop;
use crate::daemon::change_feed::RepairNotice;

/// What is being repaired, and what was logged.
#[derive(Default)]
pub(super) struct UnitLog {
    /// Units that are compared without a requested change: any plan for them repairs drift.
    pub(super) compared: BTreeSet<Unit>,
    /// Summaries of the repairs in flight.
    repairs: BTreeMap<Unit, String>,
    /// The problems logged last.
    problems: BTreeMap<Unit, Vec<(ObjectKey, Problem)>>,
    /// The reachability of other nodes, as logged last.
    reachability: Reachability,
}

impl UnitLog {
    /// What is already recorded is not logged again.
    pub(super) fn of(state: &State) -> Self {
        let reachability = state.units.get(&Unit::NodeRoutes).map(Reachability::of).unwrap_or_default();
        Self { reachability, ..Self::default() }
    }

    /// Logs what is new in a record.
    pub(super) fn record(&mut self, record: &Record) {
        match record {
            Record::ChangeEnded(ended) => self.ended(ended),
            Record::SandboxRemoved { id, .. } => drop(self.problems.remove(&Unit::Sandbox(id.clone()))),
            _ => {}
        }
    }

    /// A change has ended. The next attempt may find the same problems: they are not logged again.
    fn ended(&mut self, ended: &ChangeEnded) {
        if let Some(unit_state) = &ended.unit_state {
            self.compared.remove(&ended.unit);
            if ended.unit == Unit::NodeRoutes {
                self.log_reachability(unit_state);
            }
        }
        let logged = self.problems.remove(&ended.unit).unwrap_or_default();
        for (object, problem) in ended.problems.iter().filter(|one| !logged.contains(one)) {
            tracing::warn!(%object, reason = problem.reason.name(), "{problem}");
        }
        if !ended.problems.is_empty() {
            self.problems.insert(ended.unit.clone(), ended.problems.clone());
        }
    }
}

impl UnitLog {
    /// Logs changes of the transport to each node.
    fn log_reachability(&mut self, unit_state: &UnitState) {
        let now = Reachability::of(unit_state);
        let before = std::mem::replace(&mut self.reachability, now);
        let now = &self.reachability;
        for line in now.warnings.difference(&before.warnings) {
            tracing::warn!("{line}");
        }
        for line in now.items.difference(&before.items) {
            tracing::info!("{line}");
        }
        let gone = before.items.difference(&now.items).chain(before.warnings.difference(&now.warnings));
        for line in gone {
            tracing::info!("no longer: {line}");
        }
    }
}

/// How the pods of other nodes are reached, and which are not.
#[derive(Debug, Default)]
struct Reachability {
    items: BTreeSet<String>,
    warnings: BTreeSet<String>,
}

impl Reachability {
    fn of(unit_state: &UnitState) -> Self {
        let items = unit_state.items.iter().map(|(_, item)| item.to_string());
        let warnings = unit_state.warnings.iter().map(|(_, warning)| warning.clone());
        Self { items: items.collect(), warnings: warnings.collect() }
    }
}

impl EventLoop<'_> {
    /// Records which work repairs drift, and reports completed repairs.
    pub(super) fn report_repairs(&mut self, about: Option<&Unit>, is_done: bool, effects: &[Effect]) {
        if let Some(unit) = about {
            match self.unit_log.repairs.remove(unit) {
                Some(what) if is_done => {
                    tracing::warn!(%unit, "drift repaired: {what}");
                    self.channels.metrics.repaired();
                    // There may be no receiver.
                    let _ = self.channels.repairs.send(RepairNotice { unit: unit.clone(), what });
                }
                _ => {}
            }
            if !self.node.state().is_pending(unit) {
                // It was compared and is in place: the next change is a requested one.
                self.unit_log.compared.remove(unit);
            }
        }
        for effect in effects {
            if let Effect::Apply { unit, plan } = effect
                && self.unit_log.compared.contains(unit)
            {
                self.unit_log.repairs.insert(unit.clone(), plan.summary());
            }
        }
    }
}
