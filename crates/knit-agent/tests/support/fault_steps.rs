//! A fault at every step of an operation: a kernel error rolls the plan back, and a crash is recovered by the next
//! start.

use std::time::Duration;

use knit_agent::{Error, Standalone};
use knit_kernel::fault::{Fault, FaultInjector, NoFaults};
use knit_model::Step;
use knit_model::plan::PlannedStep;
use knit_testbed::eventually;
use nix::errno::Errno;

use super::test_host::{HostDumps, TestHost, keys, live_leases, objects, problems};

/// One step of one plan, identified by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    unit: usize,
    step: usize,
    text: String,
    is_filter: bool,
}

/// The number of steps at which a fault was injected.
#[derive(Clone, Copy, Debug)]
pub struct InjectedSteps {
    all: usize,
    filter: usize,
}

impl InjectedSteps {
    /// Asserts that the plans changed the packet filter, and something else.
    #[track_caller]
    pub fn assert_with_filter(self) {
        assert!(self.filter > 0 && self.all > self.filter, "{self:?}");
    }
}

/// A fault at a target, each time the step runs.
struct FaultAt(Target, Fault);

impl FaultInjector for FaultAt {
    fn before_step(&mut self, _step: usize, planned: &PlannedStep) -> Option<Fault> {
        (text(planned) == self.0.text).then_some(self.1)
    }
}

fn text(planned: &PlannedStep) -> String {
    format!("{} {} {}", planned.scope, planned.step.symbol(), planned.step)
}

/// An operation on a node.
#[derive(Clone, Copy)]
pub enum Operation {
    Apply(&'static str),
    Delete(&'static str),
}

impl Operation {
    fn targets(self, node: &mut Standalone) -> Vec<Target> {
        let plans = match self {
            Self::Apply(yaml) => node.plan(objects(yaml)).unwrap().1,
            Self::Delete(yaml) => node.plan_delete(&keys(yaml)).unwrap(),
        };
        let steps = plans.iter().enumerate().flat_map(|(unit, (_, plan))| {
            plan.steps.iter().enumerate().map(move |(step, planned)| Target {
                unit,
                step,
                text: text(planned),
                is_filter: matches!(planned.step, Step::Filter(_)),
            })
        });
        steps.collect()
    }

    fn run(self, node: &mut Standalone) -> Result<(), Error> {
        match self {
            Self::Apply(yaml) => node.apply(objects(yaml), "test").map(drop),
            Self::Delete(yaml) => node.delete(&keys(yaml), "test").map(drop),
        }
    }
}

/// Starting from the objects in `base`, runs `operation` with a fault at each of its steps.
pub fn inject_at_every_step<'a>(
    test: &str,
    base: impl IntoIterator<Item = &'a str>,
    operation: Operation,
) -> InjectedSteps {
    let base: Vec<&str> = base.into_iter().collect();
    let host = TestHost::new(test);
    host.on_host(|| {
        let mut node = host.open();
        host.add_pod(&mut node);
        let clean = host.settled();
        let start = |node: &mut Standalone| {
            let all: Vec<_> = node.state().objects.keys().cloned().collect();
            node.delete(&all, "clean").unwrap();
            base.iter().for_each(|yaml| drop(node.apply(objects(yaml), "test").unwrap()));
        };
        start(&mut node);
        let targets = operation.targets(&mut node);
        assert!(targets.len() >= 3, "too few steps: {targets:?}");
        let before = host.settled();
        let leases = live_leases(&node);
        operation.run(&mut node).unwrap();
        let after = host.settled();
        // Problems that remain also without a fault.
        let expected_problems = problems(&node);

        // Without its bridge an interface cannot be created, and while the interface exists the bridge stays.
        let first_unit_is_required = base.is_empty() || matches!(operation, Operation::Delete(_));
        let mut first_of_unit: Option<(usize, HostDumps)> = None;
        for target in &targets {
            let start = |node: &mut Standalone| {
                start(node);
                // A link-local address appears shortly after its link has carrier, and its removal is a step, too.
                eventually(&format!("the plan contains {target:?}"), Duration::from_secs(20), || {
                    operation.targets(node).contains(target)
                });
            };
            start(&mut node);
            let describe = |what: &str| format!("{what} at {target:?}");

            // A kernel error: state and leases as before the plan, and the problem is reported.
            node.node().set_faults(Box::new(FaultAt(target.clone(), Fault::Fail(Errno::EBUSY))));
            operation.run(&mut node).unwrap();
            match &first_of_unit {
                _ if target.unit == 0 && first_unit_is_required => {
                    host.assert_matches(&before, &describe("a kernel error"))
                }
                Some((unit, expected)) if *unit == target.unit => {
                    host.assert_matches(expected, &describe("a kernel error"))
                }
                // The first step of this unit: nothing of its plan was applied, so every other step must end the
                // same.
                _ => first_of_unit = Some((target.unit, host.settled())),
            }
            let reported = problems(&node);
            assert!(reported.contains("injected fault"), "{}: {reported:?}", describe("a kernel error"));
            if base.is_empty() {
                assert_eq!(live_leases(&node), leases, "{}", describe("a kernel error"));
            }
            node.node().set_faults(Box::new(NoFaults));
            node.repair().unwrap();
            assert_eq!(problems(&node), expected_problems, "{}", describe("the retry"));
            // The dumps are compared once per plan; `repair` observes the kernel for each step.
            if target.step == 0 {
                host.assert_matches(&after, &describe("the retry"));
            }
            assert_eq!(node.repair().unwrap(), [], "{}", describe("the retry"));

            // A crash: the next start finds the interrupted change and completes it.
            start(&mut node);
            node.node().set_faults(Box::new(FaultAt(target.clone(), Fault::Crash)));
            let stopped = operation.run(&mut node).unwrap_err();
            assert!(matches!(stopped, Error::Stopped { .. }), "{}: {stopped}", describe("a crash"));
            drop(node);
            node = host.open();
            let notes = &node.notes;
            assert!(
                notes.iter().any(|note| note.contains("was rolled back")),
                "{}: {notes:?}",
                describe("a crash")
            );
            assert_eq!(problems(&node), expected_problems, "{}", describe("a crash"));
            host.assert_matches(&after, &describe("the start after a crash"));
            let repairs = node.repair().unwrap();
            assert!(repairs.is_empty(), "{}: {repairs:?}", describe("the start after a crash"));
        }
        let all: Vec<_> = node.state().objects.keys().cloned().collect();
        node.delete(&all, "clean").unwrap();
        host.assert_matches(&clean, "the end");
        assert_eq!(live_leases(&node), 0);
        InjectedSteps { all: targets.len(), filter: targets.iter().filter(|target| target.is_filter).count() }
    })
}
