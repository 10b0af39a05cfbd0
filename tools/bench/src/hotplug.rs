//! `bench hotplug`: an object is written, and pods that run already have another interface. On a cluster of its own with two
//! nodes and a hundred pods, Knit installed as people install it, and nothing else to do.
//!
//! What the API server takes to tell a watch is measured with every object, by a watch of the benchmark's own, and is shown
//! apart: Knit cannot begin before it is told.

mod latency;
mod load;
mod requests;
mod standalone;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::attach::{hold_many_namespaces, measure, scratch_host};
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_soak::harness::pods::{self, Running, Wanted};
use knit_soak::harness::{Beside, programs};

/// The cluster's name, so that others stay as they are.
const CLUSTER: &str = "bench";
/// The namespace of its pods.
const NAMESPACE: &str = "hotplug";
/// How many pods an object is for.
const SIZES: [usize; 3] = [1, 10, 100];

/// Measures everything.
pub fn run(rounds: u32, image: Option<&Path>) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    hold_many_namespaces()?;
    let mut report = Report::default();
    let beside = Beside::up(CLUSTER, image)?;
    let most = SIZES[SIZES.len() - 1];
    let pods = measure("start 100 pods", || {
        pods::make_namespace(&beside, NAMESPACE)?;
        pods::run(&beside, NAMESPACE, &(0..most).map(wanted).collect::<Vec<_>>())
    })?;
    measure("memory and CPU while nothing happens", || load::idle(&mut report, &beside, "no object"))?;
    let mut hot = latency::Hot::start(&beside, pods)?;
    for size in SIZES {
        measure(&format!("an object for {size} pods, many times"), || {
            let before = load::Moment::now(&beside)?;
            let attachments = hot.measure(&mut report, size, rounds as usize)?;
            if size == 10 {
                load::churn(&mut report, &beside, &before, attachments)?;
            }
            Ok(())
        })?;
    }
    for size in SIZES {
        measure(&format!("requests for {size} pods"), || requests::measure(&mut report, &mut hot, size))?;
    }
    measure("memory and CPU while nothing happens, with an object", || {
        hot.attach(most)?;
        load::idle(&mut report, &beside, "an object on 100 pods")?;
        hot.detach(most)
    })?;
    drop(hot);
    drop(beside);
    measure("128 sandboxes x 16 interfaces, standalone", || {
        scratch_host()?.enter(|| standalone::measure(&mut report))?
    })?;
    Ok(report)
}

/// Pods lie on both nodes in turn, and are known by the smallest size that they belong to.
fn wanted(number: usize) -> Wanted {
    let labels = SIZES.iter().filter(|size| number < **size).map(|size| (label(*size), "yes".to_owned()));
    let node = if number.is_multiple_of(2) { 1 } else { 2 };
    Wanted { name: format!("pod-{number}"), node, labels: labels.collect::<BTreeMap<_, _>>() }
}

fn label(size: usize) -> String {
    format!("of-{size}")
}
