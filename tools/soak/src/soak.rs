//! `cargo xtask soak`: random actions and failures on a real cluster for a given time. In the end everything is deleted, and no
//! link, address, route, rule, nftables table or qdisc may be left on nodes and in pods, and no state in the API or in agents;
//! and a replay of everything that entered the agents' decisions must lead to the same decisions.

mod action;
mod executor;
mod kernel_snapshot;
mod recording;
mod teardown;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use self::action::{ActionGenerator, PODS};
use self::executor::{Executor, Outcome};
use self::recording::Recording;
use self::teardown::Baseline;
use crate::harness::{KnitCluster, pods};
use knit_dev::process;
use knit_dev::progress::{Step, seconds};

/// The cluster's name, distinct from those of other test clusters.
const CLUSTER: &str = "soak";
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// Arguments of a soak.
#[derive(Args, Debug)]
pub struct Options {
    /// Duration in minutes
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Seed of the sequence of actions [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// An existing cluster with Knit installed [default: a new one, removed afterwards]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// An image of Knit for the new cluster [default: built from this checkout]
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    image: Option<PathBuf>,
}

/// Runs `cargo xtask soak`.
pub fn command(options: &Options) -> Result<()> {
    process::require_root("a soak")?;
    let seed = options.seed.unwrap_or_else(random_seed);
    let knit = match &options.cluster {
        Some(name) => {
            let knit = KnitCluster::open(name)?;
            knit.open_ranges()?;
            knit
        }
        None => KnitCluster::up(CLUSTER, options.image.as_deref())?,
    };
    println!("seed {seed}");
    let result = soak(&knit, seed, options.minutes).with_context(|| {
        format!("to reproduce: cargo xtask soak --seed {seed} --minutes {}", options.minutes)
    });
    if options.cluster.is_some() {
        knit.close_ranges()?;
    }
    result
}

fn random_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |time| u64::from(time.subsec_micros()))
}

fn soak(knit: &KnitCluster, seed: u64, minutes: f64) -> Result<()> {
    let recording = Recording::start(knit)?;
    // The namespace of an earlier run with the same seed may still be terminating.
    let namespace = format!("soak-{seed}-{}", std::process::id());
    pods::create_namespace(knit, &namespace)?;
    let cleanup = NamespaceCleanup { knit, namespace: &namespace };
    let step = Step::start(format!("start {PODS} pods"));
    pods::create_running(knit, &namespace, &(0..PODS).map(executor::pod_spec).collect::<Vec<_>>())?;
    step.done();
    let executor = Executor { knit, namespace: &namespace };
    let before = Baseline::capture(&executor)?;
    println!("{} lines of kernel state on nodes and in pods before", before.len());

    let done = run_actions(&executor, seed, Duration::from_secs_f64(minutes * 60.0))?;
    teardown::settle(&executor)?;
    let usage = teardown::delete_and_check(&executor, &before)?;
    drop(cleanup);
    recording.replay()?;
    drop(recording);
    for (what, (done, rejected)) in done {
        println!(
            "{done:6} {what}{}",
            if rejected > 0 { format!(", {rejected} rejected") } else { String::new() }
        );
    }
    println!(
        "nothing is left; the largest agent has {} files, {} sockets and {:.1} MiB of anonymous memory",
        usage.files, usage.sockets, usage.anonymous
    );
    Ok(())
}

/// How often each action was executed and how often it was rejected.
type Counts = BTreeMap<&'static str, (usize, usize)>;

fn run_actions(executor: &Executor<'_>, seed: u64, time: Duration) -> Result<Counts> {
    let (mut generator, mut counts) = (ActionGenerator::new(seed), Counts::new());
    let start = Instant::now();
    let (mut reported, mut number) = (start, 0);
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(generator.pause()));
        let action = generator.next();
        number += 1;
        let outcome = executor.execute(&action).with_context(|| format!("action {number}: {action:?}"))?;
        let (done, rejected) = counts.entry(action.description()).or_default();
        match outcome {
            Outcome::Done => *done += 1,
            Outcome::Rejected => *rejected += 1,
        }
        if reported.elapsed() > PROGRESS_INTERVAL {
            reported = Instant::now();
            eprintln!("  ...  {number} actions in {}", seconds(start.elapsed()));
        }
    }
    println!("{number} actions in {}", seconds(start.elapsed()));
    Ok(counts)
}

/// Deletes the namespace, also when something fails.
struct NamespaceCleanup<'a> {
    knit: &'a KnitCluster,
    namespace: &'a str,
}

impl Drop for NamespaceCleanup<'_> {
    fn drop(&mut self) {
        // In an existing cluster the namespace is all that is left to delete.
        let _ = self.knit.kubectl(&["delete", "namespace", self.namespace, "--wait=false"]);
    }
}
