//! Which way a range of another node is reached: chosen for each pair of nodes, the same on both sides.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{NodeRoutesIntent, PeerNode, TunnelEndpoint};

/// A way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice<'a> {
    /// Through this address of the node, which is on this link.
    Native((IpAddr, IfName)),
    /// By a tunnel.
    Tunnel {
        /// From this address of this node.
        end: &'a TunnelEndpoint,
        /// To that address of the other.
        to: IpAddr,
    },
}

/// Without a tunnel where an address of the range's family is on a link of this node, unless all ways are tunnels. A
/// tunnel carries both families, over IPv4 where both nodes have it: both come to the same, and it takes fewer bytes.
pub(super) fn choose<'a>(
    ways: &'a NodeRoutesIntent,
    peer: &PeerNode,
    range: IpNet,
) -> Result<Choice<'a>, String> {
    let family = if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
    let on_link = peer.addresses.iter().find(|(address, _)| address.is_ipv4() == range.addr().is_ipv4());
    let Some(tunnel) = &ways.tunnel else {
        let why =
            || format!("no {family} address of the node is on a link of this one, and there are no tunnels");
        return on_link.cloned().map(Choice::Native).ok_or_else(why);
    };
    if let Some(hop) = on_link.filter(|_| !tunnel.always) {
        return Ok(Choice::Native(hop.clone()));
    }
    pair(&tunnel.ends, peer).map(|(end, to)| Choice::Tunnel { end, to })
}

/// The addresses of the two nodes that a tunnel is between: of IPv4 where both have it.
pub(super) fn pair<'a>(
    ends: &'a [TunnelEndpoint],
    peer: &PeerNode,
) -> Result<(&'a TunnelEndpoint, IpAddr), String> {
    let mut ends: Vec<&TunnelEndpoint> = ends.iter().collect();
    ends.sort_by_key(|end| end.address.is_ipv6());
    let with = |end: &'a TunnelEndpoint| {
        let to = peer.own().find(|address| address.is_ipv4() == end.address.is_ipv4())?;
        Some((end, to))
    };
    ends.into_iter().find_map(with).ok_or_else(|| "the two nodes have no addresses of one family".to_owned())
}

#[cfg(test)]
mod tests {
    use knit_model::intent::NodeTunnelIntent;

    use super::*;

    fn ends(addresses: &[&str]) -> Vec<TunnelEndpoint> {
        addresses.iter().map(|text| TunnelEndpoint { address: text.parse().unwrap(), mtu: 1500 }).collect()
    }

    fn ways(own: &[&str], always: bool) -> NodeRoutesIntent {
        let tunnel = NodeTunnelIntent { node: "a".to_owned(), vni: 1, port: 2, always, ends: ends(own) };
        NodeRoutesIntent { tunnel: Some(tunnel), ..NodeRoutesIntent::default() }
    }

    fn peer(near: &[&str], far: &[&str]) -> PeerNode {
        let on_link = |text: &&str| (text.parse().unwrap(), "eth0".parse().unwrap());
        PeerNode {
            name: "b".to_owned(),
            ranges: vec![],
            addresses: near.iter().map(on_link).collect(),
            far: far.iter().map(|text| text.parse().unwrap()).collect(),
            key: None,
        }
    }

    /// The way in words: the address for a native one, both ends of a tunnel.
    fn chosen(ways: &NodeRoutesIntent, peer: &PeerNode, range: &str) -> String {
        match choose(ways, peer, range.parse().unwrap()) {
            Ok(Choice::Native((address, link))) => format!("{address} on {link}"),
            Ok(Choice::Tunnel { end, to }) => format!("{} to {to}", end.address),
            Err(why) => why,
        }
    }

    #[test]
    fn a_shared_link_is_taken_and_a_tunnel_only_without_one() {
        let ways = ways(&["192.0.2.1", "2001:db8::1"], false);
        let near = peer(&["192.0.2.2"], &["2001:db8:1::2"]);
        assert_eq!(chosen(&ways, &near, "10.1.2.0/24"), "192.0.2.2 on eth0");
        assert_eq!(chosen(&ways, &near, "fd01:2::/64"), "192.0.2.1 to 192.0.2.2", "over the other family");
        let far = peer(&[], &["2001:db8:1::2", "198.51.100.2"]);
        assert_eq!(
            chosen(&ways, &far, "10.1.2.0/24"),
            "192.0.2.1 to 198.51.100.2",
            "IPv4 whatever comes first"
        );
        assert_eq!(chosen(&ways, &far, "fd01:2::/64"), "192.0.2.1 to 198.51.100.2");
    }

    #[test]
    fn tunnels_can_be_all_ways_or_none() {
        let near = peer(&["192.0.2.2"], &[]);
        assert_eq!(chosen(&ways(&["192.0.2.1"], true), &near, "10.1.2.0/24"), "192.0.2.1 to 192.0.2.2");
        let none = NodeRoutesIntent::default();
        assert_eq!(chosen(&none, &near, "10.1.2.0/24"), "192.0.2.2 on eth0");
        let why = chosen(&none, &near, "fd01:2::/64");
        assert!(why.contains("no IPv6 address of the node is on a link of this one"), "{why}");
    }

    #[test]
    fn a_node_with_the_other_family_alone_is_told() {
        let why = chosen(&ways(&["192.0.2.1"], false), &peer(&[], &["2001:db8::2"]), "fd01:2::/64");
        assert!(why.contains("no addresses of one family"), "{why}");
    }
}
