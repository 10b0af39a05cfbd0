//! `bench create`: the cost of additional networks at a pod's start.
//!
//! Two nodes with containerd have the same main network, that of the reference plugins. On one of them the runtime notifies
//! Knit's agent of pods (NRI), which adds interfaces before the first container; on the other Multus does, which delegates each
//! interface to the reference plugins. Pods are started as by a kubelet; a sandbox is ready once all interfaces exist, which is
//! checked each time. The cost is the difference to a pod without additional networks in the same run; all three alternate.

mod networks;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::attach::measure;
use super::cleanup::Cleanup;
use super::cri::Cri;
use knit_dev::packages::{self, Purpose};
use knit_report::Samples;
use knit_report::{Goal, Report};
use knit_testcluster::Profile;
use knit_testcluster::binaries;
use knit_testcluster::down;
use knit_testcluster::runtime_nodes::{self, RuntimeNodes};

/// The name of the nodes.
const NAME: &str = "benchnri";
/// The range of the pods' first addresses on either node; the nodes are not connected.
const RANGE: &str = "10.90.0.0/16";
/// The numbers of additional interfaces.
const INTERFACES: [usize; 3] = [1, 4, 16];
/// How long a node may take until its network works.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const WARM_UP: usize = 3;

const BASELINE: &str = "containerd: sandbox without additional networks";
const UNMATCHED: &str = "containerd, agent notified by NRI: sandbox without networks";

/// Arguments of `bench create`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// A short trial run with few rounds
    #[arg(long)]
    quick: bool,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// A node, called as by a kubelet.
struct Node {
    cri: Cri,
    socket: PathBuf,
    label: Option<&'static str>,
    /// How many links a pod has without additional networks: some kernels create more than two.
    base_links: Cell<Option<usize>>,
}

/// Starts the nodes, measures and removes them, also after an error or signal.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    let rounds = if options.quick { 5 } else { 40 };
    let built = binaries::build(Profile::Release)?;
    let multus = networks::multus()?;
    let cleanup = Cleanup::new()?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let (nodes, lock) = RuntimeNodes::create(NAME)?;
    cleanup.defer(move || {
        drop(lock);
        if let Err(error) = down(NAME) {
            eprintln!("{error:#}; `cargo xtask cluster down --name {NAME}` retries");
        }
    });
    let objects = networks::objects(&INTERFACES);
    measure("two nodes with containerd", || nodes.start_additional(RANGE, &built, &objects))?;
    let connect = |node, label| {
        let (cri, socket) = (Cri::connect(&nodes.socket(node), nodes.cgroup(node))?, nodes.socket(node));
        anyhow::Ok(Node { cri, socket, label, base_links: Cell::new(None) })
    };
    let (knit, other) =
        (connect(runtime_nodes::KNIT, Some(networks::LABEL))?, connect(runtime_nodes::REFERENCE, None)?);
    measure("pods without additional networks", || {
        knit.wait(0).and_then(|()| other.wait(0)).and_then(|()| unmatched(&mut report, &knit, &other, rounds))
    })?;
    for number in INTERFACES {
        let log = || nodes.agent_log(runtime_nodes::KNIT);
        knit.wait(number).with_context(|| format!("the agent's log ends with\n{}", log()))?;
        networks::delegate(&nodes, runtime_nodes::REFERENCE, &multus, number)?;
        other.wait(number)?;
        measure(&format!("pods with additional networks: {number}"), || {
            added(&mut report, &knit, &other, number, rounds)
        })?;
    }
    report.note(
        "A sandbox is started without containers: both sides have finished when it is ready.".to_owned(),
    );
    report.note_machine("at the end")?;
    Ok(report)
}

/// The cost of notifying the agent of every pod.
fn unmatched(report: &mut Report, knit: &Node, other: &Node, rounds: usize) -> Result<()> {
    let [mut notified, mut baseline] = [const { Samples::new() }; 2];
    for round in 0..WARM_UP + rounds {
        for (node, samples) in [(knit, &mut notified), (other, &mut baseline)] {
            node.start(round, 0, samples)?;
        }
    }
    report.add_median(UNMATCHED, &notified)?;
    report.add_median(BASELINE, &baseline)?;
    report.compare(UNMATCHED, BASELINE, None)
}

/// The cost of this many interfaces at a pod's start, on both sides.
fn added(report: &mut Report, knit: &Node, other: &Node, number: usize, rounds: usize) -> Result<()> {
    let [mut base, mut by_knit, mut by_multus] = [const { Samples::new() }; 3];
    for round in 0..WARM_UP + rounds {
        knit.start(round, 0, &mut base)?;
        knit.start(round, number, &mut by_knit)?;
        other.start(round, number, &mut by_multus)?;
    }
    let plural = if number == 1 { "interface" } else { "interfaces" };
    let names = ["Knit by NRI", "Multus and reference plugins"];
    let [sandbox, delegated] = names.map(|name| format!("{name}: sandbox with {number} more {plural}"));
    report.add_median(&sandbox, &by_knit)?;
    report.add_median(&delegated, &by_multus)?;
    report.compare(&sandbox, &delegated, None)?;
    let median = |samples: &Samples| samples.quantile(0.5).unwrap_or_default().as_nanos() as f64 / 1e3;
    let [knit_cost, multus_cost] = names.map(|name| format!("{name}: added by {number} {plural}"));
    report.add_value(&multus_cost, median(&by_multus) - median(&base), "µs", None);
    report.add_value(&knit_cost, median(&by_knit) - median(&base), "µs", None);
    report.compare_value(&knit_cost, &multus_cost, Some(Goal::AtMost(0.25)))
}

impl Node {
    /// Starts a pod with this many additional networks and removes it. Returns how long the start took.
    fn start_and_remove(&self, name: &str, number: usize) -> Result<Duration> {
        let start = Instant::now();
        let pod = match self.label.filter(|_| number > 0) {
            Some(label) => self.cri.run_labelled(name, (label, &networks::name(number)))?,
            None => self.cri.run(name)?,
        };
        let took = start.elapsed();
        let links = self.cri.process(&self.socket, &pod.id).and_then(links);
        self.cri.remove(&pod.id)?;
        let links = links?;
        let base_links = self.base_links.get().unwrap_or(links);
        self.base_links.set(Some(base_links));
        let expected = base_links + number;
        ensure!(links == expected, "pod {name} has {links} links when it is ready, expected {expected}");
        Ok(took)
    }

    fn start(&self, round: usize, number: usize, samples: &mut Samples) -> Result<()> {
        let took = self.start_and_remove(&format!("pod-{number}-{round}"), number)?;
        if round >= WARM_UP {
            samples.add_warm(took);
        }
        Ok(())
    }

    /// Waits until a pod gets this many additional networks.
    fn wait(&self, number: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for attempt in 0.. {
            match self.start_and_remove(&format!("first-{number}-{attempt}"), number) {
                Ok(_) => break,
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("no pod can be started");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
        // Knit's bridges exist as long as a pod uses them, as on any node in use. The reference plugins' bridges are permanent.
        if let Some(label) = self.label.filter(|_| number > 0) {
            self.cri.run_labelled(&format!("permanent-{number}"), (label, &networks::name(number)))?;
        }
        Ok(())
    }
}

/// The number of links in a process's network namespace.
fn links(pid: u32) -> Result<usize> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    // Two lines are the header.
    Ok(text.lines().count().saturating_sub(2))
}
