//! A pod's start and end through containerd, like a kubelet, on a node with the reference plugins and on one with Knit's shim
//! and agent, alternately.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::attach::{alternate, measure};
use crate::cleanup::Cleanup;
use crate::cri::Cri;
use knit_report::Report;
use knit_report::Samples;
use knit_testcluster::binaries::Binaries;
use knit_testcluster::down;
use knit_testcluster::runtime_nodes::{self, RuntimeNodes};

/// The name of the nodes.
const NAME: &str = "benchcni";
/// The range of the pods' addresses on either node; the nodes are not connected.
const RANGE: &str = "10.90.0.0/16";
/// A sandbox takes a tenth of a second: enough rounds for a median, too few for a p99.
const ROUNDS: usize = 40;
const WARM_UP: usize = 5;
/// How long containerd may take until its network works.
const START_TIMEOUT: Duration = Duration::from_secs(60);

const RUN: &str = "containerd, knit-cni: sandbox started";
const REMOVE: &str = "containerd, knit-cni: sandbox stopped and removed";
const REFERENCE_RUN: &str = "containerd, reference plugins: sandbox started";
const REFERENCE_REMOVE: &str = "containerd, reference plugins: sandbox stopped and removed";

/// Starts the nodes, measures and removes them.
pub fn run(report: &mut Report, built: &Binaries, cleanup: &Cleanup) -> Result<()> {
    let (nodes, lock) = RuntimeNodes::create(NAME)?;
    cleanup.defer(move || {
        drop(lock);
        if let Err(error) = down(NAME) {
            eprintln!("{error:#}; `cargo xtask cluster down --name {NAME}` retries");
        }
    });
    measure("two nodes with containerd", || nodes.start(RANGE, built))?;
    let connect = |node| Cri::connect(&nodes.socket(node), nodes.cgroup(node));
    let (knit, reference) = (connect(runtime_nodes::KNIT)?, connect(runtime_nodes::REFERENCE)?);
    [&knit, &reference].into_iter().try_for_each(wait)?;
    measure("sandboxes through containerd", || pods(report, &knit, &reference))
}

fn pods(report: &mut Report, knit: &Cri, reference: &Cri) -> Result<()> {
    let [mut run, mut remove, mut reference_run, mut reference_remove] = [const { Samples::new() }; 4];
    for round in 0..WARM_UP + ROUNDS {
        let pod = |cri: &Cri, run: &mut Samples, remove: &mut Samples| {
            let (started, removed) = cri.time_sandbox(&format!("pod-{round}"))?;
            if round >= WARM_UP {
                run.add_warm(started);
                remove.add_warm(removed);
            }
            Ok(())
        };
        alternate(
            round,
            || pod(knit, &mut run, &mut remove),
            || pod(reference, &mut reference_run, &mut reference_remove),
        )?;
    }
    report.add_median(RUN, &run)?;
    report.add_median(REMOVE, &remove)?;
    report.add_median(REFERENCE_RUN, &reference_run)?;
    report.add_median(REFERENCE_REMOVE, &reference_remove)?;
    report.compare(RUN, REFERENCE_RUN, None)?;
    report.compare(REMOVE, REFERENCE_REMOVE, None)
}

/// Waits until the runtime has its network: until a first pod starts.
fn wait(cri: &Cri) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match cri.run("first") {
            Ok(pod) => return cri.remove(&pod.id),
            Err(error) if Instant::now() > deadline => return Err(error).context("no pod can be started"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
