//! How the cost of the n-th attach grows with n, for bare netlink and for Knit, side by side.

use anyhow::Result;

use super::knit::{Knit, Pod};
use super::{in_turn, scratch_host};
use crate::ground::Ground;
use knit_dev::progress::Step;
use knit_report::Samples;
use knit_report::{Goal, Report};

/// Which attaches are measured. A bridge takes 1,023 ports.
const NUMBERS: [usize; 5] = [1, 10, 100, 500, 1000];

const FLOOR_GROWTH: &str = "bare netlink: growth from 1 to 1,000";
const KNIT_GROWTH: &str = "Knit: growth from 1 to 1,000";

/// For each number: so many pods but one are attached, then the last one is attached and detached again and again.
pub fn measure(report: &mut Report, rounds: usize) -> Result<()> {
    let most = NUMBERS[NUMBERS.len() - 1];
    let step = Step::start(format!("lay out two hosts with {most} pods each"));
    // With the queues that Knit's links have: waiting for CPUs does not grow, and would hide what does.
    let mut ground = Ground::new(&scratch_host()?, most)?.with_one_queue();
    let pods = (0..most).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    step.done();

    // A host of its own for Knit too: the thread's own has had other links.
    let host = scratch_host()?;
    let folder = tempfile::tempdir()?;
    let measured = host.enter(|| {
        let mut knit = Knit::open(folder.path())?;
        let mut attached = 0;
        let mut measured = Vec::new();
        for number in NUMBERS {
            let step = Step::start(format!("attach number {number}"));
            for (index, pod) in pods.iter().enumerate().take(number - 1).skip(attached) {
                ground.attach(index)?;
                attach(&mut knit, pod)?;
            }
            attached = number - 1;
            let [floor, with_knit] = last(&mut ground, &mut knit, &pods[attached], attached, rounds)?;
            measured.push((number, floor, with_knit));
            step.done();
        }
        anyhow::Ok(measured)
    })??;

    for (number, floor, _) in &measured {
        report.add(&row("bare netlink", *number), floor)?;
    }
    for (number, _, with_knit) in &measured {
        report.add(&row("Knit", *number), with_knit)?;
        report.compare(&row("Knit", *number), &row("bare netlink", *number), None)?;
    }
    report.add_growth(FLOOR_GROWTH, &row("bare netlink", 1), &row("bare netlink", most))?;
    report.add_growth(KNIT_GROWTH, &row("Knit", 1), &row("Knit", most))?;
    report.compare(KNIT_GROWTH, FLOOR_GROWTH, Some(Goal::AtMost(1.1)))
}

fn row(who: &str, number: usize) -> String {
    format!("{who}: attach number {number}")
}

fn attach(knit: &mut Knit, pod: &Pod) -> Result<()> {
    let sandbox = knit.sandbox(pod)?;
    let id = sandbox.id.clone();
    knit.attach(sandbox)?;
    knit.check(&id)
}

fn last(
    ground: &mut Ground,
    knit: &mut Knit,
    pod: &Pod,
    index: usize,
    rounds: usize,
) -> Result<[Samples; 2]> {
    let [mut floor, mut with_knit] = [const { Samples::new() }; 2];
    // The first attach brings `lo` up.
    ground.attach(index)?;
    ground.delete(index)?;
    for round in 0..rounds {
        let sandbox = knit.sandbox(pod)?;
        let id = sandbox.id.clone();
        in_turn(
            round,
            || floor.time(|| ground.attach_to_running(index)),
            || with_knit.time(|| knit.attach(sandbox)),
        )?;
        knit.check(&id)?;
        ground.delete(index)?;
        knit.detach(id)?;
        knit.tidy()?;
    }
    Ok([floor, with_knit])
}
