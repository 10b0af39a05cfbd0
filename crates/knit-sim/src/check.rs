//! What always has to hold, looked at every simulated minute. What can be seen at once is looked at when it happens: see
//! `cluster/hands.rs`.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cluster::{Cluster, Step};
use crate::queue::{MINUTE, Moment};

/// A call is answered within this time: an attach never waits for the API server.
const LONGEST_CALL: Moment = 2 * MINUTE;
/// Of each node so many things are due at most, and so many of each pod that is being worked on.
const DUE_PER_NODE: usize = 64;
const DUE_PER_POD: usize = 4;
/// An agent works on at most so many units beside its pods.
const BRIDGES: usize = 16;
/// So many orders of blocks are under way on a node: all blocks of all ranges that it may have pods on.
const ORDERS: usize = 64;

impl Cluster {
    /// Looks at everything that has to hold at any time.
    pub(crate) fn check(&mut self) {
        self.check_leases();
        self.check_queues();
        self.check_calls();
    }

    /// No two nodes hold a lease of the same address, whatever their kernels have.
    fn check_leases(&mut self) {
        let mut all: HashMap<(&str, IpAddr), usize> = HashMap::new();
        let mut twice = None;
        for (at, node) in self.nodes.iter().enumerate() {
            for (network, address, _) in node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()) {
                if let Some(other) = all.insert((network, address), at) {
                    twice.get_or_insert((at, other, format!("{address} of network {network}")));
                }
            }
        }
        if let Some((one, other, what)) = twice {
            let names = (&self.nodes[other].name, &self.nodes[one].name);
            let what = format!("{what} is leased twice: by {} and by {}", names.0, names.1);
            self.fail(&[one, other], what);
        }
    }

    /// Nothing piles up.
    fn check_queues(&mut self) {
        let most = self.nodes.len() * DUE_PER_NODE + self.pods.len() * DUE_PER_POD;
        if self.queue.len() > most {
            self.fail(&[], format!("{} things wait to happen", self.queue.len()));
        }
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let units = node.state.pending().count();
            self.counts.most_units = self.counts.most_units.max(units as u64);
            let sandboxes = node.netns.len().max(node.state.sandboxes.len()) + node.state.made.len();
            if units > sandboxes + BRIDGES {
                return self.fail(&[at], format!("{} has {units} units to work on", node.name));
            }
            if node.asked.len() > ORDERS {
                return self.fail(&[at], format!("{} has {} orders under way", node.name, node.asked.len()));
            }
        }
    }

    /// Everyone who called is answered soon.
    fn check_calls(&mut self) {
        let now = self.queue.now();
        let is_late = |number: &&u32| {
            let pod = &self.pods[**number as usize];
            matches!(pod.step, Step::Starts | Step::Ends) && now - pod.called > LONGEST_CALL
        };
        if let Some(number) = self.live.iter().find(is_late).copied() {
            let pod = &self.pods[number as usize];
            let what = format!("pod-{number} waits for an answer for too long ({:?})", pod.step);
            self.fail(&[pod.node], what);
        }
    }

    /// What a node knows is what its journal says.
    pub(crate) fn compare_with_journal(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(shadow) = &node.shadow else { return };
        if node.is_gone {
            return;
        }
        self.counts.replays += 1;
        if node.state.remembered() != **shadow {
            let what = format!("{}: the journal does not give the state that was", node.name);
            self.fail(&[at], what);
        }
    }
}
