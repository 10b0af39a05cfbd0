//! Applies plans atomically: all steps or none.
//!
//! Steps go to the kernel in order; consecutive steps of one scope share a datagram unless a lookup is needed in
//! between. After the first error the applied steps are rolled back in reverse order. Objects without Knit's
//! ownership mark are never removed, neither by apply nor by rollback.

mod addresses;
mod deletes;
mod diagnose;
mod limits;
mod links;
mod moved_device;
mod neighbours;
mod rollback;
mod routes;
mod rules;
mod steps;
mod sysctls;
mod transaction;
mod vlans;

use std::collections::BTreeSet;
use std::fmt;

use knit_model::Scope;
use knit_model::plan::{Plan, PlannedStep};

pub(crate) use deletes::{alternative_name, delete_group};

use crate::error::Error;
use crate::fault::{Fault, FaultInjector};
use crate::kernel::{Kernel, SandboxNamespaces, Session, reset_sockets};
use transaction::{Failure, Transaction};

/// When links that a plan deletes are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteMode {
    /// Before the call returns. The kernel takes about 16 ms for each group of links.
    Immediate,
    /// They are detached and lose their names and marks; [`Kernel::delete_deferred`] deletes them later, all at once.
    Deferred,
}

/// A plan that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedPlan {
    /// The scopes with links that wait for deferred deletion.
    pub deferred_deletes: BTreeSet<Scope>,
}

/// A plan that failed.
#[derive(Debug)]
pub struct ApplyError {
    /// The index of the step that failed.
    pub step: usize,
    /// The scope of the step.
    pub scope: Scope,
    /// The step as text.
    pub text: String,
    /// Why it failed.
    pub error: Error,
    /// The outcome of the rollback.
    pub rollback: Rollback,
}

/// The outcome of rolling back the steps before the failed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// All were rolled back.
    Complete,
    /// These could not be rolled back; all others were.
    Incomplete(Vec<String>),
    /// A simulated crash: nothing was rolled back.
    Skipped,
}

impl Kernel {
    /// Applies a plan. After an error the applied steps are rolled back before this returns.
    pub fn apply(
        &mut self,
        plan: &Plan,
        delete_mode: DeleteMode,
        namespaces: &mut SandboxNamespaces,
        injector: &mut dyn FaultInjector,
    ) -> Result<AppliedPlan, Box<ApplyError>> {
        let mut session = Session { kernel: self, namespaces };
        let mut transaction = Transaction::new(&mut session, delete_mode);
        match forward(&mut transaction, &plan.steps, injector) {
            Ok(()) => Ok(AppliedPlan { deferred_deletes: transaction.deferred_deletes }),
            Err((failure, fault)) => {
                let touched = transaction.touched;
                let rollback = match fault {
                    Some(Fault::Crash) => Rollback::Skipped,
                    _ => roll_back_applied(self, namespaces, plan, &touched, &failure.error),
                };
                Err(Box::new(failed(plan, failure, rollback)))
            }
        }
    }

    /// Rolls back whatever part of a plan was applied before a crash: all of it, some of it, or nothing.
    ///
    /// A sandbox that is not in `namespaces` is gone, with everything in it. Returns what could not be rolled back.
    pub fn roll_back(&mut self, plan: &Plan, namespaces: &mut SandboxNamespaces) -> Vec<String> {
        let steps: Vec<&PlannedStep> = plan.steps.iter().collect();
        rollback::roll_back(&mut Session { kernel: self, namespaces }, &steps)
    }
}

fn forward(
    transaction: &mut Transaction<'_, '_>,
    steps: &[PlannedStep],
    injector: &mut dyn FaultInjector,
) -> Result<(), (Failure, Option<Fault>)> {
    for (index, planned) in steps.iter().enumerate() {
        if let Some(fault) = injector.before_step(index, planned) {
            transaction.finish().map_err(|failure| (failure, None))?;
            let errno = if let Fault::Fail(errno) = fault { errno } else { nix::errno::Errno::ECANCELED };
            let message = Some("injected fault".to_owned());
            let context = "apply step".into();
            let error = Error::Rejected { context, errno, message, offset: None };
            return Err((Failure { step: index, error }, Some(fault)));
        }
        if !planned.implied {
            transaction.apply_step(index, planned).map_err(|failure| (failure, None))?;
        }
    }
    transaction.finish().map_err(|failure| (failure, None))
}

/// Rolls back the steps that were applied, and those that may have been.
fn roll_back_applied(
    kernel: &mut Kernel,
    namespaces: &mut SandboxNamespaces,
    plan: &Plan,
    touched: &BTreeSet<usize>,
    cause: &Error,
) -> Rollback {
    if let Err(error) = reset_sockets(cause, kernel, namespaces) {
        return Rollback::Incomplete(vec![error.to_string()]);
    }
    // Implied steps take effect with a later step. Rolling back a step that was never applied does nothing.
    let last = touched.last();
    let is_done = |index: &usize| {
        touched.contains(index) || (plan.steps[*index].implied && last.is_some_and(|last| index < last))
    };
    let done: Vec<&PlannedStep> =
        (0..plan.steps.len()).filter(is_done).map(|index| &plan.steps[index]).collect();
    let failures = rollback::roll_back(&mut Session { kernel, namespaces }, &done);
    if failures.is_empty() { Rollback::Complete } else { Rollback::Incomplete(failures) }
}

fn failed(plan: &Plan, failure: Failure, rollback: Rollback) -> ApplyError {
    let planned = &plan.steps[failure.step];
    ApplyError {
        step: failure.step,
        scope: planned.scope.clone(),
        text: format!("{} {}", planned.step.symbol(), planned.step),
        error: diagnose::explain(&planned.step, failure.error),
        rollback,
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: step {} ({}): {}", self.scope, self.step + 1, self.text, self.error)?;
        if let Some(hint) = diagnose::hint(&self.error) {
            write!(out, ": {hint}")?;
        }
        match &self.rollback {
            Rollback::Complete => out.write_str("; rolled back"),
            Rollback::Incomplete(failures) => {
                write!(out, "; rollback incomplete: {}", failures.join("; "))
            }
            Rollback::Skipped => out.write_str("; stopped without rollback"),
        }
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
