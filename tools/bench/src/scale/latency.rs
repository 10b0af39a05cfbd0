//! CNI ADD and DEL on the measured node, in turn with an attach over bare netlink: how much slower the machine became between
//! the two measurements.

use std::time::Instant;

use anyhow::Result;

use crate::attach::{alternate, scratch_host};
use crate::netlink_host::NetlinkHost;
use crate::primary::node::Node;
use crate::primary::pods::{ADD, BATCH, DEL, Pods};
use knit_report::{Goal, Report, Samples};

const FLOOR: &str = "bare netlink: attach";
/// The goal for an ADD in a large cluster compared with a small one.
const GOAL: Goal = Goal::AtMost(1.05);

/// Measures sequential calls. `first` is the number of the first batch: an id is used once.
pub fn measure(report: &mut Report, node: &Node, rounds: usize, first: usize, cluster: &str) -> Result<()> {
    let mut pods = Pods::new(node, BATCH)?;
    let (mut host, mut floor) = (NetlinkHost::new(&scratch_host()?, BATCH)?, Samples::new());
    for batch in first..=first + rounds.div_ceil(BATCH) {
        // The first batch is the warm-up.
        let counts = batch > first;
        for pod in 0..BATCH {
            let bare = || {
                let start = Instant::now();
                host.attach(pod)?;
                if counts {
                    floor.add_warm(start.elapsed());
                }
                Ok(())
            };
            alternate(pod, || pods.add(batch, pod, counts), bare)?;
        }
        pods.delete(counts)?;
        host.delete_group()?;
    }
    report.add_times(&row(ADD, cluster), &pods.adds)?;
    report.add_times(&row(DEL, cluster), &pods.dels)?;
    report.add_times(&row(FLOOR, cluster), &floor)
}

/// Compares the measurements of two clusters.
pub fn compare(report: &mut Report, large: &str, small: &str) -> Result<()> {
    report.compare(&row(ADD, large), &row(ADD, small), Some(GOAL))?;
    report.compare(&row(DEL, large), &row(DEL, small), None)?;
    report.compare(&row(FLOOR, large), &row(FLOOR, small), None)
}

fn row(what: &str, cluster: &str) -> String {
    format!("{what}, {cluster}")
}
