//! A pod's start and end through containerd, like a kubelet: most of it is not the network.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::cluster::BenchCluster;
use super::plugins::agent_cpu;
use super::{Clusters, Scale};
use crate::attach::alternate;
use knit_report::Report;
use knit_report::Samples;

/// The names of the rows.
pub const STARTED: &str = "sandbox started";
const REMOVED: &str = "sandbox stopped and removed";
const WARM_UP: usize = 5;

/// Measures sequential sandboxes, then concurrent ones.
pub fn run(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    let before = agent_cpu(&clusters.knit)?;
    sequential(report, clusters, scale.rounds, "")?;
    let each = (agent_cpu(&clusters.knit)? - before).as_secs_f64() * 1e3 / (scale.rounds + WARM_UP) as f64;
    report.add_value("Knit: agent, CPU of a sandbox's start and end", each, "ms", None);
    concurrent(report, clusters, scale)
}

/// Sequential sandboxes, alternating between the clusters. `with` describes the state of the nodes.
pub fn sequential(report: &mut Report, clusters: &Clusters, rounds: usize, with: &str) -> Result<()> {
    let [mut run, mut remove, mut reference_run, mut reference_remove] = [const { Samples::new() }; 4];
    for round in 0..rounds + WARM_UP {
        let pod = |cluster: &BenchCluster, run: &mut Samples, remove: &mut Samples| {
            let (started, removed) = cluster.node().cri.time_sandbox(&format!("one-{round}"))?;
            if round >= WARM_UP {
                run.add_warm(started);
                remove.add_warm(removed);
            }
            Ok(())
        };
        alternate(
            round,
            || pod(&clusters.knit, &mut run, &mut remove),
            || pod(&clusters.reference, &mut reference_run, &mut reference_remove),
        )?;
    }
    let (started, removed) = (format!("{STARTED}{with}"), format!("{REMOVED}{with}"));
    report.add_times(&clusters.knit.row(&started), &run)?;
    report.add_times(&clusters.knit.row(&removed), &remove)?;
    report.add_times(&clusters.reference.row(&started), &reference_run)?;
    report.add_times(&clusters.reference.row(&removed), &reference_remove)?;
    for what in [started, removed] {
        report.compare(&clusters.knit.row(&what), &clusters.reference.row(&what), None)?;
    }
    Ok(())
}

fn concurrent(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    let number = scale.concurrent;
    let [mut one, mut all, mut reference_one, mut reference_all] = [const { Samples::new() }; 4];
    let mut churn = Churn::default();
    for batch in 0..=scale.rounds.div_ceil(number) {
        let pods = |cluster: &BenchCluster, one: &mut Samples, all: &mut Samples| {
            let links = cluster.node().links()?;
            let names = (0..number).map(|pod| format!("many-{batch}-{pod}")).collect();
            let start = Instant::now();
            let started = cluster.node().cri.run_all(names)?;
            if batch > 0 {
                all.add_warm(start.elapsed());
                started.iter().for_each(|(_, time)| one.add_warm(*time));
            }
            cluster.node().cri.remove_all(started.into_iter().map(|(pod, _)| pod.id).collect())?;
            cluster.node().settle(links)
        };
        alternate(
            batch,
            || churn.measure(&clusters.knit, number, || pods(&clusters.knit, &mut one, &mut all)),
            || pods(&clusters.reference, &mut reference_one, &mut reference_all),
        )?;
    }
    let (single, total) =
        (format!("{STARTED}, one of {number} concurrent"), format!("{STARTED}, all of {number} concurrent"));
    for (cluster, one, all) in
        [(&clusters.knit, &one, &all), (&clusters.reference, &reference_one, &reference_all)]
    {
        report.add_times(&cluster.row(&single), one)?;
        report.add_median(&cluster.row(&total), all)?;
    }
    for what in [single, total] {
        report.compare(&clusters.knit.row(&what), &clusters.reference.row(&what), None)?;
    }
    churn.add(report);
    Ok(())
}

/// The agent's CPU time while the runtime starts and removes pods as fast as it can.
#[derive(Default)]
struct Churn {
    pods: usize,
    time: Duration,
    cpu: Duration,
}

impl Churn {
    fn measure(
        &mut self,
        cluster: &BenchCluster,
        pods: usize,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (cpu, start) = (agent_cpu(cluster)?, Instant::now());
        work()?;
        self.pods += pods;
        self.time += start.elapsed();
        self.cpu += agent_cpu(cluster)? - cpu;
        Ok(())
    }

    fn add(&self, report: &mut Report) {
        let (pods, share) = (self.pods as f64, 100.0 * self.cpu.as_secs_f64());
        let time = self.time.as_secs_f64();
        let name = format!("Knit: agent, CPU at {:.1} pods per second", pods / time);
        report.add_value(&name, share / time, "% of a core", None);
    }
}
