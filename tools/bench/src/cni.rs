//! `bench cni`: what a container runtime waits for when it asks through the CNI shim, against the reference plugin, on bare
//! namespaces and through containerd; what of it is the shim's own; and what an extension adds.
//!
//! Everything is started as a runtime starts it: a process for each call, the configuration on its standard input. What
//! is compared is measured in turn.

mod extension;
mod runtime;
mod shim;

use std::path::Path;

use anyhow::{Context, Result};

use super::attach::{Pod, hold_many_namespaces, in_turn, measure, scratch_host};
use super::cleanup::Cleanup;
use super::kni::agent::Agent;
use super::kni::path_of;
use super::reference::{self, Reference};
use knit_dev::packages::{self, Purpose};
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};
use knit_testcluster::programs::{self, Binaries};

/// How many pods take turns; their links are deleted together.
const PODS: usize = 60;
/// What the shim may add to a process that does nothing, in microseconds.
const OWN_COST: f64 = 1_000.0;

const NOTHING: &str = "a static program that does nothing";
const ANSWERED: &str = "knit-cni: ADD that is answered at once";
const ADD: &str = "knit-cni and agent: ADD";
const DEL: &str = "knit-cni and agent: DEL";
const REFERENCE_ADD: &str = "reference CNI bridge plugin ADD";
const REFERENCE_DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything, inside host namespaces of its own: this machine's stays as it is.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    hold_many_namespaces()?;
    let programs = programs::build()?;
    let cleanup = Cleanup::new()?;
    let host = scratch_host()?;
    let mut report = host.enter(|| on_namespaces(&programs, &cleanup, rounds as usize + WARM_UP))??;
    runtime::run(&mut report, &programs, &cleanup)?;
    Ok(report)
}

fn on_namespaces(programs: &Binaries, cleanup: &Cleanup, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let folder = tempfile::tempdir().context("cannot make a folder to measure in")?;
    let left = folder.path().to_owned();
    // It is gone already unless this program is told to end.
    cleanup.later(move || drop(std::fs::remove_dir_all(left)));
    measure("the shim's own cost", || own_cost(&mut report, &programs.shim, folder.path(), rounds))?;
    let pods = (0..PODS).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    let agent = Agent::start(&programs.knit, folder.path())?;
    measure("ADD and DEL through the shim, and of the reference CNI plugin", || {
        calls(&mut report, &programs.shim, folder.path(), &agent, &pods, rounds)
    })?;
    measure("attaches with an extension and without", || {
        extension::run(&mut report, folder.path(), &agent, &pods, rounds)
    })?;
    drop(agent);
    report.compare(ANSWERED, NOTHING, None)?;
    report.compare(ADD, REFERENCE_ADD, Some(Goal::AtMost(0.25)))?;
    report.compare(DEL, REFERENCE_DEL, Some(Goal::AtMost(0.125)))?;
    Ok(report)
}

/// A process that does nothing and the shim with an agent that answers at once, in turn: the difference is the shim's.
fn own_cost(report: &mut Report, shim: &Path, folder: &Path, rounds: usize) -> Result<()> {
    let nothing = shim::nothing(folder)?;
    let agent = shim::Instant::start(&folder.join("instant.sock"))?;
    let config = shim::config(agent.socket());
    let [mut floor, mut answered] = [const { Samples::new() }; 2];
    for round in 0..rounds {
        in_turn(
            round,
            || floor.time(|| reference::call(&nothing, "ADD", "bench", "/proc/self/ns/net", &config)),
            || answered.time(|| reference::call(shim, "ADD", "bench", "/proc/self/ns/net", &config)),
        )?;
    }
    report.add(NOTHING, &floor)?;
    report.add(ANSWERED, &answered)?;
    let median = |samples: &Samples| samples.quantile(0.5).unwrap_or_default().as_nanos() as f64 / 1e3;
    report.add_once("knit-cni: its own cost", median(&answered) - median(&floor), "µs", Some(OWN_COST));
    Ok(())
}

fn calls(
    report: &mut Report,
    shim: &Path,
    folder: &Path,
    agent: &Agent,
    pods: &[Pod],
    rounds: usize,
) -> Result<()> {
    let config = shim::config(&folder.join(knit_kni::frame::SOCKET));
    // The plugin has a host and a pod of its own: neither side carries the other's links.
    let (host, pod) = (scratch_host()?, Pod::new()?);
    let plugin = Reference::new(&folder.join("leases"), pod.netns());
    let [mut add, mut del, mut plugin_add, mut plugin_del] = [const { Samples::new() }; 4];
    let mut added: Vec<(String, String)> = Vec::new();
    for round in 0..rounds {
        let pod = round % pods.len();
        let (id, netns) = (format!("bench-{round}"), path_of(pods[pod].netns()));
        in_turn(
            round,
            || add.time(|| reference::call(shim, "ADD", &id, &netns, &config)),
            || host.enter(|| plugin.cycle(&mut plugin_add, &mut plugin_del))?,
        )?;
        added.push((id, netns));
        if pod == pods.len() - 1 || round == rounds - 1 {
            for (id, netns) in added.drain(..) {
                del.time(|| reference::call(shim, "DEL", &id, &netns, &config))?;
            }
            agent.settle()?;
        }
    }
    report.add(ADD, &add)?;
    report.add(DEL, &del)?;
    report.add(REFERENCE_ADD, &plugin_add)?;
    report.add(REFERENCE_DEL, &plugin_del)
}
