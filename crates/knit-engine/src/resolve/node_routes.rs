//! Routes from the cluster network to the pods of other nodes, in Knit's routing table: a direct route to each node on
//! a shared link and a VXLAN tunnel to each of the others, or WireGuard to all of them. Includes routes to egress
//! gateways, and the load balancer addresses that this node announces.

mod claimed_ranges;
mod egress_gateways;
mod next_hop;
mod reachability;
mod service_addresses;
mod vxlan;
mod wireguard;

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{IntentSpec, NodeRoutesIntent, PeerNode};
use knit_model::link::{Link, OwnerId};
use knit_model::plan::ItemKey;
use knit_model::provenance::Provenance;
use knit_model::report::{ItemKind, ItemReport};
use knit_model::route::{GatewayRoute, NextHop};
use knit_model::{IfName, Route, Rule, Scope, kernel_ids, sysctl};

use self::claimed_ranges::ClaimedRanges;
pub(crate) use self::egress_gateways::{drop_conflicting_addresses, next_hops};
use self::next_hop::{NodePath, choose};
use self::reachability::Reachability;
use self::vxlan::VxlanTunnels;
use self::wireguard::WireGuardMesh;
pub(super) use self::wireguard::set_public_key;
pub(crate) use self::wireguard::{fail_closed, restored};
use super::Resolved;
use crate::cluster::{self, ClusterNetwork};
use crate::event::Unit;
use crate::state::State;

/// The desired node routes. Empty without a cluster network.
pub(crate) fn node_routes(state: &State) -> Resolved {
    let mut resolved = Resolved::default();
    resolved.observe.host_rules = true;
    resolved.observe.unreachable_routes = true;
    if let Some(had) = state.units.get(&Unit::NodeRoutes) {
        // Existing routes are observed even if no longer desired.
        resolved.observe.route_links.extend(had.route_links.iter().cloned());
        resolved.observe.host_links.extend(had.host_links.iter().cloned());
    }
    if let Some((cluster, node_routes, origin)) = requested(state) {
        resolved.requesters.insert(cluster::key());
        resolved.desired.default_origin = Some(origin.clone().into());
        add(state, cluster, node_routes, origin, &mut resolved);
        egress_gateways::add(state, cluster, &mut resolved);
        service_addresses::add(state, cluster, &mut resolved);
    }
    wireguard::restore(state, &mut resolved);
    resolved.observe.host_neighbours = !resolved.observe.host_links.is_empty();
    resolved
}

fn requested(state: &State) -> Option<(ClusterNetwork<'_>, &NodeRoutesIntent, &Provenance)> {
    let cluster = state.cluster()?;
    let node_routes = cluster.node_routes?;
    let is_node_routes = |spec: &IntentSpec| matches!(spec, IntentSpec::NodeRoutes(_));
    let intents = &state.objects.get(&cluster::key())?.intents;
    let origin = intents.iter().find(|intent| is_node_routes(&intent.spec)).map(|intent| &intent.origin)?;
    Some((cluster, node_routes, origin))
}

fn add(
    state: &State,
    cluster: ClusterNetwork<'_>,
    node_routes: &NodeRoutesIntent,
    origin: &Provenance,
    resolved: &mut Resolved,
) {
    let mut claimed = ClaimedRanges::of(cluster);
    let mut tunnels = VxlanTunnels::new(state, cluster, node_routes, origin);
    let mut encrypted = WireGuardMesh::new(state, cluster, node_routes, origin);
    let mut routed = Vec::new();
    let mut reachability = Reachability::default();
    for (name, peer) in cluster.peers {
        let (peer, rejected) = claimed.usable_peer(peer);
        rejected.into_iter().for_each(|warning| reachability.warn(warning));
        for range in peer.ranges.iter().map(IpNet::trunc) {
            let reached = claimed.claim(range, name).and_then(|()| match &mut encrypted {
                Some(encrypted) => {
                    // Also without a key: the route is unreachable then.
                    routed.push(range);
                    encrypted.add(&peer, range, resolved)
                }
                None => choose(node_routes, &peer, range).and_then(|choice| match choice {
                    NodePath::Native(hop) => Ok(native(&peer, range, hop, origin, resolved)),
                    NodePath::Tunnel { end, to } => tunnels.add(&peer, range, end, to, resolved),
                }),
            });
            match reached {
                Ok(item) => {
                    routed.push(range);
                    reachability.reached(item);
                }
                Err(error) => reachability
                    .warn(format!("pods of node {} in {range} are not reached: {error}", peer.name)),
            }
        }
    }
    // The kernel evaluates rules one by one for each packet without a cached route, so their number must not grow with the
    // nodes: ranges of nodes are mostly adjacent.
    for range in IpNet::aggregate(&routed) {
        add_rule(range, origin, resolved);
    }
    reachability.finish(resolved);
    tunnels.finish(resolved);
    if let Some(encrypted) = encrypted {
        encrypted.finish(resolved);
    }
}

/// The pod ranges of other nodes that do not conflict.
pub(crate) fn remote_pod_ranges(cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let mut claimed = ClaimedRanges::of(cluster);
    let peers = cluster.peers.values();
    let all = peers.flat_map(|peer| peer.ranges.iter().map(move |range| (range.trunc(), peer)));
    all.filter(|(range, peer)| claimed.claim(*range, &peer.name).is_ok()).map(|(range, _)| range).collect()
}

/// The direct, unencrypted routes among them.
pub(crate) fn native_routes(
    cluster: ClusterNetwork<'_>,
    node_routes: &NodeRoutesIntent,
) -> Vec<GatewayRoute> {
    if node_routes.encryption.is_some() {
        return Vec::new();
    }
    let mut claimed = ClaimedRanges::of(cluster);
    let mut all = Vec::new();
    for (name, peer) in cluster.peers {
        let (peer, _) = claimed.usable_peer(peer);
        for range in peer.ranges.iter().map(IpNet::trunc) {
            if claimed.claim(range, name).is_ok()
                && let Ok(NodePath::Native((gateway, link))) = choose(node_routes, &peer, range)
            {
                all.push(GatewayRoute { to: range, gateway, link });
            }
        }
    }
    all
}

/// A direct route to the node.
fn native(
    peer: &PeerNode,
    range: IpNet,
    (gateway, link): (IpAddr, IfName),
    origin: &Provenance,
    resolved: &mut Resolved,
) -> ItemReport {
    let what = format!("pods of node {} in {range}: native, through {gateway} on {link}", peer.name);
    let hop = NextHop { gateway: Some(gateway), link: link.clone(), weight: 1, onlink: false };
    add_route(Route { table: kernel_ids::HOST_TABLE, ..Route::through(range, hop) }, origin, resolved);
    resolved.observe.route_links.insert(link.clone());
    resolved.unit_state.route_links.insert(link.clone());
    let (field, kind) = (origin.field.clone(), ItemKind::NodeRoute);
    ItemReport { field, kind, description: what, links: vec![link], ready: true }
}

fn add_route(route: Route, origin: &Provenance, resolved: &mut Resolved) {
    resolved.add_origin(&Scope::Host, ItemKey::Route(route.key()), origin);
    resolved.desired.state.scope(&Scope::Host).add_route(route);
}

/// Makes the node look up a range in Knit's routing table.
pub(super) fn add_rule(range: IpNet, origin: &Provenance, resolved: &mut Resolved) {
    let any = Rule::from_address(range, kernel_ids::HOST_TABLE, kernel_ids::HOST_RULE_PRIORITY);
    put_rule(Rule { from: None, to: Some(range), ..any }, origin, resolved);
}

fn put_rule(rule: Rule, origin: &Provenance, resolved: &mut Resolved) {
    resolved.add_origin(&Scope::Host, ItemKey::Rule(rule.clone()), origin);
    resolved.unit_state.rules.insert(rule.clone());
    resolved.desired.state.scope(&Scope::Host).rules.insert(rule);
}

/// Makes pods reach nodes through the same path as the pods there.
fn add_rules_of_pods(cluster: ClusterNetwork<'_>, origin: &Provenance, resolved: &mut Resolved) {
    for range in &cluster.network.ranges {
        let rule = Rule::from_address(range.trunc(), kernel_ids::HOST_TABLE, kernel_ids::HOST_RULE_PRIORITY);
        put_rule(rule, origin, resolved);
    }
}

/// The bridge's addresses: sources of the node's own traffic to pods through a tunnel.
fn sources(state: &State, cluster: ClusterNetwork<'_>) -> Vec<IpAddr> {
    let bridge = state.units.get(&Unit::Bridge(cluster.bridge_key()));
    let addresses = bridge.and_then(|unit_state| unit_state.bridge.as_ref()).map(|bridge| &bridge.addresses);
    addresses.into_iter().flatten().map(IpNet::addr).collect()
}

/// A host link to other nodes, with forwarding enabled.
fn put_link(mut link: Link, origin: &Provenance, resolved: &mut Resolved) {
    let (host, name) = (Scope::Host, link.name.clone());
    link.owner = Some(owner(&name));
    resolved.add_origin(&host, ItemKey::Link(name.clone()), origin);
    resolved.observe.host_links.insert(name.clone());
    resolved.unit_state.host_links.insert(name.clone());
    let forwarding = sysctl::link_path(&name, "ipv4/forwarding");
    put_sysctl(&forwarding, "1", origin, resolved);
    resolved.unit_state.sysctls.insert(forwarding);
    resolved.desired.state.scope(&host).add_link(link);
}

fn put_sysctl(path: &str, value: &str, origin: &Provenance, resolved: &mut Resolved) {
    resolved.add_origin(&Scope::Host, ItemKey::Sysctl(path.to_owned()), origin);
    resolved.observe.sysctls.insert(path.to_owned());
    resolved.desired.state.scope(&Scope::Host).sysctls.insert(path.to_owned(), value.to_owned());
}

/// The owner mark of a link to other nodes.
fn owner(name: &IfName) -> OwnerId {
    OwnerId::derived(&format!("ways/{name}"))
}

/// The next hop through a tunnel: the gateway address of a range, which its node's bridge has. Any address works for a
/// range without one, since it is only used locally.
fn gateway_of(range: IpNet) -> IpAddr {
    let gateway = Pool::with_gateway("", range).gateway_address();
    gateway.map_or_else(|| range.network(), |gateway| gateway.addr())
}
