//! Executes the agents' kernel effects: observe, apply, inspect a netns. All of it takes a while and may fail.

use std::sync::Arc;

use knit_engine::call::NetnsInfo;
use knit_engine::{ApplyFailure, CallId, Event, ObserveRequest, PlanResult, PublicKeys, Unit};
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::SandboxInstance;
use knit_model::{Plan, SandboxId};

use super::{Cluster, ScheduledEvent};
use crate::node::ApplyError;
use crate::queue::MILLIS;
use crate::trace::TraceSubject;

/// Failing plans, per mille.
const FAILURES_PER_MILLE: u64 = 5;
/// Slow effects, per mille.
const SLOW_PER_MILLE: u64 = 5;

/// A kernel effect.
pub(crate) enum KernelEffect {
    Observe(Unit, Box<ObserveRequest>),
    Apply(Unit, Arc<Plan>),
    Inspect(CallId, String),
}

impl Cluster {
    /// Starts a kernel effect.
    pub(crate) fn execute(&mut self, node: usize, effect: KernelEffect) {
        let max_delay = match &effect {
            KernelEffect::Observe(..) | KernelEffect::Inspect(..) => 2 * MILLIS,
            KernelEffect::Apply(..) => 20 * MILLIS,
        };
        let factor = if self.rng.per_mille(SLOW_PER_MILLE) { 100 } else { 1 };
        let delay = self.rng.between(200, max_delay) * factor;
        let incarnation = self.nodes[node].incarnation;
        self.queue.schedule(delay, ScheduledEvent::Effect(node, incarnation, Box::new(effect)));
    }

    /// Completes a kernel effect.
    pub(crate) fn complete_effect(&mut self, node: usize, effect: KernelEffect) {
        let event = match effect {
            KernelEffect::Observe(unit, look) => match self.nodes[node].observe(&look) {
                Ok(seen) => Event::Observed { unit, observed: seen, keys: PublicKeys::new() },
                Err(id) => Event::SandboxRemoved(id),
            },
            KernelEffect::Apply(unit, plan) => self.apply(node, unit, &plan),
            KernelEffect::Inspect(call, path) => {
                let found = self.inspect(node, &path);
                Event::NetnsInspected { call, result: found }
            }
        };
        self.handle(node, event);
    }

    fn apply(&mut self, node: usize, unit: Unit, plan: &Plan) -> Event {
        self.nodes[node].applying.remove(&unit);
        let fails = self.is_busy() && self.rng.per_mille(FAILURES_PER_MILLE);
        let fails_after = fails.then(|| self.rng.below(plan.steps.len() as u64 + 1) as usize);
        let applied = self.nodes[node].apply(plan, fails_after);
        if let Unit::Sandbox(id) = &unit {
            self.track_addresses(node, id);
        }
        let problem = |reason, message: &str| ApplyFailure {
            problem: Problem::new("", reason, message.to_owned()),
            rolled_back: true,
            missing_tables: false,
            unsupported: None,
        };
        let result = match applied {
            Ok(()) => Ok(()),
            Err(ApplyError::Injected) => {
                self.record_trace(node, "kernel failure for", TraceSubject::Name(unit.to_string()));
                self.stats.kernel_failures += 1;
                Err(problem(Reason::KernelError, "out of memory"))
            }
            Err(ApplyError::NetnsGone) => Err(problem(Reason::SandboxGone, "the netns is deleted")),
            Err(ApplyError::InvalidPlan(why)) => {
                let steps = plan.steps.iter().map(|planned| {
                    let implied = if planned.implied { " (implied)" } else { "" };
                    format!("{}: {}{implied}", planned.scope, planned.step)
                });
                let steps: Vec<String> = steps.collect();
                self.record_trace(
                    node,
                    "kernel rejects",
                    TraceSubject::Name(format!("{unit}: {}", steps.join("; "))),
                );
                self.fail(&[node], format!("invalid plan of {unit} on {}: {why}", self.nodes[node].name));
                Err(problem(Reason::KernelError, &why))
            }
        };
        Event::PlanApplied(PlanResult { unit, result })
    }

    fn inspect(&self, node: usize, path: &str) -> Result<NetnsInfo, Problem> {
        let id = SandboxId(path.rsplit('/').next().unwrap_or_default().to_owned());
        if !self.nodes[node].netns.contains_key(&id) {
            let message = format!("{path} is not a network namespace");
            return Err(Problem::new("isolation.path", Reason::SandboxGone, message));
        }
        let cookie = cookie_of(&id);
        Ok(NetnsInfo { instance: instance(cookie), number: (cookie % 10_000_000) as u32 })
    }

    /// Compares the addresses in a sandbox with those of all others.
    pub(crate) fn track_addresses(&mut self, node: usize, id: &SandboxId) {
        let now = self.nodes[node].addresses_in(id);
        let before = self.nodes[node].addresses.remove(id).unwrap_or_default();
        for address in before.iter().filter(|address| !now.contains(address)) {
            // Another sandbox may have it already.
            if self.holders.get(address).is_some_and(|holder| *holder == (node, id.clone())) {
                self.holders.remove(address);
            }
        }
        for address in now.iter().filter(|address| !before.contains(address)) {
            let Some((other, theirs)) = self.holders.insert(*address, (node, id.clone())) else { continue };
            let (here, there) = (&self.nodes[node].name, &self.nodes[other].name);
            let what = format!(
                "{address} is allocated twice: sandbox {theirs} on {there} has it, and now sandbox {id} on {here}"
            );
            self.fail(&[node, other], what);
        }
        if !now.is_empty() {
            self.nodes[node].addresses.insert(id.clone(), now);
        }
    }
}

/// The number of a sandbox: `s7`.
pub(crate) fn cookie_of(id: &SandboxId) -> u64 {
    id.0.trim_start_matches('s').parse().unwrap_or_default()
}

pub(crate) fn instance(cookie: u64) -> SandboxInstance {
    SandboxInstance { boot: "boot".to_owned(), cookie }
}
