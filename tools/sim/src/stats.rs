//! Statistics of a simulation.

use std::collections::BTreeMap;

/// Samples of one quantity.
#[derive(Clone, Debug, Default)]
pub struct Distribution(Vec<u64>);

impl Distribution {
    pub(crate) fn add(&mut self, value: u64) {
        self.0.push(value);
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The quantile of the samples; zero if there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut all = self.0.clone();
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        all.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
    }
}

/// Statistics of a simulation. Times are simulated, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct SimStats {
    /// Events of the queue.
    pub queue_events: u64,
    /// Events that engines handled.
    pub engine_events: u64,
    /// Pods created.
    pub pods: u64,
    /// Tenant pods among them.
    pub tenant_pods: u64,
    /// Attaches that failed.
    pub failed_attaches: u64,
    /// Tenant pods without a second interface at the end, with a reported problem.
    pub reported_missing: u64,
    /// Requests to the API server, by verb and kind.
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// Blocks claimed.
    pub blocks_claimed: u64,
    /// Claims that lost against another node.
    pub claim_conflicts: u64,
    /// Blocks released, or deleted for a removed node.
    pub blocks_released: u64,
    /// Maximum number of blocks held at once.
    pub max_blocks: u64,
    /// From a pod's creation to its primary interface.
    pub attach_latency: Distribution,
    /// From a tenant pod's creation to its second interface.
    pub second_interface_latency: Distribution,
    /// From the end of all faults to convergence.
    pub settle_time: u64,
    /// From the start of draining until nothing is left.
    pub cleanup_time: u64,
    /// Agent restarts.
    pub agent_restarts: u64,
    /// Partitions of a node from the API server.
    pub partitions: u64,
    /// Clock jumps.
    pub clock_jumps: u64,
    /// Removed nodes.
    pub nodes_removed: u64,
    /// Plans that the kernel failed to apply.
    pub kernel_failures: u64,
    /// States compared with their replayed journals.
    pub journal_replays: u64,
    /// Maximum number of scheduled events.
    pub max_queued: u64,
    /// Maximum number of pending units of one node.
    pub max_units: u64,
    /// Simulated time at the end.
    pub simulated_time: u64,
}

impl SimStats {
    /// Requests by verb.
    pub fn requests_by_verb(&self) -> BTreeMap<&'static str, u64> {
        let mut verbs = BTreeMap::new();
        for ((verb, _), count) in &self.requests {
            *verbs.entry(*verb).or_default() += count;
        }
        verbs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_distribution() {
        let mut samples = Distribution::default();
        assert_eq!(samples.quantile(0.5), 0);
        (1..=101).rev().for_each(|value| samples.add(value));
        assert_eq!((samples.quantile(0.0), samples.quantile(0.5), samples.quantile(1.0)), (1, 51, 101));
    }
}
