//! Ranges in use: a node that announces too large a range must not attract the traffic of others.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NodeRoutesIntent, PeerNode};

use crate::cluster::ClusterNetwork;

/// Ranges without overlaps, by their first address.
#[derive(Debug, Default)]
pub(super) struct ClaimedRanges<'a> {
    ranges: BTreeMap<(bool, u128), (u128, Holder<'a>)>,
    reserved: Vec<(&'static str, IpNet)>,
}

/// Who has a range or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder<'a> {
    range: IpNet,
    /// `None`: this node.
    node: Option<&'a str>,
}

impl<'a> ClaimedRanges<'a> {
    /// This node's ranges, and the addresses of all nodes.
    pub(super) fn of(cluster: ClusterNetwork<'a>) -> Self {
        let reserved = knit_ipam::overlap::reserved_ranges();
        let mut claimed = Self { reserved, ..Self::default() };
        for range in &cluster.network.ranges {
            claimed.insert(Holder { range: *range, node: None });
        }
        let endpoints = cluster.node_routes.into_iter().flat_map(NodeRoutesIntent::tunnel_endpoints);
        for address in endpoints.map(|end| end.address) {
            claimed.insert(Holder { range: address.into(), node: None });
        }
        for peer in cluster.peers.values() {
            for address in peer.all_addresses() {
                claimed.insert(Holder { range: address.into(), node: Some(&peer.name) });
            }
        }
        claimed
    }

    /// A peer with only those of its addresses that do not conflict, and a warning for each of the others: traffic to
    /// such an address would go to the wrong node.
    pub(super) fn usable_peer<'p>(&self, peer: &'p PeerNode) -> (Cow<'p, PeerNode>, Vec<String>) {
        let warnings: Vec<String> =
            peer.all_addresses().filter_map(|address| self.unusable(address, &peer.name)).collect();
        if warnings.is_empty() {
            return (Cow::Borrowed(peer), warnings);
        }
        let mut usable = peer.clone();
        usable.addresses.retain(|(address, _)| self.unusable(*address, &peer.name).is_none());
        usable.off_link_addresses.retain(|address| self.unusable(*address, &peer.name).is_none());
        (Cow::Owned(usable), warnings)
    }

    /// Why an address of a node cannot be used.
    fn unusable(&self, address: IpAddr, node: &str) -> Option<String> {
        let own = Holder { range: address.into(), node: Some(node) };
        let is_nowhere = address.is_unspecified() || address.is_loopback() || address.is_multicast();
        let error = match self.holder(address.into()).filter(|holder| **holder != own) {
            _ if is_nowhere => "no node can have it".to_owned(),
            Some(holder) => format!("it overlaps {holder}"),
            None => return None,
        };
        Some(format!("address {own} is not used: {error}"))
    }

    /// Claims a range for a node, if it is free and valid for pods.
    pub(super) fn claim(&mut self, range: IpNet, node: &'a str) -> Result<(), String> {
        if let Some(error) = knit_ipam::overlap_message(range, &self.reserved) {
            return Err(error);
        }
        match self.holder(range) {
            Some(holder) => Err(format!("it overlaps {holder}")),
            None => {
                self.insert(Holder { range, node: Some(node) });
                Ok(())
            }
        }
    }

    fn insert(&mut self, holder: Holder<'a>) {
        if self.holder(holder.range).is_none() {
            let (is_ipv6, (first, last)) = (holder.range.addr().is_ipv6(), knit_ipam::bounds(holder.range));
            self.ranges.insert((is_ipv6, first), (last, holder));
        }
    }

    /// Since ranges do not overlap, only the last one that starts before the end of `range` can overlap it.
    fn holder(&self, range: IpNet) -> Option<&Holder<'a>> {
        let (is_ipv6, (first, last)) = (range.addr().is_ipv6(), knit_ipam::bounds(range));
        let (_, (end, holder)) = self.ranges.range((is_ipv6, 0)..=(is_ipv6, last)).next_back()?;
        (*end >= first).then_some(holder)
    }
}

impl fmt::Display for Holder<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_address = self.range.prefix_len() == self.range.max_prefix_len();
        match is_address {
            true => self.range.addr().fmt(out)?,
            false => self.range.fmt(out)?,
        }
        match self.node {
            Some(node) => write!(out, " of node {node}"),
            None => out.write_str(" of this node"),
        }
    }
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
        assert_eq!(claimed.usable_peer(&peer), (Cow::Borrowed(&peer), vec![]));
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
