//! What an agent's hands do: look at the kernel, change it, look for a namespace. All of it takes a while, and may fail.

use std::sync::Arc;

use knit_engine::call::Found;
use knit_engine::{Applied, CallId, Event, Failure, Keys, Look, Unit};
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::Instance;
use knit_model::{Plan, SandboxId};

use super::{Cluster, Due};
use crate::node::Refusal;
use crate::queue::MILLIS;
use crate::trace::About;

/// So many of a thousand plans fail.
const FAILING: u64 = 5;
/// So many of a thousand jobs are slow.
const SLOW: u64 = 5;

/// One thing to do.
pub(crate) enum Job {
    Observe(Unit, Look),
    Apply(Unit, Arc<Plan>),
    Inspect(CallId, String),
    Forward,
}

impl Cluster {
    /// Hands begin to work.
    pub(crate) fn work(&mut self, node: usize, job: Job) {
        let longest = match &job {
            Job::Observe(..) | Job::Inspect(..) => 2 * MILLIS,
            Job::Apply(..) | Job::Forward => 20 * MILLIS,
        };
        let slow = if self.dice.rarely(SLOW) { 100 } else { 1 };
        let delay = self.dice.between(200, longest) * slow;
        let life = self.nodes[node].life;
        self.queue.after(delay, Due::Job(node, life, Box::new(job)));
    }

    /// Hands are done: this is what they saw or did.
    pub(crate) fn job_done(&mut self, node: usize, job: Job) {
        let event = match job {
            Job::Observe(unit, look) => match self.nodes[node].look(&look) {
                Ok(seen) => Event::Observed { unit, seen, keys: Keys::new() },
                Err(gone) => Event::SandboxGone(gone),
            },
            Job::Apply(unit, plan) => self.apply(node, unit, &plan),
            Job::Inspect(call, path) => {
                let found = self.inspect(node, &path);
                Event::Inspected { call, found }
            }
            Job::Forward => Event::Forwarded(Ok(())),
        };
        self.hear(node, event);
    }

    fn apply(&mut self, node: usize, unit: Unit, plan: &Plan) -> Event {
        self.nodes[node].applying.remove(&unit);
        let fails = self.is_busy() && self.dice.rarely(FAILING);
        let fails_after = fails.then(|| self.dice.below(plan.steps.len() as u64 + 1) as usize);
        let applied = self.nodes[node].apply(plan, fails_after);
        if let Unit::Sandbox(id) = &unit {
            self.look_at_addresses(node, id);
        }
        let problem = |reason, message: &str| Failure {
            problem: Problem { field: String::new(), reason, message: message.to_owned() },
            taken_back: true,
            lacks: None,
        };
        let result = match applied {
            Ok(()) => Ok(()),
            Err(Refusal::Planted) => {
                self.note(node, "the kernel fails for", About::Name(unit.to_string()));
                self.counts.kernel_failures += 1;
                Err(problem(Reason::KernelRefused, "the kernel had no memory left"))
            }
            Err(Refusal::Gone) => Err(problem(Reason::SandboxGone, "the namespace is gone")),
            Err(Refusal::Wrong(why)) => {
                let steps = plan.steps.iter().map(|planned| {
                    let implied = if planned.implied { " (by itself)" } else { "" };
                    format!("{}: {}{implied}", planned.scope, planned.step)
                });
                let steps: Vec<String> = steps.collect();
                self.note(node, "the kernel refuses", About::Name(format!("{unit}: {}", steps.join("; "))));
                self.fail(&[node], format!("a plan of {unit} on {} cannot be: {why}", self.nodes[node].name));
                Err(problem(Reason::KernelRefused, &why))
            }
        };
        Event::Applied(Applied { unit, result })
    }

    fn inspect(&self, node: usize, path: &str) -> Result<Found, Problem> {
        let id = SandboxId(path.rsplit('/').next().unwrap_or_default().to_owned());
        if !self.nodes[node].netns.contains_key(&id) {
            let message = format!("{path} is no network namespace");
            return Err(Problem { field: "isolation.path".to_owned(), reason: Reason::SandboxGone, message });
        }
        let cookie = cookie_of(&id);
        Ok(Found { instance: instance(cookie), number: (cookie % 10_000_000) as u32 })
    }

    /// What the kernel has in a sandbox is compared with what all others have.
    pub(crate) fn look_at_addresses(&mut self, node: usize, id: &SandboxId) {
        let now = self.nodes[node].addresses_in(id);
        let before = self.nodes[node].addresses.remove(id).unwrap_or_default();
        for address in before.iter().filter(|address| !now.contains(address)) {
            // It may have been passed on already.
            if self.holders.get(address).is_some_and(|holder| *holder == (node, id.clone())) {
                self.holders.remove(address);
            }
        }
        for address in now.iter().filter(|address| !before.contains(address)) {
            let Some((other, theirs)) = self.holders.insert(*address, (node, id.clone())) else { continue };
            let (here, there) = (&self.nodes[node].name, &self.nodes[other].name);
            let what = format!(
                "{address} is given twice: sandbox {theirs} on {there} has it, and now sandbox {id} on {here}"
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

pub(crate) fn instance(cookie: u64) -> Instance {
    Instance { boot: "boot".to_owned(), cookie }
}
