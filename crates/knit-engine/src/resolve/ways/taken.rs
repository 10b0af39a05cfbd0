//! What is somebody's already: a node that tells a range too many must not draw away the packets of others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NetworkWant, WaysWant};

/// Ranges that do not overlap, by their first address.
#[derive(Debug, Default)]
pub(super) struct Taken {
    ranges: BTreeMap<(bool, u128), (u128, String)>,
}

impl Taken {
    /// This node's own ranges, and the addresses of all nodes.
    pub(super) fn of(own: &NetworkWant, ways: &WaysWant) -> Self {
        let mut taken = Self::default();
        for range in &own.ranges {
            taken.put(*range, || format!("{range} of this node"));
        }
        let ends = ways.tunnel.iter().flat_map(|tunnel| &tunnel.ends);
        for address in ends.map(|end| end.address) {
            taken.put(address.into(), || format!("{address} of this node"));
        }
        for peer in &ways.nodes {
            for address in peer.own() {
                taken.put(address.into(), || format!("{address} of node {}", peer.name));
            }
        }
        taken
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
            let (is_ipv6, first, last) = bounds(range);
            self.ranges.insert((is_ipv6, first), (last, whose()));
        }
    }

    /// Since none overlap, the last that begins before the range ends is the only one that can reach into it.
    fn holder(&self, range: IpNet) -> Option<&str> {
        let (is_ipv6, first, last) = bounds(range);
        let (_, (end, whose)) = self.ranges.range((is_ipv6, 0)..=(is_ipv6, last)).next_back()?;
        (*end >= first).then_some(whose)
    }
}

fn bounds(range: IpNet) -> (bool, u128, u128) {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    (range.addr().is_ipv6(), number(range.network()), number(range.broadcast()))
}

#[cfg(test)]
mod tests {
    use knit_model::intent::PeerWant;

    use super::*;

    #[test]
    fn nobody_takes_what_is_anothers() {
        let own = NetworkWant {
            name: "n".to_owned(),
            ranges: vec!["10.1.1.0/24".parse().unwrap(), "fd01:1::/64".parse().unwrap()],
            isolated: false,
            mtu: None,
        };
        let peer = PeerWant {
            name: "b".to_owned(),
            ranges: vec![],
            addresses: vec![],
            far: vec!["192.0.2.2".parse().unwrap()],
        };
        let mut taken = Taken::of(&own, &WaysWant { nodes: vec![peer], ..WaysWant::default() });
        let mut take = |range: &str| taken.take(range.parse().unwrap(), "c").err();
        assert_eq!(take("10.1.2.0/24"), None);
        for (range, whose) in [
            ("10.1.1.128/25", "10.1.1.0/24 of this node"),
            ("10.0.0.0/8", "10.1.2.0/24 of node c"),
            ("10.1.2.7/32", "10.1.2.0/24 of node c"),
            ("192.0.0.0/16", "192.0.2.2 of node b"),
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
