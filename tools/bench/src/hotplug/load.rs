//! What Knit's programs keep in memory and take of a CPU, with nothing to do and with much.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::programs::{self, Program, Usage};
use super::{Beside, Report};

/// How long nothing happens before, and while, it is looked.
const QUIET: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);
/// What a program with nothing to do may take of one CPU, in percent.
const GOAL: f64 = 0.5;

/// What all programs had used at a moment.
pub struct Moment {
    at: Instant,
    programs: Vec<Program>,
    usages: BTreeMap<i32, Usage>,
}

impl Moment {
    /// Looks at all of Knit's programs.
    pub fn now(beside: &Beside) -> Result<Self> {
        let programs = programs::find(beside.cluster())?;
        Ok(Self { at: Instant::now(), usages: programs::all(&programs)?, programs })
    }
}

/// Memory and CPU while nothing happens.
pub fn idle(report: &mut Report, beside: &Beside, with: &str) -> Result<()> {
    std::thread::sleep(QUIET);
    let before = Moment::now(beside)?;
    std::thread::sleep(IDLE);
    add(report, beside, &before, &format!("idle, {with}"), Some(GOAL))
}

/// The same while so many attachments were made and taken away.
pub fn churn(report: &mut Report, beside: &Beside, before: &Moment, attachments: usize) -> Result<()> {
    let rate = attachments as f64 / before.at.elapsed().as_secs_f64();
    let what = format!("{rate:.0} attaches and detaches a second");
    add(report, beside, before, &what, None)
}

fn add(report: &mut Report, beside: &Beside, before: &Moment, when: &str, goal: Option<f64>) -> Result<()> {
    let after = Moment::now(beside)?;
    let passed = (after.at - before.at).as_secs_f64();
    // Of several the one that does most: the busier agent, the controller that holds the lease.
    for role in ["agent", "controller"] {
        let of_role = after.programs.iter().filter(|program| program.role == role);
        let mut most: Option<(f64, f64)> = None;
        for program in of_role {
            let (Some(old), Some(new)) = (before.usages.get(&program.pid), after.usages.get(&program.pid))
            else {
                continue;
            };
            let share = 100.0 * (new.cpu - old.cpu).as_secs_f64() / passed;
            if most.is_none_or(|(other, memory)| (share, new.anonymous) > (other, memory)) {
                most = Some((share, new.anonymous));
            }
        }
        let (share, memory) = most.with_context(|| format!("no {role} ran all the time"))?;
        report.add_once(&format!("{role}, {when}: CPU"), share, "% of a core", goal);
        report.add_once(&format!("{role}, {when}: RssAnon"), memory, "MiB", None);
    }
    Ok(())
}
