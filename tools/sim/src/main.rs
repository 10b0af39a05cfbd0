//! `cargo xtask sim`: simulates a large cluster without a kernel: the decisions of the engine and the controller on a
//! simulated clock, deterministic for a seed.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use knit_sim::{InvariantViolation, SimStats};

use knit_report::{Report, peak_memory};

/// API requests per pod over its life, including all failures.
const MAX_REQUESTS_PER_POD: f64 = 12.0;
/// Time from the last failure to a stable cluster, in simulated seconds.
const MAX_SETTLE_SECONDS: f64 = 300.0;
/// Memory of the simulation, in MiB.
const MAX_MEMORY_MIB: f64 = 16_384.0;
/// Pods of a node, of the 253 addresses of its range.
const MAX_PODS_PER_NODE: u32 = 150;
/// Up to this number of nodes, all of them have a full view.
const SMALL_CLUSTER: u32 = 200;
/// Nodes with a full view of a larger cluster.
const FULL_VIEW_SAMPLE: u32 = 10;

/// Simulate a large cluster: the decisions of agents and controller without a kernel, deterministic for a seed
#[derive(Debug, Parser)]
#[command(name = "sim", bin_name = "cargo xtask sim", version)]
struct Options {
    /// Number of nodes
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    nodes: u32,
    /// Number of pods at a time
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// Number of tenants, each with its own objects; as many as nodes by default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    tenants: Option<u32>,
    /// Number of nodes that receive all nodes, objects, quotas, definitions and blocks; the others receive those of
    /// the tenants that may run on them, and no routes. Default: all of up to 200 nodes, otherwise 10
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    full_view: Option<u32>,
    /// Seed of all random decisions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated minutes of churn and failures
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Percentage of pods that are replaced per simulated minute
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=100))]
    churn: u64,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    fn tenants(&self) -> u32 {
        self.tenants.unwrap_or(self.nodes).min(50_000)
    }

    fn full_view(&self) -> u32 {
        let sample = if self.nodes <= SMALL_CLUSTER { self.nodes } else { FULL_VIEW_SAMPLE };
        self.full_view.unwrap_or(sample).min(self.nodes)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let Options { nodes, pods, seed, minutes, churn, .. } = options;
    if pods > nodes.saturating_mul(MAX_PODS_PER_NODE) {
        bail!("{pods} pods do not fit on {nodes} nodes: a node has room for {MAX_PODS_PER_NODE}");
    }
    let simulation = knit_sim::SimOptions {
        nodes: nodes as usize,
        pods: pods as usize,
        tenants: options.tenants() as usize,
        full_view: options.full_view() as usize,
        seed,
        minutes,
        churn,
        fault: None,
    };
    let start = Instant::now();
    let ran =
        knit_sim::run(&simulation, |line| eprintln!("{:>5.0} s  {line}", start.elapsed().as_secs_f64()));
    match ran {
        Ok(counts) => report(&counts, start.elapsed().as_secs_f64())?.print(options.json),
        Err(failure) => Err(reproducible(&options, &failure)),
    }
}

fn reproducible(options: &Options, failure: &InvariantViolation) -> anyhow::Error {
    let Options { nodes, pods, seed, minutes, churn, .. } = options;
    let (tenants, full_view) = (options.tenants(), options.full_view());
    let command = format!(
        "cargo xtask sim --nodes {nodes} --pods {pods} --tenants {tenants} --full-view {full_view} --seed {seed} --minutes {minutes} --churn {churn}"
    );
    anyhow::anyhow!("{failure}to reproduce: {command}")
}

fn report(counts: &SimStats, wall: f64) -> Result<Report> {
    let mut report = Report::default();
    let pods = counts.pods.max(1) as f64;
    let seconds = |micros: u64| micros as f64 / 1e6;
    let mut add = |name: &str, value: f64, unit: &'static str, limit: Option<f64>| {
        report.add_value(name, value, unit, limit);
    };
    add("nodes with a full view (all peers and objects)", counts.full_view_nodes as f64, "nodes", None);
    add("pods created", counts.pods as f64, "pods", None);
    add("pods with an address from a shared range", counts.tenant_pods as f64, "pods", None);
    add("pods with definitions in their annotation", counts.annotated_pods as f64, "pods", None);
    add("pods that lack an interface, reason reported", counts.reported_missing as f64, "pods", None);
    add("of these because of a quota", counts.beyond_quota as f64, "pods", None);
    add("pod to attached, p50", seconds(counts.attach_latency.quantile(0.5)) * 1e3, "ms simulated", None);
    add("pod to attached, p99", seconds(counts.attach_latency.quantile(0.99)) * 1e3, "ms simulated", None);
    add(
        "pod to address from a shared range, p50",
        seconds(counts.second_interface_latency.quantile(0.5)),
        "s simulated",
        None,
    );
    add(
        "pod to address from a shared range, p99",
        seconds(counts.second_interface_latency.quantile(0.99)),
        "s simulated",
        None,
    );
    add(
        "from the last failure to a stable state",
        seconds(counts.settle_time),
        "s simulated",
        Some(MAX_SETTLE_SECONDS),
    );
    add("from the last pod to complete cleanup", seconds(counts.cleanup_time), "s simulated", None);
    let all: u64 = counts.requests.values().sum();
    add("API requests per pod", all as f64 / pods, "requests", Some(MAX_REQUESTS_PER_POD));
    for (verb, count) in counts.requests_by_verb() {
        add(&format!("API requests per pod: {verb}"), count as f64 / pods, "requests", None);
    }
    for ((verb, kind), count) in &counts.requests {
        add(&format!("{verb} {kind}"), *count as f64, "requests", None);
    }
    add("blocks claimed", counts.blocks_claimed as f64, "blocks", None);
    add("claims lost to another node", counts.claim_conflicts as f64, "claims", None);
    add("blocks released", counts.blocks_released as f64, "blocks", None);
    add("blocks claimed at once, maximum", counts.max_blocks as f64, "blocks", None);
    add("quota claims written", counts.quota_claims as f64, "claims", None);
    add("quota claims rejected, the quota has changed", counts.quota_conflicts as f64, "claims", None);
    add("routes to other nodes, of full views", counts.routes as f64, "routes", None);
    add("calls of extensions", counts.extension_calls as f64, "calls", None);
    add("calls of extensions without a reply", counts.extension_timeouts as f64, "calls", None);
    add("extensions replaced", counts.extensions_replaced as f64, "times", None);
    add("definitions changed or deleted", counts.definitions_changed as f64, "times", None);
    add("annotations of running pods changed", counts.annotations_changed as f64, "times", None);
    add("agents killed", counts.agent_restarts as f64, "times", None);
    add("states compared with their journal", counts.journal_replays as f64, "times", None);
    add("partitions from the API server", counts.partitions as f64, "times", None);
    add("clock jumps", counts.clock_jumps as f64, "times", None);
    add("nodes that left", counts.nodes_removed as f64, "nodes", None);
    add("nodes that joined", counts.nodes_joined as f64, "nodes", None);
    add("plans rejected by the kernel", counts.kernel_failures as f64, "plans", None);
    add("attaches that failed and were retried", counts.failed_attaches as f64, "attaches", None);
    add("units in progress per node, maximum", counts.max_units as f64, "units", None);
    add("pending events, maximum", counts.max_queued as f64, "events", None);
    add("simulated time", seconds(counts.simulated_time) / 60.0, "min", None);
    add("engine events", counts.engine_events as f64, "events", None);
    add("engine events of full views", counts.step_times.full_view_events() as f64, "events", None);
    add("engine time per event, full views", counts.step_times.full_view(), "µs", None);
    add("engine time per event, other nodes", counts.step_times.others(), "µs", None);
    add("engine events per second", counts.engine_events as f64 / wall, "events/s", None);
    add("wall time", wall, "s", None);
    add("memory, maximum", peak_memory()?, "MiB", Some(MAX_MEMORY_MIB));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_simulation_has_a_row_for_each_number() {
        let options = knit_sim::SimOptions {
            nodes: 12,
            pods: 60,
            tenants: 6,
            minutes: 1,
            ..knit_sim::SimOptions::default()
        };
        let counts = knit_sim::run(&options, |_| {}).unwrap();
        report(&counts, 1.0).unwrap();
        assert!(counts.requests_by_verb().contains_key("patch"));
    }
}
