//! Pools: the addresses that a network may give.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::block::gaps;
use crate::error::Withheld;
use crate::number::{Family, bounds, number};
use crate::runs::Runs;

/// A range of a network, and what of it is kept back. It holds no addresses, so its size costs nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// The network's id.
    pub network: String,
    /// The range, of any prefix length.
    pub range: IpNet,
    /// Whether the first usable address belongs to the bridge.
    pub gateway: bool,
    /// Addresses and prefixes that are never given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
    /// Only addresses of this part are given; those of all the range when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Where nodes share the range, the blocks of it that are this node's: what is given anew is of these. `None`: all of
    /// the range is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<IpNet>>,
}

/// A part of a range: its first and its last address, both of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

/// What a pool may give: numbers from first to last, without those in `kept`.
#[derive(Clone, Debug)]
pub(crate) struct Givable {
    pub(crate) first: u128,
    pub(crate) last: u128,
    pub(crate) kept: Runs,
}

impl Pool {
    /// A pool whose first usable address belongs to the bridge.
    pub fn with_gateway(network: impl Into<String>, range: IpNet) -> Self {
        Self { gateway: true, ..Self::new(network, range) }
    }

    /// A pool that gives every usable address.
    pub fn new(network: impl Into<String>, range: IpNet) -> Self {
        let (reserved, part, blocks) = (Vec::new(), None, None);
        Self { network: network.into(), range, gateway: false, reserved, part, blocks }
    }

    /// The same pool, which gives only addresses of this part.
    pub fn within(self, part: Part) -> Self {
        Self { part: Some(part), ..self }
    }

    /// The same of which only these blocks are this node's.
    #[must_use]
    pub fn of_blocks(self, blocks: Vec<IpNet>) -> Self {
        Self { blocks: Some(blocks), ..self }
    }

    /// Whether an address is in a block of this node's, or the whole range is.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.blocks.as_ref().is_none_or(|blocks| blocks.iter().any(|block| block.contains(&address)))
    }

    /// Whether an address is of the pool, whether it may be given or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.range.contains(&address) && self.part.is_none_or(|part| part.contains(address))
    }

    /// The bridge's address with the range's prefix length, if the pool keeps one for it.
    pub fn gateway_address(&self) -> Option<IpNet> {
        self.gateway.then(|| self.with_prefix(self.family().address(self.usable().0)))
    }

    /// How many addresses the pool may give, held ones included.
    pub fn total(&self) -> u128 {
        self.givable().map_or(0, |givable| givable.count())
    }

    /// Why this address of the range is never given; `None` if it may be.
    pub fn withholds(&self, address: IpAddr) -> Option<Withheld> {
        let value = number(address);
        let (first, last) = self.usable();
        match self.family() {
            Family::V4 if value < first => Some(Withheld::Network),
            Family::V6 if value < first => Some(Withheld::Anycast),
            _ if value > last => Some(Withheld::Broadcast),
            _ if self.gateway && value == first => Some(Withheld::Gateway),
            _ if self.reserved.iter().any(|reserved| reserved.contains(&address)) => Some(Withheld::Reserved),
            _ => None,
        }
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.range.addr())
    }

    pub(crate) fn with_prefix(&self, address: IpAddr) -> IpNet {
        IpNet::new(address, self.range.prefix_len()).expect("an address of the range has the range's family")
    }

    /// First and last address that a host may have, the bridge's included.
    fn usable(&self) -> (u128, u128) {
        usable(self.range)
    }

    /// What may be given; `None` if it is nothing at all.
    pub(crate) fn givable(&self) -> Option<Givable> {
        let (usable, last) = self.usable();
        let mut first = if self.gateway { usable.checked_add(1)? } else { usable };
        let mut last = last;
        if let Some(part) = self.part {
            if Family::of(part.first) != self.family() {
                return None;
            }
            (first, last) = (first.max(number(part.first)), last.min(number(part.last)));
        }
        if first > last {
            return None;
        }
        let mut kept = Runs::default();
        let same_family = |range: &&IpNet| Family::of(range.addr()) == self.family();
        for (from, to) in self.reserved.iter().filter(same_family).map(|range| bounds(*range)) {
            if from <= last && to >= first {
                kept.insert_all(from.max(first), to.min(last));
            }
        }
        for (from, to) in self.blocks.iter().flat_map(|blocks| gaps(first, last, blocks)) {
            kept.insert_all(from, to);
        }
        Some(Givable { first, last, kept })
    }
}

impl Part {
    /// What hosts of a subnet may have.
    pub fn of(subnet: IpNet) -> Self {
        let (first, last) = usable(subnet);
        let family = Family::of(subnet.addr());
        Self { first: family.address(first), last: family.address(last) }
    }

    /// Whether an address is of it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let same_family = address.is_ipv4() == self.first.is_ipv4();
        same_family && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    /// Whether two have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            None => write!(out, "{}", self.range),
            Some(part) => write!(out, "{part} of {}", self.range),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

/// First and last address that a host of a range may have.
fn usable(range: IpNet) -> (u128, u128) {
    let (first, last) = bounds(range);
    let host_bits = range.max_prefix_len() - range.prefix_len();
    match Family::of(range.addr()) {
        // Point-to-point links and single hosts use all they have (RFC 3021, RFC 6164).
        _ if host_bits < 2 => (first, last),
        Family::V4 => (first + 1, last - 1),
        Family::V6 => (first + 1, last),
    }
}

impl Givable {
    pub(crate) fn contains(&self, value: u128) -> bool {
        (self.first..=self.last).contains(&value) && self.kept.end_of(value).is_none()
    }

    pub(crate) fn count(&self) -> u128 {
        // At most 2^128 - 1: an IPv6 range of more than two addresses never gives its zero address.
        let kept: u128 = self.kept.iter().map(|(first, last)| last - first + 1).sum();
        self.last - self.first + 1 - kept
    }

    /// The lowest number that is neither taken nor kept. Costs one lookup, and one for each run of kept numbers on the way.
    pub(crate) fn lowest_outside(&self, taken: &Runs) -> Option<u128> {
        let mut from = self.first;
        loop {
            let free = taken.first_gap(from, self.last)?;
            match self.kept.end_of(free) {
                None => return Some(free),
                Some(end) => from = end.checked_add(1).filter(|next| *next <= self.last)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(range: &str) -> Pool {
        Pool::with_gateway("n", range.parse().unwrap())
    }

    fn open(range: &str) -> Pool {
        Pool::new("n", range.parse().unwrap())
    }

    #[test]
    fn what_a_range_may_give_depends_on_its_family_and_length() {
        for (range, total, with_bridge) in [
            ("192.168.100.0/24", 254, 253),
            ("192.168.100.0/29", 6, 5),
            ("10.0.0.0/30", 2, 1),
            ("10.0.0.0/31", 2, 1),
            ("10.0.0.7/32", 1, 0),
            ("255.255.255.255/32", 1, 0),
            ("0.0.0.0/0", (1 << 32) - 2, (1 << 32) - 3),
            ("fd00::/126", 3, 2),
            ("fd00::/127", 2, 1),
            ("fd00::1/128", 1, 0),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", 1, 0),
            ("fd00::/48", (1 << 80) - 1, (1 << 80) - 2),
            ("::/0", u128::MAX, u128::MAX - 1),
        ] {
            assert_eq!(open(range).total(), total, "{range}");
            assert_eq!(pool(range).total(), with_bridge, "{range} with a bridge");
        }
    }

    #[test]
    fn the_bridge_has_the_first_usable_address() {
        for (range, bridge) in [
            ("192.168.100.0/24", "192.168.100.1/24"),
            ("192.168.100.77/24", "192.168.100.1/24"),
            ("10.0.0.0/31", "10.0.0.0/31"),
            ("10.0.0.7/32", "10.0.0.7/32"),
            ("fd00::/64", "fd00::1/64"),
            ("fd00::/127", "fd00::/127"),
        ] {
            assert_eq!(pool(range).gateway_address(), Some(bridge.parse().unwrap()), "{range}");
        }
        assert_eq!(open("192.168.100.0/24").gateway_address(), None);
    }

    #[test]
    fn each_withheld_address_says_why() {
        let mut v4 = pool("192.168.100.0/24");
        v4.reserved = vec!["192.168.100.8/30".parse().unwrap()];
        let why = |pool: &Pool, address: &str| pool.withholds(address.parse().unwrap());
        assert_eq!(why(&v4, "192.168.100.0"), Some(Withheld::Network));
        assert_eq!(why(&v4, "192.168.100.255"), Some(Withheld::Broadcast));
        assert_eq!(why(&v4, "192.168.100.1"), Some(Withheld::Gateway));
        assert_eq!(why(&v4, "192.168.100.11"), Some(Withheld::Reserved));
        assert_eq!(why(&v4, "192.168.100.12"), None);
        assert_eq!(why(&pool("fd00::/64"), "fd00::"), Some(Withheld::Anycast));
        assert_eq!(why(&pool("fd00::/64"), "fd00::ffff:ffff:ffff:ffff"), None);
        assert_eq!(why(&open("10.0.0.0/31"), "10.0.0.0"), None);
    }

    #[test]
    fn a_part_gives_what_is_its_own_and_the_pools() {
        let part =
            |first: &str, last: &str| Part { first: first.parse().unwrap(), last: last.parse().unwrap() };
        let total = |range: &str, part: Part| pool(range).within(part).total();
        assert_eq!(total("10.0.0.0/24", part("10.0.0.8", "10.0.0.11")), 4);
        // The range's own address, the bridge's and the broadcast address are nobody's, whatever part they are in.
        assert_eq!(total("10.0.0.0/24", part("10.0.0.0", "10.0.0.3")), 2);
        assert_eq!(total("10.0.0.0/24", part("10.0.0.254", "10.0.1.9")), 1);
        for outside in
            [part("10.0.0.0", "10.0.0.1"), part("10.0.1.0", "10.0.1.9"), part("fd00::2", "fd00::9")]
        {
            assert_eq!(total("10.0.0.0/24", outside), 0, "{outside}");
        }
        assert_eq!(total("fd00::/64", Part::of("fd00::100/120".parse().unwrap())), 255);
        assert_eq!(Part::of("10.0.0.0/24".parse().unwrap()), part("10.0.0.1", "10.0.0.254"));
        assert_eq!(Part::of("10.0.0.7/32".parse().unwrap()), part("10.0.0.7", "10.0.0.7"));
        let here = pool("10.0.0.0/24").within(part("10.0.0.8", "10.0.0.11"));
        let contains = |address: &str| here.contains(address.parse().unwrap());
        assert!(contains("10.0.0.8") && contains("10.0.0.11"));
        assert!(!contains("10.0.0.7") && !contains("10.0.0.12") && !contains("::a00:8"));
        assert!(part("10.0.0.1", "10.0.0.5").overlaps(&part("10.0.0.5", "10.0.0.9")));
        assert!(part("10.0.0.1", "10.0.0.9").overlaps(&part("10.0.0.2", "10.0.0.3")));
        assert!(!part("10.0.0.1", "10.0.0.5").overlaps(&part("10.0.0.6", "10.0.0.9")));
    }

    #[test]
    fn reserved_addresses_count_once_and_only_inside() {
        let mut pool = pool("10.0.0.0/28");
        // Twice the same, one that holds the bridge's, one of another range, one of another family.
        pool.reserved = ["10.0.0.4/30", "10.0.0.5/32", "10.0.0.0/31", "10.9.0.0/16", "fd00::/8"]
            .map(|range| range.parse().unwrap())
            .to_vec();
        assert_eq!(pool.total(), 13 - 4);
        pool.reserved = vec!["10.0.0.0/8".parse().unwrap()];
        assert_eq!(pool.total(), 0);
    }
}
