//! Changes of objects that do not concern the measured node, at a constant rate.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::api;
use super::manifests::{Load, conditions, is_link, link_path, node_name};
use knit_kube::kube::Client;
use knit_soak::harness::KnitCluster;

/// The number of changes per second.
pub const RATE: u32 = 100;

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The spec of one of Knit's objects in another namespace.
    Object,
    /// A label of a Pod on another node.
    Pod,
    /// The conditions of another Node: the kubelet's heartbeat.
    Heartbeat,
}

/// The mix of a large cluster: most changes are of pods.
pub const MIX: [Change; 10] = {
    use Change::{Heartbeat, Object, Pod};
    [Pod, Object, Heartbeat, Pod, Object, Heartbeat, Pod, Object, Heartbeat, Pod]
};

impl Change {
    async fn apply(self, client: &Client, load: Load, number: usize) -> Result<()> {
        match self {
            Self::Object => {
                let object = spread(number, load.objects);
                // The nearest one that has an MTU.
                let object = (0..=object).rev().find(|object| is_link(*object)).unwrap_or_default();
                let spec = json!({"spec": {"mtu": 1300 + number % 100}});
                api::patch(client, &link_path(object), MERGE, &spec).await
            }
            Self::Pod => {
                let label = json!({"metadata": {"labels": {"revision": format!("r{number}")}}});
                api::patch(client, &load.pod_path(spread(number, load.pods)), MERGE, &label).await
            }
            Self::Heartbeat => {
                let path = format!("/api/v1/nodes/{}/status", node_name(spread(number, load.nodes)));
                let status = json!({"status": {"conditions": conditions(number + 1)}});
                api::patch(client, &path, STRATEGIC, &status).await
            }
        }
    }
}

/// Distributes the changes over all objects.
fn spread(number: usize, objects: usize) -> usize {
    // A prime that divides none of the usual numbers of objects.
    number.wrapping_mul(7_919) % objects.max(1)
}

/// Applies changes from a list in turn for this long, `rate` per second. `first` is the number of the first change. Returns how
/// many there were and how long they took.
pub fn run(
    knit: &KnitCluster,
    load: Load,
    changes: &'static [Change],
    rate: u32,
    first: usize,
    time: Duration,
) -> Result<(usize, Duration)> {
    let number = (time.as_secs_f64() * f64::from(rate)) as usize;
    let client = knit.client().clone();
    knit.block_on(async {
        let start = Instant::now();
        let mut interval = tokio::time::interval(Duration::from_secs(1) / rate);
        interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut requests = JoinSet::new();
        for current in first..first + number {
            interval.tick().await;
            let (client, change) = (client.clone(), changes[current % changes.len()]);
            requests.spawn(async move { change.apply(&client, load, current).await });
            while let Some(done) = requests.try_join_next() {
                done.context("a request panicked")??;
            }
        }
        while let Some(done) = requests.join_next().await {
            done.context("a request panicked")??;
        }
        Ok((number, start.elapsed()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_spread_over_all_objects() {
        let seen: std::collections::BTreeSet<usize> =
            (0..5_000).map(|number| spread(number, 5_000)).collect();
        assert_eq!(seen.len(), 5_000);
        assert_eq!(MIX.iter().filter(|change| **change == Change::Pod).count(), 4);
    }
}
