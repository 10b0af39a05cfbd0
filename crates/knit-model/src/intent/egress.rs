//! Egress gateways, and the node data that they are resolved against.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;

/// Egress from the cluster through a chosen node and source address, for the pods of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressGatewayIntent {
    /// Its name. Of two conflicting gateways the first by name wins.
    pub name: String,
    /// Namespaces whose pods use it.
    pub namespaces: Vec<String>,
    /// Source addresses outside the cluster (SNAT), at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Candidate nodes. The first healthy one holds the addresses.
    pub nodes: Vec<String>,
}

/// This node itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// Its addresses, each with its link.
    pub addresses: Vec<(IpAddr, IfName)>,
    /// Directly connected ranges, each with its link.
    pub links: Vec<(IpNet, IfName)>,
}

impl LocalNode {
    /// The link on which an address is announced: the one with the longest connected range that contains it, otherwise the
    /// one with the node's address of the same family.
    pub fn link_for(&self, address: IpAddr) -> Option<&IfName> {
        let connected = self.links.iter().filter(|(range, _)| range.contains(&address));
        let nearest = connected.max_by_key(|(range, _)| range.prefix_len()).map(|(_, link)| link);
        let of_family = || self.addresses.iter().find(|(own, _)| own.is_ipv4() == address.is_ipv4());
        nearest.or_else(|| of_family().map(|(_, link)| link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_announced_on_the_connected_link_or_the_node_link() {
        let name = |text: &str| IfName::new(text).unwrap();
        let node = LocalNode {
            name: "a".to_owned(),
            addresses: vec![("192.0.2.1".parse().unwrap(), name("eth0"))],
            links: vec![
                ("192.0.2.0/24".parse().unwrap(), name("eth0")),
                ("198.51.100.0/24".parse().unwrap(), name("eth1")),
                ("198.51.100.128/25".parse().unwrap(), name("eth2")),
            ],
        };
        let link = |text: &str| node.link_for(text.parse().unwrap()).map(IfName::as_str);
        assert_eq!(link("192.0.2.77"), Some("eth0"));
        assert_eq!(link("198.51.100.7"), Some("eth1"));
        assert_eq!(link("198.51.100.200"), Some("eth2"), "the longest prefix wins");
        assert_eq!(link("203.0.113.7"), Some("eth0"), "falls back to the node link");
        assert_eq!(link("2001:db8::7"), None, "the node has no IPv6 address");
    }
}
