//! Whether an attach costs more when the API server has thousands of objects of other namespaces, or when an object of another
//! pod can never be satisfied and is edited all the time.

use anyhow::{Context, Result};
use knit_dev::progress::Step;
use knit_report::{Goal, Report, Samples};

use super::knit::{Knit, Pod};
use super::{alternate, scratch_host};

/// The number of objects of other namespaces; ten in each.
const OBJECTS: usize = 5_000;

const ALONE: &str = "Knit: attach without other objects";
const AMONG: &str = "Knit: attach with 5,000 objects of other namespaces";
const EDITED: &str = "Knit: attach after an edit of an object that cannot be satisfied";
const GOAL: Goal = Goal::AtMost(1.05);

/// Compares three nodes: one without other objects, one with many, one with an object that is edited before each attach.
pub fn measure(report: &mut Report, rounds: usize) -> Result<()> {
    let step = Step::start(format!("create three hosts, one with {OBJECTS} objects of other namespaces"));
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
    let hosts = [scratch_host()?, scratch_host()?, scratch_host()?];
    let pods = [Pod::new()?, Pod::new()?, Pod::new()?, Pod::new()?];
    let mut alone = hosts[0].enter(|| Knit::open(folders[0].path()))??;
    let mut among = hosts[1].enter(|| {
        let mut knit = Knit::open(folders[1].path())?;
        knit.add_foreign_objects(folders[1].path(), OBJECTS).context("objects of other namespaces")?;
        anyhow::Ok(knit)
    })??;
    let mut edited = hosts[2].enter(|| {
        let mut knit = Knit::open(folders[2].path())?;
        knit.add_unsatisfiable(folders[2].path(), &pods[3])?;
        anyhow::Ok(knit)
    })??;
    step.done();

    let step = Step::start("attach with objects of other namespaces");
    let [mut without, mut with, mut after_edit] = [const { Samples::new() }; 3];
    for round in 0..rounds {
        hosts[2].enter(|| {
            edited.edit_unsatisfiable(folders[2].path(), round)?;
            attach_and_detach(&mut edited, &pods[2], &mut after_edit)
        })??;
        alternate(
            round,
            || hosts[0].enter(|| attach_and_detach(&mut alone, &pods[0], &mut without))?,
            || hosts[1].enter(|| attach_and_detach(&mut among, &pods[1], &mut with))?,
        )?;
    }
    step.done();
    report.add(ALONE, &without)?;
    report.add(AMONG, &with)?;
    report.add(EDITED, &after_edit)?;
    report.compare(AMONG, ALONE, Some(GOAL))?;
    report.compare(EDITED, ALONE, Some(GOAL))
}

fn attach_and_detach(knit: &mut Knit, pod: &Pod, samples: &mut Samples) -> Result<()> {
    let sandbox = knit.sandbox(pod)?;
    let id = sandbox.id.clone();
    samples.time(|| knit.attach(sandbox))?;
    knit.check(&id)?;
    knit.detach(id)?;
    knit.delete_deferred()
}
