//! The way from the cluster's network to the pods of other nodes: a route through each node, in Knit's own table.

use ipnet::IpNet;
use knit_model::intent::PeerWant;
use knit_model::plan::Item;
use knit_model::provenance::Provenance;
use knit_model::route::NextHop;
use knit_model::{Route, Rule, Scope, marks};

use super::Resolved;
use crate::event::Unit;
use crate::state::{BridgeKey, State};

/// What is there of earlier routes has to be looked at, whatever is wanted now.
pub(super) fn look(state: &State, key: &BridgeKey, resolved: &mut Resolved) {
    let had = state.made.get(&Unit::Bridge(key.clone())).map(|made| &made.ways);
    resolved.look.ways.extend(had.into_iter().flatten().cloned());
}

/// Adds the routes to other nodes' pods, if this is the bridge of the cluster's network.
pub(super) fn add(state: &State, key: &BridgeKey, why: &Provenance, resolved: &mut Resolved) {
    let Some(cluster) = state.cluster().filter(|cluster| cluster.bridge_key() == *key) else { return };
    for peer in cluster.ways.iter().flat_map(|ways| &ways.nodes) {
        for range in &peer.ranges {
            match through(peer, *range) {
                Some(hop) => add_route(*range, hop, why, resolved),
                None => {
                    let family = if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
                    let warning = format!(
                        "pods of node {} in {range} are not reached: no {family} address of the node is on a link of this one",
                        peer.name
                    );
                    resolved.made.warnings.push((crate::cluster::key(), warning));
                }
            }
        }
    }
}

/// The node's address of the same family.
fn through(peer: &PeerWant, range: IpNet) -> Option<NextHop> {
    let same =
        |address: &&(std::net::IpAddr, knit_model::IfName)| address.0.is_ipv4() == range.addr().is_ipv4();
    let (gateway, link) = peer.addresses.iter().find(same)?.clone();
    Some(NextHop { gateway: Some(gateway), link, weight: 1, onlink: false })
}

fn add_route(range: IpNet, hop: NextHop, why: &Provenance, resolved: &mut Resolved) {
    let (host, link) = (Scope::Host, hop.link.clone());
    let route = Route { table: marks::HOST_TABLE, ..Route::through(range, hop) };
    resolved.because(&host, Item::Route(route.key()), why);
    resolved.look.ways.insert(link.clone());
    resolved.made.ways.insert(link);
    resolved.desired.state.scope(&host).add_route(route);
    add_rule(range.trunc(), why, resolved);
}

/// The node finds a range in Knit's own table.
pub(super) fn add_rule(range: IpNet, why: &Provenance, resolved: &mut Resolved) {
    let any = Rule::from_address(range, marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
    let rule = Rule { from: None, to: Some(range), ..any };
    resolved.because(&Scope::Host, Item::Rule(rule.clone()), why);
    resolved.made.rules.insert(rule.clone());
    resolved.desired.state.scope(&Scope::Host).rules.insert(rule);
}
