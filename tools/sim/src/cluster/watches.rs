//! Lists and watches of agents: late, sometimes duplicated, and stale when they arrive.
//!
//! A node receives what concerns the tenants that may run on it; a node with a full view receives everything.

use std::sync::Arc;

use knit_engine::Event;
use knit_engine::blocks::BlockEvent;
use knit_engine::nodes::NodeEvent;
use knit_engine::pod_annotations::{Definition, DefinitionEvent};
use knit_engine::quota::QuotaEvent;

use super::{Cluster, ScheduledEvent};
use crate::api_server::{ApiChange, BlockChange, Snapshot};
use crate::queue::MILLIS;
use crate::scenario::{Audience, node_info, node_name};

impl Cluster {
    /// Schedules watch events for the nodes that receive new changes, and for the controller.
    pub(crate) fn propagate_changes(&mut self) {
        let version = self.api.version();
        if version == self.propagated_version {
            return;
        }
        let mut audiences = Vec::new();
        for change in self.propagated_version..version {
            let Some((audience, change)) = self.api.change(change) else { continue };
            audiences.push(*audience);
            self.controller.api_changed(change, &self.tenants);
        }
        self.propagated_version = version;
        self.schedule_controller();
        let held = self.api.block_count() as u64;
        self.stats.max_blocks = self.stats.max_blocks.max(held);
        audiences.sort_unstable();
        audiences.dedup();
        let nodes: Vec<usize> = audiences.iter().flat_map(|audience| self.receivers(*audience)).collect();
        nodes.into_iter().for_each(|node| self.schedule_watch(node));
    }

    /// The nodes that receive changes of an audience.
    fn receivers(&self, audience: Audience) -> Vec<usize> {
        let nodes = self.nodes.len();
        let mut receivers: Vec<usize> = match audience {
            Audience::Tenant(tenant) => self.tenants[tenant].nodes(nodes).collect(),
            Audience::Pool(pool) => self.pool_nodes[pool].clone(),
            Audience::FullView => Vec::new(),
        };
        receivers.extend(&self.full_view);
        receivers
    }

    pub(crate) fn schedule_watch(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let is_watching = here.watch_version.is_some() && here.can_reach_api();
        if is_watching && !std::mem::replace(&mut here.scheduled.watch, true) {
            let incarnation = here.incarnation;
            let delay = self.rng.between(2 * MILLIS, 300 * MILLIS);
            self.queue.schedule(delay, ScheduledEvent::WatchDelivery(node, incarnation));
        }
    }

    /// The watch delivers events, some twice, and not always all of them.
    pub(crate) fn deliver_watch_events(&mut self, node: usize) {
        self.nodes[node].scheduled.watch = false;
        if self.nodes[node].is_partitioned {
            return;
        }
        while let Some(version) = self.nodes[node].watch_version
            && let Some((audience, change)) = self.api.change(version)
        {
            self.nodes[node].watch_version = Some(version + 1);
            if !self.nodes[node].view.receives(*audience) {
                continue;
            }
            let change = change.clone();
            let times = if self.is_busy() && self.rng.per_mille(20) { 2 } else { 1 };
            for _ in 0..times {
                self.deliver_change(node, &change);
            }
            if self.is_busy() && self.rng.per_mille(30) {
                return self.schedule_watch(node);
            }
        }
    }

    fn deliver_change(&mut self, node: usize, change: &ApiChange) {
        match change {
            ApiChange::Block(change) => {
                let (BlockChange::Applied(block) | BlockChange::Deleted(block)) = change;
                let event = match change {
                    BlockChange::Applied(block) => BlockEvent::Applied(self.as_seen_by(node, block)),
                    BlockChange::Deleted(block) => {
                        BlockEvent::Deleted { name: block.name.clone(), uid: block.uid.clone() }
                    }
                };
                if block.node == self.nodes[node].name {
                    self.handle_block_event(node, event);
                } else {
                    self.handle(node, Event::Blocks(event));
                }
                if self.nodes[node].view.is_full && is_pool_block(&block.name) {
                    self.schedule_network(node);
                }
            }
            ApiChange::Quota(tenant, quota) => {
                if let Some(claims) = quota.read(&self.tenants[*tenant], node) {
                    self.handle(node, Event::Quotas(QuotaEvent::Applied(claims)));
                }
            }
            ApiChange::Definition(tenant, definition, config) => {
                let name = definition.name(*tenant);
                let event = match config {
                    Some(config) => DefinitionEvent::Applied(name, private(config)),
                    None => DefinitionEvent::Deleted(name),
                };
                self.handle(node, Event::Definitions(event));
            }
            ApiChange::Node(other, exists) => {
                let event = match exists {
                    true => NodeEvent::Applied(node_info(*other, node)),
                    false => NodeEvent::Deleted(node_name(*other)),
                };
                self.handle(node, Event::Nodes(event));
            }
        }
    }

    /// The agent lists everything that it watches; the list is as of now, and arrives later.
    pub(crate) fn list_all(&mut self, node: usize) {
        if !self.nodes[node].can_reach_api() {
            return;
        }
        self.nodes[node].watch_version = None;
        let view = &self.nodes[node].view;
        let listed = Arc::new(self.api.list((!view.is_full).then_some(&*view.audiences)));
        let delay = self.latency() * 4;
        let incarnation = self.nodes[node].incarnation;
        self.queue.schedule(delay, ScheduledEvent::ListResponse(node, incarnation, listed));
    }

    pub(crate) fn deliver_list(&mut self, node: usize, listed: &Snapshot) {
        if self.is_lost(node) {
            // A partitioned agent lists again when the partition heals.
            return self.list_all(node);
        }
        if self.nodes[node].watch_version.is_some() {
            return;
        }
        self.nodes[node].watch_version = Some(listed.version);
        let own_name = BlockEvent::LocalNode(self.nodes[node].name.clone());
        self.handle(node, Event::Blocks(own_name));
        let blocks = listed.blocks.iter().map(|block| self.as_seen_by(node, block)).collect();
        self.handle_block_event(node, BlockEvent::Listed(blocks));
        let quotas = listed.quotas.iter();
        let quotas = quotas.filter_map(|(tenant, quota)| quota.read(&self.tenants[*tenant], node)).collect();
        self.handle(node, Event::Quotas(QuotaEvent::Listed(quotas)));
        let definitions = listed.definitions.iter();
        let definitions =
            definitions.map(|(tenant, definition, config)| (definition.name(*tenant), private(config)));
        self.handle(node, Event::Definitions(DefinitionEvent::Listed(definitions.collect())));
        if self.nodes[node].view.is_full {
            let nodes = listed.nodes.iter().map(|other| node_info(*other, node)).collect();
            self.handle(node, Event::Nodes(NodeEvent::Listed(nodes)));
        }
        self.schedule_network(node);
        self.schedule_watch(node);
    }
}

/// Whether a block is of an address pool.
pub(crate) fn is_pool_block(name: &str) -> bool {
    name.starts_with("pool-")
}

/// A definition that is not shared with other namespaces.
fn private(config: &str) -> Definition {
    Definition { config: config.to_owned(), ..Definition::default() }
}
