//! `bench cni`: CNI calls through Knit's shim compared with the reference plugin, on bare namespaces and through containerd;
//! the shim's own cost; and the cost of an extension.
//!
//! Plugins are called as by a container runtime: a process for each call, the configuration on its standard input. Compared
//! operations alternate.

mod extension;
mod runtime;
mod shim;

use std::path::Path;

use anyhow::{Context, Result};

use super::attach::{Pod, alternate, measure, raise_descriptor_limit, scratch_host};
use super::cleanup::Cleanup;
use super::kni::agent::Agent;
use super::kni::path_of;
use super::reference::{self, Reference};
use knit_dev::packages::{self, Purpose};
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};
use knit_testcluster::Profile;
use knit_testcluster::binaries::{self, Binaries};

/// The number of pods; their links are deleted together.
const PODS: usize = 60;
/// The goal for the shim's own cost over an empty process, in microseconds.
const MAX_OWN_COST: f64 = 1_000.0;

const NOTHING: &str = "empty static program";
const IMMEDIATE: &str = "knit-cni: ADD with an immediate reply";
const ADD: &str = "knit-cni and agent: ADD";
const DEL: &str = "knit-cni and agent: DEL";
const REFERENCE_ADD: &str = "reference CNI bridge plugin ADD";
const REFERENCE_DEL: &str = "reference CNI bridge plugin DEL";

/// Measures everything in separate network namespaces; the machine's own is not changed.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let programs = binaries::build(Profile::Release)?;
    let cleanup = Cleanup::new()?;
    let host = scratch_host()?;
    let mut report = host.enter(|| on_namespaces(&programs, &cleanup, rounds as usize + WARM_UP))??;
    runtime::run(&mut report, &programs, &cleanup)?;
    Ok(report)
}

fn on_namespaces(programs: &Binaries, cleanup: &Cleanup, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let path = folder.path().to_owned();
    // It is removed already unless a signal ends this process.
    cleanup.defer(move || drop(std::fs::remove_dir_all(path)));
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
    report.compare(IMMEDIATE, NOTHING, None)?;
    report.compare(ADD, REFERENCE_ADD, Some(Goal::AtMost(0.25)))?;
    report.compare(DEL, REFERENCE_DEL, Some(Goal::AtMost(0.125)))?;
    Ok(report)
}

/// Compares an empty process with the shim and an agent that replies immediately: the difference is the shim's own cost.
fn own_cost(report: &mut Report, shim: &Path, folder: &Path, rounds: usize) -> Result<()> {
    let empty = shim::empty_program(folder)?;
    let agent = shim::ImmediateAgent::start(&folder.join("instant.sock"))?;
    let config = shim::config(agent.socket());
    let [mut floor, mut immediate] = [const { Samples::new() }; 2];
    for round in 0..rounds {
        alternate(
            round,
            || floor.time(|| reference::call(&empty, "ADD", "bench", "/proc/self/ns/net", &config)),
            || immediate.time(|| reference::call(shim, "ADD", "bench", "/proc/self/ns/net", &config)),
        )?;
    }
    report.add(NOTHING, &floor)?;
    report.add(IMMEDIATE, &immediate)?;
    let median = |samples: &Samples| samples.quantile(0.5).unwrap_or_default().as_nanos() as f64 / 1e3;
    report.add_value("knit-cni: own cost", median(&immediate) - median(&floor), "µs", Some(MAX_OWN_COST));
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
    // The plugin has its own host and pod, so that neither side has the other's links.
    let (host, pod) = (scratch_host()?, Pod::new()?);
    let plugin = Reference::new(&folder.join("leases"), pod.netns());
    let [mut add, mut del, mut plugin_add, mut plugin_del] = [const { Samples::new() }; 4];
    let mut added: Vec<(String, String)> = Vec::new();
    for round in 0..rounds {
        let pod = round % pods.len();
        let (id, netns) = (format!("bench-{round}"), path_of(pods[pod].netns()));
        alternate(
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
