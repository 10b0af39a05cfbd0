//! Ways out of the cluster by chosen nodes and addresses, and what a node is to those who choose it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;

/// A way out of the cluster by a chosen node and address, for the pods of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressGatewayIntent {
    /// Its name. Of two that want the same, the first by name has it.
    pub name: String,
    /// Namespaces whose pods leave by it.
    pub namespaces: Vec<String>,
    /// The addresses that they have outside, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The nodes that may have the addresses. The first that is well has them.
    pub nodes: Vec<String>,
}

/// This node itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// Its own addresses, each with the link that has it.
    pub addresses: Vec<(IpAddr, IfName)>,
    /// Ranges that are on a link of it, without a router in between.
    pub links: Vec<(IpNet, IfName)>,
}

impl LocalNode {
    /// The link that an address is reached by from outside: the one whose range has it, and otherwise the one that has the
    /// node's own address of its family.
    pub fn link_for(&self, address: IpAddr) -> Option<&IfName> {
        let has_it = self.links.iter().filter(|(range, _)| range.contains(&address));
        let nearest = has_it.max_by_key(|(range, _)| range.prefix_len()).map(|(_, link)| link);
        let own = || self.addresses.iter().find(|(own, _)| own.is_ipv4() == address.is_ipv4());
        nearest.or_else(|| own().map(|(_, link)| link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_on_the_link_whose_range_has_it_or_with_the_nodes_own() {
        let name = |text: &str| IfName::new(text).unwrap();
        let own = LocalNode {
            name: "a".to_owned(),
            addresses: vec![("192.0.2.1".parse().unwrap(), name("eth0"))],
            links: vec![
                ("192.0.2.0/24".parse().unwrap(), name("eth0")),
                ("198.51.100.0/24".parse().unwrap(), name("eth1")),
                ("198.51.100.128/25".parse().unwrap(), name("eth2")),
            ],
        };
        let link = |text: &str| own.link_for(text.parse().unwrap()).map(IfName::as_str);
        assert_eq!(link("192.0.2.77"), Some("eth0"));
        assert_eq!(link("198.51.100.7"), Some("eth1"));
        assert_eq!(link("198.51.100.200"), Some("eth2"), "the smallest range counts");
        assert_eq!(link("203.0.113.7"), Some("eth0"), "somebody routes it to the node");
        assert_eq!(link("2001:db8::7"), None, "the node has no such address");
    }
}
