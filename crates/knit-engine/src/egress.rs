//! Egress gateways: pods of selected namespaces leave the cluster through a chosen node, with a chosen source address
//! (SNAT).
//!
//! Every agent elects the same active node of a gateway from the Ready nodes; there is no leader. The last result is
//! persistent: it applies until the node watch has synced, and while no node of the gateway is Ready. Traffic to
//! external networks leaves through the active node or is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{EgressGatewayIntent, IntentSpec, LocalNode};
use knit_model::{IfName, Mac, kernel_ids};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterNetwork;
use crate::event::{Record, Unit};
use crate::packet_filter;
use crate::resolve;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// The kind of egress gateway objects.
pub const KIND: &str = "EgressGateway";
/// The number of gateways that fit into the bits of the packet mark, without zero.
const MAX_GATEWAYS: usize = 255;

/// The state of egress gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressState {
    /// The active node of each gateway, by the gateway's name.
    pub active: BTreeMap<String, String>,
    /// Addresses of pods on other nodes, by namespace, whose egress may go through this node.
    pub remote_pods: BTreeMap<String, BTreeSet<IpAddr>>,
}

/// The egress path of packets of one family on this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum EgressPath {
    /// Leaves here, with this source address.
    Local(IpAddr),
    /// Goes to the active node of the gateway, with this mark.
    ViaNode {
        /// The mark.
        mark: u32,
        /// The next hop.
        via: IpAddr,
    },
    /// Dropped: the gateway is not usable.
    Blocked,
}

/// A gateway with the resources that it actually got.
pub(crate) struct ResolvedGateway<'a> {
    /// Its object.
    pub(crate) key: &'a ObjectKey,
    /// Its spec.
    pub(crate) spec: &'a EgressGatewayIntent,
    /// Its number in packet marks; `None` if there are too many gateways.
    pub(crate) number: Option<u8>,
    /// The namespaces that use it.
    pub(crate) namespaces: BTreeSet<&'a str>,
    /// Its addresses, each with its conflict.
    pub(crate) addresses: Vec<(IpAddr, Option<String>)>,
    /// Its active node.
    pub(crate) active: Option<&'a str>,
    /// Warnings.
    pub(crate) warnings: Vec<String>,
}

/// The node of a gateway address.
pub(crate) enum GatewayLocation<'a> {
    /// This node, on this link.
    Local(&'a IfName),
    /// Another node.
    Remote(&'a str),
}

impl EgressState {
    /// Whether nothing is persistent.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.remote_pods.is_empty()
    }

    /// Applies a change of the addresses of remote pods.
    pub(crate) fn update_remote_pods(&mut self, namespace: &str, removed: &[IpAddr], added: &[IpAddr]) {
        let there = self.remote_pods.entry(namespace.to_owned()).or_default();
        there.retain(|address| !removed.contains(address));
        there.extend(added);
        if there.is_empty() {
            self.remote_pods.remove(namespace);
        }
    }
}

impl ResolvedGateway<'_> {
    /// The mark of packets to its active node.
    pub(crate) fn mark(&self) -> Option<u32> {
        self.number.map(|number| u32::from(number) << kernel_ids::EGRESS_MARK_SHIFT)
    }

    /// The routing table with the route to its active node.
    pub(crate) fn table(&self) -> Option<u32> {
        self.number.map(|number| kernel_ids::EGRESS_TABLE_BASE + u32::from(number))
    }

    /// The node of an address, or why it is unavailable.
    pub(crate) fn locate<'s>(
        &'s self,
        own: Option<&'s LocalNode>,
        address: IpAddr,
    ) -> Result<GatewayLocation<'s>, String> {
        let wrong =
            self.addresses.iter().find(|(one, _)| *one == address).and_then(|(_, error)| error.as_ref());
        if let Some(error) = wrong {
            return Err(format!("{address} is not used: {error}"));
        }
        if self.number.is_none() {
            return Err(format!("there are more than {MAX_GATEWAYS} gateways"));
        }
        let own = own.ok_or("this node's own links are not known yet")?;
        let Some(active) = self.active else {
            return Err(format!("none of its nodes is Ready: {}", self.spec.nodes.join(", ")));
        };
        if active != own.name {
            return Ok(GatewayLocation::Remote(active));
        }
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let error = || format!("node {active} has no link for {address}: it has no {family} address");
        own.link_for(address).map(GatewayLocation::Local).ok_or_else(error)
    }
}

impl State {
    fn gateway_specs(&self) -> impl Iterator<Item = (&ObjectKey, u64, &EgressGatewayIntent)> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let objects = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        objects.flat_map(|(key, object)| {
            object.intents.iter().filter_map(move |intent| match &intent.spec {
                IntentSpec::EgressGateway(spec) => Some((key, object.since, spec)),
                _ => None,
            })
        })
    }

    /// All gateways by name, with the resources that each got. Empty without a cluster network.
    pub(crate) fn egress_gateways(&self) -> Vec<ResolvedGateway<'_>> {
        let Some(cluster) = self.cluster() else { return Vec::new() };
        let gateway_numbers =
            gateway_numbers(self.gateway_specs().map(|(key, since, _)| (since, key.name.as_str())));
        let mut namespaces: BTreeMap<&str, &str> = BTreeMap::new();
        let mut addresses: BTreeMap<IpAddr, &str> = BTreeMap::new();
        let mut gateways = Vec::new();
        for (key, _, spec) in self.gateway_specs() {
            let (mut own, mut warnings) = (BTreeSet::new(), Vec::new());
            for namespace in &spec.namespaces {
                match *namespaces.entry(namespace).or_insert(&spec.name) {
                    holder if holder == spec.name => drop(own.insert(namespace.as_str())),
                    holder => warnings.push(format!(
                        "egress of namespace {namespace} uses gateway {holder}, which also selects it"
                    )),
                }
            }
            let judged = spec.addresses.iter().map(|address| {
                let holder = *addresses.entry(*address).or_insert(&spec.name);
                let taken = (holder != spec.name).then(|| format!("it belongs to gateway {holder}"));
                (*address, taken.or_else(|| address_conflict(cluster, *address)))
            });
            let addresses = judged.collect();
            let active = self.egress.active.get(&spec.name).map(String::as_str);
            if let Some(active) = active
                && self.nodes.has_synced()
                && !self.nodes.is_ready(active)
            {
                warnings
                    .push(format!("none of its nodes is Ready: the last one, {active}, keeps the addresses"));
            }
            let number = gateway_numbers.get(spec.name.as_str()).copied();
            gateways.push(ResolvedGateway {
                key,
                spec,
                number,
                namespaces: own,
                addresses,
                active,
                warnings,
            });
        }
        gateways
    }

    /// Namespaces whose egress may go through this node: their remote pods are watched.
    pub fn egress_namespaces(&self, node: &str) -> BTreeSet<String> {
        let by_it = self.gateway_specs().filter(|(_, _, spec)| spec.nodes.iter().any(|one| one == node));
        by_it.flat_map(|(_, _, spec)| spec.namespaces.iter().cloned()).collect()
    }
}

/// Egress paths by namespace and by whether they are for IPv6.
pub(crate) type EgressPaths = BTreeMap<String, BTreeMap<bool, EgressPath>>;

impl State {
    /// The egress paths of local pods.
    pub(crate) fn egress_paths(&self) -> EgressPaths {
        let mut egress_paths = EgressPaths::new();
        let (gateways, Some(cluster)) = (self.egress_gateways(), self.cluster()) else { return egress_paths };
        if gateways.is_empty() {
            return egress_paths;
        }
        let own = cluster.node_routes.and_then(|node_routes| node_routes.local_node.as_ref());
        let next_hops = resolve::next_hops(cluster);
        for gateway in &gateways {
            let path = |address: IpAddr| match gateway.locate(own, address) {
                Ok(GatewayLocation::Local(_)) => EgressPath::Local(address),
                Ok(GatewayLocation::Remote(node)) => {
                    let hop = next_hops.get(&(node.to_owned(), address.is_ipv6()));
                    let via = hop.and_then(|hop| hop.gateway);
                    let by = via.zip(gateway.mark()).map(|(via, mark)| EgressPath::ViaNode { mark, via });
                    by.unwrap_or(EgressPath::Blocked)
                }
                Err(_) => EgressPath::Blocked,
            };
            let by_family: BTreeMap<bool, EgressPath> =
                gateway.addresses.iter().map(|(address, _)| (address.is_ipv6(), path(*address))).collect();
            egress_paths
                .extend(gateway.namespaces.iter().map(|name| ((*name).to_owned(), by_family.clone())));
        }
        egress_paths
    }

    /// The egress paths of remote pods. Their traffic is forwarded here only if this node is active.
    pub(crate) fn remote_egress_paths(&self, egress_paths: &EgressPaths) -> BTreeMap<IpAddr, EgressPath> {
        let mut paths = BTreeMap::new();
        for (namespace, addresses) in &self.egress.remote_pods {
            let Some(egress_paths) = egress_paths.get(namespace) else { continue };
            for address in addresses {
                let path = match egress_paths.get(&address.is_ipv6()) {
                    Some(EgressPath::Local(source)) => EgressPath::Local(*source),
                    Some(_) => EgressPath::Blocked,
                    None => continue,
                };
                paths.insert(*address, path);
            }
        }
        paths
    }
}

/// What an address conflicts with, if it cannot be a gateway address.
fn address_conflict(cluster: ClusterNetwork<'_>, address: IpAddr) -> Option<String> {
    let node_routes = cluster.node_routes?;
    let mut own = node_routes
        .local_node
        .iter()
        .flat_map(|own| own.addresses.iter().map(move |(one, _)| (*one, &own.name)));
    let peers = cluster.peers.values();
    let mut others = peers.flat_map(|peer| peer.all_addresses().map(move |one| (one, &peer.name)));
    let node = own.find(|(one, _)| *one == address).or_else(|| others.find(|(one, _)| *one == address));
    if let Some((_, node)) = node {
        return Some(format!("it is an address of node {node}"));
    }
    let theirs = cluster.peers.values().flat_map(|peer| &peer.ranges);
    let mut ranges = cluster.network.ranges.iter().chain(&node_routes.pools).chain(theirs);
    let range: &IpNet = ranges.find(|range| range.contains(&address))?;
    Some(format!("it is in the pod range {range}"))
}

/// A number for each gateway, derived from its name. On a collision the newer gateway takes the next free number, so
/// that a new gateway never renumbers others.
fn gateway_numbers<'a>(gateways: impl Iterator<Item = (u64, &'a str)>) -> BTreeMap<&'a str, u8> {
    let mut in_order: Vec<(u64, &str)> = gateways.collect();
    in_order.sort_unstable();
    let (mut gateway_numbers, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (_, name) in in_order.into_iter().take(MAX_GATEWAYS) {
        let first = Mac::derived(&format!("egress/{name}")).bytes()[5];
        let all = (0..=u8::MAX).map(|step| first.wrapping_add(step));
        let free = all.into_iter().find(|number| *number > 0 && !taken.contains(number));
        let Some(number) = free else { continue };
        taken.insert(number);
        gateway_numbers.insert(name, number);
    }
    gateway_numbers
}

/// Changes the nodes, and elects the active node of each gateway again.
pub(crate) fn on_node_change(state: &mut State, change: impl FnOnce(&mut State), effects: &mut Effects) {
    let (before, is_first) = (gateway_warnings(state), !state.nodes.has_synced());
    change(state);
    elect_nodes(state, effects);
    if gateway_warnings(state) != before || (is_first && !state.egress.active.is_empty()) {
        state.dirty.insert(Unit::NodeRoutes);
    }
}

fn gateway_warnings(state: &State) -> Vec<Vec<String>> {
    state.egress_gateways().into_iter().map(|gateway| gateway.warnings).collect()
}

/// The remote pods of a namespace changed.
pub(crate) fn on_remote_pods(
    state: &mut State,
    namespace: &str,
    now: &BTreeSet<IpAddr>,
    effects: &mut Effects,
) {
    let own = local_node_name(state);
    let mut specs = state.gateway_specs();
    let is_relevant = specs.any(|(_, _, spec)| {
        let is_candidate = own.is_none_or(|own| spec.nodes.iter().any(|node| node == own));
        is_candidate && spec.namespaces.iter().any(|one| one == namespace)
    });
    drop(specs);
    if is_relevant && record_remote_pods(state, namespace, now, effects) {
        packet_filter::on_egress_change(state);
    }
}

fn record_remote_pods(
    state: &mut State,
    namespace: &str,
    now: &BTreeSet<IpAddr>,
    effects: &mut Effects,
) -> bool {
    let none = BTreeSet::new();
    let before = state.egress.remote_pods.get(namespace).unwrap_or(&none);
    let removed: Vec<IpAddr> = before.difference(now).copied().collect();
    let added: Vec<IpAddr> = now.difference(before).copied().collect();
    let is_news = !removed.is_empty() || !added.is_empty();
    if is_news {
        effects.record(state, Record::RemotePods { namespace: namespace.to_owned(), removed, added });
    }
    is_news
}

fn local_node_name(state: &State) -> Option<&str> {
    let own = state.cluster()?.node_routes?.local_node.as_ref()?;
    Some(&own.name)
}

/// A gateway changed.
pub(crate) fn on_object_change(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    if object.kind == KIND {
        elect_nodes(state, effects);
        prune_remote_pods(state, effects);
        packet_filter::on_egress_change(state);
    }
}

/// Elects the active node of each gateway: the first Ready node of its list. While none is Ready or known, the last
/// one stays if it is still listed.
fn elect_nodes(state: &mut State, effects: &mut Effects) {
    let specs = state.gateway_specs().map(|(_, _, spec)| spec);
    let chosen = specs.filter_map(|spec| {
        let is_well = |node: &&String| state.nodes.is_ready(node);
        let last = || state.egress.active.get(&spec.name).filter(|last| spec.nodes.contains(last));
        let node = spec.nodes.iter().find(is_well).or_else(last)?;
        Some((spec.name.clone(), node.clone()))
    });
    let chosen: BTreeMap<String, String> = chosen.collect();
    if chosen != state.egress.active {
        effects.record(state, Record::ActiveGateways(chosen));
        state.dirty.insert(Unit::NodeRoutes);
        packet_filter::on_egress_change(state);
    }
}

/// Drops remote pods whose egress no longer goes through this node.
fn prune_remote_pods(state: &mut State, effects: &mut Effects) {
    let Some(own) = local_node_name(state) else { return };
    let requested = state.egress_namespaces(own);
    let known = state.egress.remote_pods.keys();
    let unasked: Vec<String> = known.filter(|namespace| !requested.contains(*namespace)).cloned().collect();
    for namespace in unasked {
        record_remote_pods(state, &namespace, &BTreeSet::new(), effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_follows_from_the_name_and_stays_when_others_come() {
        let names: Vec<String> = (0..300).map(|number| format!("gateway{number}")).collect();
        let all = names.iter().enumerate().map(|(since, name)| (since as u64, name.as_str()));
        let many = gateway_numbers(all.clone());
        assert_eq!(many.len(), MAX_GATEWAYS, "no more than the mark has room for");
        let all_numbers: BTreeSet<u8> = many.values().copied().collect();
        assert_eq!((all_numbers.len(), all_numbers.contains(&0)), (MAX_GATEWAYS, false));
        for count in [1, 10, 100] {
            let few = gateway_numbers(all.clone().take(count));
            assert!(few.iter().all(|(name, number)| many[name] == *number), "{count}");
        }
    }
}
