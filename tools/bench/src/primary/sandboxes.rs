//! A pod's start and end as a kubelet sees them, through containerd: most of it is not the network.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::plugins::agent_cpu;
use super::side::Side;
use super::{Extent, Sides};
use crate::attach::in_turn;
use knit_report::Report;
use knit_report::Samples;

/// What the rows are called.
pub const STARTED: &str = "sandbox started";
const REMOVED: &str = "sandbox stopped and removed";
const WARM_UP: usize = 5;

/// Measures sandboxes one by one, then many at once.
pub fn run(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    let before = agent_cpu(&sides.knit)?;
    one_by_one(report, sides, extent.rounds, "")?;
    let each = (agent_cpu(&sides.knit)? - before).as_secs_f64() * 1e3 / (extent.rounds + WARM_UP) as f64;
    report.add_once("Knit: agent, CPU of a sandbox's start and end", each, "ms", None);
    at_once(report, sides, extent)
}

/// Sandboxes one by one, on both sides in turn. `with` says how the nodes are.
pub fn one_by_one(report: &mut Report, sides: &Sides, rounds: usize, with: &str) -> Result<()> {
    let [mut run, mut remove, mut reference_run, mut reference_remove] = [const { Samples::new() }; 4];
    for round in 0..rounds + WARM_UP {
        let pod = |side: &Side, run: &mut Samples, remove: &mut Samples| {
            let cri = &side.node().cri;
            let began = Instant::now();
            let pod = cri.run(&format!("one-{round}"))?;
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
            || pod(&sides.knit, &mut run, &mut remove),
            || pod(&sides.reference, &mut reference_run, &mut reference_remove),
        )?;
    }
    let (started, removed) = (format!("{STARTED}{with}"), format!("{REMOVED}{with}"));
    report.add_times(&sides.knit.row(&started), &run)?;
    report.add_times(&sides.knit.row(&removed), &remove)?;
    report.add_times(&sides.reference.row(&started), &reference_run)?;
    report.add_times(&sides.reference.row(&removed), &reference_remove)?;
    for what in [started, removed] {
        report.compare(&sides.knit.row(&what), &sides.reference.row(&what), None)?;
    }
    Ok(())
}

fn at_once(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    let number = extent.together;
    let [mut one, mut all, mut reference_one, mut reference_all] = [const { Samples::new() }; 4];
    let mut churn = Churn::default();
    for batch in 0..=extent.rounds.div_ceil(number) {
        let pods = |side: &Side, one: &mut Samples, all: &mut Samples| {
            let links = side.node().links()?;
            let names = (0..number).map(|pod| format!("many-{batch}-{pod}")).collect();
            let began = Instant::now();
            let started = side.node().cri.run_all(names)?;
            if batch > 0 {
                all.add_warm(began.elapsed());
                started.iter().for_each(|(_, time)| one.add_warm(*time));
            }
            side.node().cri.remove_all(started.into_iter().map(|(pod, _)| pod.id).collect())?;
            side.node().settle(links)
        };
        in_turn(
            batch,
            || churn.of(&sides.knit, number, || pods(&sides.knit, &mut one, &mut all)),
            || pods(&sides.reference, &mut reference_one, &mut reference_all),
        )?;
    }
    let (single, whole) =
        (format!("{STARTED}, one of {number} at once"), format!("{STARTED}, all of {number} at once"));
    for (side, one, all) in [(&sides.knit, &one, &all), (&sides.reference, &reference_one, &reference_all)] {
        report.add_times(&side.row(&single), one)?;
        report.add_median(&side.row(&whole), all)?;
    }
    for what in [single, whole] {
        report.compare(&sides.knit.row(&what), &sides.reference.row(&what), None)?;
    }
    churn.add(report);
    Ok(())
}

/// What the agent takes of a CPU while pods come and go as fast as the runtime can.
#[derive(Default)]
struct Churn {
    pods: usize,
    time: Duration,
    cpu: Duration,
}

impl Churn {
    fn of(&mut self, side: &Side, pods: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let (cpu, began) = (agent_cpu(side)?, Instant::now());
        work()?;
        self.pods += pods;
        self.time += began.elapsed();
        self.cpu += agent_cpu(side)? - cpu;
        Ok(())
    }

    fn add(&self, report: &mut Report) {
        let (pods, share) = (self.pods as f64, 100.0 * self.cpu.as_secs_f64());
        let time = self.time.as_secs_f64();
        let name = format!("Knit: agent, CPU while {:.1} pods a second come and go", pods / time);
        report.add_once(&name, share / time, "% of a core", None);
    }
}
