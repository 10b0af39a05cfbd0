//! A fault at every step of what is done to a node: a refusal leaves everything as before the plan, a crash is mended by
//! the next start.

use knit_agent::{Error, Standalone};
use knit_kernel::fault::{Fault, Observer, Unobserved};
use knit_model::plan::Planned;
use nix::errno::Errno;

use super::world::{Dumps, World, keys, live_leases, objects, problems};

/// One step of one plan, found again by what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    unit: usize,
    step: usize,
    text: String,
}

/// Something goes wrong at a target, each time it comes by.
struct At(Target, Fault);

impl Observer for At {
    fn before(&mut self, _step: usize, planned: &Planned) -> Option<Fault> {
        (text(planned) == self.0.text).then_some(self.1)
    }
}

fn text(planned: &Planned) -> String {
    format!("{} {} {}", planned.scope, planned.step.mark(), planned.step)
}

/// What is done to a node, and how to undo it.
#[derive(Clone, Copy)]
pub enum Act {
    Apply(&'static str),
    Delete(&'static str),
}

impl Act {
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
            })
        });
        steps.collect()
    }

    fn carry_out(self, node: &mut Standalone) -> Result<(), Error> {
        match self {
            Self::Apply(yaml) => node.apply(objects(yaml), "test").map(drop),
            Self::Delete(yaml) => node.delete(&keys(yaml), "test").map(drop),
        }
    }
}

/// From `base`, `act` with a fault at each of its steps.
pub fn every_step<'a>(test: &str, base: impl IntoIterator<Item = &'a str>, act: Act) {
    let base: Vec<&str> = base.into_iter().collect();
    let world = World::new(test);
    world.on_host(|| {
        let mut node = world.open();
        world.add(&mut node);
        let clean = world.settled();
        let start = |node: &mut Standalone| {
            let all: Vec<_> = node.state().objects.keys().cloned().collect();
            node.delete(&all, "clean").unwrap();
            base.iter().for_each(|yaml| drop(node.apply(objects(yaml), "test").unwrap()));
        };
        start(&mut node);
        let targets = act.targets(&mut node);
        assert!(targets.len() >= 3, "a plan worth the name: {targets:?}");
        let before = world.settled();
        let leases = live_leases(&node);
        act.carry_out(&mut node).unwrap();
        let after = world.settled();
        // What waits for something, also when all goes well.
        let waits = problems(&node);

        // Without its bridge an interface cannot come, and with the interface the bridge stays.
        let stands_on_it = base.is_empty() || matches!(act, Act::Delete(_));
        let mut first_of_unit: Option<(usize, Dumps)> = None;
        for target in &targets {
            start(&mut node);
            let say = |what: &str| format!("{what} at {target:?}");

            // The kernel refuses: as before the plan, the addresses free, and the reason known.
            node.node().set_faults(Box::new(At(target.clone(), Fault::Fail(Errno::EBUSY))));
            act.carry_out(&mut node).unwrap();
            match &first_of_unit {
                _ if target.unit == 0 && stands_on_it => world.assert_like(&before, &say("a refusal")),
                Some((unit, expected)) if *unit == target.unit => {
                    world.assert_like(expected, &say("a refusal"))
                }
                // Nothing of this unit's plan was carried out: so it must look at each of its steps.
                _ => first_of_unit = Some((target.unit, world.settled())),
            }
            let told = problems(&node);
            assert!(told.contains("a fault point"), "{}: {told:?}", say("a refusal"));
            if base.is_empty() {
                assert_eq!(live_leases(&node), leases, "{}", say("a refusal"));
            }
            node.node().set_faults(Box::new(Unobserved));
            node.repair().unwrap();
            assert_eq!(problems(&node), waits, "{}", say("the next try"));
            // That the kernel looks as after a change that went well is compared once a plan; here Knit's own eyes do.
            if target.step == 0 {
                world.assert_like(&after, &say("the next try"));
            }
            assert_eq!(node.repair().unwrap(), [], "{}", say("the next try"));

            // A crash: the next start finds what was cut short, and makes it whole.
            start(&mut node);
            node.node().set_faults(Box::new(At(target.clone(), Fault::Stop)));
            let stopped = act.carry_out(&mut node).unwrap_err();
            assert!(matches!(stopped, Error::Stopped { .. }), "{}: {stopped}", say("a crash"));
            drop(node);
            node = world.open();
            let notes = &node.notes;
            assert!(notes.iter().any(|note| note.contains("cut short")), "{}: {notes:?}", say("a crash"));
            assert_eq!(problems(&node), waits, "{}", say("a crash"));
            world.assert_like(&after, &say("the start after a crash"));
            let repairs = node.repair().unwrap();
            assert!(repairs.is_empty(), "{}: {repairs:?}", say("the start after a crash"));
        }
        let all: Vec<_> = node.state().objects.keys().cloned().collect();
        node.delete(&all, "clean").unwrap();
        world.assert_like(&clean, "the end");
        assert_eq!(live_leases(&node), 0);
    });
}
