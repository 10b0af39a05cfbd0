//! Invariants, checked every simulated minute. Some are checked at once when something changes (`cluster/executor.rs`,
//! results of calls, writes of claims), others when the cluster has converged (`cluster/convergence.rs`).

mod extensions;
mod interfaces;
mod quotas;
mod routes;

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cluster::{Cluster, PodPhase};
use crate::queue::{MINUTE, SimTime};

/// Calls are answered within this time: an attach never waits for the API server.
const CALL_TIMEOUT: SimTime = 2 * MINUTE;
/// Maximum number of scheduled events per node, and per pod.
const MAX_EVENTS_PER_NODE: usize = 64;
const MAX_EVENTS_PER_POD: usize = 4;
/// Maximum number of pending units per agent besides its pods.
const MAX_HOST_UNITS: usize = 16;
/// Maximum number of requests in flight per node: all blocks of all ranges and the quotas of its pods.
const MAX_REQUESTS: usize = 96;

impl Cluster {
    /// Checks all invariants.
    pub(crate) fn check_invariants(&mut self) {
        self.check_leases();
        self.check_queues();
        self.check_calls();
        self.check_quotas();
    }

    /// No two nodes lease the same address, whatever their kernels have.
    fn check_leases(&mut self) {
        let mut all: HashMap<(&str, IpAddr), usize> = HashMap::new();
        let mut duplicate = None;
        for (at, node) in self.nodes.iter().enumerate() {
            for (network, address, _) in node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()) {
                if let Some(other) = all.insert((network, address), at) {
                    duplicate.get_or_insert((at, other, format!("{address} of network {network}")));
                }
            }
        }
        if let Some((one, other, what)) = duplicate {
            let names = (&self.nodes[other].name, &self.nodes[one].name);
            let what = format!("{what} is leased twice: by {} and by {}", names.0, names.1);
            self.fail(&[one, other], what);
        }
    }

    /// No queue grows without bound.
    fn check_queues(&mut self) {
        let limit = self.nodes.len() * MAX_EVENTS_PER_NODE + self.pods.len() * MAX_EVENTS_PER_POD;
        if self.queue.len() > limit {
            self.fail(&[], format!("{} events are scheduled", self.queue.len()));
        }
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let units = node.state.pending().count();
            self.stats.max_units = self.stats.max_units.max(units as u64);
            let sandboxes = node.netns.len().max(node.state.sandboxes.len()) + node.state.units.len();
            if units > sandboxes + MAX_HOST_UNITS {
                return self.fail(&[at], format!("{} has {units} pending units", node.name));
            }
            if node.requests_in_flight.len() > MAX_REQUESTS {
                return self.fail(
                    &[at],
                    format!("{} has {} requests in flight", node.name, node.requests_in_flight.len()),
                );
            }
        }
    }

    /// Calls are answered in time.
    fn check_calls(&mut self) {
        let now = self.queue.now();
        let is_late = |number: &&u32| {
            let pod = &self.pods[**number as usize];
            matches!(pod.phase, PodPhase::Starting | PodPhase::Stopping)
                && now - pod.call_started > CALL_TIMEOUT
        };
        if let Some(number) = self.live.iter().find(is_late).copied() {
            let pod = &self.pods[number as usize];
            let what = format!("pod-{number} waits too long for its call ({:?})", pod.phase);
            self.fail(&[pod.node], what);
        }
    }

    /// The state equals what the journal replays.
    pub(crate) fn compare_with_journal(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(shadow) = &node.shadow else { return };
        if node.is_removed {
            return;
        }
        self.stats.journal_replays += 1;
        if node.state.persistent() != **shadow {
            let what = format!("{}: the replayed journal differs from the state", node.name);
            self.fail(&[at], what);
        }
    }
}
