//! Fault points: one before each step of a plan, for tests that fail or crash there.

use knit_model::plan::Planned;
use nix::errno::Errno;

/// Is asked before each step of a plan.
pub trait Observer {
    /// What goes wrong at this step, if anything. Whatever comes before the step has then been carried out.
    fn before(&mut self, step: usize, planned: &Planned) -> Option<Fault>;

    /// Something else is about to happen that a crash may come before: a `record` is written, an extension is called
    /// (`invoke`).
    fn moment(&mut self, _what: &'static str) {}
}

/// What goes wrong at a fault point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses the step; what was done before is taken back.
    Fail(Errno),
    /// The process ends here, so to speak: nothing is taken back.
    Stop,
}

/// Nobody looks, nothing goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn before(&mut self, _step: usize, _planned: &Planned) -> Option<Fault> {
        None
    }
}

/// One fault at one step.
#[derive(Clone, Copy, Debug)]
pub struct FaultAt {
    /// Which step, from zero.
    pub step: usize,
    /// What goes wrong.
    pub fault: Fault,
}

impl Observer for FaultAt {
    fn before(&mut self, step: usize, _planned: &Planned) -> Option<Fault> {
        (step == self.step).then_some(self.fault)
    }
}
