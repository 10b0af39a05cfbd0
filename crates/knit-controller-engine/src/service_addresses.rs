//! Load balancer addresses: Services of type LoadBalancer get addresses of ServiceAddressPools.
//!
//! Nothing is stored besides the status of each Service: its ingress is the address, and the condition
//! [`CONDITION`] means that Knit assigned it. Only addresses with that condition are withdrawn. A write is based
//! on the resourceVersion that the decision followed from, so that it fails if the Service has changed since; until the
//! watch returns its result, the address counts as assigned.

mod allocation;
mod pools;
mod service;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_crds::kinds::AddressCounts;
use knit_crds::{Object, Severity, WatchUpdate};
use knit_engine::ObjectKey;
use knit_model::problem::{Problem, Reason};

use self::allocation::allocate;
use self::pools::Pools;
use self::service::Assignment;
pub use self::service::{AddressCondition, CLASS, CONDITION, ServiceInfo};
use crate::state::{Name, State};
use crate::step::Effect;

/// The kind of pools.
pub(crate) const KIND: &str = "ServiceAddressPool";
/// How long a failed write waits for its repetition, in milliseconds: a policy may forbid it.
const RETRY_MS: i64 = 10_000;

/// What the addresses of a node exclude.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The node's own addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The ranges of its pods.
    pub pod_ranges: Vec<IpNet>,
}

/// The state of load balancer addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceAddresses {
    /// Whether agents translate Services: otherwise addresses are neither announced nor assigned.
    enabled: bool,
    services: BTreeMap<Name, TrackedService>,
    nodes: BTreeMap<String, NodeAddresses>,
    /// Whether anything changed since the last reconciliation.
    dirty: bool,
    /// Services with a failed write, and when it failed.
    failed: BTreeMap<Name, i64>,
    /// The addresses of each pool.
    counts: BTreeMap<String, AddressCounts>,
    /// What each pool overlaps.
    conflicts: BTreeMap<String, Vec<String>>,
}

/// A Service, and what was written since it was observed.
#[derive(Clone, Debug)]
struct TrackedService {
    info: ServiceInfo,
    /// What was written to the status of this resourceVersion.
    pending: Option<Assignment>,
}

impl TrackedService {
    /// What Knit assigned, as far as is known.
    fn current(&self) -> Assignment {
        self.pending.clone().unwrap_or_else(|| self.info.observed())
    }
}

impl State {
    /// Assigns addresses of pools to Services of type LoadBalancer, because agents translate Services.
    #[must_use]
    pub fn with_service_addresses(mut self) -> Self {
        self.service_addresses.enabled = true;
        self
    }

    /// Whether failed writes of Services await their repetition.
    pub fn has_failed_services(&self) -> bool {
        !self.service_addresses.failed.is_empty()
    }
}

impl ServiceAddresses {
    /// Whether Services and the addresses of nodes have to be watched.
    pub(crate) fn needs_watches(&self) -> bool {
        self.enabled
    }

    pub(crate) fn needs_reconcile(&self) -> bool {
        self.enabled && self.dirty
    }

    /// What is wrong with a pool.
    pub(crate) fn problems(&self, key: &ObjectKey) -> Vec<Problem> {
        if key.kind != KIND {
            return Vec::new();
        }
        if !self.enabled {
            let why = "no Service gets an address: agents do not translate Services (clusterNetwork.serviceProxy: knit)";
            return vec![Problem::new("spec", Reason::NotReady, why)];
        }
        let conflicts = self.conflicts.get(&key.name).into_iter().flatten();
        conflicts.map(|why| Problem::new("spec.cidrs", Reason::RangeOverlap, why.clone())).collect()
    }

    /// Sets the counts in the status of a pool. Returns whether they changed.
    pub(crate) fn set_counts(&self, object: &mut Object) -> bool {
        let Object::ServiceAddressPool(pool) = object else { return false };
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let counts = self.counts.get(name).copied();
        let Some(status) = &mut pool.status else { return false };
        let is_changed = status.addresses != counts;
        status.addresses = counts;
        is_changed
    }
}

/// Handles an update of Services.
pub(crate) fn on_services(state: &mut State, update: WatchUpdate<(Name, ServiceInfo)>) {
    let all = &mut state.service_addresses;
    match update {
        WatchUpdate::Listed(listed) => {
            let there: BTreeSet<Name> = listed.iter().map(|(name, _)| name.clone()).collect();
            all.services.retain(|name, _| there.contains(name));
            all.failed.retain(|name, _| there.contains(name));
            all.dirty = true;
            listed.into_iter().for_each(|(name, info)| put(all, name, info));
        }
        WatchUpdate::Applied((name, info)) => put(all, name, info),
        WatchUpdate::Deleted((name, _)) => {
            all.failed.remove(&name);
            all.dirty |= all.services.remove(&name).is_some();
        }
    }
}

fn put(all: &mut ServiceAddresses, name: Name, info: ServiceInfo) {
    let before = all.services.get(&name);
    // A newer version has the result of the write, or the write has failed because of it.
    let is_same =
        before.is_some_and(|before| before.info.version == info.version && before.info.uid == info.uid);
    let pending = before.filter(|_| is_same).and_then(|before| before.pending.clone());
    let is_unchanged = before.is_some_and(|before| {
        before.pending == pending
            && ServiceInfo { version: info.version.clone(), ..before.info.clone() } == info
    });
    all.dirty |= !is_unchanged;
    if !is_same {
        all.failed.remove(&name);
    }
    all.services.insert(name, TrackedService { info, pending });
}

/// Handles an update of the addresses of nodes.
pub(crate) fn on_nodes(state: &mut State, update: WatchUpdate<(String, NodeAddresses)>) {
    let all = &mut state.service_addresses;
    match update {
        WatchUpdate::Listed(nodes) => {
            all.nodes = nodes.into_iter().collect();
            all.dirty = true;
        }
        WatchUpdate::Applied((name, addresses)) => {
            // Most updates are heartbeats.
            all.dirty |= all.nodes.insert(name, addresses.clone()) != Some(addresses);
        }
        WatchUpdate::Deleted((name, _)) => all.dirty |= all.nodes.remove(&name).is_some(),
    }
}

/// An object of a kind that addresses depend on changed.
pub(crate) fn on_objects(state: &mut State, kind: &str) {
    state.service_addresses.dirty |= [KIND, "PodAddressPool", "EgressGateway"].contains(&kind);
}

/// A write of the status of a Service failed: it is not known whether it had an effect.
pub(crate) fn on_failure(state: &mut State, service: Name, now: i64) {
    state.service_addresses.failed.insert(service, now);
}

/// Assigns and withdraws addresses.
pub(crate) fn reconcile(state: &mut State, now: i64) -> Vec<Effect> {
    let all = &mut state.service_addresses;
    if !all.enabled {
        return Vec::new();
    }
    // A clock that was set back must not delay it.
    let is_due = |_: &Name, since: &mut i64| now - *since >= RETRY_MS || now < *since;
    let due: BTreeSet<Name> = all.failed.extract_if(.., is_due).map(|(name, _)| name).collect();
    if !std::mem::take(&mut all.dirty) && due.is_empty() {
        return Vec::new();
    }
    let pools = Pools::of(state);
    let decisions = allocate(&state.service_addresses.services, &pools);
    let mut effects = Vec::new();
    for (name, desired) in &decisions {
        write(&mut state.service_addresses, name, desired, due.contains(name), now, &mut effects);
    }
    update_pools(state, &pools);
    effects
}

/// Writes the status of a Service if it differs.
fn write(
    all: &mut ServiceAddresses,
    name: &Name,
    desired: &Assignment,
    is_repeated: bool,
    now: i64,
    effects: &mut Vec<Effect>,
) {
    if all.failed.contains_key(name) {
        return;
    }
    let Some(service) = all.services.get_mut(name) else { return };
    let (observed, current) = (service.info.observed(), service.current());
    if *desired == current && !(is_repeated && *desired != observed) {
        return;
    }
    effects.push(Effect::WriteServiceStatus {
        service: name.clone(),
        manifest: status::manifest(name, &service.info, desired, now),
    });
    if !is_repeated {
        effects.extend(status::event(name, &service.info, &current, desired));
    }
    service.pending = Some(desired.clone());
}

/// Counts the addresses of pools, and updates the status of those that changed.
fn update_pools(state: &mut State, pools: &Pools) {
    let all = &mut state.service_addresses;
    let assigned = all.services.values().flat_map(|service| service.current().addresses);
    let assigned: BTreeSet<IpAddr> = assigned.collect();
    let counts: BTreeMap<String, AddressCounts> = pools.counts(&assigned);
    let conflicts = pools.conflicts();
    let names: BTreeSet<&String> =
        counts.keys().chain(conflicts.keys()).chain(all.conflicts.keys()).collect();
    let is_changed = |name: &&&String| {
        all.counts.get(**name) != counts.get(**name) || all.conflicts.get(**name) != conflicts.get(**name)
    };
    let changed: Vec<String> = names.iter().filter(is_changed).map(|name| (*name).clone()).collect();
    (all.counts, all.conflicts) = (counts, conflicts);
    let key = |name: String| ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name };
    state.dirty.extend(changed.into_iter().map(key));
}

/// How severe the reason of a condition is.
fn severity(is_assigned: bool) -> Severity {
    if is_assigned { Severity::Normal } else { Severity::Warning }
}
