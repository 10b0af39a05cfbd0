//! What policies add to a pod's start: a CNI ADD of a pod with many policies and of one without.

use anyhow::{Context, Result};
use knit_policy::Policy;
use serde_json::json;

use super::node::PolicyNode;
use super::objects::{self, APP, ClusterPod};
use crate::attach::Pod;
use knit_report::{Report, Samples, WARM_UP};

/// The namespace of the pods.
pub const NAMESPACE: &str = "start";
/// The number of policies of a pod.
const POLICIES: usize = 50;
/// The goal: what they may add, in milliseconds.
const MAX_ADDED_MS: f64 = 1.5;

/// The apps: without policies; with policies, of which the node has a pod; with policies, of which it has none.
const APPS: [&str; 3] = ["free", "known", "new"];
const ROWS: [&str; 3] = [
    "pod's start without policies",
    "pod's start with 50 policies",
    "pod's start with 50 policies, the first such pod of the node",
];

/// The policies of two of the apps.
pub fn policies() -> Vec<Policy> {
    let of_app = |app: &'static str| {
        (0..POLICIES).map(move |number| {
            let peers = json!([{"podSelector": objects::matching(&format!("peer-{}", number % 10))}]);
            let rules = json!({"ingress": [{"from": peers, "ports": [{"port": 8_000 + number}]}]});
            objects::policy(NAMESPACE, &format!("{app}-{number}"), app, &rules)
        })
    };
    APPS[1..].iter().flat_map(|app| of_app(app)).collect()
}

/// The pod of the node that has the policies of the second app, as long as it runs.
pub fn known_pod() -> ClusterPod {
    pod(APPS[1], 0)
}

/// Measures all apps in turn. The pod with the policies of the second one is running.
pub fn measure(report: &mut Report, node: &PolicyNode, rounds: usize) -> Result<()> {
    let pods = [Pod::new()?, Pod::new()?, Pod::new()?];
    let mut samples = [const { Samples::new() }; 3];
    for round in 0..WARM_UP + rounds {
        for turn in 0..APPS.len() {
            // Each app is the first one equally often.
            let at = (round + turn) % APPS.len();
            let object = pod(APPS[at], round + 1);
            // The kubelet starts pods that the API server has.
            node.change(vec![object.applied()])?;
            let addresses = samples[at].time(|| node.attach(&object, &pods[at]))?;
            let running = object.clone().at(&addresses);
            node.change(vec![running.applied()])?;
            node.detach(&object, &pods[at])?;
            node.change(vec![object.deleted()])?;
        }
    }
    node.settle()?;
    for (name, samples) in ROWS.iter().zip(&samples) {
        report.add_times(name, samples)?;
    }
    let medians: Vec<_> = samples.iter().map(|samples| samples.quantile(0.5)).collect();
    for (name, median) in ROWS.iter().zip(&medians).skip(1) {
        let (median, without) = (median.context("no samples")?, medians[0].context("no samples")?);
        let added = (median.as_secs_f64() - without.as_secs_f64()) * 1e3;
        report.add_value(&format!("{name}: added"), added, "ms", Some(MAX_ADDED_MS));
    }
    Ok(())
}

fn pod(app: &str, number: usize) -> ClusterPod {
    ClusterPod::new(NAMESPACE, &format!("{app}-{number}"), &[(APP, app)])
}
