//! Connected routes of the host: which addresses are directly reachable on which link.
//!
//! They are read with one dump of the main routing table: a cluster has thousands of nodes, and a route lookup for
//! each of them is one round trip to the kernel every time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::IfName;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, RouteHeader};
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// The connected routes of the host's main table. Policy routing rules are not evaluated: Knit's rules match pods,
/// not nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectedRoutes {
    routes: BTreeMap<IpNet, BestRoute>,
}

/// The best route to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BestRoute {
    metric: u32,
    /// The link on which the prefix is directly reachable; `None` behind a router or for an unreachable prefix.
    link: Option<IfName>,
}

impl ConnectedRoutes {
    /// Reads the routing table.
    pub fn read(host: &Netns) -> Result<Self> {
        let mut socket = Socket::open_in(host, Protocol::Route)?;
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let mut message = Message::new(RTM_GETROUTE, 0, "list the host's routes");
            message.header(&RouteHeader { family, ..Default::default() });
            message.put_u32(RTA_TABLE, RT_TABLE_MAIN.into());
            found.extend(socket.dump(message, |_, body| decode(body))?);
        }
        let mut names: BTreeMap<u32, Option<IfName>> = BTreeMap::new();
        let mut routes = Self::default();
        for (to, metric, index) in found {
            let link = match index {
                Some(index) => match names.get(&index) {
                    Some(name) => name.clone(),
                    None => {
                        let name = socket.link_name(index)?.and_then(|name| IfName::new(name).ok());
                        names.insert(index, name.clone());
                        name
                    }
                },
                None => None,
            };
            routes.add(to, metric, link);
        }
        Ok(routes)
    }

    /// Adds a route; `link` is `None` behind a router. The lowest metric wins; among equal metrics the first, as in the
    /// kernel.
    pub fn add(&mut self, to: IpNet, metric: u32, link: Option<IfName>) {
        let best = self.routes.entry(to).or_insert_with(|| BestRoute { metric, link: link.clone() });
        if metric < best.metric {
            *best = BestRoute { metric, link };
        }
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

/// The link of the host that holds this address.
pub fn link_by_address(host: &Netns, address: IpAddr) -> Result<Option<IfName>> {
    let mut socket = Socket::open_in(host, Protocol::Route)?;
    let mut message = Message::new(RTM_GETADDR, 0, "list the host's addresses");
    message.header(&AddressHeader::default());
    let found = socket.dump(message, |_, body| {
        let (header, attributes) = AddressHeader::split(body)?;
        let local = attributes.first(IFA_LOCAL).or_else(|| attributes.first(IFA_ADDRESS))?;
        (local.address()? == address).then_some(header.index)
    })?;
    let Some(index) = found.first() else { return Ok(None) };
    Ok(socket.link_name(*index)?.and_then(|name| IfName::new(name).ok()))
}

/// Decodes one route: destination, metric, and the link if it has no gateway.
fn decode(body: &[u8]) -> Option<(IpNet, u32, Option<u32>)> {
    let (header, attributes) = RouteHeader::split(body)?;
    let table = attributes.first(RTA_TABLE).and_then(|table| table.u32()).unwrap_or(header.table.into());
    // A kernel without dump filtering returns all tables.
    if table != u32::from(RT_TABLE_MAIN) || header.flags & RTM_F_CLONED != 0 {
        return None;
    }
    let unspecified = match header.family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let to = attributes.first(RTA_DST).and_then(|to| to.address()).unwrap_or(unspecified);
    let metric = attributes.first(RTA_PRIORITY).and_then(|metric| metric.u32()).unwrap_or(0);
    let is_direct = header.kind == RTN_UNICAST
        && [RTA_GATEWAY, RTA_VIA, RTA_ENCAP].iter().all(|kind| attributes.first(*kind).is_none());
    let link = is_direct.then(|| attributes.first(RTA_OIF)?.u32()).flatten();
    Some((IpNet::new(to, header.destination_length).ok()?.trunc(), metric, link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_then_the_lowest_metric() {
        let name = |text: &str| IfName::new(text).unwrap();
        let mut routes = ConnectedRoutes::default();
        for (to, metric, link) in [
            ("0.0.0.0/0", 0, None),
            ("192.0.2.0/24", 200, Some("wlan0")),
            ("192.0.2.0/24", 100, Some("eth0")),
            ("192.0.2.0/24", 300, None),
            ("192.0.2.128/25", 0, None),
            ("2001:db8::/64", 1024, Some("eth0")),
        ] {
            routes.add(to.parse().unwrap(), metric, link.map(name));
        }
        let link_for = |address: &str| routes.link_for(address.parse().unwrap()).map(IfName::as_str);
        assert_eq!(link_for("192.0.2.7"), Some("eth0"));
        assert_eq!(link_for("192.0.2.200"), None, "a part of the prefix is behind a router");
        assert_eq!(link_for("198.51.100.1"), None, "behind the default route");
        assert_eq!(link_for("2001:db8::7"), Some("eth0"));
        assert_eq!(link_for("2001:db8:1::7"), None, "unreachable");
        for other in ["fe80::/64", "192.0.2.9/32", "ff00::/8"] {
            routes.add(other.parse().unwrap(), 0, Some(name("eth0")));
        }
        let ranges: Vec<String> = routes.ranges().map(|(range, link)| format!("{range} {link}")).collect();
        assert_eq!(ranges, ["192.0.2.0/24 eth0", "2001:db8::/64 eth0"]);
    }
}
