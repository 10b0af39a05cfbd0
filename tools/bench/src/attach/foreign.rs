//! Whether an attach costs more when the API server has thousands of objects of other namespaces.

use anyhow::{Context, Result};
use knit_dev::progress::Step;
use knit_report::{Goal, Report, Samples};

use super::knit::{Knit, Pod};
use super::{alternate, scratch_host};

/// The number of objects of other namespaces; ten in each.
const OBJECTS: usize = 5_000;

const ALONE: &str = "Knit: attach without other objects";
const AMONG: &str = "Knit: attach with 5,000 objects of other namespaces";
const GOAL: Goal = Goal::AtMost(1.05);

/// Compares two nodes, of which one has the objects.
pub fn measure(report: &mut Report, rounds: usize) -> Result<()> {
    let step = Step::start(format!("create two hosts, one with {OBJECTS} objects of other namespaces"));
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let hosts = [scratch_host()?, scratch_host()?];
    let pods = [Pod::new()?, Pod::new()?];
    let mut alone = hosts[0].enter(|| Knit::open(folders[0].path()))??;
    let mut among = hosts[1].enter(|| {
        let mut knit = Knit::open(folders[1].path())?;
        knit.add_foreign_objects(folders[1].path(), OBJECTS).context("objects of other namespaces")?;
        anyhow::Ok(knit)
    })??;
    step.done();

    let step = Step::start("attach with objects of other namespaces");
    let [mut without, mut with] = [const { Samples::new() }; 2];
    for round in 0..rounds {
        alternate(
            round,
            || hosts[0].enter(|| attach_and_detach(&mut alone, &pods[0], &mut without))?,
            || hosts[1].enter(|| attach_and_detach(&mut among, &pods[1], &mut with))?,
        )?;
    }
    step.done();
    report.add(ALONE, &without)?;
    report.add(AMONG, &with)?;
    report.compare(AMONG, ALONE, Some(GOAL))
}

fn attach_and_detach(knit: &mut Knit, pod: &Pod, samples: &mut Samples) -> Result<()> {
    let sandbox = knit.sandbox(pod)?;
    let id = sandbox.id.clone();
    samples.time(|| knit.attach(sandbox))?;
    knit.check(&id)?;
    knit.detach(id)?;
    knit.delete_deferred()
}
