//! Nodes that start, join and leave the cluster.

use std::collections::BTreeSet;

use knit_engine::Event;
use knit_engine::pods::PodEvent;
use knit_engine::pools::PodRanges;
use knit_model::SandboxId;

use super::{Cluster, RAMP_UP, RESYNC_INTERVAL, ScheduledEvent};
use crate::node::{Node, View};
use crate::queue::{MINUTE, SECOND};
use crate::scenario::{Audience, Tenant, joins_late, pod_range};
use crate::trace::TraceSubject;

/// One of this many nodes has its journal replayed; in a small cluster, all.
const SHADOW_INTERVAL: usize = 8;
/// Maximum number of nodes of a small cluster.
const SMALL_CLUSTER: usize = 200;
/// One of this many nodes is removed.
const NODES_PER_REMOVAL: usize = 500;
/// The minimum number of nodes of a cluster that nodes leave.
const MIN_NODES: usize = 10;

/// Whether a node has its journal replayed.
pub(crate) fn has_shadow(node: usize, nodes: usize) -> bool {
    nodes <= SMALL_CLUSTER || node.is_multiple_of(SHADOW_INTERVAL)
}

/// What each node receives from the API server.
pub(crate) fn views(tenants: &[Tenant], nodes: usize, full_view: &[usize]) -> Vec<View> {
    let mut audiences = vec![BTreeSet::new(); nodes];
    for (index, tenant) in tenants.iter().enumerate() {
        for node in tenant.nodes(nodes) {
            audiences[node].insert(Audience::Tenant(index));
            audiences[node].extend(tenant.pool.map(Audience::Pool));
        }
    }
    let views = audiences.into_iter().enumerate().map(|(node, audiences)| View {
        is_full: full_view.binary_search(&node).is_ok(),
        audiences: audiences.into_iter().collect(),
    });
    views.collect()
}

/// The nodes of the tenants of each pool.
pub(crate) fn pool_nodes(tenants: &[Tenant], nodes: usize) -> Vec<Vec<usize>> {
    let mut pools: Vec<BTreeSet<usize>> = Vec::new();
    for tenant in tenants {
        if let Some(pool) = tenant.pool {
            pools.resize_with(pools.len().max(pool + 1), BTreeSet::new);
            pools[pool].extend(tenant.nodes(nodes));
        }
    }
    pools.into_iter().map(|nodes| nodes.into_iter().collect()).collect()
}

impl Cluster {
    /// Starts all nodes, except those that join later, and schedules those and the removals.
    pub(crate) fn start_nodes(&mut self) {
        let nodes = self.nodes.len();
        for node in 0..nodes {
            if joins_late(node, nodes) {
                self.nodes[node].is_removed = true;
                let delay = self.rng.between(RAMP_UP / 2, RAMP_UP + MINUTE);
                self.queue.schedule(delay, ScheduledEvent::JoinNode(node));
            } else {
                self.start_node(node);
            }
        }
        if nodes >= MIN_NODES {
            for _ in 0..nodes.div_ceil(NODES_PER_REMOVAL) {
                let delay = self.rng.between(RAMP_UP, RAMP_UP + self.options.minutes * MINUTE);
                self.queue.schedule(delay, ScheduledEvent::RemoveNode);
            }
        }
    }

    /// The agent of a new node starts with an empty state.
    fn start_node(&mut self, node: usize) {
        self.api.set_node(node, true);
        let ranges = PodRanges { own: vec![pod_range(node)], ..PodRanges::default() };
        self.apply_network(node, ranges);
        self.apply_objects(node);
        self.handle(node, Event::Pods(PodEvent::Listed(Vec::new())));
        self.register_extensions(node);
        self.list_all(node);
        let incarnation = self.nodes[node].incarnation;
        let first = self.rng.below(5 * SECOND);
        self.queue.schedule(first, ScheduledEvent::ReviewBlocks(node, incarnation));
        let first = self.rng.below(RESYNC_INTERVAL);
        self.queue.schedule(first, ScheduledEvent::Resync(node, incarnation));
    }

    /// A node joins, new or reinstalled under its old name.
    pub(crate) fn join_node(&mut self, node: usize) {
        if !self.nodes[node].is_removed || !self.is_busy() {
            return;
        }
        self.stats.nodes_joined += 1;
        self.record_trace(node, "joins", TraceSubject::Node);
        let (view, incarnation) = (self.nodes[node].view.clone(), self.nodes[node].incarnation + 1);
        let shadow = has_shadow(node, self.nodes.len());
        self.nodes[node] = Node { incarnation, ..Node::new(node, shadow, view) };
        self.start_node(node);
        self.propagate_changes();
    }

    /// Removes a node with its pods. The controller deletes its blocks and claims. Some return.
    pub(crate) fn remove_node(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        if !self.is_busy() {
            return;
        }
        if self.nodes[node].is_removed {
            return self.queue.schedule(SECOND, ScheduledEvent::RemoveNode);
        }
        self.stats.nodes_removed += 1;
        self.record_trace(node, "is removed", TraceSubject::Node);
        let sandboxes: Vec<SandboxId> = self.nodes[node].netns.keys().cloned().collect();
        for id in sandboxes {
            self.netns_deleted(node, &id);
        }
        let (view, incarnation) = (self.nodes[node].view.clone(), self.nodes[node].incarnation + 1);
        self.nodes[node] = Node { is_removed: true, incarnation, ..Node::new(node, false, view) };
        let here: Vec<u32> =
            self.live.iter().copied().filter(|pod| self.pods[*pod as usize].node == node).collect();
        for pod in here {
            self.pod_deleted(pod);
        }
        self.api.set_node(node, false);
        self.propagate_changes();
        if self.rng.chance(50) {
            let delay = self.rng.between(30 * SECOND, 8 * MINUTE);
            self.queue.schedule(delay, ScheduledEvent::JoinNode(node));
        }
    }
}
