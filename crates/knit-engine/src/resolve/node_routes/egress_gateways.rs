//! Egress gateways: the gateway address on its active node, and on the others a route to that node in a separate table
//! for marked packets of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::{ItemKind, ItemReport};
use knit_model::route::NextHop;
use knit_model::{Address, IfName, NetState, Route, Rule, Scope, kernel_ids};

use super::{ClaimedRanges, NodePath, add_route, choose, gateway_of, put_rule, vxlan};
use crate::cluster::ClusterNetwork;
use crate::egress::{GatewayLocation, ResolvedGateway};
use crate::resolve::Resolved;
use crate::service_announcements::is_unconfirmed;
use crate::state::{ObjectKey, State};

/// The next hop to each node, by name and by whether it is for IPv6.
pub(crate) type NodeNextHops = BTreeMap<(String, bool), NextHop>;

/// The next hop to each other node, the same as to its pods.
pub(crate) fn next_hops(cluster: ClusterNetwork<'_>) -> NodeNextHops {
    let mut next_hops = NodeNextHops::new();
    // Egress traffic to another node would be unencrypted.
    let Some(node_routes) = cluster.node_routes.filter(|node_routes| node_routes.encryption.is_none()) else {
        return next_hops;
    };
    let mut claimed = ClaimedRanges::of(cluster);
    for (name, peer) in cluster.peers {
        let (peer, _) = claimed.usable_peer(peer);
        for range in peer.ranges.iter().map(IpNet::trunc) {
            let chosen = claimed.claim(range, name).and_then(|()| choose(node_routes, &peer, range));
            let hop = match chosen {
                Ok(NodePath::Native((gateway, link))) => {
                    NextHop { gateway: Some(gateway), link, weight: 1, onlink: false }
                }
                Ok(NodePath::Tunnel { end, .. }) => {
                    let (gateway, link) = (Some(gateway_of(range)), vxlan::link_name(end));
                    NextHop { gateway, link, weight: 1, onlink: true }
                }
                Err(_) => continue,
            };
            next_hops.entry((peer.name.clone(), range.addr().is_ipv6())).or_insert(hop);
        }
    }
    next_hops
}

/// Adds addresses and routes of egress gateways.
pub(super) fn add(state: &State, cluster: ClusterNetwork<'_>, resolved: &mut Resolved) {
    let gateways = state.egress_gateways();
    if gateways.is_empty() {
        return;
    }
    let next_hops = next_hops(cluster);
    for gateway in &gateways {
        resolved.requesters.insert(gateway.key.clone());
        let warnings = gateway.warnings.iter().map(|warning| (gateway.key.clone(), warning.clone()));
        resolved.unit_state.warnings.extend(warnings);
        let intents = state.objects.get(gateway.key).map(|object| &object.intents[..]).unwrap_or_default();
        let Some(origin) = intents.first().map(|intent| &intent.origin) else { continue };
        for (index, (address, wrong)) in gateway.addresses.iter().enumerate() {
            let origin = origin.at(format!("spec.addresses[{index}]"));
            if let Err(error) = add_address(cluster, gateway, *address, &next_hops, &origin, resolved) {
                let reason = if wrong.is_some() { Reason::Conflict } else { Reason::NotReady };
                resolved.problem(gateway.key, origin.field, reason, error);
            }
        }
    }
}

fn add_address(
    cluster: ClusterNetwork<'_>,
    gateway: &ResolvedGateway<'_>,
    address: IpAddr,
    next_hops: &NodeNextHops,
    origin: &Provenance,
    resolved: &mut Resolved,
) -> Result<(), String> {
    let own = cluster.node_routes.and_then(|node_routes| node_routes.local_node.as_ref());
    match gateway.locate(own, address)? {
        GatewayLocation::Local(link) => {
            add_local_address(gateway.key, address, link, origin, resolved);
            Ok(())
        }
        GatewayLocation::Remote(node) => {
            let hop = next_hops.get(&(node.to_owned(), address.is_ipv6()));
            let is_encrypted =
                cluster.node_routes.is_some_and(|node_routes| node_routes.encryption.is_some());
            let why_not = if is_encrypted { ": the traffic would be unencrypted" } else { "" };
            let hop =
                hop.ok_or_else(|| format!("node {node}, which has {address}, is not reached{why_not}"))?;
            add_route_to_gateway(cluster, gateway, hop, origin, resolved);
            Ok(())
        }
    }
}

/// Adds an address to this node, which the node never uses as source itself.
pub(super) fn add_local_address(
    object: &ObjectKey,
    address: IpAddr,
    link: &IfName,
    origin: &Provenance,
    resolved: &mut Resolved,
) {
    let host_address = Address::new(link.clone(), IpNet::from(address));
    let host_address = Address { noprefixroute: true, deprecated: true, ..host_address };
    resolved.add_origin(&Scope::Host, ItemKey::Address(host_address.key()), origin);
    resolved.unit_state.addresses.insert(host_address.key());
    resolved.desired.state.scope(&Scope::Host).add_address(host_address);
    resolved.observe.route_links.insert(link.clone());
    resolved.unit_state.route_links.insert(link.clone());
    let (field, kind) = (origin.field.clone(), ItemKind::NodeAddress);
    let description = format!("{address} on {link}");
    let item = ItemReport { field, kind, description, links: vec![link.clone()], ready: true };
    resolved.unit_state.items.push((object.clone(), item));
}

/// Routes marked packets of pods to the active node. The rule matches the input interface, since encapsulated packets
/// inherit the mark.
fn add_route_to_gateway(
    cluster: ClusterNetwork<'_>,
    gateway: &ResolvedGateway<'_>,
    hop: &NextHop,
    origin: &Provenance,
    resolved: &mut Resolved,
) {
    let (Some(mark), Some(table)) = (gateway.mark(), gateway.table()) else { return };
    let ipv6 = hop.gateway.is_some_and(|gateway| gateway.is_ipv6());
    let anywhere = if ipv6 { IpAddr::from([0u8; 16]) } else { IpAddr::from([0u8; 4]) };
    let to = IpNet::new_assert(anywhere, 0);
    add_route(Route { table, ..Route::through(to, hop.clone()) }, origin, resolved);
    let any = Rule::of_vrfs(ipv6, kernel_ids::EGRESS_RULE_PRIORITY);
    let iif = Some(cluster.bridge.clone());
    let rule = Rule { iif, mark: Some((mark, kernel_ids::EGRESS_MARK_MASK)), table, vrf: false, ..any };
    put_rule(rule, origin, resolved);
    if !hop.onlink {
        resolved.observe.route_links.insert(hop.link.clone());
        resolved.unit_state.route_links.insert(hop.link.clone());
    }
}

/// Removes gateway and load balancer addresses that a local link already has from elsewhere. Until the watches have
/// synced that its elections follow from, this node keeps existing ones and adds none: the last results may be outdated.
pub(crate) fn drop_conflicting_addresses(state: &State, resolved: &mut Resolved, observed: &NetState) {
    let Some(there) = observed.scopes.get(&Scope::Host) else { return };
    let is_foreign = |address: &Address| {
        let is_same = |other: &Address| !other.owned && other.address.addr() == address.address.addr();
        there.addresses.values().any(is_same)
    };
    let is_early = |address: &Address| {
        let is_unconfirmed = is_unconfirmed(state, address.address.addr());
        (is_unconfirmed || !state.nodes.has_synced()) && !there.addresses.contains_key(&address.key())
    };
    let is_refused = |address: &&Address| is_foreign(address) || is_early(address);
    let requested = resolved.desired.state.scope(&Scope::Host).addresses.values();
    let refused: Vec<Address> = requested.filter(|one| one.deprecated).filter(is_refused).cloned().collect();
    for address in refused {
        resolved.desired.state.scope(&Scope::Host).addresses.remove(&address.key());
        resolved.unit_state.addresses.remove(&address.key());
        let item = (Scope::Host, ItemKey::Address(address.key()));
        let origins = resolved.desired.origins.remove(&item).unwrap_or_default();
        let requests: BTreeSet<(ObjectKey, String)> = origins
            .into_iter()
            .filter_map(|origin| Some((ObjectKey::of(origin.object.as_ref()?), origin.field.clone())))
            .collect();
        let is_requested =
            |object: &ObjectKey, item: &ItemReport| requests.contains(&(object.clone(), item.field.clone()));
        resolved.unit_state.items.retain(|(object, item)| !is_requested(object, item));
        if is_foreign(&address) {
            let (ip, link) = (address.address.addr(), &address.link);
            for (object, field) in &requests {
                let error = format!("{ip} on {link} already exists and is not owned by Knit");
                resolved.problem(object, field.clone(), Reason::NotOwned, error);
            }
        }
    }
}
