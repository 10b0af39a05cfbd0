//! Agents publish status to the API server: a PodNetworkState per pod, a NodeNetwork, and Events; only differences
//! from the last published status are written.

use std::collections::{BTreeMap, BTreeSet};

use knit_crds::states::{
    AppliedObject, NetworkCapacity, NodeBridge, NodeNetworkStatus, PodNetworkStateStatus,
};
use knit_engine::state::BridgeKey;
use knit_engine::{State, Unit, cluster};
use knit_ipam::{Capacity, Pool};
use knit_model::Problem;
use knit_model::report::{AppliedReport, BridgeReport, PodState};

use super::kubelet::PodPhase;
use super::{Cluster, ScheduledEvent};
use crate::api_server::{NODE_STATES, POD_STATES};
use crate::node::{Name, Node, NodeReport};
use crate::queue::MILLIS;

impl Cluster {
    /// Batches changes, and waits for a write in progress.
    pub(crate) fn schedule_status_write(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].scheduled.status_write, true) {
            let incarnation = self.nodes[node].incarnation;
            self.queue.schedule(40 * MILLIS, ScheduledEvent::WriteStatus(node, incarnation));
        }
    }

    /// Writes what differs.
    pub(crate) fn write_status(&mut self, at: usize) {
        self.nodes[at].scheduled.status_write = false;
        if self.nodes[at].is_partitioned {
            return;
        }
        let desired = desired_pod_states(&self.nodes[at]);
        let unsettled: BTreeSet<Name> = unsettled(&self.nodes[at]);
        let published = &self.nodes[at].published;
        let stale =
            published.keys().filter(|name| !desired.contains_key(*name) && !unsettled.contains(*name));
        let stale: Vec<Name> = stale.cloned().collect();
        for name in stale {
            self.api.count("delete", POD_STATES);
            self.nodes[at].published.remove(&name);
            if self.api.pod_states.remove(&number_of(&name)) {
                self.controller.pod_state_deleted(name);
            }
        }
        for (name, state) in desired {
            let old = self.nodes[at].published.get(&name);
            if old == Some(&state) {
                continue;
            }
            let events = new_events(old, &state);
            (0..events).for_each(|_| self.api.count("create", "events"));
            self.api.count("patch", POD_STATES);
            let number = number_of(&name);
            // The API server garbage collects the state of a deleted pod.
            if self.pods[number as usize].phase != PodPhase::Deleted {
                self.api.pod_states.insert(number);
                let status = PodNetworkStateStatus::of(&state, &self.nodes[at].name);
                self.controller.pod_state_applied(name.clone(), status);
            }
            self.nodes[at].published.insert(name, state);
        }
        let report = node_report(&self.nodes[at].state);
        if self.nodes[at].published_node.as_ref() != Some(&report) {
            self.api.count("patch", NODE_STATES);
            self.controller.node_state_applied(self.nodes[at].name.clone(), status_of(&report));
            self.nodes[at].published_node = Some(report);
        }
        self.schedule_controller();
    }
}

/// The desired PodNetworkStates, as the agent decides them: without pods that wait for a block claim, and without
/// pods unknown to the API.
fn desired_pod_states(node: &Node) -> BTreeMap<Name, PodState> {
    let state = &node.state;
    let soon: BTreeSet<_> = state.blocks.units_awaiting_claim().filter_map(Unit::sandbox).collect();
    let pods = state.pod_states().into_iter();
    let pods =
        pods.filter(|pod| !soon.contains(&pod.sandbox.id) && state.pods.get(&pod.sandbox.uid).is_some());
    pods.map(|pod| ((pod.sandbox.namespace.clone(), pod.sandbox.pod.clone()), pod)).collect()
}

fn unsettled(node: &Node) -> BTreeSet<Name> {
    let soon = node.state.blocks.units_awaiting_claim().filter_map(Unit::sandbox);
    let soon = soon.filter_map(|id| node.state.sandboxes.get(id));
    let all = node.state.unsettled().chain(soon);
    all.map(|pod| (pod.namespace.clone(), pod.pod.clone())).collect()
}

/// Number of Events for a changed pod: one per new problem, and one per object that became ready.
fn new_events(old: Option<&PodState>, new: &PodState) -> usize {
    let events = new.objects.iter().map(|now| {
        let is_same = |before: &&AppliedReport| before.object == now.object;
        let before = old.and_then(|old| old.objects.iter().find(is_same));
        let had = |problem: &Problem| before.is_some_and(|before| before.problems.contains(problem));
        let problems = now.problems.iter().filter(|problem| !had(problem)).count();
        let became_ready = before.is_none_or(|before| !before.ready || before.interfaces != now.interfaces);
        problems + usize::from(now.ready && became_ready)
    });
    events.sum()
}

fn node_report(state: &State) -> NodeReport {
    let bridges = state.units.iter().filter_map(|(unit, made)| match (unit, &made.bridge) {
        (Unit::Bridge(key), Some(bridge)) => Some((key.clone(), bridge.clone())),
        _ => None,
    });
    let id = format!("{}/network/{}", cluster::NAMESPACE, cluster::NAME);
    let ranges = state.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
    let capacity = |range| state.leases.capacity(&Pool::with_gateway(&id, range));
    NodeReport {
        bridges: bridges.collect(),
        objects: state.node_states(),
        capacity: ranges.into_iter().map(capacity).collect(),
    }
}

/// The status as stored by the API server.
fn status_of(report: &NodeReport) -> NodeNetworkStatus {
    let bridge = |(key, bridge): &(BridgeKey, BridgeReport)| NodeBridge {
        namespace: key.namespace.clone(),
        ..NodeBridge::of(bridge)
    };
    let number = |addresses: u128| u64::try_from(addresses).unwrap_or(u64::MAX);
    let network = |capacity: &Capacity| NetworkCapacity {
        namespace: cluster::NAMESPACE.to_owned(),
        name: cluster::NAME.to_owned(),
        family: "IPv4".to_owned(),
        total: number(capacity.total),
        free: number(capacity.free),
    };
    NodeNetworkStatus {
        bridges: report.bridges.iter().map(bridge).collect(),
        objects: report.objects.iter().map(AppliedObject::of).collect(),
        networks: report.capacity.iter().map(network).collect(),
        ..NodeNetworkStatus::default()
    }
}

/// The number in `pod-7`.
pub(crate) fn number_of(name: &Name) -> u32 {
    name.1.trim_start_matches("pod-").parse().unwrap_or_default()
}
