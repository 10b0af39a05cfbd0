//! What agents tell the API server: one PodNetworkState for each pod, one NodeNetwork, and Events; whatever differs
//! from what was written last.

use std::collections::{BTreeMap, BTreeSet};

use knit_crds::states::{
    AppliedObject, NetworkCapacity, NodeBridge, NodeNetworkStatus, PodNetworkStateStatus,
};
use knit_engine::state::BridgeKey;
use knit_engine::{State, Unit, cluster};
use knit_ipam::{Capacity, Pool};
use knit_model::report::{AppliedReport, BridgeReport, PodState};

use super::kubelet::Step;
use super::{Cluster, Due};
use crate::api::{NODE_STATES, POD_STATES};
use crate::node::{Name, Node, NodeReport};
use crate::queue::MILLIS;

impl Cluster {
    /// Changes often come in groups, and what is being written now is waited for.
    pub(crate) fn write_soon(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].due.write, true) {
            let life = self.nodes[node].life;
            self.queue.after(40 * MILLIS, Due::Write(node, life));
        }
    }

    /// Writes what differs.
    pub(crate) fn write(&mut self, at: usize) {
        self.nodes[at].due.write = false;
        if self.nodes[at].is_cut {
            return;
        }
        let wanted = wanted(&self.nodes[at]);
        let unsettled: BTreeSet<Name> = unsettled(&self.nodes[at]);
        let written = &self.nodes[at].written;
        let gone = written.keys().filter(|name| !wanted.contains_key(*name) && !unsettled.contains(*name));
        let gone: Vec<Name> = gone.cloned().collect();
        for name in gone {
            self.api.count("delete", POD_STATES);
            self.nodes[at].written.remove(&name);
            if self.api.pod_states.remove(&number_of(&name)) {
                self.controller.forget_pod(name);
            }
        }
        for (name, state) in wanted {
            let old = self.nodes[at].written.get(&name);
            if old == Some(&state) {
                continue;
            }
            let told = words_between(old, &state);
            (0..told).for_each(|_| self.api.count("create", "events"));
            self.api.count("patch", POD_STATES);
            let number = number_of(&name);
            // The state of a pod that is gone is deleted behind the agent's back.
            if self.pods[number as usize].step != Step::Gone {
                self.api.pod_states.insert(number);
                let status = PodNetworkStateStatus::of(&state, &self.nodes[at].name);
                self.controller.hear_pod(name.clone(), status);
            }
            self.nodes[at].written.insert(name, state);
        }
        let report = node_report(&self.nodes[at].state);
        if self.nodes[at].written_node.as_ref() != Some(&report) {
            self.api.count("patch", NODE_STATES);
            self.controller.hear_node(self.nodes[at].name.clone(), status_of(&report));
            self.nodes[at].written_node = Some(report);
        }
        self.controller_soon();
    }
}

/// What there is to say about pods, as the agent decides it: not about those that wait for a block that comes in a
/// moment, and not about those that the API does not have.
fn wanted(node: &Node) -> BTreeMap<Name, PodState> {
    let state = &node.state;
    let soon: BTreeSet<_> = state.blocks.soon().filter_map(Unit::sandbox).collect();
    let pods = state.pod_states().into_iter();
    let pods =
        pods.filter(|pod| !soon.contains(&pod.sandbox.id) && node.pods.get(&pod.sandbox.uid).is_some());
    pods.map(|pod| ((pod.sandbox.namespace.clone(), pod.sandbox.pod.clone()), pod)).collect()
}

fn unsettled(node: &Node) -> BTreeSet<Name> {
    let soon = node.state.blocks.soon().filter_map(Unit::sandbox);
    let soon = soon.filter_map(|id| node.state.sandboxes.get(id));
    let all = node.state.unsettled().chain(soon);
    all.map(|pod| (pod.namespace.clone(), pod.pod.clone())).collect()
}

/// Events about a pod whose state is another now: each problem once, and each object that stands.
fn words_between(old: Option<&PodState>, new: &PodState) -> usize {
    let words = new.objects.iter().map(|now| {
        let is_same = |before: &&AppliedReport| before.object == now.object;
        let before = old.and_then(|old| old.objects.iter().find(is_same));
        let had = |message: &String| {
            before.is_some_and(|before| before.problems.iter().any(|old| old.message == *message))
        };
        let problems = now.problems.iter().filter(|problem| !had(&problem.message)).count();
        let is_news = before.is_none_or(|before| !before.ready || before.interfaces != now.interfaces);
        problems + usize::from(now.ready && is_news)
    });
    words.sum()
}

fn node_report(state: &State) -> NodeReport {
    let bridges = state.made.iter().filter_map(|(unit, made)| match (unit, &made.bridge) {
        (Unit::Bridge(key), Some(bridge)) => Some((key.clone(), bridge.clone())),
        _ => None,
    });
    let id = format!("{}/network/{}", cluster::NAMESPACE, cluster::NAME);
    let ranges = state.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
    let room = |range| state.leases.capacity(&Pool::with_gateway(&id, range));
    NodeReport {
        bridges: bridges.collect(),
        objects: state.node_states(),
        room: ranges.into_iter().map(room).collect(),
    }
}

/// The same as the API server keeps it.
fn status_of(report: &NodeReport) -> NodeNetworkStatus {
    let bridge = |(key, bridge): &(BridgeKey, BridgeReport)| NodeBridge {
        namespace: key.namespace.clone(),
        ..NodeBridge::of(bridge)
    };
    let number = |addresses: u128| u64::try_from(addresses).unwrap_or(u64::MAX);
    let room = |capacity: &Capacity| NetworkCapacity {
        namespace: cluster::NAMESPACE.to_owned(),
        name: cluster::NAME.to_owned(),
        family: "IPv4".to_owned(),
        total: number(capacity.total),
        free: number(capacity.free),
    };
    NodeNetworkStatus {
        bridges: report.bridges.iter().map(bridge).collect(),
        objects: report.objects.iter().map(AppliedObject::of).collect(),
        networks: report.room.iter().map(room).collect(),
        ..NodeNetworkStatus::default()
    }
}

/// `pod-7` is the seventh.
pub(crate) fn number_of(name: &Name) -> u32 {
    name.1.trim_start_matches("pod-").parse().unwrap_or_default()
}
