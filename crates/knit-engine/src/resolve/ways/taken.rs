//! What is somebody's already: a node that tells a range too many must not draw away the packets of others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NetworkIntent, NodeRoutesIntent, PeerNode};

/// Ranges that do not overlap, by their first address.
#[derive(Debug, Default)]
pub(super) struct Taken {
    ranges: BTreeMap<(bool, u128), (u128, String)>,
}

impl Taken {
    /// This node's own ranges, and the addresses of all nodes.
    pub(super) fn of(own: &NetworkIntent, ways: &NodeRoutesIntent) -> Self {
        let mut taken = Self::default();
        for range in &own.ranges {
            taken.put(*range, || format!("{range} of this node"));
        }
        for address in ways.ends().map(|end| end.address) {
            taken.put(address.into(), || format!("{address} of this node"));
        }
        for peer in &ways.nodes {
            for address in peer.own() {
                taken.put(address.into(), || of_node(address, &peer.name));
            }
        }
        taken
    }

    /// A node with those of its addresses that are its own, and a sentence for each other: what pods say to such an address
    /// would go to the wrong node.
    pub(super) fn known(&self, peer: &PeerNode) -> (PeerNode, Vec<String>) {
        let mut sentences = Vec::new();
        let mut is_own = |address: &IpAddr| {
            let own = of_node(*address, &peer.name);
            let holder = self.holder((*address).into()).filter(|holder| *holder != own);
            let is_nowhere = address.is_unspecified() || address.is_loopback() || address.is_multicast();
            let why = match holder {
                _ if is_nowhere => "no node can have it".to_owned(),
                Some(holder) => format!("it overlaps {holder}"),
                None => return true,
            };
            sentences.push(format!("address {own} is not used: {why}"));
            false
        };
        let mut known = peer.clone();
        known.addresses.retain(|(address, _)| is_own(address));
        known.far.retain(|address| is_own(address));
        (known, sentences)
    }

    /// Takes the range of a node, if it is no one else's and pods may have it.
    pub(super) fn take(&mut self, range: IpNet, node: &str) -> Result<(), String> {
        if let Some(why) = knit_ipam::forbidden(range, &knit_ipam::overlap::never_for_pods()) {
            return Err(why);
        }
        match self.holder(range) {
            Some(holder) => Err(format!("it overlaps {holder}")),
            None => {
                self.put(range, || format!("{range} of node {node}"));
                Ok(())
            }
        }
    }

    fn put(&mut self, range: IpNet, whose: impl FnOnce() -> String) {
        if self.holder(range).is_none() {
            let (is_ipv6, (first, last)) = (range.addr().is_ipv6(), knit_ipam::bounds(range));
            self.ranges.insert((is_ipv6, first), (last, whose()));
        }
    }

    /// Since none overlap, the last that begins before the range ends is the only one that can reach into it.
    fn holder(&self, range: IpNet) -> Option<&str> {
        let (is_ipv6, (first, last)) = (range.addr().is_ipv6(), knit_ipam::bounds(range));
        let (_, (end, whose)) = self.ranges.range((is_ipv6, 0)..=(is_ipv6, last)).next_back()?;
        (*end >= first).then_some(whose)
    }
}

fn of_node(address: IpAddr, node: &str) -> String {
    format!("{address} of node {node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_what_is_anothers() {
        let own = NetworkIntent {
            name: "n".to_owned(),
            ranges: vec!["10.1.1.0/24".parse().unwrap(), "fd01:1::/64".parse().unwrap()],
            isolated: false,
            mtu: None,
            span: None,
        };
        let peer = PeerNode {
            name: "b".to_owned(),
            ranges: vec![],
            addresses: vec![],
            far: vec!["192.0.2.2".parse().unwrap()],
            key: None,
        };
        let liar = PeerNode {
            name: "d".to_owned(),
            addresses: vec![("192.0.2.2".parse().unwrap(), "eth0".parse().unwrap())],
            far: ["192.0.2.4", "10.1.1.7", "127.0.0.1"].map(|text| text.parse().unwrap()).to_vec(),
            ..peer.clone()
        };
        let nodes = vec![peer.clone(), liar.clone()];
        let mut taken = Taken::of(&own, &NodeRoutesIntent { nodes, ..NodeRoutesIntent::default() });
        assert_eq!(taken.known(&peer), (peer.clone(), vec![]));
        let (known, why) = taken.known(&liar);
        assert_eq!(known.own().collect::<Vec<_>>(), ["192.0.2.4".parse::<IpAddr>().unwrap()]);
        assert_eq!(why[0], "address 192.0.2.2 of node d is not used: it overlaps 192.0.2.2 of node b");
        assert_eq!(why.len(), 3, "{why:?}");
        let mut take = |range: &str| taken.take(range.parse().unwrap(), "c").err();
        assert_eq!(take("10.1.2.0/24"), None);
        for (range, whose) in [
            ("10.1.1.128/25", "10.1.1.0/24 of this node"),
            ("10.0.0.0/8", "10.1.2.0/24 of node c"),
            ("10.1.2.7/32", "10.1.2.0/24 of node c"),
            ("192.0.0.0/16", "192.0.2.4 of node d"),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
            ("fd00::/8", "fd01:1::/64 of this node"),
            ("169.254.1.0/24", ""),
        ] {
            let why = take(range);
            assert!(why.as_ref().is_some_and(|why| why.contains(whose)), "{range}: {why:?}");
        }
        assert_eq!(take("10.1.3.0/24"), None);
        assert_eq!(take("fd01:3::/64"), None);
    }
}
