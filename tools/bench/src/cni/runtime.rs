//! A pod's start and end as a kubelet sees them: through containerd, on a node with the reference plugins and on one with
//! Knit's shim and agent, in turn.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::attach::{in_turn, measure};
use crate::cleanup::Cleanup;
use crate::cri::Cri;
use knit_report::Report;
use knit_report::Samples;
use knit_testcluster::bare::{self, Bare};
use knit_testcluster::down;
use knit_testcluster::programs::Binaries;

/// The name that the nodes go by.
const NAME: &str = "benchcni";
/// Where pods get their addresses from, on either node: they never meet.
const RANGE: &str = "10.90.0.0/16";
/// A sandbox takes a tenth of a second: enough for a median, too few for a p99.
const ROUNDS: usize = 40;
const WARM_UP: usize = 5;
/// How long containerd may take to see its network.
const START: Duration = Duration::from_secs(60);

const RUN: &str = "containerd, knit-cni: sandbox started";
const REMOVE: &str = "containerd, knit-cni: sandbox stopped and removed";
const REFERENCE_RUN: &str = "containerd, reference plugins: sandbox started";
const REFERENCE_REMOVE: &str = "containerd, reference plugins: sandbox stopped and removed";

/// Starts the nodes, measures and takes them away.
pub fn run(report: &mut Report, built: &Binaries, cleanup: &Cleanup) -> Result<()> {
    let (nodes, claim) = Bare::claim(NAME)?;
    cleanup.later(move || {
        drop(claim);
        if let Err(why) = down(NAME) {
            eprintln!("{why:#}; `cargo xtask cluster down --name {NAME}` tries again");
        }
    });
    measure("two nodes with containerd", || nodes.start(RANGE, built))?;
    let connect = |node| Cri::connect(&nodes.socket(node), nodes.cgroup(node));
    let (knit, reference) = (connect(bare::KNIT)?, connect(bare::REFERENCE)?);
    [&knit, &reference].into_iter().try_for_each(wait)?;
    measure("sandboxes through containerd", || pods(report, &knit, &reference))
}

fn pods(report: &mut Report, knit: &Cri, reference: &Cri) -> Result<()> {
    let [mut run, mut remove, mut reference_run, mut reference_remove] = [const { Samples::new() }; 4];
    for round in 0..WARM_UP + ROUNDS {
        let pod = |cri: &Cri, run: &mut Samples, remove: &mut Samples| {
            let began = Instant::now();
            let pod = cri.run(&format!("pod-{round}"))?;
            let (took, began) = (began.elapsed(), Instant::now());
            cri.remove(&pod.id)?;
            if round >= WARM_UP {
                run.add_warm(took);
                remove.add_warm(began.elapsed());
            }
            Ok(())
        };
        in_turn(
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

/// Waits until the runtime has its network: a first pod starts.
fn wait(cri: &Cri) -> Result<()> {
    let until = Instant::now() + START;
    loop {
        match cri.run("first") {
            Ok(pod) => return cri.remove(&pod.id),
            Err(why) if Instant::now() > until => return Err(why).context("no pod can be started"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
