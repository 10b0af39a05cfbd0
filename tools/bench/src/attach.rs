//! `bench attach`: one attach and one detach through Knit, from the event to the acknowledged result, compared with bare
//! netlink messages that do the same, and with the reference CNI plugin.
//!
//! Knit's part is complete: engine, address allocation, journal on disk, observe, plan, apply, verify. Compared operations
//! alternate, so that both see the same load of the machine.

mod foreign;
mod growth;
mod journal;
mod knit;

use anyhow::{Context, Result};
use knit_kernel::Netns;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::netlink_host::NetlinkHost;
use super::reference;
use knit::Knit;
pub use knit::Pod;
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// The number of pods; their links are deleted together.
const PODS: usize = 60;

const FLOOR: &str = "bare netlink: attach";
const FLOOR_ONE_QUEUE: &str = "bare netlink: attach, one queue";
const FLOOR_NETNS: &str = "bare netlink: attach with a new netns";
const KNIT: &str = "Knit: attach";
const KNIT_NETNS: &str = "Knit: attach with a new netns";
const JOURNAL: &str = "Knit: attach, journal only";
const DETACH: &str = "Knit: detach acknowledged";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything in separate network namespaces; the machine's own is not changed.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    raise_descriptor_limit()?;
    let host = scratch_host()?;
    host.enter(|| measure_all(rounds as usize + WARM_UP))?
}

/// Raises the descriptor limit: a descriptor holds each of two thousand namespaces open.
pub fn raise_descriptor_limit() -> Result<()> {
    let (_, hard_limit) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard_limit.min(1 << 16), hard_limit)
        .context("cannot raise the descriptor limit")
}

pub fn scratch_host() -> Result<Netns> {
    Netns::unnamed().context("cannot create a network namespace")
}

/// Runs in the namespace that is Knit's host. Bare netlink and the reference plugin have a host each, so that none has the
/// links of another.
fn measure_all(rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let step = Step::start(format!("create three hosts with {PODS} pods each"));
    let mut host = NetlinkHost::new(&scratch_host()?, PODS)?;
    let mut one_queue = NetlinkHost::new(&scratch_host()?, PODS)?.with_one_queue();
    let mut pods = (0..PODS).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    // The first attach sets `lo` up; the following ones do not.
    for host in [&mut host, &mut one_queue] {
        (0..PODS).try_for_each(|pod| host.attach(pod))?;
        host.delete_group()?;
    }
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut knit = Knit::open(folder.path())?;
    step.done();

    measure("attach and detach", || {
        attaches(&mut report, [&mut host, &mut one_queue], &mut knit, &pods, rounds)
    })?;
    drop(one_queue);
    let spare = measure("attach with a new netns", || {
        attaches_with_netns(&mut report, &mut host, &mut knit, &mut pods, rounds)
    })?;
    drop(knit);
    measure("the journal", || report.add(JOURNAL, &journal::measure(folder.path(), rounds)?))?;
    measure("the reference CNI plugin", || {
        let (add, del) = scratch_host()?.enter(|| reference::measure(host.pod(0), rounds))??;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    growth::measure(&mut report, rounds)?;
    foreign::measure(&mut report, rounds)?;
    // Kept until now: the kernel destroys namespaces in the background while it holds the rtnl lock.
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
    [host, one_queue]: [&mut NetlinkHost; 2],
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
        alternate(
            round,
            || floor.time(|| host.attach_to_running(pod)),
            || attach.time(|| knit.attach(sandbox)),
        )?;
        floor_one_queue.time(|| one_queue.attach_to_running(pod))?;
        knit.check(&id)?;
        attached.push(id);
        if pod == PODS - 1 || round == rounds - 1 {
            host.delete_group()?;
            one_queue.delete_group()?;
            for id in attached.drain(..) {
                detach.time(|| knit.detach(id))?;
            }
            knit.delete_deferred()?;
        }
    }
    report.add(FLOOR, &floor)?;
    report.add(FLOOR_ONE_QUEUE, &floor_one_queue)?;
    report.add(KNIT, &attach)?;
    report.add(DETACH, &detach)
}

/// Returns the replaced namespaces.
fn attaches_with_netns(
    report: &mut Report,
    host: &mut NetlinkHost,
    knit: &mut Knit,
    pods: &mut [Pod],
    rounds: usize,
) -> Result<Vec<Netns>> {
    let [mut floor, mut attach] = [const { Samples::new() }; 2];
    let mut spare = Vec::new();
    let mut attached = Vec::new();
    for round in 0..rounds {
        let pod = round % PODS;
        let with_netlink = || {
            floor.time(|| {
                spare.push(host.replace_pod(pod, Netns::unnamed()?));
                host.attach(pod)
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
        alternate(round, with_netlink, with_knit)?;
        spare.extend(old.map(Pod::into_netns));
        attached.last().map_or(Ok(()), |id| knit.check(id))?;
        if pod == PODS - 1 || round == rounds - 1 {
            host.delete_group()?;
            attached.drain(..).try_for_each(|id| knit.detach(id))?;
            knit.delete_deferred()?;
        }
    }
    report.add(FLOOR_NETNS, &floor)?;
    report.add(KNIT_NETNS, &attach)?;
    Ok(spare)
}

/// Runs both in alternating order, so that neither always follows the other.
pub fn alternate(
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
