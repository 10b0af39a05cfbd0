//! Ranges in use: a node that announces too large a range must not attract the traffic of others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NodeRoutesIntent, PeerNode};

use crate::cluster::ClusterNetwork;

/// Ranges without overlaps, by their first address.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanges {
    ranges: BTreeMap<(bool, u128), (u128, String)>,
}

impl ClaimedRanges {
    /// This node's ranges, and the addresses of all nodes.
    pub(super) fn of(cluster: ClusterNetwork<'_>) -> Self {
        let mut claimed = Self::default();
        for range in &cluster.network.ranges {
            claimed.insert(*range, || format!("{range} of this node"));
        }
        let endpoints = cluster.node_routes.into_iter().flat_map(NodeRoutesIntent::tunnel_endpoints);
        for address in endpoints.map(|end| end.address) {
            claimed.insert(address.into(), || format!("{address} of this node"));
        }
        for peer in cluster.peers.values() {
            for address in peer.all_addresses() {
                claimed.insert(address.into(), || of_node(address, &peer.name));
            }
        }
        claimed
    }

    /// A peer with only those of its addresses that do not conflict, and a warning for each of the others: traffic to
    /// such an address would go to the wrong node.
    pub(super) fn usable_peer(&self, peer: &PeerNode) -> (PeerNode, Vec<String>) {
        let mut sentences = Vec::new();
        let mut is_own = |address: &IpAddr| {
            let own = of_node(*address, &peer.name);
            let holder = self.holder((*address).into()).filter(|holder| *holder != own);
            let is_nowhere = address.is_unspecified() || address.is_loopback() || address.is_multicast();
            let error = match holder {
                _ if is_nowhere => "no node can have it".to_owned(),
                Some(holder) => format!("it overlaps {holder}"),
                None => return true,
            };
            sentences.push(format!("address {own} is not used: {error}"));
            false
        };
        let mut usable_peer = peer.clone();
        usable_peer.addresses.retain(|(address, _)| is_own(address));
        usable_peer.off_link_addresses.retain(|address| is_own(address));
        (usable_peer, sentences)
    }

    /// Claims a range for a node, if it is free and valid for pods.
    pub(super) fn claim(&mut self, range: IpNet, node: &str) -> Result<(), String> {
        if let Some(error) = knit_ipam::overlap_message(range, &knit_ipam::overlap::reserved_ranges()) {
            return Err(error);
        }
        match self.holder(range) {
            Some(holder) => Err(format!("it overlaps {holder}")),
            None => {
                self.insert(range, || format!("{range} of node {node}"));
                Ok(())
            }
        }
    }

    fn insert(&mut self, range: IpNet, owner: impl FnOnce() -> String) {
        if self.holder(range).is_none() {
            let (is_ipv6, (first, last)) = (range.addr().is_ipv6(), knit_ipam::bounds(range));
            self.ranges.insert((is_ipv6, first), (last, owner()));
        }
    }

    /// Since ranges do not overlap, only the last one that starts before the end of `range` can overlap it.
    fn holder(&self, range: IpNet) -> Option<&str> {
        let (is_ipv6, (first, last)) = (range.addr().is_ipv6(), knit_ipam::bounds(range));
        let (_, (end, owner)) = self.ranges.range((is_ipv6, 0)..=(is_ipv6, last)).next_back()?;
        (*end >= first).then_some(owner)
    }
}

fn of_node(address: IpAddr, node: &str) -> String {
    format!("{address} of node {node}")
}

#[cfg(test)]
mod tests {
    use knit_model::intent::NetworkIntent;

    use super::*;
    use crate::peers::Peers;

    #[test]
    fn nobody_takes_what_is_anothers() {
        let own = NetworkIntent {
            name: "n".to_owned(),
            ranges: vec!["10.1.1.0/24".parse().unwrap(), "fd01:1::/64".parse().unwrap()],
            isolated: false,
            mtu: None,
            overlay: None,
        };
        let peer = PeerNode {
            name: "b".to_owned(),
            ranges: vec![],
            addresses: vec![],
            off_link_addresses: vec!["192.0.2.2".parse().unwrap()],
            key: None,
        };
        let liar = PeerNode {
            name: "d".to_owned(),
            addresses: vec![("192.0.2.2".parse().unwrap(), "eth0".parse().unwrap())],
            off_link_addresses: ["192.0.2.4", "10.1.1.7", "127.0.0.1"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            ..peer.clone()
        };
        let peers: Peers = [&peer, &liar].map(|peer| (peer.name.clone(), peer.clone())).into();
        let bridge = "knit0".parse().unwrap();
        let cluster = ClusterNetwork { network: &own, bridge: &bridge, node_routes: None, peers: &peers };
        let mut claimed = ClaimedRanges::of(cluster);
        assert_eq!(claimed.usable_peer(&peer), (peer.clone(), vec![]));
        let (usable, rejected) = claimed.usable_peer(&liar);
        assert_eq!(usable.all_addresses().collect::<Vec<_>>(), ["192.0.2.4".parse::<IpAddr>().unwrap()]);
        assert_eq!(rejected[0], "address 192.0.2.2 of node d is not used: it overlaps 192.0.2.2 of node b");
        assert_eq!(rejected.len(), 3, "{rejected:?}");
        let mut take = |range: &str| claimed.claim(range.parse().unwrap(), "c").err();
        assert_eq!(take("10.1.2.0/24"), None);
        for (range, owner) in [
            ("10.1.1.128/25", "10.1.1.0/24 of this node"),
            ("10.0.0.0/8", "10.1.2.0/24 of node c"),
            ("10.1.2.7/32", "10.1.2.0/24 of node c"),
            ("192.0.0.0/16", "192.0.2.4 of node d"),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
            ("fd00::/8", "fd01:1::/64 of this node"),
            ("169.254.1.0/24", ""),
        ] {
            let error = take(range);
            assert!(error.as_ref().is_some_and(|error| error.contains(owner)), "{range}: {error:?}");
        }
        assert_eq!(take("10.1.3.0/24"), None);
        assert_eq!(take("fd01:3::/64"), None);
    }
}
