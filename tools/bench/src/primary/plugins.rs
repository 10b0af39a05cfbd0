//! The network's share of a pod's start: the CNI plugins, called like by a container runtime.

use std::time::Duration;

use anyhow::Result;

use super::cluster::BenchCluster;
use super::pods::{ADD, BATCH, DEL, Pods};
use super::{Clusters, Scale};
use crate::attach::alternate;
use knit_report::Samples;
use knit_report::{Goal, Report};
use knit_soak::harness::programs;

/// The goal for Knit compared with the reference: five times faster.
const GOAL: Goal = Goal::AtMost(0.2);

/// Measures sequential calls, then concurrent ones.
pub fn run(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    sequential(report, clusters, scale.rounds, "")?;
    concurrent(report, clusters, scale)
}

/// Sequential calls, alternating between the clusters. `with` describes the state of the nodes.
pub fn sequential(report: &mut Report, clusters: &Clusters, rounds: usize, with: &str) -> Result<()> {
    let (mut knit, mut reference) =
        (Pods::new(clusters.knit.node(), BATCH)?, Pods::new(clusters.reference.node(), BATCH)?);
    let before = agent_cpu(&clusters.knit)?;
    let batches = rounds.div_ceil(BATCH) + 1;
    for batch in 0..batches {
        // The first batch is the warm-up.
        let counts = batch > 0;
        for pod in 0..BATCH {
            alternate(pod, || knit.add(batch, pod, counts), || reference.add(batch, pod, counts))?;
        }
        alternate(batch, || knit.delete(counts), || reference.delete(counts))?;
    }
    knit.cpu += agent_cpu(&clusters.knit)? - before;
    let (add, del) = (format!("{ADD}{with}"), format!("{DEL}{with}"));
    let measured = [(&clusters.knit, &knit), (&clusters.reference, &reference)];
    for (cluster, pods) in measured {
        report.add_times(&cluster.row(&add), &pods.adds)?;
        report.add_times(&cluster.row(&del), &pods.dels)?;
    }
    let cpu = format!("CPU of a {ADD} and {DEL}{with}");
    for (cluster, pods) in measured {
        let each = pods.cpu.as_secs_f64() * 1e3 / (batches * BATCH) as f64;
        report.add_value(&cluster.row(&cpu), each, "ms", None);
    }
    let compared = |what: &str| (clusters.knit.row(what), clusters.reference.row(what));
    let (one, other) = compared(&add);
    report.compare(&one, &other, Some(GOAL))?;
    let (one, other) = compared(&del);
    report.compare(&one, &other, None)?;
    let (one, other) = compared(&cpu);
    report.compare_value(&one, &other, None)
}

fn concurrent(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    let number = scale.concurrent;
    let (mut knit, mut reference) =
        (Pods::new(clusters.knit.node(), number)?, Pods::new(clusters.reference.node(), number)?);
    let [mut all, mut reference_all] = [const { Samples::new() }; 2];
    for batch in 0..=scale.rounds.div_ceil(number) {
        let counts = batch > 0;
        alternate(
            batch,
            || knit.add_all(batch, counts, &mut all),
            || reference.add_all(batch, counts, &mut reference_all),
        )?;
    }
    let (one, total) =
        (format!("{ADD}, one of {number} concurrent"), format!("{ADD}, all of {number} concurrent"));
    let measured = [(&clusters.knit, &knit, &all), (&clusters.reference, &reference, &reference_all)];
    for (cluster, pods, all) in measured {
        report.add_times(&cluster.row(&one), &pods.adds)?;
        report.add_median(&cluster.row(&total), all)?;
    }
    for what in [one, total] {
        report.compare(&clusters.knit.row(&what), &clusters.reference.row(&what), Some(GOAL))?;
    }
    Ok(())
}

/// The CPU time of a cluster's agent.
pub fn agent_cpu(cluster: &BenchCluster) -> Result<Duration> {
    Ok(agent(cluster)?.map(|used| used.cpu).unwrap_or_default())
}

/// The resource usage of a cluster's agent, if it has one.
pub fn agent(cluster: &BenchCluster) -> Result<Option<programs::Usage>> {
    cluster.agent()?.as_ref().map(programs::usage).transpose()
}
