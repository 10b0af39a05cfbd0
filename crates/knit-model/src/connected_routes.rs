//! Connected routes of the host: which addresses are directly reachable on which link.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::IfName;

/// The connected routes of the host's main table. Policy routing rules are not evaluated: Knit's rules match pods,
/// not nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectedRoutes {
    routes: BTreeMap<IpNet, BestRoute>,
}

/// The best route to a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BestRoute {
    metric: u32,
    /// The link on which the prefix is directly reachable; `None` behind a router or for an unreachable prefix.
    link: Option<IfName>,
}

impl ConnectedRoutes {
    /// The best of these routes to each prefix: destination, metric, and the link unless it is behind a router. The
    /// lowest metric wins; among equal metrics the first, as in the kernel.
    pub fn new(all: impl IntoIterator<Item = (IpNet, u32, Option<IfName>)>) -> Self {
        let mut routes: BTreeMap<IpNet, BestRoute> = BTreeMap::new();
        for (to, metric, link) in all {
            let best = routes.entry(to).or_insert_with(|| BestRoute { metric, link: link.clone() });
            if metric < best.metric {
                *best = BestRoute { metric, link };
            }
        }
        // Routers may announce hundreds of thousands of routes. One matters only as a part of a connected prefix.
        let on_links: Vec<IpNet> =
            routes.iter().filter(|(_, best)| best.link.is_some()).map(|(to, _)| *to).collect();
        let is_within = |to: &IpNet| on_links.iter().any(|on_link| on_link.contains(to));
        routes.retain(|to, best| best.link.is_some() || is_within(to));
        Self { routes }
    }

    /// The directly connected networks with their links, without host routes, link-local and multicast ranges.
    pub fn ranges(&self) -> impl Iterator<Item = (IpNet, &IfName)> {
        let is_network = |range: &IpNet| {
            let is_link_scoped = match range {
                IpNet::V4(net) => net.addr().is_link_local() || net.addr().is_multicast(),
                IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
            };
            !is_link_scoped && (1..range.max_prefix_len()).contains(&range.prefix_len())
        };
        let on_links = self.routes.iter().filter_map(|(range, best)| Some((*range, best.link.as_ref()?)));
        on_links.filter(move |(range, _)| is_network(range))
    }

    /// The link on which an address is directly reachable; `None` if it is behind a router or unreachable.
    pub fn link_for(&self, address: IpAddr) -> Option<&IfName> {
        let host = IpNet::from(address);
        let prefixes = std::iter::successors(Some(host), IpNet::supernet);
        let best = prefixes.into_iter().find_map(|prefix| self.routes.get(&prefix))?;
        best.link.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_then_the_lowest_metric() {
        let name = |text: &str| IfName::new(text).unwrap();
        let all = [
            ("0.0.0.0/0", 0, None),
            ("192.0.2.0/24", 200, Some("wlan0")),
            ("192.0.2.0/24", 100, Some("eth0")),
            ("192.0.2.0/24", 300, None),
            ("192.0.2.128/25", 0, None),
            ("198.18.0.0/15", 0, None),
            ("2001:db8::/64", 1024, Some("eth0")),
            ("fe80::/64", 0, Some("eth0")),
            ("192.0.2.9/32", 0, Some("eth0")),
            ("ff00::/8", 0, Some("eth0")),
        ];
        let parsed =
            |(to, metric, link): (&str, u32, Option<&str>)| (to.parse().unwrap(), metric, link.map(name));
        let routes = ConnectedRoutes::new(all.map(parsed));
        let link_for = |address: &str| routes.link_for(address.parse().unwrap()).map(IfName::as_str);
        assert_eq!(link_for("192.0.2.7"), Some("eth0"));
        assert_eq!(link_for("192.0.2.200"), None, "a part of the prefix is behind a router");
        assert_eq!(link_for("198.51.100.1"), None, "behind the default route");
        assert_eq!(link_for("2001:db8::7"), Some("eth0"));
        assert_eq!(link_for("2001:db8:1::7"), None, "unreachable");
        let ranges: Vec<String> = routes.ranges().map(|(range, link)| format!("{range} {link}")).collect();
        assert_eq!(ranges, ["192.0.2.0/24 eth0", "2001:db8::/64 eth0"]);
        assert_eq!(routes.routes.len(), 6, "routes of routers are kept only within connected prefixes");
    }
}
