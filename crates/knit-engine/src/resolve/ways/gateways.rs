//! Ways out of the cluster: the address of a gateway on its node, and on all others a way to that node, in a table of its own
//! that only marked packets of pods find.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::route::NextHop;
use knit_model::{Address, IfName, NetState, Route, Rule, Scope, marks};

use super::{Choice, Taken, add_route, choose, gateway_of, put_rule, tunnels};
use crate::cluster::ClusterNetwork;
use crate::egress::{Gateway, Place};
use crate::resolve::Resolved;
use crate::state::State;

/// How each node is reached, for packets of IPv6 or not.
pub(crate) type Hops = BTreeMap<(String, bool), NextHop>;

/// The next hop to each other node: the same as to its pods.
pub(crate) fn hops(cluster: ClusterNetwork<'_>) -> Hops {
    let mut hops = Hops::new();
    // What leaves by another node would be in clear on its way there.
    let Some(ways) = cluster.ways.filter(|ways| ways.encryption.is_none()) else { return hops };
    let mut taken = Taken::of(cluster.network, ways);
    for peer in &ways.nodes {
        let (peer, _) = taken.known(peer);
        for range in peer.ranges.iter().map(IpNet::trunc) {
            let chosen = taken.take(range, &peer.name).and_then(|()| choose(ways, &peer, range));
            let hop = match chosen {
                Ok(Choice::Native((gateway, link))) => {
                    NextHop { gateway: Some(gateway), link, weight: 1, onlink: false }
                }
                Ok(Choice::Tunnel { end, .. }) => {
                    let (gateway, link) = (Some(gateway_of(range)), tunnels::link_name(end));
                    NextHop { gateway, link, weight: 1, onlink: true }
                }
                Err(_) => continue,
            };
            hops.entry((peer.name.clone(), range.addr().is_ipv6())).or_insert(hop);
        }
    }
    hops
}

/// Adds what gateways need here.
pub(super) fn add(state: &State, cluster: ClusterNetwork<'_>, resolved: &mut Resolved) {
    let gateways = state.gateways();
    if gateways.is_empty() {
        return;
    }
    let hops = hops(cluster);
    for gateway in &gateways {
        resolved.askers.insert(gateway.key.clone());
        let warnings = gateway.warnings.iter().map(|why| (gateway.key.clone(), why.clone()));
        resolved.made.warnings.extend(warnings);
        let intents = state.objects.get(gateway.key).map(|object| &object.intents[..]).unwrap_or_default();
        let Some(origin) = intents.first().map(|intent| &intent.origin) else { continue };
        for (index, (address, wrong)) in gateway.addresses.iter().enumerate() {
            let why = origin.at(format!("spec.addresses[{index}]"));
            if let Err(sentence) = one(cluster, gateway, *address, &hops, &why, resolved) {
                let reason = if wrong.is_some() { Reason::Conflict } else { Reason::NotReady };
                resolved.problem(gateway.key, why.field, reason, sentence);
            }
        }
    }
}

fn one(
    cluster: ClusterNetwork<'_>,
    gateway: &Gateway<'_>,
    address: IpAddr,
    hops: &Hops,
    why: &Provenance,
    resolved: &mut Resolved,
) -> Result<(), String> {
    let own = cluster.ways.and_then(|ways| ways.own.as_ref());
    match gateway.place(own, address)? {
        Place::Here(link) => {
            hold(gateway, address, link, why, resolved);
            Ok(())
        }
        Place::At(node) => {
            let hop = hops.get(&(node.to_owned(), address.is_ipv6()));
            let is_encrypted = cluster.ways.is_some_and(|ways| ways.encryption.is_some());
            let why_not = if is_encrypted { ": it would be in clear on its way there" } else { "" };
            let hop =
                hop.ok_or_else(|| format!("node {node}, which has {address}, is not reached{why_not}"))?;
            lead(cluster, gateway, hop, why, resolved);
            Ok(())
        }
    }
}

/// This node has the address.
fn hold(gateway: &Gateway<'_>, address: IpAddr, link: &IfName, why: &Provenance, resolved: &mut Resolved) {
    let alone = Address::new(link.clone(), IpNet::from(address));
    let alone = Address { noprefixroute: true, deprecated: true, ..alone };
    resolved.because(&Scope::Host, Item::Address(alone.key()), why);
    resolved.made.addresses.insert(alone.key());
    resolved.desired.state.scope(&Scope::Host).add_address(alone);
    resolved.look.ways.insert(link.clone());
    resolved.made.ways.insert(link.clone());
    let what = what(address, link);
    let item = ItemReport { field: why.field.clone(), what, links: vec![link.clone()], ready: true };
    resolved.made.items.push((gateway.key.clone(), item));
}

/// Marked packets of pods go to the node that has it. Only what pods say is looked at: what a tunnel says for them has their
/// mark, too.
fn lead(
    cluster: ClusterNetwork<'_>,
    gateway: &Gateway<'_>,
    hop: &NextHop,
    why: &Provenance,
    resolved: &mut Resolved,
) {
    let (Some(mark), Some(table)) = (gateway.mark(), gateway.table()) else { return };
    let ipv6 = hop.gateway.is_some_and(|gateway| gateway.is_ipv6());
    let anywhere = if ipv6 { IpAddr::from([0u8; 16]) } else { IpAddr::from([0u8; 4]) };
    let to = IpNet::new_assert(anywhere, 0);
    add_route(Route { table, ..Route::through(to, hop.clone()) }, why, resolved);
    let any = Rule::of_vrfs(ipv6, marks::EGRESS_RULE_PRIORITY);
    let iif = Some(cluster.bridge.clone());
    let rule = Rule { iif, mark: Some((mark, marks::EGRESS_MASK)), table, vrf: false, ..any };
    put_rule(rule, why, resolved);
    if !hop.onlink {
        resolved.look.ways.insert(hop.link.clone());
        resolved.made.ways.insert(hop.link.clone());
    }
}

/// What is known of addresses once the kernel was looked at. One that a link of this node has already, from somebody else, is no
/// gateway's. And as long as nothing was heard of nodes since the program began, this node keeps those that it has, and takes
/// none: it may have been away for long.
pub(crate) fn judge_addresses(state: &State, resolved: &mut Resolved, seen: &NetState) {
    let Some(there) = seen.scopes.get(&Scope::Host) else { return };
    let is_foreign = |address: &Address| {
        let is_same = |other: &Address| !other.owned && other.address.addr() == address.address.addr();
        there.addresses.values().any(is_same)
    };
    let is_early =
        |address: &Address| state.egress.well.is_none() && !there.addresses.contains_key(&address.key());
    let is_refused = |address: &&Address| is_foreign(address) || is_early(address);
    let wanted = resolved.desired.state.scope(&Scope::Host).addresses.values();
    let refused: Vec<Address> = wanted.filter(|one| one.deprecated).filter(is_refused).cloned().collect();
    for address in refused {
        resolved.desired.state.scope(&Scope::Host).addresses.remove(&address.key());
        resolved.made.addresses.remove(&address.key());
        let what = what(address.address.addr(), &address.link);
        let items = std::mem::take(&mut resolved.made.items);
        let (refused, rest): (Vec<_>, Vec<_>) = items.into_iter().partition(|(_, item)| item.what == what);
        resolved.made.items = rest;
        for (object, item) in refused.into_iter().filter(|_| is_foreign(&address)) {
            let sentence = format!("{what} is there already, and Knit did not put it there");
            resolved.problem(&object, item.field, Reason::NotOwned, sentence);
        }
    }
}

fn what(address: IpAddr, link: &IfName) -> String {
    format!("{address} on {link}")
}
