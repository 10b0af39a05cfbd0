//! Which addresses are on a link of the host, from one list of its routes: a cluster has thousands of nodes, and asking the
//! kernel for the way to each is a question and an answer every time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::IfName;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::RouteHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// The host's main routing table, as far as it says what is on a link. Rules that send packets to other tables are not
/// looked at: those of Knit's own are about pods, and nodes are no pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    routes: BTreeMap<IpNet, Best>,
}

/// The best of the routes to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Best {
    metric: u32,
    /// What is in the prefix is on this link; `None`: behind a router, or nowhere.
    link: Option<IfName>,
}

impl Links {
    /// Reads them as they are now.
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
        let mut links = Self::default();
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
            links.add(to, metric, link);
        }
        Ok(links)
    }

    /// The lowest metric wins; of several, the kernel takes the first.
    fn add(&mut self, to: IpNet, metric: u32, link: Option<IfName>) {
        let best = self.routes.entry(to).or_insert_with(|| Best { metric, link: link.clone() });
        if metric < best.metric {
            *best = Best { metric, link };
        }
    }

    /// Ranges that are on a link, each with it: those of networks, and none of a single address.
    pub fn ranges(&self) -> impl Iterator<Item = (IpNet, &IfName)> {
        let of_a_network = |range: &IpNet| {
            let is_near = match range {
                IpNet::V4(net) => net.addr().is_link_local() || net.addr().is_multicast(),
                IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
            };
            !is_near && (1..range.max_prefix_len()).contains(&range.prefix_len())
        };
        let on_links = self.routes.iter().filter_map(|(range, best)| Some((*range, best.link.as_ref()?)));
        on_links.filter(move |(range, _)| of_a_network(range))
    }

    /// The link that an address is on; `None` if a router is on the way, or there is no way.
    pub fn with(&self, address: IpAddr) -> Option<&IfName> {
        let host = IpNet::from(address);
        let prefixes = std::iter::successors(Some(host), IpNet::supernet);
        let best = prefixes.into_iter().find_map(|prefix| self.routes.get(&prefix))?;
        best.link.as_ref()
    }
}

/// One route: where to, its metric, and the link if there is no router.
fn decode(body: &[u8]) -> Option<(IpNet, u32, Option<u32>)> {
    let (header, attributes) = RouteHeader::split(body)?;
    let table = attributes.first(RTA_TABLE).and_then(|table| table.u32()).unwrap_or(header.table.into());
    // A kernel that does not filter tells of all tables.
    if table != u32::from(RT_TABLE_MAIN) || header.flags & RTM_F_CLONED != 0 {
        return None;
    }
    let anywhere = match header.family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let to = attributes.first(RTA_DST).and_then(|to| to.address()).unwrap_or(anywhere);
    let metric = attributes.first(RTA_PRIORITY).and_then(|metric| metric.u32()).unwrap_or(0);
    let is_direct = header.kind == RTN_UNICAST
        && [RTA_GATEWAY, RTA_VIA, RTA_ENCAP].iter().all(|way| attributes.first(*way).is_none());
    let link = is_direct.then(|| attributes.first(RTA_OIF)?.u32()).flatten();
    Some((IpNet::new(to, header.destination_length).ok()?.trunc(), metric, link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts_then_the_lowest_metric() {
        let name = |text: &str| IfName::new(text).unwrap();
        let mut links = Links::default();
        for (to, metric, link) in [
            ("0.0.0.0/0", 0, None),
            ("192.0.2.0/24", 200, Some("wlan0")),
            ("192.0.2.0/24", 100, Some("eth0")),
            ("192.0.2.0/24", 300, None),
            ("192.0.2.128/25", 0, None),
            ("2001:db8::/64", 1024, Some("eth0")),
        ] {
            links.add(to.parse().unwrap(), metric, link.map(name));
        }
        let with = |address: &str| links.with(address.parse().unwrap()).map(IfName::as_str);
        assert_eq!(with("192.0.2.7"), Some("eth0"));
        assert_eq!(with("192.0.2.200"), None, "a router has a part of it");
        assert_eq!(with("198.51.100.1"), None, "by the default route");
        assert_eq!(with("2001:db8::7"), Some("eth0"));
        assert_eq!(with("2001:db8:1::7"), None, "no way at all");
        for other in ["fe80::/64", "192.0.2.9/32", "ff00::/8"] {
            links.add(other.parse().unwrap(), 0, Some(name("eth0")));
        }
        let ranges: Vec<String> = links.ranges().map(|(range, link)| format!("{range} {link}")).collect();
        assert_eq!(ranges, ["192.0.2.0/24 eth0", "2001:db8::/64 eth0"]);
    }
}
