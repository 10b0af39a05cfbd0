//! Statistics of a simulation.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

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

/// Time that engines needed, which differs from run to run: its debug output is empty, so that statistics of the same
/// history are equal.
#[derive(Clone, Default)]
pub struct StepTimes {
    full: (u64, Duration),
    others: (u64, Duration),
}

impl StepTimes {
    pub(crate) fn add(&mut self, is_full_view: bool, time: Duration) {
        let (count, sum) = if is_full_view { &mut self.full } else { &mut self.others };
        *count += 1;
        *sum += time;
    }

    /// Microseconds per event of a node with a full view.
    pub fn full_view(&self) -> f64 {
        mean(self.full)
    }

    /// Microseconds per event of the other nodes.
    pub fn others(&self) -> f64 {
        mean(self.others)
    }

    /// Events of nodes with a full view.
    pub fn full_view_events(&self) -> u64 {
        self.full.0
    }
}

fn mean((count, sum): (u64, Duration)) -> f64 {
    sum.as_secs_f64() * 1e6 / count.max(1) as f64
}

impl fmt::Debug for StepTimes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StepTimes")
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
    /// Pods with an annotation among them.
    pub annotated_pods: u64,
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
    /// Claims of quotas that were written.
    pub quota_claims: u64,
    /// Claims of quotas that another write preceded.
    pub quota_conflicts: u64,
    /// Pods without an interface at the end because of a quota.
    pub beyond_quota: u64,
    /// Nodes with a full view.
    pub full_view_nodes: u64,
    /// Routes to pods of other nodes, in their kernels.
    pub routes: u64,
    /// Calls of extensions.
    pub extension_calls: u64,
    /// Calls without a reply until the deadline.
    pub extension_timeouts: u64,
    /// Extensions that were removed and registered again.
    pub extensions_replaced: u64,
    /// Definitions changed, or deleted and created again.
    pub definitions_changed: u64,
    /// Annotations of running pods changed.
    pub annotations_changed: u64,
    /// Time that engines needed.
    pub step_times: StepTimes,
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
    /// Nodes that joined after the start.
    pub nodes_joined: u64,
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
