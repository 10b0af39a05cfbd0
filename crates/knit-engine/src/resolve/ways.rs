//! The ways from the cluster's network to the pods of other nodes, in Knit's own table: a route through each node that is
//! on a link of this one, and a tunnel to each of the others; or encrypted to all of them. With them come the ways out of the
//! cluster through gateways.

mod choice;
mod encrypted;
mod gateways;
mod taken;
mod tunnels;

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{IntentSpec, NetworkIntent, NodeRoutesIntent, PeerNode};
use knit_model::link::{Link, OwnerId};
use knit_model::plan::Item;
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::route::{NextHop, Through};
use knit_model::{IfName, Route, Rule, Scope, marks};

use self::choice::{Choice, choose};
use self::encrypted::Encrypted;
pub(super) use self::encrypted::know;
pub(crate) use self::encrypted::{close_first, given_back};
pub(crate) use self::gateways::{hops, judge_addresses};
use self::taken::Taken;
use self::tunnels::Tunnels;
use super::Resolved;
use crate::cluster::{self, ClusterNetwork};
use crate::event::Unit;
use crate::state::State;

/// What the ways to other nodes should be. Nothing at all without a cluster's network.
pub(crate) fn ways(state: &State) -> Resolved {
    let mut resolved = Resolved::default();
    resolved.look.host_rules = true;
    resolved.look.dead_ends = true;
    if let Some(had) = state.made.get(&Unit::NodeRoutes) {
        // What is there of earlier ones has to be looked at, whatever is wanted now.
        resolved.look.ways.extend(had.ways.iter().cloned());
        resolved.look.host_links.extend(had.host_links.iter().cloned());
    }
    if let Some((cluster, ways, why)) = wanted(state) {
        resolved.askers.insert(cluster::key());
        add(state, cluster, ways, why, &mut resolved);
        gateways::add(state, cluster, &mut resolved);
    }
    encrypted::give_back(state, &mut resolved);
    resolved.look.host_neighbours = !resolved.look.host_links.is_empty();
    resolved
}

fn wanted(state: &State) -> Option<(ClusterNetwork<'_>, &NodeRoutesIntent, &Provenance)> {
    let cluster = state.cluster()?;
    let ways = cluster.ways?;
    let is_ways = |want: &IntentSpec| matches!(want, IntentSpec::NodeRoutes(_));
    let intents = &state.objects.get(&cluster::key())?.intents;
    let why = intents.iter().find(|intent| is_ways(&intent.spec)).map(|intent| &intent.origin)?;
    Some((cluster, ways, why))
}

fn add(
    state: &State,
    cluster: ClusterNetwork<'_>,
    ways: &NodeRoutesIntent,
    why: &Provenance,
    resolved: &mut Resolved,
) {
    let mut taken = Taken::of(cluster.network, ways);
    let mut tunnels = Tunnels::new(state, cluster, ways, why);
    let mut encrypted = Encrypted::new(state, cluster, ways, why);
    for peer in &ways.nodes {
        let (peer, refused) = taken.known(peer);
        resolved.made.warnings.extend(refused.into_iter().map(|why| (cluster::key(), why)));
        for range in peer.ranges.iter().map(IpNet::trunc) {
            let reached = taken.take(range, &peer.name).and_then(|()| match &mut encrypted {
                Some(encrypted) => encrypted.add(&peer, range, resolved),
                None => choose(ways, &peer, range).and_then(|choice| match choice {
                    Choice::Native(hop) => Ok(native(&peer, range, hop, why, resolved)),
                    Choice::Tunnel { end, to } => tunnels.add(&peer, range, end, to, resolved),
                }),
            });
            match reached {
                Ok(item) => resolved.made.items.push((cluster::key(), item)),
                Err(sentence) => {
                    let warning =
                        format!("pods of node {} in {range} are not reached: {sentence}", peer.name);
                    resolved.made.warnings.push((cluster::key(), warning));
                }
            }
        }
    }
    tunnels.finish(resolved);
    if let Some(encrypted) = encrypted {
        encrypted.finish(resolved);
    }
}

/// The ranges of the other nodes' pods, those that are nobody else's.
pub(crate) fn ranges_of_others(own: &NetworkIntent, ways: &NodeRoutesIntent) -> Vec<IpNet> {
    let mut taken = Taken::of(own, ways);
    let all = ways.nodes.iter().flat_map(|peer| peer.ranges.iter().map(move |range| (range.trunc(), peer)));
    all.filter(|(range, peer)| taken.take(*range, &peer.name).is_ok()).map(|(range, _)| range).collect()
}

/// Those of them that are reached without a tunnel, and in clear.
pub(crate) fn native_ways(own: &NetworkIntent, ways: &NodeRoutesIntent) -> Vec<Through> {
    if ways.encryption.is_some() {
        return Vec::new();
    }
    let mut taken = Taken::of(own, ways);
    let mut all = Vec::new();
    for peer in &ways.nodes {
        let (peer, _) = taken.known(peer);
        for range in peer.ranges.iter().map(IpNet::trunc) {
            if taken.take(range, &peer.name).is_ok()
                && let Ok(Choice::Native((gateway, link))) = choose(ways, &peer, range)
            {
                all.push(Through { to: range, gateway, link });
            }
        }
    }
    all
}

/// A route through the node itself.
fn native(
    peer: &PeerNode,
    range: IpNet,
    (gateway, link): (IpAddr, IfName),
    why: &Provenance,
    resolved: &mut Resolved,
) -> ItemReport {
    let what = format!("pods of node {} in {range}: native, through {gateway} on {link}", peer.name);
    let hop = NextHop { gateway: Some(gateway), link: link.clone(), weight: 1, onlink: false };
    add_route(Route { table: marks::HOST_TABLE, ..Route::through(range, hop) }, why, resolved);
    add_rule(range, why, resolved);
    resolved.look.ways.insert(link.clone());
    resolved.made.ways.insert(link.clone());
    ItemReport { field: why.field.clone(), what, links: vec![link], ready: true }
}

fn add_route(route: Route, why: &Provenance, resolved: &mut Resolved) {
    resolved.because(&Scope::Host, Item::Route(route.key()), why);
    resolved.desired.state.scope(&Scope::Host).add_route(route);
}

/// The node finds a range in Knit's own table.
pub(super) fn add_rule(range: IpNet, why: &Provenance, resolved: &mut Resolved) {
    let any = Rule::from_address(range, marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
    put_rule(Rule { from: None, to: Some(range), ..any }, why, resolved);
}

fn put_rule(rule: Rule, why: &Provenance, resolved: &mut Resolved) {
    resolved.because(&Scope::Host, Item::Rule(rule.clone()), why);
    resolved.made.rules.insert(rule.clone());
    resolved.desired.state.scope(&Scope::Host).rules.insert(rule);
}

/// What pods say to nodes goes the same way as what they say to pods there.
fn add_rules_of_pods(cluster: ClusterNetwork<'_>, why: &Provenance, resolved: &mut Resolved) {
    for range in &cluster.network.ranges {
        let rule = Rule::from_address(range.trunc(), marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
        put_rule(rule, why, resolved);
    }
}

/// The bridge's addresses: what the node itself says to pods beyond a tunnel comes from them.
fn sources(state: &State, cluster: ClusterNetwork<'_>) -> Vec<IpAddr> {
    let bridge = state.made.get(&Unit::Bridge(cluster.bridge_key()));
    let addresses = bridge.and_then(|made| made.bridge.as_ref()).map(|bridge| &bridge.addresses);
    addresses.into_iter().flatten().map(IpNet::addr).collect()
}

/// A link of the host that leads to other nodes, and that forwards.
fn put_link(mut link: Link, why: &Provenance, resolved: &mut Resolved) {
    let (host, name) = (Scope::Host, link.name.clone());
    link.owner = Some(owner(&name));
    resolved.because(&host, Item::Link(name.clone()), why);
    resolved.look.host_links.insert(name.clone());
    resolved.made.host_links.insert(name.clone());
    let forwarding = format!("net/ipv4/conf/{name}/forwarding");
    put_sysctl(&forwarding, "1", why, resolved);
    resolved.made.sysctls.insert(forwarding);
    resolved.desired.state.scope(&host).add_link(link);
}

fn put_sysctl(path: &str, value: &str, why: &Provenance, resolved: &mut Resolved) {
    resolved.because(&Scope::Host, Item::Sysctl(path.to_owned()), why);
    resolved.look.sysctls.insert(path.to_owned());
    resolved.desired.state.scope(&Scope::Host).sysctls.insert(path.to_owned(), value.to_owned());
}

/// The mark of a link that leads to other nodes.
fn owner(name: &IfName) -> OwnerId {
    OwnerId::derived(&format!("ways/{name}"))
}

/// The next hop beyond a tunnel: the first address of a range, which the bridge of its node has. A range that is too small
/// for one is as good: nobody but this node ever sees it.
fn gateway_of(range: IpNet) -> IpAddr {
    let gateway = Pool::with_gateway("", range).gateway_address();
    gateway.map_or_else(|| range.network(), |gateway| gateway.addr())
}
