//! The engine's state. It changes only through [`State::record`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, Lease, LeaseKey, Leases, Time};
use knit_model::intent::{Intent, IntentSpec, NetworkIntent, UplinkIntent};
use knit_model::link::{HostDevice, LinkKind};
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_model::quota::ResourceCounts;
use knit_model::{IfName, Sandbox, SandboxId, Scope};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attachments::Attachments;
use crate::blocks::Blocks;
use crate::call::{ATTACHMENT_KIND, CallId};
use crate::egress::EgressState;
use crate::event::{ChangeEnded, ChangeStarted, Record, Revision, Unit};
use crate::extensions::Extensions;
use crate::namespaces::Namespaces;
use crate::nodes::Nodes;
use crate::object_index::{Feature, ObjectIndex};
use crate::overlay::Underlay;
use crate::packet_filter::PacketFilterState;
use crate::peers::Peers;
use crate::pending_calls::PendingCalls;
use crate::pod_annotations::PodNetworks;
use crate::pod_start::AttachedBeforeStart;
use crate::pods::PodIndex;
use crate::policies::PolicyState;
use crate::quota::SharedQuotas;
use crate::service_announcements::Announcements;
use crate::services::ServiceState;
use crate::sockets::Sockets;
use crate::step::last_applied::LastApplied;
pub use crate::unit_state::UnitState;
use crate::unit_state::UnitStates;
use crate::unused_objects::UnusedObjects;

/// How many revisions can be undone.
const MAX_REVISIONS: usize = 50;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An object's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for a cluster-wide one.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// An applied object with its intents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// The object and its generation.
    pub object: ObjectRef,
    /// Its intents.
    pub intents: Vec<Intent>,
    /// Warnings for its author.
    pub warnings: Vec<String>,
    /// The manifest as written.
    pub manifest: Value,
    /// The position in which the object was first applied: on conflicts the oldest object wins. Set by the engine.
    #[serde(default)]
    pub since: u64,
    /// The file in a watched folder that it comes from; `None` for objects from a user, a cluster or Knit itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A bridge by tenant and requested name. Its name on the node may differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BridgeKey {
    /// The tenant.
    pub namespace: String,
    /// The requested name.
    pub name: IfName,
}

/// A field of a link, or a sysctl, that Knit changed but does not own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OriginalValueKey {
    /// The scope.
    pub scope: Scope,
    /// The link; `None` for a sysctl.
    pub link: Option<IfName>,
    /// The field, or the sysctl's path.
    pub field: String,
}

/// A newly leased address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewLease {
    /// The network.
    pub network: String,
    /// The address.
    pub address: IpAddr,
    /// The lease.
    pub lease: Lease,
}

/// Settings of the node that the host passes in at start, and when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Ranges that no network may overlap, each with a description ("the node's range").
    pub forbidden: Vec<(String, IpNet)>,
    /// Destinations of the host's own routes, which no tenant network may overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routed: Vec<IpNet>,
    /// The addresses of the host's links, except loopback and link-local ones.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<IpAddr>,
    /// Ranges in which networks of tenants may have an address on the node, unless [`State::tenant_ranges`] has others. Without any, none
    /// has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenant_ranges: Vec<IpNet>,
    /// Whether packets between ports of a bridge cannot pass the packet filter (`br_netfilter` is not loaded).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_bridge_filter: bool,
}

/// The complete state of one node.
///
/// Its serialised form has everything but changes and calls in flight, for recordings; the journal has the [`State::persistent`] part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Objects.
    pub objects: ObjectIndex,
    /// Sandboxes.
    #[serde(with = "knit_model::serde_pairs")]
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Leased addresses.
    pub leases: Leases,
    /// The applied state of each unit.
    pub units: UnitStates,
    /// Problems of each unit.
    #[serde(with = "knit_model::serde_pairs")]
    pub problems: BTreeMap<Unit, Vec<(ObjectKey, Problem)>>,
    /// Original values to restore.
    #[serde(with = "knit_model::serde_pairs")]
    pub original_values: BTreeMap<OriginalValueKey, Value>,
    /// Changes that started and did not end.
    #[serde(with = "knit_model::serde_pairs")]
    pub unfinished: BTreeMap<Unit, ChangeStarted>,
    /// Revisions made by users, the latest last.
    #[serde(default)]
    pub revisions: Vec<Revision>,
    /// What calls requested.
    #[serde(default)]
    pub attachments: Attachments,
    /// Registered extensions, with their receipts.
    #[serde(default)]
    pub extensions: Extensions,
    /// Blocks of shared ranges.
    #[serde(default)]
    pub blocks: Blocks,
    /// Options that admins set on namespaces. Persistent: without an API server a restart changes nothing for pods.
    #[serde(default, skip_serializing_if = "Namespaces::is_empty")]
    pub namespaces: Namespaces,
    /// Active nodes of egress gateways, and the remote pods whose egress goes through this node.
    #[serde(default, skip_serializing_if = "EgressState::is_empty")]
    pub egress: EgressState,
    /// The load balancer addresses that this node announces.
    #[serde(default, skip_serializing_if = "Announcements::is_empty")]
    pub announcements: Announcements,
    /// The other nodes of the cluster. Persistent: a restart without an API server keeps the routes to them.
    #[serde(default, skip_serializing_if = "Peers::is_empty")]
    pub peers: Peers,
    /// The ranges of Services. Persistent: a restart without an API server must not open them to tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_ranges: Vec<IpNet>,
    /// The ranges that the cluster opens to tenants; `None`: those of the settings. Persistent: a restart without an API server must
    /// neither open nor close any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_ranges: Option<Vec<IpNet>>,
    /// All nodes of the cluster, from the API server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nodes: Nodes,
    /// The addresses that overlay tunnels run over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<Underlay>,
    /// What pods had before their containers started.
    #[serde(default, skip_serializing_if = "AttachedBeforeStart::is_empty")]
    pub started: AttachedBeforeStart,
    /// How many objects were ever applied.
    pub counter: u64,
    /// The pods of this node and their sandboxes, from the API server and the runtime.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pods: PodIndex,
    /// Objects that nothing on this node can need.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unused_objects: UnusedObjects,
    /// Networks in the annotations of pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pod_networks: PodNetworks,
    /// Calls that wait for the networks of a starting pod.
    #[serde(skip)]
    pub(crate) pod_starts: BTreeMap<CallId, SandboxId>,
    /// Sandboxes that need a key which its source does not know yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) awaiting_keys: BTreeSet<SandboxId>,
    /// Settings of the host. Not persistent: the host passes them in again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: Settings,
    /// Units to be compared with the kernel. Not persistent: after a start all units are compared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) dirty: BTreeSet<Unit>,
    /// Units with a change in flight. Boxed: a map allocates space for eleven values at once.
    #[serde(skip)]
    pub(crate) in_flight: BTreeMap<Unit, Box<crate::step::InFlightChange>>,
    /// The last applied state of sandboxes, where known.
    #[serde(default, skip_serializing_if = "is_default", with = "knit_model::serde_pairs")]
    pub(crate) last_applied: BTreeMap<Unit, LastApplied>,
    /// Host link names that changes in flight are about to use.
    #[serde(skip)]
    pub(crate) name_claims: BTreeMap<IfName, Unit>,
    /// Calls that wait for a result.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) pending_calls: PendingCalls,
    /// The packet filter that the host was asked to apply.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) packet_filter: PacketFilterState,
    /// Network policies. Not persistent: the API server has them, and the kernel what follows from them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) policies: PolicyState,
    /// Services. Not persistent: the API server has them, and the kernel what follows from them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) services: ServiceState,
    /// Sockets offered to pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) sockets: Sockets,
    /// Link kinds that this kernel does not support, each with an explanation. Not persistent, and cleared on resync
    /// or when an object requests the kind: a module may have been loaded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) unsupported: BTreeMap<String, String>,
    /// Cluster-wide quotas and this node's claims. Not persistent: the API server has them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) shared_quotas: SharedQuotas,
    /// What units request beyond their quota.
    #[serde(default, skip_serializing_if = "is_default", with = "knit_model::serde_pairs")]
    pub(crate) denied: BTreeMap<Unit, ResourceCounts>,
}

impl State {
    /// Applies one record. Replaying the same records in order yields the same state.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::ObjectApplied(object) => {
                let mut object = (**object).clone();
                let key = object.key();
                object.since = self.objects.get(&key).map_or(self.counter, |old| old.since);
                self.counter += 1;
                self.objects.insert(key, object);
            }
            Record::ObjectDeleted(key) => {
                self.objects.remove(key);
            }
            Record::SandboxUpdated(sandbox) => {
                self.sandboxes.insert(sandbox.id.clone(), sandbox.clone());
            }
            Record::SandboxRemoved { id, at } => self.forget(id, *at),
            Record::ContainersStarted(id, before) => self.started.insert(id, before),
            Record::ChangeStarted(started) => {
                for taken in &started.leases {
                    self.leases.restore(&taken.network, taken.address, taken.lease.clone());
                }
                for (key, value) in &started.original_values {
                    self.original_values.entry(key.clone()).or_insert_with(|| value.clone());
                }
                self.unfinished.insert(started.unit.clone(), (**started).clone());
            }
            Record::ChangeEnded(ended) => self.end(ended),
            Record::Revision(revision) => {
                self.revisions.push(revision.clone());
                let surplus = self.revisions.len().saturating_sub(MAX_REVISIONS);
                self.revisions.drain(..surplus);
            }
            Record::RevisionUndone => {
                self.revisions.pop();
            }
            Record::Attached(attachment) => self.attachments.attach((**attachment).clone()),
            Record::Detached { sandbox, interface, .. } => self.attachments.detach(sandbox, interface),
            Record::NetnsRequested(netns) => self.attachments.add_netns(netns.clone()),
            Record::PluginChains(chains) => self.attachments.set_chains(chains.clone()),
            Record::ChainAddStarted(chained) => self.attachments.add_chain((**chained).clone()),
            Record::ChainAddDone { sandbox, interface, result } => {
                self.attachments.chain_added(sandbox, interface, result);
            }
            Record::ChainDelStarted { sandbox, interface } => {
                self.attachments.start_chain_removal(sandbox, interface)
            }
            Record::ChainDelDone { sandbox, interface } => self.attachments.remove_chain(sandbox, interface),
            Record::NetnsRemoved { path, instance } => self.attachments.remove_netns(path, instance.as_ref()),
            Record::ExtensionRegistered(one) => self.extensions.registered(one),
            Record::ExtensionRemoved { name, .. } => self.extensions.removed(name),
            Record::ExtensionCalled { sandbox, receipt } => self.extensions.called(sandbox, receipt),
            Record::ExtensionAnswered { sandbox, id, outcome, at } => {
                self.extensions.answered(sandbox, id, outcome, *at);
            }
            Record::ReceiptsEnded(ended) => self.extensions.ended(ended),
            Record::ExtensionNotified { id } => self.extensions.notification_sent(id),
            Record::BlockClaimed(block) => {
                self.blocks.local.insert(block.name.clone(), (**block).clone());
            }
            Record::BlockReleased { name, returned } => {
                self.blocks.local.remove(name);
                self.blocks.remember_returned(returned.clone());
            }
            Record::Namespaces(changed) => {
                self.namespaces.extend(changed.iter().map(|(name, options)| (name.clone(), *options)));
                self.namespaces.retain(|_, options| !options.is_default());
            }
            Record::Peers { applied, removed } => {
                self.peers.retain(|name, _| !removed.contains(name));
                self.peers.extend(applied.iter().map(|peer| (peer.name.clone(), peer.clone())));
            }
            Record::ServiceRanges(ranges) => self.service_ranges.clone_from(ranges),
            Record::TenantRanges(ranges) => self.tenant_ranges.clone_from(ranges),
            Record::Underlay(underlay) => self.underlay = Some(underlay.clone()),
            Record::ActiveGateways(active) => self.egress.active.clone_from(active),
            Record::Announcements { added, removed } => self.announcements.update(added, removed),
            Record::RemotePods { namespace, removed, added } => {
                self.egress.update_remote_pods(namespace, removed, added)
            }
        }
    }

    /// The persistent part of the state.
    #[must_use]
    pub fn persistent(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            sandboxes: self.sandboxes.clone(),
            leases: self.leases.clone(),
            units: self.units.clone(),
            problems: self.problems.clone(),
            original_values: self.original_values.clone(),
            unfinished: self.unfinished.clone(),
            revisions: self.revisions.clone(),
            attachments: self.attachments.clone(),
            extensions: self.extensions.persistent(),
            blocks: self.blocks.persistent(),
            namespaces: self.namespaces.clone(),
            egress: self.egress.clone(),
            announcements: self.announcements.persistent(),
            peers: self.peers.clone(),
            underlay: self.underlay.clone(),
            service_ranges: self.service_ranges.clone(),
            tenant_ranges: self.tenant_ranges.clone(),
            started: self.started.clone(),
            counter: self.counter,
            // The others are not: unused objects alone may take megabytes.
            ..Self::default()
        }
    }

    /// Whether no change and no call is in flight: the serialised form of the state is complete.
    pub fn is_quiescent(&self) -> bool {
        self.in_flight.is_empty()
            && self.name_claims.is_empty()
            && self.pod_starts.is_empty()
            && self.pending_calls.is_idle()
    }

    fn forget(&mut self, id: &SandboxId, at: Time) {
        let unit = Unit::Sandbox(id.clone());
        self.sandboxes.remove(id);
        // The addresses of its interfaces stay leased until these are removed.
        let unit_state = self.units.get(&unit).into_iter().flat_map(|unit_state| &unit_state.interfaces);
        let stays: BTreeSet<IfName> = unit_state.map(|(_, interface)| interface.name.clone()).collect();
        self.leases.release_all_but(id, &stays, at);
        self.attachments.forget(id);
        self.started.forget(id);
        // Its host links stay recorded until they are removed.
        self.problems.remove(&unit);
        self.unfinished.remove(&unit);
        self.original_values.retain(|key, _| !matches!(&key.scope, Scope::Sandbox(other) if other == id));
    }

    fn end(&mut self, ended: &ChangeEnded) {
        let started = self.unfinished.remove(&ended.unit);
        match &ended.unit_state {
            Some(unit_state) => {
                if let Unit::Sandbox(id) = &ended.unit {
                    let called =
                        unit_state.interfaces.iter().filter(|(object, _)| object.kind == ATTACHMENT_KIND);
                    called.for_each(|(_, interface)| self.attachments.set_ready(id, &interface.name));
                }
                self.release_unused(ended, started.as_ref(), unit_state);
                self.started.retain_unchanged(&ended.unit, self.units.get(&ended.unit), unit_state);
                if **unit_state == UnitState::default() {
                    self.units.remove(&ended.unit);
                } else {
                    self.units.insert(ended.unit.clone(), Arc::clone(unit_state));
                }
            }
            // Rolled back: release the new leases and drop the new original values.
            None => {
                for taken in started.iter().flat_map(|started| &started.leases) {
                    let key = LeaseKey { network: taken.network.clone(), address: taken.address };
                    self.leases.release_address(&key, ended.at);
                }
                for key in started.iter().flat_map(|started| started.original_values.keys()) {
                    self.original_values.remove(key);
                }
            }
        }
        for key in &ended.restored {
            self.original_values.remove(key);
        }
        if ended.problems.is_empty() {
            self.problems.remove(&ended.unit);
        } else {
            self.problems.insert(ended.unit.clone(), ended.problems.clone());
        }
    }

    /// Releases leases that no interface of the sandbox uses: of interfaces that existed before, and of new ones that
    /// failed for another reason.
    fn release_unused(
        &mut self,
        ended: &ChangeEnded,
        started: Option<&ChangeStarted>,
        unit_state: &UnitState,
    ) {
        let Unit::Sandbox(sandbox) = &ended.unit else { return };
        let mut had: BTreeSet<IfName> = self
            .units
            .get(&ended.unit)
            .into_iter()
            .flat_map(|unit_state| &unit_state.interfaces)
            .map(|(_, interface)| interface.name.clone())
            .collect();
        had.extend(
            started
                .into_iter()
                .flat_map(|started| &started.leases)
                .map(|taken| taken.lease.owner.interface.clone()),
        );
        let has: BTreeSet<(IfName, IpAddr)> = unit_state
            .interfaces
            .iter()
            .flat_map(|(_, interface)| {
                interface.addresses.iter().map(|address| (interface.name.clone(), address.addr()))
            })
            .collect();
        for interface in had {
            let owner = AttachmentId { sandbox: sandbox.clone(), interface: interface.clone() };
            let unused: Vec<LeaseKey> = self
                .leases
                .held_by(&owner)
                .filter(|key| !has.contains(&(interface.clone(), key.address)))
                .cloned()
                .collect();
            for key in unused {
                self.leases.release_address(&key, ended.at);
            }
        }
    }

    /// Whether a change of the unit is in flight.
    pub fn is_in_flight(&self, unit: &Unit) -> bool {
        self.in_flight.contains_key(unit)
    }

    /// Units that wait for others before they are processed.
    pub fn queued(&self) -> impl Iterator<Item = &Unit> {
        self.dirty.iter()
    }

    /// Units with a change in flight or queued.
    pub fn pending(&self) -> impl Iterator<Item = &Unit> {
        self.in_flight.keys().chain(&self.dirty)
    }

    /// Whether a change of the unit is in flight or queued.
    pub fn is_pending(&self, unit: &Unit) -> bool {
        self.is_in_flight(unit) || self.dirty.contains(unit)
    }

    /// Whether no change is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Units without a change in flight or queued.
    pub fn settled(&self) -> impl Iterator<Item = &Unit> {
        self.units.keys().filter(|unit| !self.in_flight.contains_key(*unit) && !self.dirty.contains(*unit))
    }

    /// Whether another unit has this host link name, or is about to use it.
    pub(crate) fn is_name_taken(&self, host_link: &IfName, by_others_than: &Unit) -> bool {
        let holders = [self.units.holder(host_link), self.name_claims.get(host_link)];
        holders.into_iter().flatten().any(|holder| holder != by_others_than)
    }

    /// The network of a namespace by its name.
    pub(crate) fn network(&self, namespace: &str, name: &str) -> Option<&NetworkIntent> {
        let mut networks =
            self.objects.of_namespace(namespace).flat_map(|(_, object)| &object.intents).filter_map(
                |intent| match &intent.spec {
                    IntentSpec::Network(network) if network.name == name => Some(network),
                    _ => None,
                },
            );
        networks.next()
    }

    /// The object of a network by its name.
    pub(crate) fn network_object(&self, namespace: &str, name: &str) -> Option<(&ObjectKey, &Provenance)> {
        let mut objects = self.objects.of_namespace(namespace);
        objects.find_map(|(key, object)| {
            let is_it =
                |spec: &IntentSpec| matches!(spec, IntentSpec::Network(network) if network.name == name);
            let intent = object.intents.iter().find(|intent| is_it(&intent.spec))?;
            Some((key, &intent.origin))
        })
    }

    /// Whether a network exists on all nodes, because its object came from an API server.
    pub fn is_shared_network(&self, namespace: &str, name: &str) -> bool {
        let mut intents = self.objects.of_namespace(namespace).flat_map(|(_, object)| &object.intents);
        let is_it = |spec: &IntentSpec| matches!(spec, IntentSpec::Network(network) if network.name == name);
        let network = intents.find(|intent| is_it(&intent.spec));
        network.is_some_and(|intent| intent.origin.dialect == Dialect::Kubernetes)
    }

    /// The uplink with this name, if the tenant may use it.
    pub(crate) fn uplink(&self, namespace: &str, name: &str) -> Option<Result<&UplinkIntent, String>> {
        let uplink = self.uplinks().find(|uplink| uplink.name == name)?;
        Some(if uplink.is_open_to(namespace) {
            Ok(uplink)
        } else {
            Err(format!("uplink {name} is not open to namespace {namespace}"))
        })
    }

    /// An uplink that allows the tenant to move this NIC into a pod.
    pub(crate) fn uplink_of_nic(&self, namespace: &str, nic: &IfName) -> Option<&UplinkIntent> {
        let of_nic = |uplink: &&UplinkIntent| uplink.link == *nic && uplink.is_open_to(namespace);
        self.uplinks().filter(of_nic).find(|uplink| uplink.allows_device_move())
    }

    /// The first uplink of a NIC that is open to the tenant for this link kind.
    pub(crate) fn uplink_to(&self, namespace: &str, nic: &IfName, kind: &str) -> Option<&UplinkIntent> {
        let is_open = |uplink: &&UplinkIntent| {
            let is_named = uplink.kinds.iter().any(|open| open == kind);
            let fits = is_named || (uplink.kinds.is_empty() && kind != HostDevice::NAME);
            uplink.link == *nic && uplink.is_open_to(namespace) && fits
        };
        self.uplinks().find(is_open)
    }

    fn uplinks(&self) -> impl Iterator<Item = &UplinkIntent> {
        let intents = self.objects.with(Feature::Uplink).flat_map(|(_, object)| &object.intents);
        intents.filter_map(|intent| match &intent.spec {
            IntentSpec::Uplink(uplink) => Some(uplink),
            _ => None,
        })
    }
}

impl StoredObject {
    /// Its key.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.object)
    }

    /// Whether an API server stores the object, or the pod whose annotation it stands for. `false` for an object without
    /// intents: its origin is unknown.
    pub fn is_kept_by_api_server(&self) -> bool {
        let is_of_api =
            |intent: &Intent| matches!(intent.origin.dialect, Dialect::Kubernetes | Dialect::Annotation);
        !self.intents.is_empty() && self.intents.iter().all(is_of_api)
    }
}

impl ObjectKey {
    /// The key of an object, regardless of its generation.
    pub fn of(object: &ObjectRef) -> Self {
        let ObjectRef { kind, namespace, name, .. } = object;
        Self { kind: kind.clone(), namespace: namespace.clone(), name: name.clone() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.to_lowercase();
        if self.namespace.is_empty() {
            write!(out, "{kind}/{}", self.name)
        } else {
            write!(out, "{kind}/{} in {}", self.name, self.namespace)
        }
    }
}

impl fmt::Display for BridgeKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}
