//! `bench kni`: calls through the agent's socket compared with bare netlink messages that do the same and with the reference
//! CNI plugin; concurrent calls; the agent's memory, and whether anything grows.
//!
//! The agent runs as a separate process. Compared operations alternate.

pub(super) mod agent;

use anyhow::{Context, Result};
use knit_kernel::Netns;

use super::attach::{Pod, alternate, measure, raise_descriptor_limit, scratch_host};
use super::netlink_host::NetlinkHost;
use super::reference;
use agent::{Agent, Footprint};
use knit_dev::packages::{self, Purpose};
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// The number of pods; their links are deleted together.
const PODS: usize = 60;
/// An empty node, a full node, and far more.
const ATTACHMENTS: [usize; 3] = [0, 110, 1_000];
/// The number of concurrent calls.
const CONCURRENT: usize = 200;
/// The number of attach and detach cycles that must leave no trace.
const CYCLES: usize = 2_000;
/// The goal for the memory of a full node's agent, in MiB.
const MAX_MEMORY_MIB: f64 = 20.0;
/// The goal for the memory growth after many cycles, in MiB: the allocator keeps some.
const MAX_GROWTH_MIB: f64 = 2.0;

const FLOOR: &str = "bare netlink: attach";
const ATTACH: &str = "KNI: attach";
const DETACH: &str = "KNI: detach";
const ATTACH_CONCURRENT: &str = "KNI: one of 200 concurrent attaches";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything in separate network namespaces; the machine's own is not changed.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    raise_descriptor_limit()?;
    let program = agent::build()?;
    let host = scratch_host()?;
    host.enter(|| measure_all(&program, rounds as usize + WARM_UP))?
}

fn measure_all(program: &std::path::Path, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let mut host = NetlinkHost::new(&scratch_host()?, PODS)?;
    for pod in 0..PODS {
        host.attach(pod)?;
    }
    host.delete_group()?;
    let pods = (0..ATTACHMENTS[2]).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut agent = Agent::start(program, folder.path())?;
    measure("attach and detach through the socket", || {
        calls(&mut report, &mut host, &agent, &pods[..PODS], rounds)
    })?;
    measure("200 concurrent attaches", || concurrent(&mut report, &agent, &pods[..CONCURRENT]))?;
    measure("2,000 attaches and detaches", || cycles(&mut report, &agent, &pods[0]))?;
    agent = agent.restart()?.0;
    measure("memory at 0, 110 and 1,000 attachments", || memory(&mut report, &agent, &pods))?;
    let (_agent, took) = agent.restart()?;
    report.add_value("start with 1,000 attachments", took.as_secs_f64() * 1e3, "ms", Some(1_000.0));
    measure("the reference CNI plugin", || {
        let (add, del) = scratch_host()?.enter(|| reference::measure(host.pod(0), rounds))??;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    report.compare(ATTACH, FLOOR, Some(Goal::AtMost(1.7)))?;
    report.compare(ATTACH, ADD, Some(Goal::AtMost(0.1)))?;
    report.compare(DETACH, DEL, Some(Goal::AtMost(0.1)))?;
    Ok(report)
}

fn calls(
    report: &mut Report,
    host: &mut NetlinkHost,
    agent: &Agent,
    pods: &[Pod],
    rounds: usize,
) -> Result<()> {
    let [mut floor, mut attach, mut detach] = [const { Samples::new() }; 3];
    let mut attached: Vec<String> = Vec::new();
    for round in 0..rounds {
        let pod = round % pods.len();
        let id = format!("bench-{round}");
        alternate(
            round,
            || floor.time(|| host.attach_to_running(pod)),
            || attach.time(|| agent.attach(&id, &pods[pod])),
        )?;
        attached.push(id);
        if pod == pods.len() - 1 || round == rounds - 1 {
            host.delete_group()?;
            for id in attached.drain(..) {
                detach.time(|| agent.delete(&id))?;
            }
            agent.settle()?;
        }
    }
    report.add(FLOOR, &floor)?;
    report.add(ATTACH, &attach)?;
    report.add(DETACH, &detach)
}

fn concurrent(report: &mut Report, agent: &Agent, pods: &[Pod]) -> Result<()> {
    let (times, total) = agent.attach_all(pods)?;
    let mut samples = Samples::new();
    times.into_iter().for_each(|time| samples.add_warm(time));
    report.add(ATTACH_CONCURRENT, &samples)?;
    report.add_value("KNI: all of 200 concurrent attaches", total.as_secs_f64() * 1e3, "ms", None);
    for pod in 0..pods.len() {
        agent.delete(&format!("many-{pod}"))?;
    }
    agent.settle()
}

/// Attaches and detaches repeatedly; descriptors, links and leases must not change.
fn cycles(report: &mut Report, agent: &Agent, pod: &Pod) -> Result<()> {
    let before = agent.footprint()?;
    for round in 0..CYCLES {
        let id = format!("cycle-{round}");
        agent.attach(&id, pod)?;
        agent.delete(&id)?;
    }
    // The last detach may not have closed its descriptors yet.
    let is_as_before = |after: &Footprint| {
        after.descriptors <= before.descriptors
            && (before.links, before.leases) == (after.links, after.leases)
    };
    let after =
        agent.settle_to(is_as_before).with_context(|| format!("before {CYCLES} cycles: {before:?}"))?;
    let grown = after.anonymous - before.anonymous;
    report.add_value("2,000 cycles: RssAnon growth", grown, "MiB", Some(MAX_GROWTH_MIB));
    Ok(())
}

fn memory(report: &mut Report, agent: &Agent, pods: &[Pod]) -> Result<()> {
    let mut attached = 0;
    for number in ATTACHMENTS {
        for (index, pod) in pods.iter().enumerate().take(number).skip(attached) {
            agent.attach(&format!("full-{index}"), pod)?;
        }
        attached = number;
        let footprint = agent.footprint()?;
        let name = format!("RssAnon at {number} attachments");
        let limit = (number == ATTACHMENTS[1]).then_some(MAX_MEMORY_MIB);
        report.add_value(&name, footprint.anonymous, "MiB", limit);
        report.add_value(&format!("RSS at {number} attachments"), footprint.resident, "MiB", None);
    }
    Ok(())
}

/// A path by which another process can open a namespace.
pub(super) fn path_of(netns: &Netns) -> String {
    use std::os::fd::{AsFd, AsRawFd};
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}
