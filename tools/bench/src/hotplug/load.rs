//! Memory and CPU usage of Knit's processes, idle and busy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::programs::{self, Program, Usage};
use super::{KnitCluster, Report};

/// How long the cluster must be idle before the measurement, and how long it takes.
const SETTLE_TIME: Duration = Duration::from_secs(5);
const MEASURE_TIME: Duration = Duration::from_secs(30);
/// The goal for the CPU usage of an idle process, in percent.
const MAX_IDLE_CPU: f64 = 0.5;

/// The usage of all processes at one time.
pub struct UsageSnapshot {
    at: Instant,
    programs: Vec<Program>,
    usages: BTreeMap<i32, Usage>,
}

impl UsageSnapshot {
    /// Reads the usage of all of Knit's processes.
    pub fn take(knit: &KnitCluster) -> Result<Self> {
        let programs = programs::find(knit.cluster())?;
        Ok(Self { at: Instant::now(), usages: programs::usage_by_pid(&programs)?, programs })
    }
}

/// Memory and CPU while idle.
pub fn idle(report: &mut Report, knit: &KnitCluster, with: &str) -> Result<()> {
    std::thread::sleep(SETTLE_TIME);
    let before = UsageSnapshot::take(knit)?;
    std::thread::sleep(MEASURE_TIME);
    add(report, knit, &before, &format!("idle, {with}"), Some(MAX_IDLE_CPU))
}

/// The same during this many attaches and detaches.
pub fn churn(
    report: &mut Report,
    knit: &KnitCluster,
    before: &UsageSnapshot,
    attachments: usize,
) -> Result<()> {
    let rate = attachments as f64 / before.at.elapsed().as_secs_f64();
    let what = format!("{rate:.0} attaches and detaches per second");
    add(report, knit, before, &what, None)
}

fn add(
    report: &mut Report,
    knit: &KnitCluster,
    before: &UsageSnapshot,
    when: &str,
    goal: Option<f64>,
) -> Result<()> {
    let after = UsageSnapshot::take(knit)?;
    let elapsed = (after.at - before.at).as_secs_f64();
    // The busiest of each role: the busier agent, the leader of the controllers.
    for role in ["agent", "controller"] {
        let of_role = after.programs.iter().filter(|program| program.role == role);
        let mut busiest: Option<(f64, f64)> = None;
        for program in of_role {
            let (Some(old), Some(new)) = (before.usages.get(&program.pid), after.usages.get(&program.pid))
            else {
                continue;
            };
            let share = 100.0 * (new.cpu - old.cpu).as_secs_f64() / elapsed;
            if busiest.is_none_or(|(other, memory)| (share, new.anonymous) > (other, memory)) {
                busiest = Some((share, new.anonymous));
            }
        }
        let (share, memory) =
            busiest.with_context(|| format!("no {role} ran during the whole measurement"))?;
        report.add_value(&format!("{role}, {when}: CPU"), share, "% of a core", goal);
        report.add_value(&format!("{role}, {when}: RssAnon"), memory, "MiB", None);
    }
    Ok(())
}
