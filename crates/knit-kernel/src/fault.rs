//! Fault injection for tests: a fault point before each step of a plan.

use knit_model::plan::PlannedStep;
use nix::errno::Errno;

/// Decides whether a step of a plan fails.
pub trait FaultInjector {
    /// The fault at this step, if any. All steps before it have been applied.
    fn before_step(&mut self, step: usize, planned: &PlannedStep) -> Option<Fault>;

    /// A crash point outside plans: before a journal record is written (`record`) or an extension is called
    /// (`invoke`).
    fn at_point(&mut self, _point: &'static str) {}

    /// Whether Knit's nftables tables have no owner, as on a kernel before 6.9.
    fn lacks_table_owner(&self) -> bool {
        false
    }
}

/// A fault at a fault point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step fails with this error number; the steps before it are rolled back.
    Fail(Errno),
    /// Simulates a crash: nothing is rolled back.
    Crash,
}

/// Injects no faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultInjector for NoFaults {
    fn before_step(&mut self, _step: usize, _planned: &PlannedStep) -> Option<Fault> {
        None
    }
}

/// No faults, but tables without an owner, as on a kernel before 6.9: any program can change them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTableOwner;

impl FaultInjector for NoTableOwner {
    fn before_step(&mut self, _step: usize, _planned: &PlannedStep) -> Option<Fault> {
        None
    }

    fn lacks_table_owner(&self) -> bool {
        true
    }
}

/// One fault at one step.
#[derive(Clone, Copy, Debug)]
pub struct FaultAt {
    /// The index of the step.
    pub step: usize,
    /// The fault.
    pub fault: Fault,
}

impl FaultInjector for FaultAt {
    fn before_step(&mut self, step: usize, _planned: &PlannedStep) -> Option<Fault> {
        (step == self.step).then_some(self.fault)
    }
}
