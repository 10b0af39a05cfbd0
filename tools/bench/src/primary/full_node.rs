//! Full nodes: the cost of one more pod, and the agent's memory.

use anyhow::{Context, Result};

use super::cluster::BenchCluster;
use super::plugins;
use super::pods::ADD;
use super::sandboxes::{self, STARTED};
use super::{Clusters, Scale};
use knit_report::Report;

/// The number of pods that are started concurrently while a node is filled.
const CONCURRENT: usize = 20;
/// A sandbox takes long on a full node: enough rounds for a median.
const ROUNDS: usize = 40;
/// The goal for the memory of a full node's agent, in MiB.
const MAX_MEMORY_MIB: f64 = 25.0;

/// Fills a node of each cluster, then measures one more pod.
pub fn run(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    memory(report, &clusters.knit, 0, None)?;
    let mut started = 0;
    while started < scale.pods {
        let next = (started + CONCURRENT).min(scale.pods);
        for cluster in [&clusters.knit, &clusters.reference] {
            cluster.node().cri.run_all((started..next).map(|pod| format!("full-{pod}")).collect())?;
        }
        started = next;
    }
    memory(report, &clusters.knit, started, Some(MAX_MEMORY_MIB))?;
    let with = format!(", with {started} pods on the node");
    plugins::sequential(report, clusters, scale.rounds, &with)?;
    sandboxes::sequential(report, clusters, scale.rounds.min(ROUNDS), &with)?;
    // How the cost grew with the number of pods.
    for cluster in [&clusters.knit, &clusters.reference] {
        for what in [ADD, STARTED] {
            report.compare(&cluster.row(&format!("{what}{with}")), &cluster.row(what), None)?;
        }
    }
    Ok(())
}

fn memory(report: &mut Report, knit: &BenchCluster, pods: usize, limit: Option<f64>) -> Result<()> {
    let used = plugins::agent(knit)?.context("no agent runs")?;
    report.add_value(&format!("Knit: agent, RssAnon with {pods} pods"), used.anonymous, "MiB", limit);
    Ok(())
}
