//! `bench hotplug`: an object adds an interface to running pods, on a separate cluster with two nodes and a hundred pods and
//! Knit installed from `deploy/beside`.
//!
//! The watch latency of the API server is measured with every object by a separate watch and reported separately: Knit cannot
//! start before it receives the event.

mod latency;
mod load;
mod requests;
mod standalone;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::attach::{measure, raise_descriptor_limit, scratch_host};
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_soak::harness::pods::{self, PodSpec, RunningPod};
use knit_soak::harness::{KnitCluster, programs};

/// The cluster's name, distinct from those of other test clusters.
const CLUSTER: &str = "bench";
/// The namespace of its pods.
const NAMESPACE: &str = "hotplug";
/// The numbers of pods that an object selects.
const SIZES: [usize; 3] = [1, 10, 100];

/// Measures everything.
pub fn run(rounds: u32, image: Option<&Path>) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let mut report = Report::default();
    let knit = KnitCluster::up(CLUSTER, image)?;
    let largest = SIZES[SIZES.len() - 1];
    let pods = measure("start 100 pods", || {
        pods::create_namespace(&knit, NAMESPACE)?;
        pods::create_running(&knit, NAMESPACE, &(0..largest).map(pod_spec).collect::<Vec<_>>())
    })?;
    measure("memory and CPU while idle", || load::idle(&mut report, &knit, "no object"))?;
    let mut hot = latency::Hotplug::start(&knit, pods)?;
    for size in SIZES {
        measure(&format!("an object for {size} pods, repeatedly"), || {
            let before = load::UsageSnapshot::take(&knit)?;
            let attachments = hot.measure(&mut report, size, rounds as usize)?;
            if size == 10 {
                load::churn(&mut report, &knit, &before, attachments)?;
            }
            Ok(())
        })?;
    }
    for size in SIZES {
        measure(&format!("requests for {size} pods"), || requests::measure(&mut report, &mut hot, size))?;
    }
    measure("memory and CPU while idle, with an object", || {
        hot.attach(largest)?;
        load::idle(&mut report, &knit, "an object on 100 pods")?;
        hot.detach(largest)
    })?;
    drop(hot);
    drop(knit);
    measure("128 sandboxes x 16 interfaces, standalone", || {
        scratch_host()?.enter(|| standalone::measure(&mut report))?
    })?;
    Ok(report)
}

/// Pods alternate between the nodes and have a label for each size that includes them.
fn pod_spec(number: usize) -> PodSpec {
    let labels = SIZES.iter().filter(|size| number < **size).map(|size| (label(*size), "yes".to_owned()));
    let node = if number.is_multiple_of(2) { 1 } else { 2 };
    PodSpec { name: format!("pod-{number}"), node, labels: labels.collect::<BTreeMap<_, _>>() }
}

fn label(size: usize) -> String {
    format!("of-{size}")
}
