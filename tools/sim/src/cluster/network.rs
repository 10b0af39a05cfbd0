//! The cluster network of each node as the agent maintains it: its own ranges, with blocks of pools, and the other nodes.

use knit_engine::Event;
use knit_engine::blocks::BlockEvent;
use knit_engine::nodes::NodeEvent;
use knit_engine::pools::PodRanges;

use super::{Cluster, ScheduledEvent};
use crate::queue::{MILLIS, SECOND};
use crate::scenario::{cluster_network, connected_routes, pod_range};

impl Cluster {
    /// Nodes, pools or blocks changed: the cluster network is computed again. Batches changes.
    pub(crate) fn schedule_network(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].scheduled.network, true) {
            let incarnation = self.nodes[node].incarnation;
            let delay = self.rng.between(100 * MILLIS, SECOND);
            self.queue.schedule(delay, ScheduledEvent::ReconcileNetwork(node, incarnation));
        }
    }

    /// Submits the links and the ranges of this node to the engine.
    pub(crate) fn reconcile_network(&mut self, node: usize) {
        self.nodes[node].scheduled.network = false;
        let use_pools = BlockEvent::UsePools { node: self.nodes[node].name.clone() };
        self.handle(node, Event::Blocks(use_pools));
        let here = &self.nodes[node];
        let ranges = here.state.ranges(&[pod_range(node)]);
        if here.view.is_full {
            self.handle(node, Event::Nodes(NodeEvent::Connected(connected_routes())));
        }
        self.apply_network(node, ranges);
    }

    /// Applies the cluster network, if it changed.
    pub(crate) fn apply_network(&mut self, node: usize, ranges: PodRanges) {
        if self.nodes[node].network.as_ref() != Some(&ranges) {
            self.handle(node, Event::ObjectApplied(cluster_network(node, &ranges)));
            self.nodes[node].network = Some(ranges);
        }
    }
}
