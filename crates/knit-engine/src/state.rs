//! The engine's memory, and the only way it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, Key, Lease, Leases, Time};
use knit_model::intent::{Intent, IntentSpec, NetworkIntent, UplinkIntent};
use knit_model::link::{HostDevice, LinkKind};
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::quota::Counts;
use knit_model::{IfName, Sandbox, SandboxId, Scope};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::blocks::Blocks;
use crate::call::ATTACHMENT;
use crate::called::Called;
use crate::calls::Calls;
use crate::egress::Egress;
use crate::event::{Began, Ended, Record, Revision, Unit};
use crate::extensions::Extensions;
use crate::forward::Forwards;
use crate::made::AllMade;
pub use crate::made::Made;
use crate::namespaces::Namespaces;
use crate::sockets::Sockets;
use crate::spans::Underlay;
use crate::starting::Started;
use crate::step::standing::Standing;

/// So many changes can be taken back one after the other.
const MOST_REVISIONS: usize = 50;

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

/// An object as it was applied, with what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// Which object, which generation.
    pub object: ObjectRef,
    /// What it asks for.
    pub intents: Vec<Intent>,
    /// What the dialect had to say to its author.
    pub warnings: Vec<String>,
    /// The object as its author wrote it.
    pub manifest: Value,
    /// Objects are asked in the order in which they first came: the first keeps what two want. Set by the engine.
    #[serde(default)]
    pub since: u64,
    /// The file of a watched folder that it comes from; `None` if a person, a cluster or Knit itself gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A bridge by the tenant and the name it asked for. The name on the node may be another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BridgeKey {
    /// The tenant.
    pub namespace: String,
    /// The name that was asked for.
    pub name: IfName,
}

/// A field of a link, or a sysctl, that Knit does not own but has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeldKey {
    /// Where.
    pub scope: Scope,
    /// The link; `None` for a sysctl.
    pub link: Option<IfName>,
    /// The field, or the sysctl's path.
    pub field: String,
}

/// An address that was taken from a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTaken {
    /// The network.
    pub network: String,
    /// The address.
    pub address: IpAddr,
    /// The lease.
    pub lease: Lease,
}

/// What the host tells the engine about the node, once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Ranges that no tenant's network may overlap, each with what it is ("the service range").
    pub forbidden: Vec<(String, IpNet)>,
}

/// Everything that Knit knows on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Objects.
    #[serde(with = "knit_model::pairs")]
    pub objects: BTreeMap<ObjectKey, StoredObject>,
    /// Sandboxes.
    #[serde(with = "knit_model::pairs")]
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Addresses in use.
    pub leases: Leases,
    /// What each unit has.
    pub made: AllMade,
    /// What stands in the way of each unit.
    #[serde(with = "knit_model::pairs")]
    pub problems: BTreeMap<Unit, Vec<(ObjectKey, Problem)>>,
    /// Old values to give back.
    #[serde(with = "knit_model::pairs")]
    pub held: BTreeMap<HeldKey, Value>,
    /// Changes that began and did not end.
    #[serde(with = "knit_model::pairs")]
    pub unfinished: BTreeMap<Unit, Began>,
    /// What people changed, the newest last.
    #[serde(default)]
    pub revisions: Vec<Revision>,
    /// What calls asked for.
    #[serde(default)]
    pub called: Called,
    /// Who takes part in attaches, and what each did.
    #[serde(default)]
    pub extensions: Extensions,
    /// Blocks of ranges that nodes share.
    #[serde(default)]
    pub blocks: Blocks,
    /// What admins say about namespaces. Remembered: without an API server a restart changes nothing for pods.
    #[serde(default, skip_serializing_if = "Namespaces::is_empty")]
    pub namespaces: Namespaces,
    /// Who has the addresses of gateways, and whose pods leave by this node.
    #[serde(default, skip_serializing_if = "Egress::is_empty")]
    pub egress: Egress,
    /// What the tunnels of networks that are one on all nodes lie on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<Underlay>,
    /// What pods had before their containers were started.
    #[serde(default, skip_serializing_if = "Started::is_empty")]
    pub started: Started,
    /// How many objects ever came.
    pub counter: u64,
    /// What the host told. Not remembered: the host tells it again.
    #[serde(skip)]
    pub settings: Settings,
    /// Units that have to be compared with the kernel. Not remembered: after a start everything is compared.
    #[serde(skip)]
    pub(crate) dirty: BTreeSet<Unit>,
    /// Units that are being worked on.
    #[serde(skip)]
    pub(crate) flights: BTreeMap<Unit, crate::step::Flight>,
    /// What sandboxes were last seen to have, those of which that is known.
    #[serde(skip)]
    pub(crate) standing: BTreeMap<Unit, Standing>,
    /// Names of host links that units being worked on are about to take.
    #[serde(skip)]
    pub(crate) claims: BTreeMap<IfName, Unit>,
    /// Calls that wait for an answer.
    #[serde(skip)]
    pub(crate) calls: Calls,
    /// Ports of the node that lead to pods.
    #[serde(skip)]
    pub(crate) forwards: Forwards,
    /// Sockets that pods may ask for.
    #[serde(skip)]
    pub(crate) sockets: Sockets,
    /// Kinds of links that this kernel has been found not to have, in words. Not remembered, and forgotten when everything
    /// is compared again or an object asks for such a kind: a module may have been loaded.
    #[serde(skip)]
    pub(crate) lacking: BTreeMap<String, String>,
    /// What this node may use of quotas that hold for all nodes. Not remembered: whoever claims tells it again.
    #[serde(skip)]
    pub(crate) allowances: BTreeMap<ObjectKey, Counts>,
    /// What units ask for and may not have because of a quota.
    #[serde(skip)]
    pub(crate) refused: BTreeMap<Unit, Counts>,
}

impl State {
    /// Changes the state by one record. The same records in the same order give the same state.
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
            Record::SandboxSeen(sandbox) => {
                self.sandboxes.insert(sandbox.id.clone(), sandbox.clone());
            }
            Record::SandboxGone { id, at } => self.forget(id, *at),
            Record::Started(id, before) => self.started.note(id, before),
            Record::Began(began) => {
                for taken in &began.leases {
                    self.leases.restore(&taken.network, taken.address, taken.lease.clone());
                }
                for (key, value) in &began.held {
                    self.held.entry(key.clone()).or_insert_with(|| value.clone());
                }
                self.unfinished.insert(began.unit.clone(), (**began).clone());
            }
            Record::Ended(ended) => self.end(ended),
            Record::Revision(revision) => {
                self.revisions.push(revision.clone());
                let surplus = self.revisions.len().saturating_sub(MOST_REVISIONS);
                self.revisions.drain(..surplus);
            }
            Record::Undone => {
                self.revisions.pop();
            }
            Record::Attached(attachment) => self.called.attach((**attachment).clone()),
            Record::Detached { sandbox, interface, .. } => self.called.detach(sandbox, interface),
            Record::Domain(domain) => self.called.add_domain(domain.clone()),
            Record::Chains(chains) => self.called.set_chains(chains.clone()),
            Record::Chained(chained) => self.called.begin_chain((**chained).clone()),
            Record::ChainStands { sandbox, interface, result } => {
                self.called.chain_stands(sandbox, interface, result);
            }
            Record::ChainLeaves { sandbox, interface } => self.called.chain_leaves(sandbox, interface),
            Record::ChainGone { sandbox, interface } => self.called.end_chain(sandbox, interface),
            Record::DomainGone { path, instance } => self.called.remove_domain(path, instance.as_ref()),
            Record::ExtensionRegistered(one) => self.extensions.registered(one),
            Record::ExtensionRemoved { name, .. } => self.extensions.removed(name),
            Record::ExtensionCalled { sandbox, receipt } => self.extensions.called(sandbox, receipt),
            Record::ExtensionAnswered { sandbox, id, outcome, at } => {
                self.extensions.answered(sandbox, id, outcome, *at);
            }
            Record::ReceiptsEnded(ended) => self.extensions.ended(ended),
            Record::ExtensionTold { id } => self.extensions.is_told(id),
            Record::BlockClaimed(block) => {
                self.blocks.mine.insert(block.name.clone(), (**block).clone());
            }
            Record::BlockGone { name, returned } => {
                self.blocks.mine.remove(name);
                self.blocks.remember_returned(returned.clone());
            }
            Record::Namespaces(namespaces) => self.namespaces.clone_from(namespaces),
            Record::Underlay(underlay) => self.underlay = Some(underlay.clone()),
            Record::Active(active) => self.egress.active.clone_from(active),
            Record::Elsewhere { namespace, gone, come } => self.egress.moved(namespace, gone, come),
        }
    }

    /// What is remembered of the state: without what is only known while the program runs.
    #[must_use]
    pub fn remembered(&self) -> Self {
        Self {
            settings: Settings::default(),
            dirty: BTreeSet::new(),
            flights: BTreeMap::new(),
            standing: BTreeMap::new(),
            claims: BTreeMap::new(),
            calls: Calls::default(),
            forwards: Forwards::default(),
            sockets: Sockets::default(),
            extensions: self.extensions.remembered(),
            blocks: self.blocks.remembered(),
            egress: self.egress.remembered(),
            lacking: BTreeMap::new(),
            allowances: BTreeMap::new(),
            refused: BTreeMap::new(),
            ..self.clone()
        }
    }

    fn forget(&mut self, id: &SandboxId, at: Time) {
        let unit = Unit::Sandbox(id.clone());
        self.sandboxes.remove(id);
        // What its interfaces have is nobody else's before they are cut off.
        let made = self.made.get(&unit).into_iter().flat_map(|made| &made.interfaces);
        let stays: BTreeSet<IfName> = made.map(|(_, interface)| interface.name.clone()).collect();
        self.leases.release_all_but(id, &stays, at);
        self.called.forget(id);
        self.started.forget(id);
        // What it had on the host stays known until that is cut off.
        self.problems.remove(&unit);
        self.unfinished.remove(&unit);
        self.held.retain(|key, _| key.scope != Scope::Sandbox(id.clone()));
    }

    fn end(&mut self, ended: &Ended) {
        let began = self.unfinished.remove(&ended.unit);
        match &ended.made {
            Some(made) => {
                if let Unit::Sandbox(id) = &ended.unit {
                    let called = made.interfaces.iter().filter(|(object, _)| object.kind == ATTACHMENT);
                    called.for_each(|(_, interface)| self.called.stands(id, &interface.name));
                }
                self.release_unused(ended, began.as_ref(), made);
                self.started.follow(&ended.unit, self.made.get(&ended.unit), made);
                if *made == Made::default() {
                    self.made.remove(&ended.unit);
                } else {
                    self.made.insert(ended.unit.clone(), made.clone());
                }
            }
            // Taken back: what was taken for it is free again, and what was held is as it was.
            None => {
                for taken in began.iter().flat_map(|began| &began.leases) {
                    let key = Key { network: taken.network.clone(), address: taken.address };
                    self.leases.release_address(&key, ended.at);
                }
                for key in began.iter().flat_map(|began| began.held.keys()) {
                    self.held.remove(key);
                }
            }
        }
        for key in &ended.given_back {
            self.held.remove(key);
        }
        if ended.problems.is_empty() {
            self.problems.remove(&ended.unit);
        } else {
            self.problems.insert(ended.unit.clone(), ended.problems.clone());
        }
    }

    /// Gives back the addresses of a sandbox that none of its interfaces has: those that had some before, and those
    /// that took some just now and could not be made for another reason.
    fn release_unused(&mut self, ended: &Ended, began: Option<&Began>, made: &Made) {
        let Unit::Sandbox(sandbox) = &ended.unit else { return };
        let mut had: BTreeSet<IfName> = self
            .made
            .get(&ended.unit)
            .into_iter()
            .flat_map(|made| &made.interfaces)
            .map(|(_, interface)| interface.name.clone())
            .collect();
        had.extend(
            began
                .into_iter()
                .flat_map(|began| &began.leases)
                .map(|taken| taken.lease.owner.interface.clone()),
        );
        let has: BTreeSet<(IfName, IpAddr)> = made
            .interfaces
            .iter()
            .flat_map(|(_, interface)| {
                interface.addresses.iter().map(|address| (interface.name.clone(), address.addr()))
            })
            .collect();
        for interface in had {
            let owner = AttachmentId { sandbox: sandbox.clone(), interface: interface.clone() };
            let unused: Vec<Key> = self
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

    /// Whether a unit is being worked on.
    pub fn is_busy(&self, unit: &Unit) -> bool {
        self.flights.contains_key(unit)
    }

    /// Units that have to be worked on, and wait for others.
    pub fn waiting(&self) -> impl Iterator<Item = &Unit> {
        self.dirty.iter()
    }

    /// Units that are being worked on, or have to be.
    pub fn pending(&self) -> impl Iterator<Item = &Unit> {
        self.flights.keys().chain(&self.dirty)
    }

    /// Whether a unit is being worked on, or has to be.
    pub fn is_pending(&self, unit: &Unit) -> bool {
        self.is_busy(unit) || self.dirty.contains(unit)
    }

    /// Whether nothing at all is being worked on.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Units that nobody works on, and nobody asked to be looked at.
    pub fn at_rest(&self) -> impl Iterator<Item = &Unit> {
        self.made.keys().filter(|unit| !self.flights.contains_key(*unit) && !self.dirty.contains(*unit))
    }

    /// The order of objects: the first that came is asked first.
    pub(crate) fn in_order(&self) -> Vec<(&ObjectKey, &StoredObject)> {
        let mut all: Vec<_> = self.objects.iter().collect();
        all.sort_by_key(|(_, object)| object.since);
        all
    }

    /// Whether another unit has, or is about to take, this name on the host.
    pub(crate) fn is_taken(&self, host_link: &IfName, by_others_than: &Unit) -> bool {
        let holders = [self.made.holder(host_link), self.claims.get(host_link)];
        holders.into_iter().flatten().any(|holder| holder != by_others_than)
    }

    /// The network of a namespace by its name.
    pub(crate) fn network(&self, namespace: &str, name: &str) -> Option<&NetworkIntent> {
        let objects = self.objects.iter().filter(|(key, _)| key.namespace == namespace);
        let mut networks =
            objects.flat_map(|(_, object)| &object.intents).filter_map(|intent| match &intent.spec {
                IntentSpec::Network(network) if network.name == name => Some(network),
                _ => None,
            });
        networks.next()
    }

    /// Whether a network is every node's, and not this one's alone: its object came from an API server.
    pub fn is_shared_network(&self, namespace: &str, name: &str) -> bool {
        let objects = self.objects.iter().filter(|(key, _)| key.namespace == namespace);
        let mut intents = objects.flat_map(|(_, object)| &object.intents);
        let is_it = |want: &IntentSpec| matches!(want, IntentSpec::Network(network) if network.name == name);
        let network = intents.find(|intent| is_it(&intent.spec));
        network.is_some_and(|intent| intent.origin.dialect == Dialect::Kubernetes)
    }

    /// The uplink that a tenant may use under this name.
    pub(crate) fn uplink(&self, namespace: &str, name: &str) -> Option<Result<&UplinkIntent, String>> {
        let uplink = self.uplinks().find(|uplink| uplink.name == name)?;
        Some(if uplink.is_open_to(namespace) {
            Ok(uplink)
        } else {
            Err(format!("uplink {name} is not open to namespace {namespace}"))
        })
    }

    /// An uplink by which a tenant may be lent this NIC.
    pub(crate) fn uplink_of_nic(&self, namespace: &str, nic: &IfName) -> Option<&UplinkIntent> {
        let of_nic = |uplink: &&UplinkIntent| uplink.link == *nic && uplink.is_open_to(namespace);
        self.uplinks().filter(of_nic).find(|uplink| uplink.lends())
    }

    /// The uplink of a NIC by which links of this kind of a tenant leave, the first that is open to both.
    pub(crate) fn uplink_to(&self, namespace: &str, nic: &IfName, kind: &str) -> Option<&UplinkIntent> {
        let is_open = |uplink: &&UplinkIntent| {
            let is_named = uplink.kinds.iter().any(|open| open == kind);
            let fits = is_named || (uplink.kinds.is_empty() && kind != HostDevice::NAME);
            uplink.link == *nic && uplink.is_open_to(namespace) && fits
        };
        self.uplinks().find(is_open)
    }

    fn uplinks(&self) -> impl Iterator<Item = &UplinkIntent> {
        let intents = self.objects.values().flat_map(|object| &object.intents);
        intents.filter_map(|intent| match &intent.spec {
            IntentSpec::Uplink(uplink) => Some(uplink),
            _ => None,
        })
    }
}

impl StoredObject {
    /// Its identity.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.object)
    }
}

impl ObjectKey {
    /// Which object it is, whatever its generation.
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
