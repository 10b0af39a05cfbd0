//! After the faults the cluster must converge, and after draining nothing may be left of its pods.

use std::collections::BTreeMap;

use knit_engine::{Unit, pod_annotations};
use knit_model::filter::{ElementData, ElementKey};

use super::kubelet::PodPhase;
use super::{Cluster, Phase, ScheduledEvent};
use crate::queue::{MINUTE, SECOND, SimTime};

/// Time limit of convergence.
const CONVERGENCE_TIMEOUT: SimTime = 15 * MINUTE;
/// Time limit of the cleanup; the blocks of a removed node are kept for five minutes.
const CLEANUP_TIMEOUT: SimTime = 15 * MINUTE;
/// All pods stop within this time.
const DRAIN_DURATION: SimTime = MINUTE;

impl Cluster {
    /// Ends churn and faults.
    pub(crate) fn end_faults(&mut self) {
        self.phase = Phase::Settling { since: self.queue.now() };
        for node in 0..self.nodes.len() {
            self.heal_partition(node);
        }
    }

    /// Checks whether the next phase can begin.
    pub(crate) fn check_phase(&mut self) {
        self.queue.schedule(SECOND, ScheduledEvent::CheckPhase);
        let now = self.queue.now();
        match self.phase {
            Phase::Settling { since } => match self.not_converged() {
                None => {
                    self.stats.settle_time = now - since;
                    self.check_invariants();
                    self.drain();
                }
                Some((node, why)) if now - since > CONVERGENCE_TIMEOUT => {
                    self.fail(&[node], format!("the cluster does not converge: {why}"));
                }
                Some(_) => {}
            },
            Phase::Draining { since } => match self.leftovers() {
                None => {
                    self.stats.cleanup_time = now - since;
                    self.check_invariants();
                    (0..self.nodes.len()).for_each(|node| self.compare_with_journal(node));
                    self.phase = Phase::Done;
                }
                Some((node, why)) if now - since > CLEANUP_TIMEOUT => {
                    self.fail(&[node], format!("leftovers of deleted pods: {why}"));
                }
                Some(_) => {}
            },
            Phase::Busy | Phase::Done => {}
        }
    }

    fn drain(&mut self) {
        self.stats.reported_missing = self.reported_missing();
        self.stats.beyond_quota =
            self.live.iter().filter(|number| self.is_beyond_quota(**number)).count() as u64;
        self.stats.routes = self.count_routes();
        self.phase = Phase::Draining { since: self.queue.now() };
        for pod in self.live.clone() {
            let delay = self.rng.below(DRAIN_DURATION);
            self.queue.schedule(delay, ScheduledEvent::StopPod(pod));
        }
    }

    /// What has not converged, if anything.
    fn not_converged(&self) -> Option<(usize, String)> {
        for number in &self.live {
            let pod = &self.pods[*number as usize];
            if pod.phase != PodPhase::Active {
                return Some((pod.node, format!("pod-{number} is not running ({:?})", pod.phase)));
            }
            if let Some(why) = self.missing_interfaces(*number) {
                return Some((pod.node, why));
            }
        }
        let busy = |node: &usize| {
            let here = &self.nodes[*node];
            let has_requests = !here.requests_in_flight.is_empty() || here.requests_in_backoff > 0;
            !here.is_removed && (!here.is_up || here.state.pending().next().is_some() || has_requests)
        };
        let Some(busy) = (0..self.nodes.len()).find(busy) else { return self.wrong_kernel_state() };
        let pending: Vec<String> = self.nodes[busy].state.pending().map(ToString::to_string).collect();
        Some((busy, format!("{} has pending {}", self.nodes[busy].name, pending.join(", "))))
    }

    /// The packet filter in each kernel has exactly the elements of the node's units.
    fn wrong_packet_filter(&self) -> Option<(usize, String)> {
        let mut remaining = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_removed);
        remaining.find_map(|(at, node)| {
            let owned = node.state.units.values().flat_map(|unit_state| &unit_state.filter).collect();
            let existing: BTreeMap<&ElementKey, &ElementData> = node.elements().collect();
            (existing != owned)
                .then(|| (at, format!("{} has another packet filter than its units", node.name)))
        })
    }

    /// What differs in kernels, at the API server or at extensions, once nothing is pending.
    fn wrong_kernel_state(&self) -> Option<(usize, String)> {
        let wrong = self.wrong_packet_filter().or_else(|| self.wrong_routes());
        let wrong = wrong.or_else(|| self.wrong_interfaces()).or_else(|| self.wrong_quota());
        wrong.or_else(|| self.without_extension())
    }

    /// Number of tenant pods with a reported problem.
    fn reported_missing(&self) -> u64 {
        let has_problem = |number: &&u32| {
            let pod = &self.pods[**number as usize];
            let unit = pod.sandbox.clone().map(Unit::Sandbox);
            unit.is_some_and(|unit| self.nodes[pod.node].state.problems.contains_key(&unit))
        };
        self.live.iter().filter(has_problem).count() as u64
    }

    /// What is left of pods, if anything.
    fn leftovers(&self) -> Option<(usize, String)> {
        if let Some(number) = self.live.first() {
            let node = self.pods[*number as usize].node;
            return Some((node, format!("pod-{number} does not stop")));
        }
        if let Some(block) = self.api.blocks().next() {
            let node = self.nodes.iter().position(|node| node.name == block.node);
            let what = format!("podaddressblock/{} of {} was not released", block.name, block.node);
            return Some((node.unwrap_or_default(), what));
        }
        if let Some(left) = self.quota_leftovers() {
            return Some(left);
        }
        if let Some(number) = self.api.pod_states.first() {
            let node = self.pods[*number as usize].node;
            return Some((node, format!("PodNetworkState of deleted pod-{number} exists")));
        }
        if let Some((address, (node, id))) = self.holders.iter().next() {
            return Some((*node, format!("{address} of sandbox {id} exists")));
        }
        let remaining = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_removed);
        for (at, node) in remaining {
            let state = &node.state;
            let name = &node.name;
            let left = [
                ("a sandbox", state.sandboxes.keys().next().map(ToString::to_string)),
                ("an unfinished change", state.unfinished.keys().next().map(ToString::to_string)),
                ("a pending unit", state.pending().next().map(ToString::to_string)),
                ("a problem", state.problems.keys().next().map(ToString::to_string)),
                (
                    "the state of a sandbox",
                    state.units.keys().find(|unit| unit.sandbox().is_some()).map(ToString::to_string),
                ),
                (
                    "a lease",
                    state
                        .leases
                        .iter()
                        .find(|(_, _, lease)| lease.is_live())
                        .map(|(_, address, _)| address.to_string()),
                ),
                ("an element of the packet filter", node.pod_elements().next().map(ToString::to_string)),
                ("a link", node.marked_host_links().into_iter().find(|link| link != "knit0")),
                ("a call", node.calls.keys().next().map(ToString::to_string)),
                ("an annotation", pod_annotations::objects(state).next().map(|(key, _)| key.to_string())),
                ("a configured interface", self.extension_leftovers(at)),
            ];
            if let Some((what, Some(which))) = left.into_iter().find(|(_, which)| which.is_some()) {
                return Some((at, format!("{name} still has {what}: {which}")));
            }
        }
        self.wrong_routes()
    }
}
