//! What of a pod's start is its network: the plugins that a container runtime calls, called as it calls them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use knit_kernel::Netns;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use super::side::Side;
use super::{Extent, Sides};
use crate::attach::in_turn;
use crate::kni::path_of;
use knit_report::Samples;
use knit_report::{Goal, Report};
use knit_soak::harness::programs;

/// What the rows are called.
pub const ADD: &str = "CNI ADD";
const DEL: &str = "CNI DEL";
/// So many pods come before the first of them goes.
const BATCH: usize = 10;
/// Knit's part of a pod's start against the reference's: five times faster.
const GOAL: Goal = Goal::AtMost(0.2);

/// Measures calls one by one, then many at once.
pub fn run(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    one_by_one(report, sides, extent.rounds, "")?;
    at_once(report, sides, extent)
}

/// Calls one by one, on both sides in turn. `with` says how the nodes are.
pub fn one_by_one(report: &mut Report, sides: &Sides, rounds: usize, with: &str) -> Result<()> {
    let (mut knit, mut reference) = (Pods::new(&sides.knit, BATCH)?, Pods::new(&sides.reference, BATCH)?);
    let before = agent_cpu(&sides.knit)?;
    let batches = rounds.div_ceil(BATCH) + 1;
    for batch in 0..batches {
        // The first is the warm-up.
        let counts = batch > 0;
        for pod in 0..BATCH {
            in_turn(pod, || knit.add(batch, pod, counts), || reference.add(batch, pod, counts))?;
        }
        in_turn(batch, || knit.delete(counts), || reference.delete(counts))?;
    }
    knit.cpu += agent_cpu(&sides.knit)? - before;
    let (add, del) = (format!("{ADD}{with}"), format!("{DEL}{with}"));
    for pods in [&knit, &reference] {
        report.add_times(&pods.side.row(&add), &pods.adds)?;
        report.add_times(&pods.side.row(&del), &pods.dels)?;
    }
    let cpu = format!("CPU of a {ADD} and {DEL}{with}");
    for pods in [&knit, &reference] {
        let each = pods.cpu.as_secs_f64() * 1e3 / (batches * BATCH) as f64;
        report.add_once(&pods.side.row(&cpu), each, "ms", None);
    }
    let compared = |what: &str| (sides.knit.row(what), sides.reference.row(what));
    let (one, other) = compared(&add);
    report.compare(&one, &other, Some(GOAL))?;
    let (one, other) = compared(&del);
    report.compare(&one, &other, None)?;
    let (one, other) = compared(&cpu);
    report.compare_once(&one, &other, None)
}

fn at_once(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    let number = extent.together;
    let (mut knit, mut reference) = (Pods::new(&sides.knit, number)?, Pods::new(&sides.reference, number)?);
    let [mut all, mut reference_all] = [const { Samples::new() }; 2];
    for batch in 0..=extent.rounds.div_ceil(number) {
        let counts = batch > 0;
        in_turn(
            batch,
            || knit.together(batch, counts, &mut all),
            || reference.together(batch, counts, &mut reference_all),
        )?;
    }
    let (one, whole) = (format!("{ADD}, one of {number} at once"), format!("{ADD}, all of {number} at once"));
    for (pods, all) in [(&knit, &all), (&reference, &reference_all)] {
        report.add_times(&pods.side.row(&one), &pods.adds)?;
        report.add_median(&pods.side.row(&whole), all)?;
    }
    for what in [one, whole] {
        report.compare(&sides.knit.row(&what), &sides.reference.row(&what), Some(GOAL))?;
    }
    Ok(())
}

/// Namespaces that are connected and disconnected over and over: making and ending them would disturb what is measured.
struct Pods<'a> {
    side: &'a Side,
    spaces: Vec<Netns>,
    /// What the node had before.
    links: usize,
    connected: Vec<(String, String, Value)>,
    adds: Samples,
    dels: Samples,
    /// What the plugins took of a CPU.
    cpu: Duration,
}

impl<'a> Pods<'a> {
    fn new(side: &'a Side, number: usize) -> Result<Self> {
        let spaces = (0..number).map(|_| Netns::unnamed()).collect::<Result<_, _>>()?;
        let links = side.node().links()?;
        let (adds, dels) = (Samples::new(), Samples::new());
        Ok(Self { side, spaces, links, connected: Vec::new(), adds, dels, cpu: Duration::ZERO })
    }

    fn add(&mut self, batch: usize, pod: usize, counts: bool) -> Result<()> {
        let (id, netns) = (format!("bench-{batch}-{pod}"), path_of(&self.spaces[pod]));
        let node = self.side.node();
        let before = plugins_cpu()?;
        let (result, took) = node.inside(|| timed(|| node.plugins.add(&id, &netns)))?;
        self.cpu += plugins_cpu()? - before;
        if counts {
            self.adds.add_warm(took);
        }
        self.connected.push((id, netns, result));
        Ok(())
    }

    /// Takes all away, one by one.
    fn delete(&mut self, counts: bool) -> Result<()> {
        let node = self.side.node();
        for (id, netns, result) in self.connected.drain(..) {
            let before = plugins_cpu()?;
            let ((), took) = node.inside(|| timed(|| node.plugins.del(&id, &netns, &result)))?;
            self.cpu += plugins_cpu()? - before;
            if counts {
                self.dels.add_warm(took);
            }
        }
        node.settle(self.links)
    }

    /// Connects all pods at once, and takes them away again.
    fn together(&mut self, batch: usize, counts: bool, all: &mut Samples) -> Result<()> {
        let (node, begin) = (self.side.node(), Barrier::new(self.spaces.len()));
        let done = std::thread::scope(|scope| {
            let call = |pod: usize, netns: String| {
                let id = format!("many-{batch}-{pod}");
                let begin = &begin;
                move || {
                    let entered = node.enter();
                    begin.wait();
                    entered?;
                    let began = Instant::now();
                    let result = node.plugins.add(&id, &netns)?;
                    Ok(((id, netns, result), began, Instant::now()))
                }
            };
            let calls: Vec<_> = self
                .spaces
                .iter()
                .enumerate()
                .map(|(pod, space)| scope.spawn(call(pod, path_of(space))))
                .collect();
            let joined = calls.into_iter().map(|one| one.join().expect("a call does not panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        let began = done.iter().map(|(_, began, _)| *began).min().context("there are pods")?;
        let ended = done.iter().map(|(_, _, ended)| *ended).max().context("there are pods")?;
        if counts {
            done.iter().for_each(|(_, began, ended)| self.adds.add_warm(*ended - *began));
            all.add_warm(ended - began);
        }
        self.connected = done.into_iter().map(|(pod, ..)| pod).collect();
        self.delete(false)
    }
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let began = Instant::now();
    let outcome = work()?;
    Ok((outcome, began.elapsed()))
}

/// What children of this process, and theirs, have taken of a CPU.
fn plugins_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot look at what plugins used")?;
    let time = usage.user_time() + usage.system_time();
    Ok(Duration::new(time.tv_sec().try_into()?, u32::try_from(time.tv_usec())? * 1_000))
}

/// What a side's agent has taken of a CPU.
pub fn agent_cpu(side: &Side) -> Result<Duration> {
    Ok(agent(side)?.map(|used| used.cpu).unwrap_or_default())
}

/// What a side's agent uses, if it has one.
pub fn agent(side: &Side) -> Result<Option<programs::Usage>> {
    side.agent()?.as_ref().map(programs::usage).transpose()
}
