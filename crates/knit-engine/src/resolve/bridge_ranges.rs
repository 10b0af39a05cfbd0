//! The ranges of bridges: whether the node may have an address in one, and which bridges have one.

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::problem::{Problem, Reason};

use crate::cluster::ClusterNetwork;
use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State};
use crate::tenant_ranges;

/// Whether a bridge may have an address of this range. An address on a host link is local to the node, and its route may be
/// more specific than those to other nodes: a tenant's range must not attract traffic of others, so it must be open to tenants and
/// not in use.
pub(super) fn check_range(state: &State, key: &BridgeKey, range: IpNet) -> Result<(), (Reason, String)> {
    if state.cluster().is_some_and(|cluster| cluster.bridge_key() == *key) {
        let overlap = overlap_of_cluster(state, key, range);
        return overlap.map_or(Ok(()), |why| Err((Reason::RangeOverlap, why)));
    }
    if let Some(why) = overlap_with_others(state, range) {
        return Err((Reason::RangeOverlap, why));
    }
    tenant_ranges::closed_message(state, range).map_or(Ok(()), |why| Err((Reason::RangeNotOpen, why)))
}

/// The overlap of a range of the cluster network with one that it may not use.
fn overlap_of_cluster(state: &State, key: &BridgeKey, range: IpNet) -> Option<String> {
    let mut others = knit_ipam::overlap::reserved_ranges();
    // The cluster network may take over the ranges of another one, and keeps what it has: pods use it.
    let bridge =
        state.units.get(&Unit::Bridge(key.clone())).and_then(|unit_state| unit_state.bridge.as_ref());
    if bridge.is_none_or(|bridge| !bridge.addresses.iter().any(|address| range.contains(address))) {
        others.extend(ranges_of_node(state));
    }
    knit_ipam::overlap_message(range, &others)
}

/// The overlap of a range with one that no tenant may use: special purposes, nodes, Services, pods of the cluster network.
pub(crate) fn overlap_with_others(state: &State, range: IpNet) -> Option<String> {
    let mut others = knit_ipam::overlap::reserved_ranges();
    others.extend(ranges_of_node(state));
    others.extend(state.service_ranges.iter().map(|range| ("range of Services", *range)));
    others.extend(state.settings.routed.iter().map(|range| ("route of this node to", *range)));
    knit_ipam::overlap_message(range, &others).or_else(|| overlap_with_cluster(state.cluster()?, range))
}

fn ranges_of_node(state: &State) -> impl Iterator<Item = (&str, IpNet)> {
    state.settings.forbidden.iter().map(|(name, range)| (name.as_str(), *range))
}

/// The overlap of a range with the cluster network: the pods and addresses of all nodes.
fn overlap_with_cluster(cluster: ClusterNetwork<'_>, range: IpNet) -> Option<String> {
    let pools = cluster.node_routes.into_iter().flat_map(|node_routes| &node_routes.pools);
    let own = cluster.network.ranges.iter().map(|own| ("pod range of this node", *own));
    let own: Vec<_> = own.chain(pools.map(|pool| ("address pool", *pool))).collect();
    let with_peers = || {
        cluster.peers.values().find_map(|peer| {
            let pods = peer.ranges.iter().copied();
            let mut all = pods.chain(peer.all_addresses().map(IpNet::from));
            let other = all.find(|other| knit_ipam::overlaps(range, *other))?;
            Some(format!("{range} overlaps {other} of node {}", peer.name))
        })
    };
    knit_ipam::overlap_message(range, &own).or_else(with_peers)
}

/// Bridges with an address in these ranges, those that were denied a range, and those with a change in flight.
pub(crate) fn bridges_with_ranges(state: &State, ranges: &[IpNet]) -> Vec<Unit> {
    let is_bridge = |unit: &&Unit| matches!(unit, Unit::Bridge(_));
    let has_address = |unit: &Unit| {
        let bridge = state.units.get(unit).and_then(|unit_state| unit_state.bridge.as_ref());
        let mut addresses = bridge.into_iter().flat_map(|bridge| &bridge.addresses);
        addresses.any(|address| ranges.iter().any(|range| knit_ipam::overlaps(*address, *range)))
    };
    let is_denial = |(_, problem): &(ObjectKey, Problem)| {
        matches!(problem.reason, Reason::RangeOverlap | Reason::RangeNotOpen)
    };
    let was_denied = |unit: &Unit| state.problems.get(unit).is_some_and(|all| all.iter().any(is_denial));
    let known = state.units.keys().take_while(is_bridge).filter(|unit| has_address(unit));
    let failed = state.problems.keys().take_while(is_bridge).filter(|unit| was_denied(unit));
    let in_flight = state.in_flight.keys().take_while(is_bridge);
    known.chain(failed).chain(in_flight).cloned().collect()
}

/// Another bridge of this node that has, or is about to get, an address in the same range, and whether it is in the
/// same namespace.
pub(super) fn range_holder(state: &State, key: &BridgeKey, range: IpNet) -> Option<(IfName, bool)> {
    let in_flight = state.in_flight.iter().map(|(unit, change)| (unit, &change.resolved.unit_state));
    let others = state.units.iter().chain(in_flight).filter(|(unit, _)| **unit != Unit::Bridge(key.clone()));
    let mut bridges = others.filter_map(|(unit, unit_state)| Some((unit, unit_state.bridge.as_ref()?)));
    bridges
        .find(|(_, bridge)| bridge.addresses.iter().any(|address| knit_ipam::overlaps(*address, range)))
        .map(|(unit, bridge)| {
            let is_mine = matches!(unit, Unit::Bridge(other) if other.namespace == key.namespace);
            (bridge.name.clone(), is_mine)
        })
}
