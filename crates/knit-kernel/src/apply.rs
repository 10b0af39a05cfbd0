//! Carrying out plans: all of a plan, or none of it.
//!
//! Steps go to the kernel in their order, those of one scope in one datagram as far as nothing has to be looked up in
//! between. At the first error what was done is taken back, in reverse. What carries no mark of Knit's is never removed,
//! neither on the way forward nor back.

mod addresses;
mod deletes;
mod devices;
mod limits;
mod links;
mod neighbours;
mod routes;
mod rules;
mod steps;
mod sysctls;
mod transaction;
mod undo;
mod vlans;
mod words;

use std::collections::BTreeSet;
use std::fmt;

use knit_model::Scope;
use knit_model::plan::{Plan, Planned};

pub(crate) use deletes::{alternative_name, delete_group};

use crate::error::Error;
use crate::fault::{Fault, Observer};
use crate::kernel::{Kernel, Places, Room, recover};
use transaction::{Failure, Transaction};

/// What becomes of links that a plan deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletes {
    /// They are deleted before the call returns. The kernel takes about 16 ms for each group of them.
    Now,
    /// They are cut off and lose their names and marks; [`Kernel::reap`] deletes them later, all at once.
    Deferred,
}

/// A plan that was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Where links wait to be reaped.
    pub to_reap: BTreeSet<Scope>,
}

/// A plan that could not be carried out.
#[derive(Debug)]
pub struct ApplyError {
    /// Which step failed, from zero.
    pub step: usize,
    /// Where it was to happen.
    pub scope: Scope,
    /// The step, in words.
    pub text: String,
    /// Why it failed.
    pub error: Error,
    /// What became of the steps before it.
    pub roll_back: RollBack,
}

/// What became of the steps before the one that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollBack {
    /// All were taken back.
    Complete,
    /// These could not be taken back, in words; all others were.
    Incomplete(Vec<String>),
    /// Nothing was taken back, because a fault point said so.
    Left,
}

impl Kernel {
    /// Carries out a plan. On an error what was done is taken back before this returns.
    pub fn apply(
        &mut self,
        plan: &Plan,
        deletes: Deletes,
        places: &mut Places,
        observer: &mut dyn Observer,
    ) -> Result<Applied, Box<ApplyError>> {
        let mut room = Room { kernel: self, places };
        let mut transaction = Transaction::new(&mut room, deletes);
        match forward(&mut transaction, &plan.steps, observer) {
            Ok(()) => Ok(Applied { to_reap: transaction.to_reap }),
            Err((failure, fault)) => {
                let touched = transaction.touched;
                let roll_back = match fault {
                    Some(Fault::Stop) => RollBack::Left,
                    _ => roll_back(self, places, plan, &touched, &failure.error),
                };
                Err(Box::new(failed(plan, failure, roll_back)))
            }
        }
    }

    /// Takes back whatever part of a plan was carried out before a crash: all of it, some of it, or nothing.
    ///
    /// A sandbox that is not among the places is gone, with everything in it. Returns what could not be taken back, in
    /// words.
    pub fn take_back(&mut self, plan: &Plan, places: &mut Places) -> Vec<String> {
        let steps: Vec<&Planned> = plan.steps.iter().collect();
        undo::undo(&mut Room { kernel: self, places }, &steps)
    }
}

fn forward(
    transaction: &mut Transaction<'_, '_>,
    steps: &[Planned],
    observer: &mut dyn Observer,
) -> Result<(), (Failure, Option<Fault>)> {
    for (index, planned) in steps.iter().enumerate() {
        if let Some(fault) = observer.before(index, planned) {
            transaction.finish().map_err(|failure| (failure, None))?;
            let errno = if let Fault::Fail(errno) = fault { errno } else { nix::errno::Errno::ECANCELED };
            let message = Some("a fault point".to_owned());
            let context = "carry out the step".into();
            let error = Error::Refused { context, errno, message, offset: None };
            return Err((Failure { step: index, error }, Some(fault)));
        }
        if !planned.implied {
            transaction.take(index, planned).map_err(|failure| (failure, None))?;
        }
    }
    transaction.finish().map_err(|failure| (failure, None))
}

/// Takes back the steps that were carried out, and those that may have been.
fn roll_back(
    kernel: &mut Kernel,
    places: &mut Places,
    plan: &Plan,
    touched: &BTreeSet<usize>,
    why: &Error,
) -> RollBack {
    if let Err(error) = recover(why, kernel, places) {
        return RollBack::Incomplete(vec![error.to_string()]);
    }
    // What happens by itself with a later step has happened with it. Taking back what never happened does nothing.
    let last = touched.last();
    let is_done = |index: &usize| {
        touched.contains(index) || (plan.steps[*index].implied && last.is_some_and(|last| index < last))
    };
    let done: Vec<&Planned> = (0..plan.steps.len()).filter(is_done).map(|index| &plan.steps[index]).collect();
    let left = undo::undo(&mut Room { kernel, places }, &done);
    if left.is_empty() { RollBack::Complete } else { RollBack::Incomplete(left) }
}

fn failed(plan: &Plan, failure: Failure, roll_back: RollBack) -> ApplyError {
    let planned = &plan.steps[failure.step];
    ApplyError {
        step: failure.step,
        scope: planned.scope.clone(),
        text: format!("{} {}", planned.step.mark(), planned.step),
        error: words::explain(&planned.step, failure.error),
        roll_back,
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: step {} ({}): {}", self.scope, self.step + 1, self.text, self.error)?;
        if let Some(hint) = words::hint(&self.error) {
            write!(out, ": {hint}")?;
        }
        match &self.roll_back {
            RollBack::Complete => out.write_str("; what was done before it is taken back"),
            RollBack::Incomplete(left) => {
                write!(out, "; what was done before it could not all be taken back: {}", left.join("; "))
            }
            RollBack::Left => out.write_str("; stopped there"),
        }
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
