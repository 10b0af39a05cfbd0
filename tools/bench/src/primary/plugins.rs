//! The network's share of a pod's start: the CNI plugins, called like by a container runtime.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use knit_kernel::Netns;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use super::cluster::BenchCluster;
use super::{Clusters, Scale};
use crate::attach::alternate;
use crate::kni::path_of;
use knit_report::Samples;
use knit_report::{Goal, Report};
use knit_soak::harness::programs;

/// The names of the rows.
pub const ADD: &str = "CNI ADD";
const DEL: &str = "CNI DEL";
/// The number of pods that are added before the first one is deleted.
const BATCH: usize = 10;
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
        (Pods::new(&clusters.knit, BATCH)?, Pods::new(&clusters.reference, BATCH)?);
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
    for pods in [&knit, &reference] {
        report.add_times(&pods.cluster.row(&add), &pods.adds)?;
        report.add_times(&pods.cluster.row(&del), &pods.dels)?;
    }
    let cpu = format!("CPU of a {ADD} and {DEL}{with}");
    for pods in [&knit, &reference] {
        let each = pods.cpu.as_secs_f64() * 1e3 / (batches * BATCH) as f64;
        report.add_value(&pods.cluster.row(&cpu), each, "ms", None);
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
        (Pods::new(&clusters.knit, number)?, Pods::new(&clusters.reference, number)?);
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
    for (pods, all) in [(&knit, &all), (&reference, &reference_all)] {
        report.add_times(&pods.cluster.row(&one), &pods.adds)?;
        report.add_median(&pods.cluster.row(&total), all)?;
    }
    for what in [one, total] {
        report.compare(&clusters.knit.row(&what), &clusters.reference.row(&what), Some(GOAL))?;
    }
    Ok(())
}

/// Network namespaces that are connected and disconnected repeatedly: creating and deleting them would disturb the measurement.
struct Pods<'a> {
    cluster: &'a BenchCluster,
    namespaces: Vec<Netns>,
    /// The number of links of the node before.
    links: usize,
    connected: Vec<(String, String, Value)>,
    adds: Samples,
    dels: Samples,
    /// The CPU time of the plugins.
    cpu: Duration,
}

impl<'a> Pods<'a> {
    fn new(cluster: &'a BenchCluster, number: usize) -> Result<Self> {
        let namespaces = (0..number).map(|_| Netns::unnamed()).collect::<Result<_, _>>()?;
        let links = cluster.node().links()?;
        let (adds, dels) = (Samples::new(), Samples::new());
        Ok(Self { cluster, namespaces, links, connected: Vec::new(), adds, dels, cpu: Duration::ZERO })
    }

    fn add(&mut self, batch: usize, pod: usize, counts: bool) -> Result<()> {
        let (id, netns) = (format!("bench-{batch}-{pod}"), path_of(&self.namespaces[pod]));
        let node = self.cluster.node();
        let before = plugins_cpu()?;
        let (result, took) = node.run_in(|| timed(|| node.plugins.add(&id, &netns)))?;
        self.cpu += plugins_cpu()? - before;
        if counts {
            self.adds.add_warm(took);
        }
        self.connected.push((id, netns, result));
        Ok(())
    }

    /// Disconnects all pods sequentially.
    fn delete(&mut self, counts: bool) -> Result<()> {
        let node = self.cluster.node();
        for (id, netns, result) in self.connected.drain(..) {
            let before = plugins_cpu()?;
            let ((), took) = node.run_in(|| timed(|| node.plugins.del(&id, &netns, &result)))?;
            self.cpu += plugins_cpu()? - before;
            if counts {
                self.dels.add_warm(took);
            }
        }
        node.settle(self.links)
    }

    /// Connects all pods concurrently, and disconnects them.
    fn add_all(&mut self, batch: usize, counts: bool, all: &mut Samples) -> Result<()> {
        let (node, barrier) = (self.cluster.node(), Barrier::new(self.namespaces.len()));
        let done = std::thread::scope(|scope| {
            let call = |pod: usize, netns: String| {
                let id = format!("many-{batch}-{pod}");
                let barrier = &barrier;
                move || {
                    let entered = node.enter();
                    barrier.wait();
                    entered?;
                    let start = Instant::now();
                    let result = node.plugins.add(&id, &netns)?;
                    Ok(((id, netns, result), start, Instant::now()))
                }
            };
            let calls: Vec<_> = self
                .namespaces
                .iter()
                .enumerate()
                .map(|(pod, netns)| scope.spawn(call(pod, path_of(netns))))
                .collect();
            let joined = calls.into_iter().map(|one| one.join().expect("a call does not panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        let start = done.iter().map(|(_, start, _)| *start).min().context("no pods")?;
        let end = done.iter().map(|(_, _, end)| *end).max().context("no pods")?;
        if counts {
            done.iter().for_each(|(_, start, end)| self.adds.add_warm(*end - *start));
            all.add_warm(end - start);
        }
        self.connected = done.into_iter().map(|(pod, ..)| pod).collect();
        self.delete(false)
    }
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    let outcome = work()?;
    Ok((outcome, start.elapsed()))
}

/// The CPU time of ended child processes.
fn plugins_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read the CPU time of plugins")?;
    let time = usage.user_time() + usage.system_time();
    Ok(Duration::new(time.tv_sec().try_into()?, u32::try_from(time.tv_usec())? * 1_000))
}

/// The CPU time of a cluster's agent.
pub fn agent_cpu(cluster: &BenchCluster) -> Result<Duration> {
    Ok(agent(cluster)?.map(|used| used.cpu).unwrap_or_default())
}

/// The resource usage of a cluster's agent, if it has one.
pub fn agent(cluster: &BenchCluster) -> Result<Option<programs::Usage>> {
    cluster.agent()?.as_ref().map(programs::usage).transpose()
}
