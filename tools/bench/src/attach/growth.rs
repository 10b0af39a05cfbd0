//! How the cost of the n-th attach grows with n, for bare netlink and for Knit.

use anyhow::Result;

use super::knit::{Knit, Pod};
use super::{alternate, scratch_host};
use crate::netlink_host::NetlinkHost;
use knit_dev::progress::Step;
use knit_report::Samples;
use knit_report::{Goal, Report};

/// The measured attaches. A bridge has at most 1,023 ports.
const ATTACH_NUMBERS: [usize; 5] = [1, 10, 100, 500, 1000];

const FLOOR_GROWTH: &str = "bare netlink: growth from 1 to 1,000";
const KNIT_GROWTH: &str = "Knit: growth from 1 to 1,000";

/// For each n: n - 1 pods are attached, then the n-th is attached and detached repeatedly.
pub fn measure(report: &mut Report, rounds: usize) -> Result<()> {
    let largest = ATTACH_NUMBERS[ATTACH_NUMBERS.len() - 1];
    let step = Step::start(format!("create two hosts with {largest} pods each"));
    // One queue like Knit's links: the cost of waiting for CPUs is constant and would hide the growth.
    let mut netlink = NetlinkHost::new(&scratch_host()?, largest)?.with_one_queue();
    let pods = (0..largest).map(|_| Pod::new()).collect::<Result<Vec<_>>>()?;
    step.done();

    // A new host for Knit too: the thread's own has had other links.
    let host = scratch_host()?;
    let folder = tempfile::tempdir()?;
    let measured = host.enter(|| {
        let mut knit = Knit::open(folder.path())?;
        let mut attached = 0;
        let mut measured = Vec::new();
        for number in ATTACH_NUMBERS {
            let step = Step::start(format!("attach number {number}"));
            for (index, pod) in pods.iter().enumerate().take(number - 1).skip(attached) {
                netlink.attach(index)?;
                attach(&mut knit, pod)?;
            }
            attached = number - 1;
            let [floor, with_knit] =
                measure_last(&mut netlink, &mut knit, &pods[attached], attached, rounds)?;
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
    report.add_growth(FLOOR_GROWTH, &row("bare netlink", 1), &row("bare netlink", largest))?;
    report.add_growth(KNIT_GROWTH, &row("Knit", 1), &row("Knit", largest))?;
    report.compare(KNIT_GROWTH, FLOOR_GROWTH, Some(Goal::AtMost(1.1)))
}

fn row(label: &str, number: usize) -> String {
    format!("{label}: attach number {number}")
}

fn attach(knit: &mut Knit, pod: &Pod) -> Result<()> {
    let sandbox = knit.sandbox(pod)?;
    let id = sandbox.id.clone();
    knit.attach(sandbox)?;
    knit.check(&id)
}

fn measure_last(
    host: &mut NetlinkHost,
    knit: &mut Knit,
    pod: &Pod,
    index: usize,
    rounds: usize,
) -> Result<[Samples; 2]> {
    let [mut floor, mut with_knit] = [const { Samples::new() }; 2];
    // The first attach sets `lo` up.
    host.attach(index)?;
    host.delete(index)?;
    for round in 0..rounds {
        let sandbox = knit.sandbox(pod)?;
        let id = sandbox.id.clone();
        alternate(
            round,
            || floor.time(|| host.attach_to_running(index)),
            || with_knit.time(|| knit.attach(sandbox)),
        )?;
        knit.check(&id)?;
        host.delete(index)?;
        knit.detach(id)?;
        knit.delete_deferred()?;
    }
    Ok([floor, with_knit])
}
