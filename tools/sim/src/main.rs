//! `cargo xtask sim`: a large cluster without a kernel: the engine's and the controller's own decisions, on a simulated
//! clock, the same again for the same seed.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use knit_sim::{InvariantViolation, SimStats};

use knit_report::{Report, peak_memory};

/// A pod needs at most so many requests from its coming to its going, with all that goes wrong.
const REQUESTS: f64 = 12.0;
/// After everything that went wrong the cluster is at rest in this time, in simulated seconds.
const REST: f64 = 300.0;
/// All of it fits into this much memory, in MiB.
const MEMORY: f64 = 12_288.0;

/// Simulate a large cluster: the decisions of the agents and of the controller, without a kernel; a seed replays
#[derive(Debug, Parser)]
#[command(name = "sim", bin_name = "cargo xtask sim", version)]
struct Options {
    /// How many nodes
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    nodes: u32,
    /// How many pods at a time
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// Everything that happens follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For so many simulated minutes pods come and go and things go wrong
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// How many of a hundred pods are replaced in a simulated minute
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=100))]
    churn: u64,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let Options { nodes, pods, seed, minutes, churn, .. } = options;
    if pods > nodes.saturating_mul(200) {
        bail!("{pods} pods do not fit on {nodes} nodes: a node takes 200");
    }
    let wanted =
        knit_sim::SimOptions { nodes: nodes as usize, pods: pods as usize, seed, minutes, churn, fault: None };
    let began = Instant::now();
    let ran = knit_sim::run(&wanted, |line| eprintln!("{:>5.0} s  {line}", began.elapsed().as_secs_f64()));
    match ran {
        Ok(counts) => report(&counts, began.elapsed().as_secs_f64())?.print(options.json),
        Err(failure) => Err(again(&options, &failure)),
    }
}

fn again(options: &Options, failure: &InvariantViolation) -> anyhow::Error {
    let Options { nodes, pods, seed, minutes, churn, .. } = options;
    let command = format!(
        "cargo xtask sim --nodes {nodes} --pods {pods} --seed {seed} --minutes {minutes} --churn {churn}"
    );
    anyhow::anyhow!("{failure}to see it again: {command}")
}

fn report(counts: &SimStats, wall: f64) -> Result<Report> {
    let mut report = Report::default();
    let pods = counts.pods.max(1) as f64;
    let seconds = |micros: u64| micros as f64 / 1e6;
    let mut once = |name: &str, value: f64, unit: &'static str, most: Option<f64>| {
        report.add_once(name, value, unit, most);
    };
    once("pods that ever were", counts.pods as f64, "pods", None);
    once("pods with an address of a shared range", counts.tenant_pods as f64, "pods", None);
    once("of these at the end told why they have none", counts.reported_missing as f64, "pods", None);
    once("pod to attached, p50", seconds(counts.attach_latency.quantile(0.5)) * 1e3, "ms simulated", None);
    once("pod to attached, p99", seconds(counts.attach_latency.quantile(0.99)) * 1e3, "ms simulated", None);
    once("pod to address of a shared range, p50", seconds(counts.second_interface_latency.quantile(0.5)), "s simulated", None);
    once("pod to address of a shared range, p99", seconds(counts.second_interface_latency.quantile(0.99)), "s simulated", None);
    once("from the last trouble to rest", seconds(counts.settle_time), "s simulated", Some(REST));
    once("from the last pod to nothing left", seconds(counts.cleanup_time), "s simulated", None);
    let all: u64 = counts.requests.values().sum();
    once("API requests per pod", all as f64 / pods, "requests", Some(REQUESTS));
    for (verb, count) in counts.requests_by_verb() {
        once(&format!("API requests per pod: {verb}"), count as f64 / pods, "requests", None);
    }
    for ((verb, kind), count) in &counts.requests {
        once(&format!("{verb} {kind}"), *count as f64, "requests", None);
    }
    once("blocks claimed", counts.blocks_claimed as f64, "blocks", None);
    once("claims that another node was faster for", counts.claim_conflicts as f64, "claims", None);
    once("blocks given back", counts.blocks_released as f64, "blocks", None);
    once("blocks held at once, most", counts.max_blocks as f64, "blocks", None);
    once("agents killed", counts.agent_restarts as f64, "times", None);
    once("states compared with their journals", counts.journal_replays as f64, "times", None);
    once("partitions from the API server", counts.partitions as f64, "times", None);
    once("clock jumps", counts.clock_jumps as f64, "times", None);
    once("nodes that left", counts.nodes_removed as f64, "nodes", None);
    once("plans that the kernel refused", counts.kernel_failures as f64, "plans", None);
    once("attaches that failed and were tried again", counts.failed_attaches as f64, "attaches", None);
    once("units that a node works on at once, most", counts.max_units as f64, "units", None);
    once("things that wait to happen, most", counts.max_queued as f64, "events", None);
    once("simulated time", seconds(counts.simulated_time) / 60.0, "min", None);
    once("events of engines", counts.engine_events as f64, "events", None);
    once("events of engines per second", counts.engine_events as f64 / wall, "events/s", None);
    once("wall time", wall, "s", None);
    once("memory, most", peak_memory()?, "MiB", Some(MEMORY));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_simulation_has_a_row_for_each_number() {
        let wanted = knit_sim::SimOptions { nodes: 12, pods: 60, minutes: 1, ..knit_sim::SimOptions::default() };
        let counts = knit_sim::run(&wanted, |_| {}).unwrap();
        report(&counts, 1.0).unwrap();
        assert!(counts.requests_by_verb().contains_key("patch"));
    }
}
