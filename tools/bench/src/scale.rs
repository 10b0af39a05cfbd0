//! `bench scale`: the cost of one agent in a large cluster.
//!
//! The API server and its store are real and hold everything; of the nodes one runs, with a kubelet, a container runtime and
//! as many pods as fit. The agent is measured before the API server is filled and afterwards, each time after a restart. The
//! controller manager and the scheduler are stopped: they would evict the pods of nodes that do not run.

mod agent;
pub mod api;
pub mod changes;
pub mod cluster;
mod latency;
pub mod manifests;
pub mod received;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::attach::{measure, raise_descriptor_limit};
use super::cleanup::Cleanup;
use super::cluster_process;
use super::primary::node::Node;
use agent::{Agent, Start};
use changes::{Change, MIX, RATE};
use cluster::LOCAL_PODS;
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_soak::harness::{KnitCluster, programs};
use manifests::{Load, MAX_NODES};

/// The cluster's name, distinct from those of other test clusters.
const CLUSTER: &str = "scale";
/// The states of the cluster, as suffixes of rows.
const SMALL: &str = "small cluster";
const LARGE: &str = "large cluster";
/// How long the agent's CPU time is measured while it is idle, with the mix of changes, and with changes of one kind.
const IDLE_TIME: Duration = Duration::from_secs(30);
const MIX_TIME: Duration = Duration::from_secs(30);
const KIND_TIME: Duration = Duration::from_secs(10);
/// The goals: memory in MiB, CPU in percent of a core, the start in seconds.
const MAX_MEMORY_MIB: f64 = 25.0;
const MAX_IDLE_CPU: f64 = 0.5;
const MAX_CHANGES_CPU: f64 = 2.0;
const MAX_START: f64 = 5.0;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

/// Arguments of `bench scale`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of nodes, including the one that runs
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(2..=MAX_NODES as i64))]
    nodes: u32,
    /// Number of pods, including those of the node that runs
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(LOCAL_PODS as i64 + 1..))]
    pods: u32,
    /// Number of Knit's objects, ten in each namespace
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..))]
    objects: u32,
    /// Number of CNI calls in each state of the cluster; a p99 of fewer than 200 is not meaningful
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
    /// An image of Knit [default: built from this checkout]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    fn load(&self) -> Load {
        Load {
            nodes: self.nodes as usize - 1,
            pods: self.pods as usize - LOCAL_PODS,
            objects: self.objects as usize,
        }
    }
}

/// Starts the cluster, measures, fills it, measures again and removes it, also after an error or signal.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let cleanup = Cleanup::new()?;
    let mut report = Report::default();
    let mut arguments = vec!["--nodes", "1", "--network", "knit"];
    let image = options.image.as_ref().map(|image| image.canonicalize()).transpose()?;
    if let Some(image) = &image {
        arguments.extend(["--image", image.to_str().context("the image's path is not UTF-8")?]);
    }
    cluster_process::start(CLUSTER, &arguments, &cleanup)?;
    let knit = KnitCluster::open(CLUSTER)?;
    knit.open_ranges()?;
    cluster::start_pods(&knit)?;
    knit_testcluster::stop_controllers(knit.cluster())?;
    let node = Node::open(knit.cluster(), 1)?;
    let (agent, load, rounds) = (Agent { knit: &knit, node: &node }, options.load(), options.rounds as usize);

    report.note_machine(&format!("before the {SMALL} was measured"))?;
    measure(&format!("the agent, {SMALL}"), || measure_agent(&mut report, agent, SMALL))?;
    measure(&format!("CNI calls, {SMALL}"), || latency::measure(&mut report, &node, rounds, 0, SMALL))?;
    let (nodes, joined) = agent.during(|| {
        let nodes = cluster::add_nodes(&knit, load)?;
        measure("wait until the agent has handled the nodes", || agent.settle())?;
        Ok(nodes)
    })?;
    let each = joined.cpu.as_secs_f64() * 1e3 / load.nodes as f64;
    report.add_value("agent, CPU of a node that joins", each, "ms", None);
    report.note(format!("{}; created {nodes}", cluster::fill(&knit, load)?));
    measure("wait until Knit is idle", || agent.settle())?;

    report.note_machine(&format!("before the {LARGE} was measured"))?;
    measure(&format!("the agent, {LARGE}"), || measure_agent(&mut report, agent, LARGE))?;
    measure(&format!("CNI calls, {LARGE}"), || latency::measure(&mut report, &node, rounds, rounds, LARGE))?;
    measure_changes(&mut report, agent, load)?;
    measure_sizes(&mut report, &knit, load)?;
    measure_controller(&mut report, &knit)?;
    report.note(cluster::control_plane_memory(&knit)?);
    report.note_machine("at the end")?;
    compare(&mut report)?;
    Ok(report)
}

/// The rows of one state of the cluster. Goals apply to the large one.
fn measure_agent(report: &mut Report, agent: Agent<'_>, cluster: &str) -> Result<()> {
    let Start { ready, idle, cpu, received, peak, .. } = agent.restart()?;
    let limit = |most: f64| (cluster == LARGE).then_some(most);
    let name = |what: &str| format!("agent, {what}, {cluster}");
    report.add_value(&name("start to ready"), ready.as_secs_f64(), "s", limit(MAX_START));
    report.add_value(&name("start to idle"), idle.as_secs_f64(), "s", None);
    report.add_value(&name("CPU time of the start"), cpu.as_secs_f64(), "s", None);
    report.add_value(&name("received during the start"), received as f64 / MIB, "MiB", None);
    report.add_value(&name("peak RSS of the start"), peak, "MiB", None);
    let ((), used) = agent.during(|| {
        std::thread::sleep(IDLE_TIME);
        Ok(())
    })?;
    report.add_value(&name("RssAnon"), agent.memory()?, "MiB", limit(MAX_MEMORY_MIB));
    report.add_value(&name("CPU while idle"), used.cpu_percent(), "% of a core", limit(MAX_IDLE_CPU));
    Ok(())
}

/// Changes that do not concern the node: the mix, then each kind alone.
fn measure_changes(report: &mut Report, agent: Agent<'_>, load: Load) -> Result<()> {
    let mut first = 0;
    let mut run = |what: &str, kinds: &'static [Change], time: Duration| {
        measure(&format!("{RATE} changes per second: {what}"), || {
            let ((number, took), used) =
                agent.during(|| changes::run(agent.knit, load, kinds, RATE, first, time))?;
            first += number;
            // The next measurement starts without the rest of this one.
            agent.settle()?;
            Ok((number as f64, took, used))
        })
    };
    let (number, took, used) = run("mixed", &MIX, MIX_TIME)?;
    let name = format!("agent, CPU at {RATE} foreign changes per second");
    report.add_value(&name, used.cpu_percent(), "% of a core", Some(MAX_CHANGES_CPU));
    let received = used.received as f64 / number / KIB;
    report.add_value("agent, received per foreign change", received, "KiB", None);
    let rate = number / took.as_secs_f64();
    report.add_value("foreign changes that the API server accepted", rate, "changes/s", None);
    if rate < 0.95 * f64::from(RATE) {
        report.note(format!("this machine is too slow or too busy for {RATE} changes per second"));
    }
    let kinds: [(&str, &'static [Change]); 3] = [
        ("object of Knit", &[Change::Object]),
        ("Pod", &[Change::Pod]),
        ("heartbeat of a Node", &[Change::Heartbeat]),
    ];
    for (what, kind) in kinds {
        let (number, _, used) = run(what, kind, KIND_TIME)?;
        let cpu = used.cpu.as_secs_f64() * 1e3 / number;
        report.add_value(&format!("agent, CPU of a foreign change: {what}"), cpu, "ms", None);
        let received = used.received as f64 / number / KIB;
        report.add_value(&format!("agent, received per foreign change: {what}"), received, "KiB", None);
    }
    Ok(())
}

/// The sizes of objects as the API server sends them, for estimates.
fn measure_sizes(report: &mut Report, knit: &KnitCluster, load: Load) -> Result<()> {
    let node = format!("/api/v1/nodes/{}", manifests::node_name(0));
    let paths = [("Node", node), ("Veth", manifests::link_path(0)), ("Pod, not started", load.pod_path(0))];
    for (what, path) in paths.into_iter().chain([("Pod, running", cluster::local_pod_path())]) {
        let (full, metadata) = api::sizes(knit, &path)?;
        report.add_value(&format!("size of an object: {what}"), full as f64 / KIB, "KiB", None);
        let name = format!("size of an object's metadata: {what}");
        report.add_value(&name, metadata as f64 / KIB, "KiB", None);
    }
    Ok(())
}

/// The memory of the active controller, which has more than the other one.
fn measure_controller(report: &mut Report, knit: &KnitCluster) -> Result<()> {
    let mut most: f64 = 0.0;
    for program in programs::find(knit.cluster())?.iter().filter(|program| program.role == "controller") {
        most = most.max(programs::usage(program)?.anonymous);
    }
    report.add_value(&format!("controller, RssAnon, {LARGE}"), most, "MiB", None);
    Ok(())
}

/// Compares both states of the cluster.
fn compare(report: &mut Report) -> Result<()> {
    latency::compare(report, LARGE, SMALL)?;
    let rows = [
        "start to ready",
        "start to idle",
        "CPU time of the start",
        "received during the start",
        "peak RSS of the start",
        "RssAnon",
        "CPU while idle",
    ];
    rows.iter().try_for_each(|what| {
        report.compare_value(&format!("agent, {what}, {LARGE}"), &format!("agent, {what}, {SMALL}"), None)
    })
}
