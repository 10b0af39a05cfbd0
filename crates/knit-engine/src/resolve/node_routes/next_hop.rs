//! The path to a range of another node: chosen per pair of nodes, with the same result on both sides.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{NodeRoutesIntent, PeerNode, TunnelEndpoint};

/// A path to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodePath<'a> {
    /// Directly to this address of the node, on this link.
    Native((IpAddr, IfName)),
    /// Through a tunnel.
    Tunnel {
        /// The local endpoint.
        end: &'a TunnelEndpoint,
        /// The remote address.
        to: IpAddr,
    },
}

/// Direct if the nodes share a link in the range's family, unless tunnels are enforced. A tunnel carries both
/// families, over IPv4 where possible: both nodes then choose the same, and the header is smaller.
pub(super) fn choose<'a>(
    node_routes: &'a NodeRoutesIntent,
    peer: &PeerNode,
    range: IpNet,
) -> Result<NodePath<'a>, String> {
    let family = if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
    let on_link = peer.addresses.iter().find(|(address, _)| address.is_ipv4() == range.addr().is_ipv4());
    let Some(tunnel) = &node_routes.tunnel else {
        let error =
            || format!("no {family} address of the node is on a link of this one, and there are no tunnels");
        return on_link.cloned().map(NodePath::Native).ok_or_else(error);
    };
    if let Some(hop) = on_link.filter(|_| !tunnel.always) {
        return Ok(NodePath::Native(hop.clone()));
    }
    pair(&tunnel.endpoints, peer).map(|(end, to)| NodePath::Tunnel { end, to })
}

/// The endpoints of a tunnel between two nodes, over IPv4 where possible.
pub(super) fn pair<'a>(
    ends: &'a [TunnelEndpoint],
    peer: &PeerNode,
) -> Result<(&'a TunnelEndpoint, IpAddr), String> {
    let mut ends: Vec<&TunnelEndpoint> = ends.iter().collect();
    ends.sort_by_key(|end| end.address.is_ipv6());
    let with = |end: &'a TunnelEndpoint| {
        let to = peer.all_addresses().find(|address| address.is_ipv4() == end.address.is_ipv4())?;
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

    fn node_routes(own: &[&str], always: bool) -> NodeRoutesIntent {
        let tunnel = NodeTunnelIntent { node: "a".to_owned(), vni: 1, port: 2, always, endpoints: ends(own) };
        NodeRoutesIntent { tunnel: Some(tunnel), ..NodeRoutesIntent::default() }
    }

    fn peer(near: &[&str], far: &[&str]) -> PeerNode {
        let on_link = |text: &&str| (text.parse().unwrap(), "eth0".parse().unwrap());
        PeerNode {
            name: "b".to_owned(),
            ranges: vec![],
            addresses: near.iter().map(on_link).collect(),
            off_link_addresses: far.iter().map(|text| text.parse().unwrap()).collect(),
            key: None,
        }
    }

    /// The chosen path as text.
    fn chosen(node_routes: &NodeRoutesIntent, peer: &PeerNode, range: &str) -> String {
        match choose(node_routes, peer, range.parse().unwrap()) {
            Ok(NodePath::Native((address, link))) => format!("{address} on {link}"),
            Ok(NodePath::Tunnel { end, to }) => format!("{} to {to}", end.address),
            Err(error) => error,
        }
    }

    #[test]
    fn a_shared_link_is_taken_and_a_tunnel_only_without_one() {
        let node_routes = node_routes(&["192.0.2.1", "2001:db8::1"], false);
        let near = peer(&["192.0.2.2"], &["2001:db8:1::2"]);
        assert_eq!(chosen(&node_routes, &near, "10.1.2.0/24"), "192.0.2.2 on eth0");
        assert_eq!(
            chosen(&node_routes, &near, "fd01:2::/64"),
            "192.0.2.1 to 192.0.2.2",
            "over the other family"
        );
        let far = peer(&[], &["2001:db8:1::2", "198.51.100.2"]);
        assert_eq!(
            chosen(&node_routes, &far, "10.1.2.0/24"),
            "192.0.2.1 to 198.51.100.2",
            "IPv4 whatever comes first"
        );
        assert_eq!(chosen(&node_routes, &far, "fd01:2::/64"), "192.0.2.1 to 198.51.100.2");
    }

    #[test]
    fn tunnels_are_used_always_or_never() {
        let near = peer(&["192.0.2.2"], &[]);
        assert_eq!(
            chosen(&node_routes(&["192.0.2.1"], true), &near, "10.1.2.0/24"),
            "192.0.2.1 to 192.0.2.2"
        );
        let none = NodeRoutesIntent::default();
        assert_eq!(chosen(&none, &near, "10.1.2.0/24"), "192.0.2.2 on eth0");
        let error = chosen(&none, &near, "fd01:2::/64");
        assert!(error.contains("no IPv6 address of the node is on a link of this one"), "{error}");
    }

    #[test]
    fn a_node_without_the_address_family_is_reported() {
        let error = chosen(&node_routes(&["192.0.2.1"], false), &peer(&[], &["2001:db8::2"]), "fd01:2::/64");
        assert!(error.contains("no addresses of one family"), "{error}");
    }
}
