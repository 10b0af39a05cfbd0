//! The controller's real decisions, fed by delayed watch events.

use knit_controller_engine::labels::Labels;
use knit_controller_engine::{Effect, Event, HeldBlock, State, step};
use knit_crds::states::{NodeNetworkStatus, PodNetworkStateStatus};
use knit_crds::{Object, WatchUpdate};
use knit_engine::quota::KIND as QUOTA_KIND;
use serde_json::Value;

use crate::api_server::{ApiChange, BlockChange, NODE_STATES};
use crate::cluster::{Cluster, ScheduledEvent};
use crate::node::{EPOCH, Name};
use crate::queue::{MILLIS, SECOND, SimTime};
use crate::scenario::{Tenant, node_name, node_number, object};

/// Interval between two reconciliations; in a large cluster the controller's writes take about this long.
const BATCH_INTERVAL: SimTime = 2 * SECOND;
/// Retry interval while something waits.
const WAIT_RETRY_INTERVAL: SimTime = 2 * SECOND;
/// The same for removed nodes.
const NODE_GC_INTERVAL: SimTime = 10 * SECOND;

pub(crate) struct Controller {
    state: State,
    pending: Vec<Event>,
    is_scheduled: bool,
    /// Clock skew in milliseconds.
    pub(crate) skew: i64,
}

impl Controller {
    /// A controller that has listed everything that exists at the start. Nodes and quotas follow as changes.
    pub(crate) fn new<'a>(manifests: impl Iterator<Item = &'a Value> + Clone) -> Self {
        let mut pending = Vec::new();
        for kind in Object::kinds() {
            let of_kind = manifests.clone().filter(|manifest| manifest["kind"] == *kind.kind);
            let objects: Vec<Object> = of_kind.map(object).collect();
            pending.push(Event::Objects(&kind.kind, Box::new(WatchUpdate::Listed(objects))));
        }
        pending.push(Event::ClusterNodes(WatchUpdate::Listed(Vec::new())));
        pending.push(Event::PodStates(WatchUpdate::Listed(Vec::new())));
        pending.push(Event::NodeNetworks(WatchUpdate::Listed(Vec::new())));
        pending.push(Event::Samples(WatchUpdate::Listed(Vec::new())));
        pending.push(Event::Blocks(WatchUpdate::Listed(Vec::new())));
        Self { state: State::default(), pending, is_scheduled: true, skew: 0 }
    }

    pub(crate) fn pod_state_applied(&mut self, name: Name, state: PodNetworkStateStatus) {
        self.pending.push(Event::PodStates(WatchUpdate::Applied((name, state))));
    }

    pub(crate) fn pod_state_deleted(&mut self, name: Name) {
        self.pending.push(Event::PodStates(WatchUpdate::Deleted((name, PodNetworkStateStatus::default()))));
    }

    pub(crate) fn node_state_applied(&mut self, name: String, state: NodeNetworkStatus) {
        self.pending.push(Event::NodeNetworks(WatchUpdate::Applied((name, state))));
    }

    /// A change of the API server.
    pub(crate) fn api_changed(&mut self, change: &ApiChange, tenants: &[Tenant]) {
        let event = match change {
            ApiChange::Block(change) => {
                let (BlockChange::Applied(block) | BlockChange::Deleted(block)) = change;
                let held =
                    (block.name.clone(), HeldBlock { uid: block.uid.clone(), node: block.node.clone() });
                Event::Blocks(match change {
                    BlockChange::Applied(_) => WatchUpdate::Applied(held),
                    BlockChange::Deleted(_) => WatchUpdate::Deleted(held),
                })
            }
            ApiChange::Quota(tenant, quota) => {
                let Some(manifest) = quota.manifest(&tenants[*tenant]) else { return };
                Event::Objects(QUOTA_KIND, Box::new(WatchUpdate::Applied(object(&manifest))))
            }
            ApiChange::Node(node, exists) => {
                let node = (node_name(*node), Labels::new());
                Event::ClusterNodes(if *exists {
                    WatchUpdate::Applied(node)
                } else {
                    WatchUpdate::Deleted(node)
                })
            }
            // Only agents read definitions.
            ApiChange::Definition(..) => return,
        };
        self.pending.push(event);
    }
}

impl Cluster {
    /// Schedules a reconciliation.
    pub(crate) fn schedule_controller(&mut self) {
        if !self.controller.pending.is_empty() && !std::mem::replace(&mut self.controller.is_scheduled, true)
        {
            self.queue.schedule(BATCH_INTERVAL, ScheduledEvent::ReconcileController);
        }
    }

    /// Handles pending watch events and executes the effects.
    pub(crate) fn reconcile_controller(&mut self) {
        let now = EPOCH + self.controller.skew + (self.queue.now() / MILLIS) as i64;
        let controller = &mut self.controller;
        for event in std::mem::take(&mut controller.pending) {
            step(&mut controller.state, event, now);
        }
        let effects = step(&mut controller.state, Event::Reconcile, now);
        for effect in effects {
            match effect {
                Effect::WriteStatus(key, status) => {
                    self.api.count("patch", "objects' status");
                    if let Some(tenant) = self.tenant_of(&key.namespace).filter(|_| key.kind == QUOTA_KIND) {
                        self.api.write_quota_status(tenant, status);
                    }
                }
                Effect::ReleaseClaims { key, nodes, version, .. } => {
                    let nodes: Vec<usize> = nodes.iter().map(|node| node_number(node)).collect();
                    if let Some(tenant) = self.tenant_of(&key.namespace) {
                        self.api.release_claims(tenant, &nodes, &version);
                    }
                }
                Effect::SetFinalizers { .. } => self.api.count("patch", "objects"),
                Effect::PublishEvent { .. } => self.api.count("create", "events"),
                Effect::DeleteNodeNetwork(name) => {
                    self.api.count("delete", NODE_STATES);
                    let deleted = (name, NodeNetworkStatus::default());
                    self.controller.pending.push(Event::NodeNetworks(WatchUpdate::Deleted(deleted)));
                }
                Effect::DeleteBlock { name, uid } => self.api.delete(&name, &uid),
                other => self.fail(&[], format!("unexpected controller effect {other:?}")),
            }
        }
        self.propagate_changes();
        let state = &self.controller.state;
        let next =
            match (self.controller.pending.is_empty(), state.needs_reconcile(), state.has_missing_nodes()) {
                (false, _, _) => Some(BATCH_INTERVAL),
                (_, true, _) => Some(WAIT_RETRY_INTERVAL),
                (_, _, true) => Some(NODE_GC_INTERVAL),
                _ => None,
            };
        self.controller.is_scheduled = next.is_some();
        if let Some(delay) = next {
            self.queue.schedule(delay, ScheduledEvent::ReconcileController);
        }
    }
}
