//! Routes between nodes: one for each range of each existing node, found by a rule, and none for nodes that have left.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::{NetState, Route, Rule, Scope, kernel_ids};

use crate::cluster::Cluster;
use crate::scenario::{node_address, node_number, pod_range};

impl Cluster {
    /// The ranges of all nodes, each with the node's address.
    fn ranges_of_nodes(&self) -> BTreeMap<IpNet, IpAddr> {
        let own = self.api.nodes.iter().map(|node| (pod_range(*node), *node));
        let blocks = (0..self.pool_nodes.len()).flat_map(|pool| self.pool_blocks(pool));
        let all = own.chain(blocks.filter(|(_, node)| self.api.nodes.contains(node)));
        all.map(|(range, node)| (range, node_address(node).addr())).collect()
    }

    /// The first difference between the routes of a node with a full view and the ranges of all other nodes.
    pub(crate) fn wrong_routes(&self) -> Option<(usize, String)> {
        let ranges = self.ranges_of_nodes();
        let existing = self.full_view.iter().filter(|node| !self.nodes[**node].is_removed);
        existing.copied().find_map(|node| {
            let own = node_address(node).addr();
            let expected: BTreeMap<IpNet, IpAddr> =
                ranges.iter().filter(|(_, address)| **address != own).map(|(to, via)| (*to, *via)).collect();
            let observed = self.nodes[node].kernel.observe_in(|scope| *scope == Scope::Host);
            let name = &self.nodes[node].name;
            differing_route(observed, &expected).map(|why| (node, format!("{name}: {why}")))
        })
    }

    /// Number of routes to other nodes in the kernels of nodes with a full view.
    pub(crate) fn count_routes(&self) -> u64 {
        let routes = self.full_view.iter().map(|node| {
            let observed = self.nodes[*node].kernel.observe_in(|scope| *scope == Scope::Host);
            observed
                .scopes
                .values()
                .flat_map(|host| host.routes.values())
                .filter(|route| is_remote(route))
                .count()
        });
        routes.sum::<usize>() as u64
    }

    fn pool_blocks(&self, pool: usize) -> impl Iterator<Item = (IpNet, usize)> {
        let blocks = self.api.blocks_of(crate::scenario::Audience::Pool(pool));
        blocks.map(|block| (block.cidr, node_number(&block.node)))
    }
}

/// Whether it leads to pods of another node.
fn is_remote(route: &Route) -> bool {
    route.owned && route.table == kernel_ids::HOST_TABLE && route.via.iter().any(|hop| hop.gateway.is_some())
}

fn differing_route(mut observed: NetState, expected: &BTreeMap<IpNet, IpAddr>) -> Option<String> {
    let host = observed.scope(&Scope::Host);
    let mut missing = expected.clone();
    for route in host.routes.values().filter(|route| is_remote(route)) {
        let [hop] = &route.via[..] else { return Some(format!("{route} has several next hops")) };
        let Some(via) = missing.remove(&route.to) else {
            return Some(format!("{route} leads to a node that has left, or exists twice"));
        };
        if hop.gateway != Some(via) {
            return Some(format!("{route} does not lead to {via}"));
        }
        let covers = |rule: &&Rule| {
            rule.table == kernel_ids::HOST_TABLE && rule.to.is_some_and(|to| to.contains(&route.to))
        };
        if !host.rules.iter().any(|rule| covers(&rule)) {
            return Some(format!("no rule leads to {route}"));
        }
    }
    missing.first_key_value().map(|(to, via)| format!("a route to {to} via {via} is missing"))
}

#[cfg(test)]
mod tests {
    use knit_model::route::NextHop;

    use super::*;
    use crate::scenario::uplink;

    fn observed(routes: &[(&str, &str)]) -> NetState {
        let mut state = NetState::default();
        let host = state.scope(&Scope::Host);
        for (to, via) in routes {
            let hop = NextHop { gateway: via.parse().ok(), link: uplink(), weight: 1, onlink: false };
            host.add_route(Route {
                table: kernel_ids::HOST_TABLE,
                ..Route::through(to.parse().unwrap(), hop)
            });
        }
        let rule = Rule::from_address("10.0.0.0/8".parse().unwrap(), kernel_ids::HOST_TABLE, 1);
        host.rules.insert(Rule { from: None, to: rule.from, ..rule });
        state
    }

    #[test]
    fn every_difference_of_routes_is_found() {
        let expected = BTreeMap::from([("10.0.1.0/24".parse().unwrap(), "172.16.0.2".parse().unwrap())]);
        let check = |routes: &[(&str, &str)]| differing_route(observed(routes), &expected);
        assert_eq!(check(&[("10.0.1.0/24", "172.16.0.2")]), None);
        assert!(check(&[]).unwrap().contains("missing"));
        assert!(check(&[("10.0.1.0/24", "172.16.0.9")]).unwrap().contains("does not lead to 172.16.0.2"));
        let twice = check(&[("10.0.1.0/24", "172.16.0.2"), ("10.0.7.0/24", "172.16.0.8")]);
        assert!(twice.unwrap().contains("has left"));
        let mut without_rule = observed(&[("10.0.1.0/24", "172.16.0.2")]);
        without_rule.scope(&Scope::Host).rules.clear();
        assert!(differing_route(without_rule, &expected).unwrap().contains("no rule"));
    }
}
