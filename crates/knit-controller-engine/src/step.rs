//! The decisions of the controller: one event in, effects out.
//!
//! Updates only mark objects as dirty. [`Event::Reconcile`] compares the desired with the observed state of dirty
//! objects, and returns the difference as effects, so repeated or reordered updates have the same result.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use knit_crds::kinds::UsedCounts;
use knit_crds::states::{AppliedObject, NodeNetworkStatus, PodNetworkStateStatus};
use knit_crds::status::READY;
use knit_crds::{Object, Severity, WatchUpdate};
use knit_engine::{ObjectKey, cluster};
use knit_model::provenance::ObjectRef;
use knit_model::quota::ResourceCounts;
use serde_json::Value;

use crate::blocks;
use crate::labels::{self, Labels};
use crate::rollup::{RollUp, roll_up};
use crate::sample;
use crate::segments::{self, NamespaceInfo};
use crate::service_addresses::{self, NodeAddresses, ServiceInfo};
use crate::state::{HeldBlock, Name, State, TrackedObject};

/// How long a status waits for the reports of agents about a new generation, in milliseconds.
const REPORT_GRACE_MS: i64 = 1_000;
/// How long the deletion of an object waits for unavailable agents, in milliseconds. They clean up when they return.
const FINALIZER_TIMEOUT_MS: i64 = 30_000;

/// Resources that must have synced before anything is reconciled, besides all kinds.
const PODS: &str = "PodNetworkState";
const NODES: &str = "NodeNetwork";
const ALIVE: &str = "Node";
const SAMPLES: &str = "Deployment";
const BLOCKS: &str = "PodAddressBlock";
/// Resources that must have synced if segments of the cluster network depend on them.
const NAMESPACES: &str = "Namespace";
const APP_PODS: &str = "Pod";
/// Resources that must have synced if Services get addresses.
const SERVICES: &str = "Service";
const NODE_ADDRESSES: &str = "addresses of Nodes";
/// The kind that affects the labels of every node.
const UPLINKS: &str = "Uplink";

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// An update of the objects of a kind.
    Objects(&'static str, Box<WatchUpdate<Object>>),
    /// An update of PodNetworkStates.
    PodStates(WatchUpdate<(Name, PodNetworkStateStatus)>),
    /// An update of NodeNetworks.
    NodeNetworks(WatchUpdate<(String, NodeNetworkStatus)>),
    /// An update of nodes, each with its labels that Knit owns.
    ClusterNodes(WatchUpdate<(String, Labels)>),
    /// An update of sample Deployments, each with its PodConfig.
    Samples(WatchUpdate<(Name, String)>),
    /// An update of address blocks, by name.
    Blocks(WatchUpdate<(String, HeldBlock)>),
    /// An update of Namespaces.
    Namespaces(WatchUpdate<(String, NamespaceInfo)>),
    /// An update of pods with an app label, each with the label's value.
    AppPods(WatchUpdate<(Name, String)>),
    /// An update of Services, if agents translate them.
    Services(WatchUpdate<(Name, ServiceInfo)>),
    /// An update of what addresses nodes and their pods use, if agents translate Services.
    NodeAddresses(WatchUpdate<(String, NodeAddresses)>),
    /// A write of the status of this Service failed.
    ServiceWriteFailed(Name),
    /// A write of a segment in this namespace failed.
    SegmentWriteFailed(String),
    /// A write of this object failed.
    WriteFailed(ObjectKey),
    /// A write of the labels of this node failed.
    LabelWriteFailed(String),
    /// Reconcile everything that is dirty.
    Reconcile,
}

/// An effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write the status of an object.
    WriteStatus(ObjectKey, Value),
    /// Set the finalizers of an object, unless it has changed since.
    SetFinalizers {
        /// The object.
        key: ObjectKey,
        /// All finalizers.
        finalizers: Vec<String>,
        /// The resourceVersion that this is based on.
        version: String,
    },
    /// Create the sample Deployment of a PodConfig.
    CreateSample {
        /// The PodConfig.
        key: ObjectKey,
        /// The Deployment.
        name: String,
    },
    /// Delete a sample Deployment that its PodConfig no longer requests.
    DeleteSample(ObjectKey, Name),
    /// Set labels of a node, and remove those without a value.
    LabelNode {
        /// The node.
        node: String,
        /// The changed labels.
        labels: BTreeMap<String, Option<String>>,
    },
    /// Delete the NodeNetwork of a deleted node.
    DeleteNodeNetwork(String),
    /// Delete an address block of a deleted node.
    DeleteBlock {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Release the quota claims of deleted nodes, unless the quota has changed since.
    ReleaseClaims {
        /// The quota.
        key: ObjectKey,
        /// The nodes.
        nodes: Vec<String>,
        /// The usage without them.
        used: UsedCounts,
        /// The resourceVersion that this is based on.
        version: String,
    },
    /// Create the object of a segment, unless an object has its name.
    CreateSegment {
        /// The object.
        key: ObjectKey,
        /// Its manifest.
        manifest: Value,
    },
    /// Delete the object of a segment, unless it has changed since.
    DeleteSegment {
        /// The object.
        key: ObjectKey,
        /// Its uid.
        uid: String,
        /// The resourceVersion that this is based on.
        version: String,
    },
    /// Write what Knit owns of the status of a Service, unless the Service has changed since.
    WriteServiceStatus {
        /// The Service.
        service: Name,
        /// The manifest with all fields that Knit owns.
        manifest: Value,
    },
    /// Publish an Event about an object.
    PublishEvent {
        /// The object.
        object: ObjectRef,
        /// The type of the Event.
        severity: Severity,
        /// A stable CamelCase identifier.
        reason: String,
        /// The message.
        note: String,
    },
}

/// Handles an event and returns the effects. `now` is in milliseconds.
pub fn step(state: &mut State, event: Event, now: i64) -> Vec<Effect> {
    match event {
        Event::Objects(kind, update) => handle_objects(state, kind, *update, now),
        Event::PodStates(update) => handle_pod_states(state, update),
        Event::NodeNetworks(update) => handle_node_networks(state, update),
        Event::ClusterNodes(update) => handle_cluster_nodes(state, update),
        Event::Samples(update) => handle_samples(state, update),
        Event::Blocks(update) => {
            blocks::handle(state, update);
            state.synced.insert(BLOCKS.to_owned());
        }
        Event::Namespaces(update) => {
            segments::on_namespaces(state, update);
            state.synced.insert(NAMESPACES.to_owned());
        }
        Event::AppPods(update) => {
            segments::on_app_pods(state, update);
            state.synced.insert(APP_PODS.to_owned());
        }
        Event::Services(update) => {
            service_addresses::on_services(state, update);
            state.synced.insert(SERVICES.to_owned());
        }
        Event::NodeAddresses(update) => {
            service_addresses::on_nodes(state, update);
            state.synced.insert(NODE_ADDRESSES.to_owned());
        }
        Event::ServiceWriteFailed(service) => service_addresses::on_failure(state, service, now),
        Event::SegmentWriteFailed(namespace) => segments::on_failure(state, namespace, now),
        Event::WriteFailed(key) => {
            // The status in the cluster is unknown.
            if let Some(tracked) = state.objects.get_mut(&key) {
                tracked.object.clear_status();
                tracked.finalizers_patched = None;
            }
            state.dirty.insert(key);
        }
        // The labels in the cluster are unknown: write all of them again.
        Event::LabelWriteFailed(node) => {
            state.cluster_nodes.entry(node.clone()).and_modify(Labels::clear);
            state.dirty_nodes.insert(node);
        }
        Event::Reconcile => return reconcile(state, now),
    }
    Vec::new()
}

fn handle_objects(state: &mut State, kind: &'static str, update: WatchUpdate<Object>, now: i64) {
    if kind == UPLINKS {
        state.dirty_nodes.extend(state.cluster_nodes.keys().cloned());
    }
    if kind == cluster::KIND {
        segments::on_objects(state, &update);
    }
    service_addresses::on_objects(state, kind);
    match update {
        WatchUpdate::Listed(objects) => {
            let there: Vec<ObjectKey> =
                objects.iter().map(|object| ObjectKey::of(&object.object_ref())).collect();
            state.objects.retain(|key, _| key.kind != kind || there.contains(key));
            state.synced.insert(kind.to_owned());
            objects.into_iter().for_each(|object| track(state, object, now));
        }
        WatchUpdate::Applied(object) => track(state, object, now),
        WatchUpdate::Deleted(object) => {
            state.objects.remove(&ObjectKey::of(&object.object_ref()));
        }
    }
}

fn track(state: &mut State, object: Object, now: i64) {
    let identity = object.object_ref();
    let key = ObjectKey::of(&identity);
    let old = state.objects.get(&key).filter(|old| old.object.object_ref().uid == identity.uid);
    let same = old.filter(|old| old.object.object_ref().generation == identity.generation);
    let is_deleting = object.metadata().deletion_timestamp.is_some();
    let tracked = TrackedObject {
        generation_since: same.map_or(now, |old| old.generation_since),
        deleting_since: is_deleting.then(|| old.and_then(|old| old.deleting_since).unwrap_or(now)),
        finalizers_patched: old.and_then(|old| old.finalizers_patched.clone()),
        object,
    };
    state.objects.insert(key.clone(), tracked);
    state.dirty.insert(key);
}

fn handle_pod_states(state: &mut State, update: WatchUpdate<(Name, PodNetworkStateStatus)>) {
    let mut put = |name: Name, new: Option<PodNetworkStateStatus>| {
        let old = match new.clone() {
            Some(new) => state.pod_states.insert(name, new),
            None => state.pod_states.remove(&name),
        };
        let objects = old.into_iter().chain(new).flat_map(|pod| pod.objects);
        state.dirty.extend(objects.map(|object| key_of(&object)));
    };
    match update {
        WatchUpdate::Applied((name, pod)) => put(name, Some(pod)),
        WatchUpdate::Deleted((name, _)) => put(name, None),
        WatchUpdate::Listed(pods) => {
            state.pod_states = pods.into_iter().collect();
            mark_synced(state, PODS);
        }
    }
}

fn handle_node_networks(state: &mut State, update: WatchUpdate<(String, NodeNetworkStatus)>) {
    let mut put = |name: String, new: Option<NodeNetworkStatus>| {
        state.dirty_nodes.insert(name.clone());
        let old = match new.clone() {
            Some(new) => state.node_networks.insert(name, new),
            None => state.node_networks.remove(&name),
        };
        let objects = old.into_iter().chain(new).flat_map(|node| node.objects);
        state.dirty.extend(objects.map(|object| key_of(&object)));
    };
    match update {
        WatchUpdate::Applied((name, node)) => put(name, Some(node)),
        WatchUpdate::Deleted((name, _)) => put(name, None),
        WatchUpdate::Listed(nodes) => {
            state.node_networks = nodes.into_iter().collect();
            state.dirty_nodes.extend(state.cluster_nodes.keys().cloned());
            mark_synced(state, NODES);
        }
    }
}

fn handle_cluster_nodes(state: &mut State, update: WatchUpdate<(String, Labels)>) {
    match update {
        WatchUpdate::Applied((name, labels)) => {
            let before = state.cluster_nodes.insert(name.clone(), labels);
            // Heartbeats do not change labels.
            if before.as_ref() == state.cluster_nodes.get(&name) {
                return;
            }
            state.dirty_nodes.insert(name);
            if before.is_some() {
                return;
            }
        }
        WatchUpdate::Deleted((name, _)) => {
            state.cluster_nodes.remove(&name);
        }
        WatchUpdate::Listed(nodes) => {
            state.cluster_nodes = nodes.into_iter().collect();
            state.dirty_nodes.extend(state.cluster_nodes.keys().cloned());
        }
    }
    mark_synced(state, ALIVE);
}

fn handle_samples(state: &mut State, update: WatchUpdate<(Name, String)>) {
    let (names, of): (Vec<Name>, Vec<String>) = match update {
        WatchUpdate::Applied((name, of)) => {
            state.samples.insert(name.clone(), of.clone());
            (vec![name], vec![of])
        }
        WatchUpdate::Deleted((name, of)) => {
            state.samples.remove(&name);
            (vec![name], vec![of])
        }
        WatchUpdate::Listed(samples) => {
            state.samples = samples.into_iter().collect();
            return mark_synced(state, SAMPLES);
        }
    };
    for ((namespace, _), name) in names.into_iter().zip(of) {
        state.dirty.insert(ObjectKey { kind: "PodConfig".to_owned(), namespace, name });
    }
}

/// A full list may change any object.
fn mark_synced(state: &mut State, what: &str) {
    state.synced.insert(what.to_owned());
    state.dirty.extend(state.objects.keys().cloned());
}

fn key_of(object: &AppliedObject) -> ObjectKey {
    let AppliedObject { kind, namespace, name, .. } = object;
    ObjectKey { kind: kind.clone(), namespace: namespace.clone(), name: name.clone() }
}

impl State {
    /// Resources that have not synced. Nothing is reconciled before all have.
    pub fn unsynced(&self) -> BTreeSet<String> {
        let others = [PODS, NODES, ALIVE, SAMPLES, BLOCKS].into_iter();
        let of_segments = [NAMESPACES, APP_PODS].into_iter().filter(|_| self.segments.needs_watches());
        let of_services = [SERVICES, NODE_ADDRESSES].into_iter();
        let of_services = of_services.filter(|_| self.service_addresses.needs_watches());
        let kinds = Object::kinds().iter().map(|kind| kind.kind.as_str());
        let needed = kinds.chain(others).chain(of_segments).chain(of_services);
        needed.filter(|what| !self.synced.contains(*what)).map(str::to_owned).collect()
    }
}

fn reconcile(state: &mut State, now: i64) -> Vec<Effect> {
    if !state.unsynced().is_empty() {
        return Vec::new();
    }
    let mut effects = segments::reconcile(state, now);
    effects.extend(service_addresses::reconcile(state, now));
    for key in std::mem::take(&mut state.dirty) {
        reconcile_object(state, &key, now, &mut effects);
    }
    let gone = state.node_networks.keys().filter(|name| !state.cluster_nodes.contains_key(*name));
    effects.extend(gone.map(|name| Effect::DeleteNodeNetwork(name.clone())));
    effects.extend(blocks::delete_expired(state, now));
    effects.extend(labels::reconcile(state));
    effects
}

fn reconcile_object(state: &mut State, key: &ObjectKey, now: i64, effects: &mut Vec<Effect>) {
    let Some(tracked) = state.objects.get(key) else { return };
    if let Some(since) = tracked.deleting_since {
        let is_used = state.in_pods(key).next().is_some() || state.on_nodes(key).next().is_some();
        let is_overdue = now - since >= FINALIZER_TIMEOUT_MS;
        if is_used && !is_overdue {
            state.dirty.insert(key.clone());
            return;
        }
        if is_used {
            let note = "timeout while waiting for an agent: it cleans up when it returns".to_owned();
            effects.push(publish_event(&tracked.object, Severity::Warning, "AgentUnavailable", note));
        }
        effects.extend(finalizers(state, key, false));
        return;
    }
    effects.extend(finalizers(state, key, true));
    let Some(tracked) = state.objects.get(key) else { return };
    samples(state, key, &tracked.object, effects);
    effects.extend(release_claims(state, key, &tracked.object));
    let RollUp { report, is_incomplete } = roll_up(state, key, &tracked.object);
    if is_incomplete && now - tracked.generation_since < REPORT_GRACE_MS {
        state.dirty.insert(key.clone());
        return;
    }
    let time = Timestamp::from_millisecond(now).unwrap_or_default();
    let Some(tracked) = state.objects.get_mut(key) else { return };
    let before = condition(&tracked.object);
    let is_updated = tracked.object.update_status(&report, time);
    let is_counted = state.service_addresses.set_counts(&mut tracked.object);
    if !is_updated && !is_counted {
        return;
    }
    let mut status = tracked.object.to_value()["status"].clone();
    if let (Object::NetworkQuota(_), Some(fields)) = (&tracked.object, status.as_object_mut()) {
        // Agents write these fields.
        fields.retain(|field, _| field != "claims" && field != "used");
    }
    effects.push(Effect::WriteStatus(key.clone(), status));
    let after = condition(&tracked.object);
    // The number of pods is in the status; problems and their resolution are Events.
    let is_published = |after: &(String, String, String)| {
        before.as_ref().is_some_and(|before| before == after || (after.0 == "True" && before.0 == "True"))
    };
    if let Some((status, reason, note)) = after.filter(|after| !is_published(after)) {
        // The initial states are not Events.
        let severity = match (status.as_str(), reason.as_str()) {
            ("True", _) => Severity::Normal,
            (_, "NoPods" | "Unset" | "Configuring") => return,
            _ => Severity::Warning,
        };
        effects.push(publish_event(&tracked.object, severity, &reason, note));
    }
}

/// Releases the claims of deleted nodes.
fn release_claims(state: &State, key: &ObjectKey, object: &Object) -> Option<Effect> {
    let Object::NetworkQuota(quota) = object else { return None };
    let claims = &quota.status.as_ref()?.claims;
    let (current, gone): (Vec<_>, Vec<_>) =
        claims.iter().partition(|(node, _)| state.cluster_nodes.contains_key(*node));
    if gone.is_empty() {
        return None;
    }
    let used =
        current.into_iter().fold(ResourceCounts::default(), |all, (_, one)| all + ResourceCounts::from(*one));
    Some(Effect::ReleaseClaims {
        key: key.clone(),
        nodes: gone.into_iter().map(|(node, _)| node.clone()).collect(),
        used: used.into(),
        version: quota.metadata.resource_version.clone().unwrap_or_default(),
    })
}

fn condition(object: &Object) -> Option<(String, String, String)> {
    let ready = object.common_status()?.condition(READY)?;
    Some((ready.status.clone(), ready.reason.clone(), ready.message.clone()))
}

pub(crate) fn publish_event(object: &Object, severity: Severity, reason: &str, note: String) -> Effect {
    Effect::PublishEvent { object: object.object_ref(), severity, reason: reason.to_owned(), note }
}

/// The finalizer of a kind, if it has one.
pub fn finalizer(kind: &str) -> Option<&'static str> {
    match kind {
        "PodNetworkConfig" | "Bridge" => Some("podnetworkconfig.finalizers.opdev.io"),
        "PodConfig" => Some("podconfig.finalizers.opdev.io"),
        _ => None,
    }
}

/// Adds or removes the kind's finalizer.
fn finalizers(state: &mut State, key: &ObjectKey, desired: bool) -> Option<Effect> {
    let mine = finalizer(&key.kind)?;
    let tracked = state.objects.get_mut(key)?;
    let metadata = tracked.object.metadata();
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|one| one == mine) == desired {
        return None;
    }
    if desired {
        finalizers.push(mine.to_owned());
    } else {
        finalizers.retain(|one| one != mine);
    }
    let version = metadata.resource_version.clone().unwrap_or_default();
    if tracked.finalizers_patched.replace(version.clone()).as_ref() == Some(&version) {
        return None;
    }
    Some(Effect::SetFinalizers { key: key.clone(), finalizers, version })
}

/// Creates the requested sample Deployment, and deletes others of the object.
fn samples(state: &State, key: &ObjectKey, object: &Object, effects: &mut Vec<Effect>) {
    if key.kind != "PodConfig" {
        return;
    }
    let desired = sample::desired_name(object);
    let mine = |(name, of): &(&Name, &String)| name.0 == key.namespace && **of == key.name;
    let surplus = state.samples.iter().filter(mine).filter(|(name, _)| Some(&name.1) != desired.as_ref());
    effects.extend(surplus.map(|(name, _)| Effect::DeleteSample(key.clone(), name.clone())));
    if let Some(name) = desired
        && !state.samples.contains_key(&(key.namespace.clone(), name.clone()))
    {
        effects.push(Effect::CreateSample { key: key.clone(), name });
    }
}
