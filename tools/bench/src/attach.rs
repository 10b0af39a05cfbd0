//! `bench attach`: what one attach and one detach cost through Knit, from the event to the acknowledged answer, against
//! bare netlink messages that do the same, and against the reference CNI plugin.
//!
//! Knit's part is the whole of it: engine, address, journal on disk, look, plan, apply, verify. What is compared is
//! measured in turn, so that both meet the machine in the same mood.

mod growth;
mod journal;
mod knit;

use anyhow::{Context, Result};
use knit_kernel::Netns;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::ground::Ground;
use super::reference;
use knit::Knit;
pub use knit::Pod;
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// How many pods there are; their links are deleted together.
const PODS: usize = 60;

const FLOOR: &str = "bare netlink: attach";
const FLOOR_ONE_QUEUE: &str = "bare netlink: attach, one queue";
const FLOOR_NETNS: &str = "bare netlink: attach with a new netns";
const KNIT: &str = "Knit: attach";
const KNIT_NETNS: &str = "Knit: attach with a new netns";
const JOURNAL: &str = "Knit: attach, of it the journal";
const DETACH: &str = "Knit: detach acknowledged";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything, inside host namespaces of its own: this machine's stays as it is.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    hold_many_namespaces()?;
    let host = scratch_host()?;
    host.enter(|| measure_all(rounds as usize + WARM_UP))?
}

/// A namespace is held by a descriptor, and two thousand of them are more than a process may usually have.
pub fn hold_many_namespaces() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.min(1 << 16), most).context("cannot hold many namespaces open")
}

pub fn scratch_host() -> Result<Netns> {
    Netns::unnamed().context("cannot make a network namespace to measure in")
}

/// Runs in the namespace that is Knit's host. Bare netlink and the reference plugin have a host of their own each, so
/// that none has to carry another's links.
fn measure_all(rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let step = Step::start(format!("lay out three hosts with {PODS} pods each"));
    let mut ground = Ground::new(&scratch_host()?, PODS)?;
    let mut one_queue = Ground::new(&scratch_host()?, PODS)?.with_one_queue();
    let mut pods = (0..PODS).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    // Whoever runs in a namespace brings `lo` up first; from here on these are in use.
    for ground in [&mut ground, &mut one_queue] {
        (0..PODS).try_for_each(|pod| ground.attach(pod))?;
        ground.delete_group()?;
    }
    let folder = tempfile::tempdir().context("cannot make a folder for Knit's state")?;
    let mut knit = Knit::open(folder.path())?;
    step.done();

    measure("attach and detach", || {
        attaches(&mut report, [&mut ground, &mut one_queue], &mut knit, &pods, rounds)
    })?;
    drop(one_queue);
    let spare = measure("attach with a new netns", || {
        attaches_with_netns(&mut report, &mut ground, &mut knit, &mut pods, rounds)
    })?;
    drop(knit);
    measure("the journal alone", || report.add(JOURNAL, &journal::measure(folder.path(), rounds)?))?;
    measure("the reference CNI plugin", || {
        let (add, del) = scratch_host()?.enter(|| reference::measure(ground.pod(0), rounds))??;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    growth::measure(&mut report, rounds)?;
    // Held until now: the kernel takes namespaces down behind one's back, with its network lock held.
    drop(spare);

    report.compare(KNIT, FLOOR, Some(Goal::AtMost(1.5)))?;
    report.compare(KNIT, FLOOR_ONE_QUEUE, None)?;
    report.compare(KNIT, ADD, Some(Goal::AtMost(0.1)))?;
    report.compare(KNIT_NETNS, FLOOR_NETNS, Some(Goal::AtMost(1.5)))?;
    report.compare(JOURNAL, KNIT, None)?;
    report.compare(DETACH, DEL, Some(Goal::AtMost(0.1)))?;
    Ok(report)
}

/// One part of the benchmark, shown as a step.
pub fn measure<T>(what: &str, part: impl FnOnce() -> Result<T>) -> Result<T> {
    let step = Step::start(what);
    let outcome = part().with_context(|| format!("cannot measure: {what}"))?;
    step.done();
    Ok(outcome)
}

fn attaches(
    report: &mut Report,
    [ground, one_queue]: [&mut Ground; 2],
    knit: &mut Knit,
    pods: &[Pod],
    rounds: usize,
) -> Result<()> {
    let [mut floor, mut floor_one_queue, mut attach, mut detach] = [const { Samples::new() }; 4];
    let mut attached = Vec::new();
    for round in 0..rounds {
        let pod = round % PODS;
        let sandbox = knit.sandbox(&pods[pod])?;
        let id = sandbox.id.clone();
        in_turn(
            round,
            || floor.time(|| ground.attach_to_running(pod)),
            || attach.time(|| knit.attach(sandbox)),
        )?;
        floor_one_queue.time(|| one_queue.attach_to_running(pod))?;
        knit.check(&id)?;
        attached.push(id);
        if pod == PODS - 1 || round == rounds - 1 {
            ground.delete_group()?;
            one_queue.delete_group()?;
            for id in attached.drain(..) {
                detach.time(|| knit.detach(id))?;
            }
            knit.tidy()?;
        }
    }
    report.add(FLOOR, &floor)?;
    report.add(FLOOR_ONE_QUEUE, &floor_one_queue)?;
    report.add(KNIT, &attach)?;
    report.add(DETACH, &detach)
}

/// Returns the namespaces that are not used any more.
fn attaches_with_netns(
    report: &mut Report,
    ground: &mut Ground,
    knit: &mut Knit,
    pods: &mut [Pod],
    rounds: usize,
) -> Result<Vec<Netns>> {
    let [mut floor, mut attach] = [const { Samples::new() }; 2];
    let mut spare = Vec::new();
    let mut attached = Vec::new();
    for round in 0..rounds {
        let pod = round % PODS;
        let on_the_floor = || {
            floor.time(|| {
                spare.push(ground.replace_pod(pod, Netns::unnamed()?));
                ground.attach(pod)
            })
        };
        let mut old = None;
        let with_knit = || {
            attach.time(|| {
                old = Some(std::mem::replace(&mut pods[pod], Pod::new()?));
                let sandbox = knit.sandbox(&pods[pod])?;
                attached.push(sandbox.id.clone());
                knit.attach(sandbox)
            })
        };
        in_turn(round, on_the_floor, with_knit)?;
        spare.extend(old.map(Pod::into_netns));
        attached.last().map_or(Ok(()), |id| knit.check(id))?;
        if pod == PODS - 1 || round == rounds - 1 {
            ground.delete_group()?;
            attached.drain(..).try_for_each(|id| knit.detach(id))?;
            knit.tidy()?;
        }
    }
    report.add(FLOOR_NETNS, &floor)?;
    report.add(KNIT_NETNS, &attach)?;
    Ok(spare)
}

/// Does both, the other one first each time: neither always follows the same thing.
pub fn in_turn(
    round: usize,
    one: impl FnOnce() -> Result<()>,
    other: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if round.is_multiple_of(2) {
        one()?;
        other()
    } else {
        other()?;
        one()
    }
}
