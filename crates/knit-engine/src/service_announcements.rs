//! Announcement of load balancer addresses: each address of a ServiceAddressPool that a Service has is announced by one
//! Ready node.
//!
//! Every agent elects the same node from the Ready nodes; there is no leader. Each address has its own order of the nodes
//! (rendezvous hashing): the addresses spread over the nodes, and a node that fails moves only its own. What this node
//! announces is persistent: it applies until Services, EndpointSlices and nodes have synced, and while no node may announce
//! an address, the last one keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::intent::{IntentSpec, ServiceAddressIntent};
use knit_model::mac::fnv1a;
use knit_service::ServiceKey;
use serde::{Deserialize, Serialize};

use crate::cluster;
use crate::event::{Record, Unit};
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// The kind of pools.
pub const KIND: &str = "ServiceAddressPool";

/// What this node announces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announcements {
    /// The addresses, each with its pool. Persistent.
    pub active: BTreeMap<IpAddr, String>,
    /// The same by Service.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", with = "knit_model::serde_pairs")]
    by_service: BTreeMap<ServiceKey, BTreeMap<IpAddr, String>>,
    /// Whether all Services were compared since they have synced.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_complete: bool,
}

impl Announcements {
    /// Whether nothing is persistent.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What survives a restart.
    pub(crate) fn persistent(&self) -> Self {
        Self { active: self.active.clone(), ..Self::default() }
    }

    /// Applies a change of what is announced.
    pub(crate) fn update(&mut self, added: &[(IpAddr, String)], removed: &[IpAddr]) {
        self.active.retain(|address, _| !removed.contains(address));
        self.active.extend(added.iter().cloned());
    }
}

impl State {
    /// All pools by name.
    pub(crate) fn service_address_pools(&self) -> impl Iterator<Item = (&ObjectKey, &ServiceAddressIntent)> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let objects = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        objects.flat_map(|(key, object)| {
            object.intents.iter().filter_map(move |intent| match &intent.spec {
                IntentSpec::ServiceAddresses(spec) => Some((key, spec)),
                _ => None,
            })
        })
    }
}

/// Whether this node announced an address before it started, and does not know yet whether it still has to.
pub(crate) fn is_unconfirmed(state: &State, address: IpAddr) -> bool {
    !state.announcements.is_complete && state.announcements.active.contains_key(&address)
}

/// These Services or their endpoints changed.
pub(crate) fn on_services(state: &mut State, affected: &BTreeSet<ServiceKey>, effects: &mut Effects) {
    if !is_known(state) {
        return;
    }
    if !state.announcements.is_complete {
        return elect_all(state, effects);
    }
    let Some(own) = local_node(state) else { return };
    let pools = pools(state);
    let mut is_changed = false;
    for key in affected {
        let new = elected(state, &own, &pools, key);
        let by_service = &mut state.announcements.by_service;
        let old =
            if new.is_empty() { by_service.remove(key) } else { by_service.insert(key.clone(), new.clone()) };
        is_changed |= old.unwrap_or_default() != new;
    }
    if is_changed {
        record(state, effects);
    }
}

/// A pool, or the cluster network, changed.
pub(crate) fn on_object_change(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    if object.kind == KIND || *object == cluster::key() {
        elect_all(state, effects);
    }
}

/// The readiness of nodes changed.
pub(crate) fn on_node_change(state: &mut State, effects: &mut Effects) {
    elect_all(state, effects);
}

/// Elects the node of every address again.
fn elect_all(state: &mut State, effects: &mut Effects) {
    if !state.translates_services() {
        // Without translation connections to the addresses are not served.
        state.announcements.by_service.clear();
        state.announcements.is_complete = false;
        return record(state, effects);
    }
    let Some(own) = local_node(state).filter(|_| is_known(state)) else { return };
    let pools = pools(state);
    let keys: Vec<ServiceKey> = if pools.is_empty() { Vec::new() } else { state.announced_services() };
    let all = keys.into_iter().map(|key| (elected(state, &own, &pools, &key), key));
    let all = all.filter(|(addresses, _)| !addresses.is_empty());
    state.announcements.by_service = all.map(|(addresses, key)| (key, addresses)).collect();
    // What was recorded before a start may be missing in the kernel.
    if !std::mem::replace(&mut state.announcements.is_complete, true)
        && !state.announcements.active.is_empty()
    {
        state.dirty.insert(Unit::NodeRoutes);
    }
    record(state, effects);
}

/// Whether everything is known that elections follow from.
fn is_known(state: &State) -> bool {
    state.translates_services() && state.has_synced_services()
}

fn local_node(state: &State) -> Option<String> {
    let own = state.cluster()?.node_routes?.local_node.as_ref()?;
    Some(own.name.clone())
}

fn pools(state: &State) -> Vec<ServiceAddressIntent> {
    state.service_address_pools().map(|(_, pool)| pool.clone()).collect()
}

/// The addresses of a Service that this node announces, each with its pool.
fn elected(
    state: &State,
    own: &str,
    pools: &[ServiceAddressIntent],
    key: &ServiceKey,
) -> BTreeMap<IpAddr, String> {
    let announced = state.announced_addresses(key).into_iter().filter_map(|(address, nodes)| {
        // Only addresses that an admin gave to Services.
        let pool = pools.iter().find(|pool| pool.contains(address))?;
        let is_elected = match elect(state, address, nodes.as_ref()) {
            Some(node) => node == own,
            None => state.announcements.active.contains_key(&address),
        };
        is_elected.then(|| (address, pool.name.clone()))
    });
    announced.collect()
}

/// The node of an address: the Ready node with the highest weight, among those that may announce it.
fn elect<'a>(state: &'a State, address: IpAddr, nodes: Option<&BTreeSet<String>>) -> Option<&'a str> {
    let ready = state.nodes.all().filter(|node| node.is_ready).map(|node| node.name.as_str());
    let candidates = ready.filter(|name| nodes.is_none_or(|nodes| nodes.contains(*name)));
    candidates.max_by_key(|name| (weight(address, name), *name))
}

/// The weight of a node for an address. Names of nodes often differ in the last byte only, which FNV-1a hardly mixes.
fn weight(address: IpAddr, node: &str) -> u64 {
    let mut hash = fnv1a(format!("{address}/{node}").as_bytes());
    // The finalizer of SplitMix64.
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Records what differs from what is announced.
fn record(state: &mut State, effects: &mut Effects) {
    let desired: BTreeMap<IpAddr, String> =
        state.announcements.by_service.values().flatten().map(|(one, pool)| (*one, pool.clone())).collect();
    let active = &state.announcements.active;
    let added: Vec<(IpAddr, String)> = desired
        .iter()
        .filter(|(one, pool)| active.get(*one) != Some(pool))
        .map(|(one, pool)| (*one, pool.clone()))
        .collect();
    let removed: Vec<IpAddr> = active.keys().filter(|one| !desired.contains_key(*one)).copied().collect();
    if !added.is_empty() || !removed.is_empty() {
        effects.record(state, Record::Announcements { added, removed });
        state.dirty.insert(Unit::NodeRoutes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_spread_over_nodes_and_only_those_of_a_failed_node_move() {
        let nodes = ["node1", "node2", "node3", "node4"];
        let address = |number: u16| IpAddr::from([192, 0, (number >> 8) as u8, number as u8]);
        let winner = |nodes: &[&'static str], number: u16| {
            *nodes.iter().max_by_key(|node| weight(address(number), node)).unwrap()
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for number in 0..1_000 {
            *counts.entry(winner(&nodes, number)).or_default() += 1;
            let without = winner(&nodes[1..], number);
            let before = winner(&nodes, number);
            assert!(before == "node1" || before == without, "{number}");
        }
        assert!(counts.values().all(|count| (150..350).contains(count)), "{counts:?}");
    }
}
