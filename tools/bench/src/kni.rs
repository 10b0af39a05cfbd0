//! `bench kni`: what a call through the agent's socket costs, against bare netlink messages that do the same and against
//! the reference CNI plugin; many calls at once; what the agent keeps in memory; and whether anything grows.
//!
//! The agent is the program that people run, in a process of its own. What is compared is measured in turn.

pub(super) mod agent;

use anyhow::{Context, Result, bail};
use knit_kernel::Netns;

use super::attach::{Pod, hold_many_namespaces, in_turn, measure, scratch_host};
use super::ground::Ground;
use super::reference;
use agent::Agent;
use knit_dev::packages::{self, Purpose};
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// How many pods take turns; their links are deleted together.
const PODS: usize = 60;
/// A full node, and far more than one.
const NUMBERS: [usize; 3] = [0, 110, 1_000];
/// How many call at once.
const AT_ONCE: usize = 200;
/// How many attaches and detaches one after the other must leave no trace.
const CYCLES: usize = 2_000;
/// A full node's agent keeps at most this, in MiB.
const MEMORY: f64 = 20.0;
/// What the allocator may keep for itself after many cycles, in MiB.
const GROWTH: f64 = 2.0;

const FLOOR: &str = "bare netlink: attach";
const ATTACH: &str = "KNI: attach";
const DETACH: &str = "KNI: detach";
const TOGETHER: &str = "KNI: one of 200 attaches at once";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything, inside host namespaces of its own: this machine's stays as it is.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    hold_many_namespaces()?;
    let program = agent::build()?;
    let host = scratch_host()?;
    host.enter(|| measure_all(&program, rounds as usize + WARM_UP))?
}

fn measure_all(program: &std::path::Path, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let mut ground = Ground::new(&scratch_host()?, PODS)?;
    for pod in 0..PODS {
        ground.attach(pod)?;
    }
    ground.delete_group()?;
    let pods = (0..NUMBERS[2]).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    let folder = tempfile::tempdir().context("cannot make a folder for the agent")?;
    let mut agent = Agent::start(program, folder.path())?;
    measure("attach and detach through the socket", || {
        calls(&mut report, &mut ground, &agent, &pods[..PODS], rounds)
    })?;
    measure("200 attaches at once", || at_once(&mut report, &agent, &pods[..AT_ONCE]))?;
    measure("2,000 attaches and detaches", || cycles(&mut report, &agent, &pods[0]))?;
    agent = agent.restart()?.0;
    measure("memory at 0, 110 and 1,000 attachments", || memory(&mut report, &agent, &pods))?;
    let (_agent, took) = agent.restart()?;
    report.add_once("start with 1,000 attachments", took.as_secs_f64() * 1e3, "ms", Some(1_000.0));
    measure("the reference CNI plugin", || {
        let (add, del) = scratch_host()?.enter(|| reference::measure(ground.pod(0), rounds))??;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    report.compare(ATTACH, FLOOR, Some(Goal::AtMost(1.7)))?;
    report.compare(ATTACH, ADD, Some(Goal::AtMost(0.1)))?;
    report.compare(DETACH, DEL, Some(Goal::AtMost(0.1)))?;
    Ok(report)
}

fn calls(report: &mut Report, ground: &mut Ground, agent: &Agent, pods: &[Pod], rounds: usize) -> Result<()> {
    let [mut floor, mut attach, mut detach] = [const { Samples::new() }; 3];
    let mut attached: Vec<String> = Vec::new();
    for round in 0..rounds {
        let pod = round % pods.len();
        let id = format!("bench-{round}");
        in_turn(
            round,
            || floor.time(|| ground.attach_to_running(pod)),
            || attach.time(|| agent.attach(&id, &pods[pod])),
        )?;
        attached.push(id);
        if pod == pods.len() - 1 || round == rounds - 1 {
            ground.delete_group()?;
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

fn at_once(report: &mut Report, agent: &Agent, pods: &[Pod]) -> Result<()> {
    let (times, whole) = agent.attach_all(pods)?;
    let mut samples = Samples::new();
    times.into_iter().for_each(|time| samples.add_warm(time));
    report.add(TOGETHER, &samples)?;
    report.add_once("KNI: all of 200 attaches at once", whole.as_secs_f64() * 1e3, "ms", None);
    for pod in 0..pods.len() {
        agent.delete(&format!("many-{pod}"))?;
    }
    agent.settle()
}

/// Attaches and detaches over and over; memory, descriptors, links and leases are what they were.
fn cycles(report: &mut Report, agent: &Agent, pod: &Pod) -> Result<()> {
    let before = agent.footprint()?;
    for round in 0..CYCLES {
        let id = format!("cycle-{round}");
        agent.attach(&id, pod)?;
        agent.delete(&id)?;
    }
    agent.settle()?;
    let after = agent.footprint()?;
    let grown = after.anonymous - before.anonymous;
    report.add_once("2,000 cycles: RssAnon grew by", grown, "MiB", Some(GROWTH));
    if (before.descriptors, before.links, before.leases) != (after.descriptors, after.links, after.leases) {
        bail!("2,000 cycles left something: before {before:?}, after {after:?}");
    }
    Ok(())
}

fn memory(report: &mut Report, agent: &Agent, pods: &[Pod]) -> Result<()> {
    let mut attached = 0;
    for number in NUMBERS {
        for (index, pod) in pods.iter().enumerate().take(number).skip(attached) {
            agent.attach(&format!("full-{index}"), pod)?;
        }
        attached = number;
        let footprint = agent.footprint()?;
        let name = format!("RssAnon at {number} attachments");
        let most = (number == NUMBERS[1]).then_some(MEMORY);
        report.add_once(&name, footprint.anonymous, "MiB", most);
        report.add_once(&format!("RSS at {number} attachments"), footprint.resident, "MiB", None);
    }
    Ok(())
}

/// Where a pod's namespace can be opened by another process.
pub(super) fn path_of(netns: &Netns) -> String {
    use std::os::fd::{AsFd, AsRawFd};
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}
