//! Pods that are connected and disconnected by the CNI plugins of a node, without a container runtime.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use knit_kernel::Netns;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use super::node::Node;
use crate::kni::path_of;
use knit_report::Samples;

/// The names of the rows.
pub const ADD: &str = "CNI ADD";
/// The same for DEL.
pub const DEL: &str = "CNI DEL";
/// The number of pods that are added before the first one is deleted.
pub const BATCH: usize = 10;

/// Network namespaces that are connected and disconnected repeatedly: creating and deleting them would disturb the measurement.
pub struct Pods<'a> {
    node: &'a Node,
    namespaces: Vec<Netns>,
    /// The number of links of the node before.
    links: usize,
    connected: Vec<(String, String, Value)>,
    /// The duration of each ADD that counts.
    pub adds: Samples,
    /// The duration of each DEL that counts.
    pub dels: Samples,
    /// The CPU time of the plugins.
    pub cpu: Duration,
}

impl<'a> Pods<'a> {
    /// Creates the namespaces of pods on a node.
    pub fn new(node: &'a Node, number: usize) -> Result<Self> {
        let namespaces = (0..number).map(|_| Netns::unnamed()).collect::<Result<_, _>>()?;
        let links = node.links()?;
        let (adds, dels) = (Samples::new(), Samples::new());
        Ok(Self { node, namespaces, links, connected: Vec::new(), adds, dels, cpu: Duration::ZERO })
    }

    /// Connects one pod.
    pub fn add(&mut self, batch: usize, pod: usize, counts: bool) -> Result<()> {
        let (id, netns) = (format!("bench-{batch}-{pod}"), path_of(&self.namespaces[pod]));
        let node = self.node;
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
    pub fn delete(&mut self, counts: bool) -> Result<()> {
        let node = self.node;
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
    pub fn add_all(&mut self, batch: usize, counts: bool, all: &mut Samples) -> Result<()> {
        let (node, barrier) = (self.node, Barrier::new(self.namespaces.len()));
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
