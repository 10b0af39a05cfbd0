//! `bench create`: what additional networks add to a pod's start.
//!
//! Two nodes with containerd have the same main network, that of the reference plugins. On one of them Knit's agent is told of
//! pods by the runtime (NRI) and adds interfaces before the first container; on the other Multus does, which delegates each
//! interface to the reference plugins. A pod is started as a kubelet starts it; its sandbox is ready once all interfaces
//! are there, which is looked at each time. What is added is the difference to a pod without additional networks, in
//! the same run; all three are started in turn.

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
use knit_testcluster::bare::{self, Bare};
use knit_testcluster::down;
use knit_testcluster::programs;

/// The name that the nodes go by.
const NAME: &str = "benchnri";
/// Where pods get their first address from, on either node: they never meet.
const RANGE: &str = "10.90.0.0/16";
/// How many interfaces are added.
const INTERFACES: [usize; 3] = [1, 4, 16];
/// How long a node may take to see its network, or another one.
const START: Duration = Duration::from_secs(60);
const WARM_UP: usize = 3;

const BARE: &str = "containerd: sandbox without additional networks";
const NOBODYS: &str = "containerd, agent told by NRI: sandbox that nobody means";

/// What `bench create` takes.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// A short run to try it: few rounds
    #[arg(long)]
    quick: bool,
}

impl Options {
    /// Whether rows are for programs.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// A node, asked as a kubelet asks it.
struct Node {
    cri: Cri,
    socket: PathBuf,
    label: Option<&'static str>,
    /// How many links a pod has without additional networks: a kernel may give it more than two.
    bare: Cell<Option<usize>>,
}

/// Starts the nodes, measures and takes them away, also when it fails or is told to end.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    let rounds = if options.quick { 5 } else { 40 };
    let built = programs::build()?;
    let multus = networks::multus()?;
    let cleanup = Cleanup::new()?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let (nodes, claim) = Bare::claim(NAME)?;
    cleanup.later(move || {
        drop(claim);
        if let Err(why) = down(NAME) {
            eprintln!("{why:#}; `cargo xtask cluster down --name {NAME}` tries again");
        }
    });
    let objects = networks::objects(&INTERFACES);
    measure("two nodes with containerd", || nodes.start_beside(RANGE, &built, &objects))?;
    let connect = |node, label| {
        let (cri, socket) = (Cri::connect(&nodes.socket(node), nodes.cgroup(node))?, nodes.socket(node));
        anyhow::Ok(Node { cri, socket, label, bare: Cell::new(None) })
    };
    let (knit, other) = (connect(bare::KNIT, Some(networks::LABEL))?, connect(bare::REFERENCE, None)?);
    measure("pods that nobody means", || {
        knit.wait(0).and_then(|()| other.wait(0)).and_then(|()| nobodys(&mut report, &knit, &other, rounds))
    })?;
    for number in INTERFACES {
        let said = || nodes.agent_log(bare::KNIT);
        knit.wait(number).with_context(|| format!("the agent's log ends with\n{}", said()))?;
        networks::delegate(&nodes, bare::REFERENCE, &multus, number)?;
        other.wait(number)?;
        measure(&format!("pods with additional networks: {number}"), || {
            added(&mut report, &knit, &other, number, rounds)
        })?;
    }
    report.note("A sandbox is started alone: both ways have done their work when it is ready.".to_owned());
    report.note_machine("at the end")?;
    Ok(report)
}

/// What it costs that the runtime tells of every pod.
fn nobodys(report: &mut Report, knit: &Node, other: &Node, rounds: usize) -> Result<()> {
    let [mut told, mut bare] = [const { Samples::new() }; 2];
    for round in 0..WARM_UP + rounds {
        for (node, samples) in [(knit, &mut told), (other, &mut bare)] {
            node.start(round, 0, samples)?;
        }
    }
    report.add_median(NOBODYS, &told)?;
    report.add_median(BARE, &bare)?;
    report.compare(NOBODYS, BARE, None)
}

/// What so many interfaces add to a pod's start, either way.
fn added(report: &mut Report, knit: &Node, other: &Node, number: usize, rounds: usize) -> Result<()> {
    let [mut base, mut ours, mut theirs] = [const { Samples::new() }; 3];
    for round in 0..WARM_UP + rounds {
        knit.start(round, 0, &mut base)?;
        knit.start(round, number, &mut ours)?;
        other.start(round, number, &mut theirs)?;
    }
    let plural = if number == 1 { "interface" } else { "interfaces" };
    let names = ["Knit by NRI", "Multus and reference plugins"];
    let [sandbox, delegated] = names.map(|name| format!("{name}: sandbox with {number} more {plural}"));
    report.add_median(&sandbox, &ours)?;
    report.add_median(&delegated, &theirs)?;
    report.compare(&sandbox, &delegated, None)?;
    let median = |samples: &Samples| samples.quantile(0.5).unwrap_or_default().as_nanos() as f64 / 1e3;
    let [by_knit, by_multus] = names.map(|name| format!("{name}: added by {number} {plural}"));
    report.add_once(&by_multus, median(&theirs) - median(&base), "µs", None);
    report.add_once(&by_knit, median(&ours) - median(&base), "µs", None);
    report.compare_once(&by_knit, &by_multus, Some(Goal::AtMost(0.25)))
}

impl Node {
    /// Starts a pod with so many additional networks, and removes it. Says how long the start took.
    fn once(&self, name: &str, number: usize) -> Result<Duration> {
        let began = Instant::now();
        let pod = match self.label.filter(|_| number > 0) {
            Some(label) => self.cri.run_labelled(name, (label, &networks::name(number)))?,
            None => self.cri.run(name)?,
        };
        let took = began.elapsed();
        let links = self.cri.process(&self.socket, &pod.id).and_then(links);
        self.cri.remove(&pod.id)?;
        let links = links?;
        let bare = self.bare.get().unwrap_or(links);
        self.bare.set(Some(bare));
        let wanted = bare + number;
        ensure!(links == wanted, "pod {name} has {links} links when it is ready, and should have {wanted}");
        Ok(took)
    }

    fn start(&self, round: usize, number: usize, samples: &mut Samples) -> Result<()> {
        let took = self.once(&format!("pod-{number}-{round}"), number)?;
        if round >= WARM_UP {
            samples.add_warm(took);
        }
        Ok(())
    }

    /// Waits until a pod gets so many additional networks.
    fn wait(&self, number: usize) -> Result<()> {
        let until = Instant::now() + START;
        for attempt in 0.. {
            match self.once(&format!("first-{number}-{attempt}"), number) {
                Ok(_) => break,
                Err(why) if Instant::now() > until => return Err(why).context("no pod can be started"),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
        // Bridges stay as long as a pod is on them, as on any node that is in use. The reference plugins' always stay.
        if let Some(label) = self.label.filter(|_| number > 0) {
            self.cri.run_labelled(&format!("stays-{number}"), (label, &networks::name(number)))?;
        }
        Ok(())
    }
}

/// How many links a process's network has.
fn links(pid: u32) -> Result<usize> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    // Two lines are the header.
    Ok(text.lines().count().saturating_sub(2))
}
