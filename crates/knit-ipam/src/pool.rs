//! Pools: the allocatable addresses of a network.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::block::gaps;
use crate::error::UnavailableReason;
use crate::interval_set::IntervalSet;
use crate::number::{Family, bounds, number};

/// A range of a network and its reserved addresses. Memory does not depend on the size of the range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Id of the network.
    pub network: String,
    /// The range, of any prefix length.
    pub range: IpNet,
    /// Whether the first usable address is the gateway address of the bridge.
    pub gateway: bool,
    /// Addresses and prefixes that are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
    /// Restricts allocation to this sub-range; `None`: the whole range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_range: Option<SubRange>,
    /// For a range that is shared by nodes: the blocks of this node, from which new addresses are allocated. `None`: the
    /// whole range belongs to this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<IpNet>>,
}

/// A part of a range: first and last address, of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubRange {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

/// Allocatable addresses of a pool: numbers from first to last, without those in `excluded`.
#[derive(Clone, Debug)]
pub(crate) struct Allocatable {
    pub(crate) first: u128,
    pub(crate) last: u128,
    pub(crate) excluded: IntervalSet,
}

impl Pool {
    /// A pool whose first usable address is the gateway address of the bridge.
    pub fn with_gateway(network: impl Into<String>, range: IpNet) -> Self {
        Self { gateway: true, ..Self::new(network, range) }
    }

    /// A pool of every usable address.
    pub fn new(network: impl Into<String>, range: IpNet) -> Self {
        let (reserved, sub_range, blocks) = (Vec::new(), None, None);
        Self { network: network.into(), range, gateway: false, reserved, sub_range, blocks }
    }

    /// Restricts the pool to a sub-range.
    pub fn within(self, sub_range: SubRange) -> Self {
        Self { sub_range: Some(sub_range), ..self }
    }

    /// Restricts new allocations to these blocks of this node.
    #[must_use]
    pub fn with_blocks(self, blocks: Vec<IpNet>) -> Self {
        Self { blocks: Some(blocks), ..self }
    }

    /// Whether an address is in a block of this node, or the whole range belongs to this node.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.blocks.as_ref().is_none_or(|blocks| blocks.iter().any(|block| block.contains(&address)))
    }

    /// Whether an address is in the pool, allocatable or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.range.contains(&address) && self.sub_range.is_none_or(|sub_range| sub_range.contains(address))
    }

    /// The gateway address with the prefix length of the range, if the pool reserves one.
    pub fn gateway_address(&self) -> Option<IpNet> {
        self.gateway.then(|| self.with_prefix(self.family().address(self.usable().0)))
    }

    /// Number of allocatable addresses, leased ones included.
    pub fn total(&self) -> u128 {
        self.allocatable().map_or(0, |allocatable| allocatable.count())
    }

    /// Why this address of the range is never allocated; `None` if it may be.
    pub fn unavailable_reason(&self, address: IpAddr) -> Option<UnavailableReason> {
        let value = number(address);
        let (first, last) = self.usable();
        match self.family() {
            Family::V4 if value < first => Some(UnavailableReason::Network),
            Family::V6 if value < first => Some(UnavailableReason::Anycast),
            _ if value > last => Some(UnavailableReason::Broadcast),
            _ if self.gateway && value == first => Some(UnavailableReason::Gateway),
            _ if self.reserved.iter().any(|reserved| reserved.contains(&address)) => {
                Some(UnavailableReason::Reserved)
            }
            _ => None,
        }
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.range.addr())
    }

    pub(crate) fn with_prefix(&self, address: IpAddr) -> IpNet {
        IpNet::new(address, self.range.prefix_len()).expect("an address of the range has the range's family")
    }

    /// First and last host address, the gateway address included.
    fn usable(&self) -> (u128, u128) {
        usable(self.range)
    }

    /// The allocatable addresses; `None` if there are none.
    pub(crate) fn allocatable(&self) -> Option<Allocatable> {
        let (usable, last) = self.usable();
        let mut first = if self.gateway { usable.checked_add(1)? } else { usable };
        let mut last = last;
        if let Some(sub_range) = self.sub_range {
            if Family::of(sub_range.first) != self.family() {
                return None;
            }
            (first, last) = (first.max(number(sub_range.first)), last.min(number(sub_range.last)));
        }
        if first > last {
            return None;
        }
        let mut excluded = IntervalSet::default();
        let same_family = |range: &&IpNet| Family::of(range.addr()) == self.family();
        for (from, to) in self.reserved.iter().filter(same_family).map(|range| bounds(*range)) {
            if from <= last && to >= first {
                excluded.insert_all(from.max(first), to.min(last));
            }
        }
        for (from, to) in self.blocks.iter().flat_map(|blocks| gaps(first, last, blocks)) {
            excluded.insert_all(from, to);
        }
        Some(Allocatable { first, last, excluded })
    }
}

impl SubRange {
    /// The host addresses of a subnet.
    pub fn of(subnet: IpNet) -> Self {
        let (first, last) = usable(subnet);
        let family = Family::of(subnet.addr());
        Self { first: family.address(first), last: family.address(last) }
    }

    /// Whether it contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let same_family = address.is_ipv4() == self.first.is_ipv4();
        same_family && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    /// Whether two sub-ranges overlap.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sub_range {
            None => write!(out, "{}", self.range),
            Some(sub_range) => write!(out, "{sub_range} of {}", self.range),
        }
    }
}

impl fmt::Display for SubRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

/// First and last host address of a range.
fn usable(range: IpNet) -> (u128, u128) {
    let (first, last) = bounds(range);
    let host_bits = range.max_prefix_len() - range.prefix_len();
    match Family::of(range.addr()) {
        // Point-to-point links and single hosts use all addresses (RFC 3021, RFC 6164).
        _ if host_bits < 2 => (first, last),
        Family::V4 => (first + 1, last - 1),
        Family::V6 => (first + 1, last),
    }
}

impl Allocatable {
    pub(crate) fn contains(&self, value: u128) -> bool {
        (self.first..=self.last).contains(&value) && self.excluded.end_of(value).is_none()
    }

    pub(crate) fn count(&self) -> u128 {
        // At most 2^128 - 1: the anycast address of a larger IPv6 range is never allocated.
        let excluded: u128 = self.excluded.iter().map(|(first, last)| last - first + 1).sum();
        self.last - self.first + 1 - excluded
    }

    /// The lowest number that is neither taken nor excluded. Costs one lookup, plus one for each excluded interval on the way.
    pub(crate) fn lowest_free(&self, taken: &IntervalSet) -> Option<u128> {
        let mut from = self.first;
        loop {
            let free = taken.first_gap(from, self.last)?;
            match self.excluded.end_of(free) {
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
    fn allocatable_addresses_depend_on_family_and_prefix_length() {
        for (range, total, with_gateway) in [
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
            assert_eq!(pool(range).total(), with_gateway, "{range} with a gateway");
        }
    }

    #[test]
    fn the_gateway_has_the_first_usable_address() {
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
    fn unavailable_addresses_have_a_reason() {
        let mut v4 = pool("192.168.100.0/24");
        v4.reserved = vec!["192.168.100.8/30".parse().unwrap()];
        let reason = |pool: &Pool, address: &str| pool.unavailable_reason(address.parse().unwrap());
        assert_eq!(reason(&v4, "192.168.100.0"), Some(UnavailableReason::Network));
        assert_eq!(reason(&v4, "192.168.100.255"), Some(UnavailableReason::Broadcast));
        assert_eq!(reason(&v4, "192.168.100.1"), Some(UnavailableReason::Gateway));
        assert_eq!(reason(&v4, "192.168.100.11"), Some(UnavailableReason::Reserved));
        assert_eq!(reason(&v4, "192.168.100.12"), None);
        assert_eq!(reason(&pool("fd00::/64"), "fd00::"), Some(UnavailableReason::Anycast));
        assert_eq!(reason(&pool("fd00::/64"), "fd00::ffff:ffff:ffff:ffff"), None);
        assert_eq!(reason(&open("10.0.0.0/31"), "10.0.0.0"), None);
    }

    #[test]
    fn a_sub_range_is_intersected_with_the_pool() {
        let sub_range =
            |first: &str, last: &str| SubRange { first: first.parse().unwrap(), last: last.parse().unwrap() };
        let total = |range: &str, sub_range: SubRange| pool(range).within(sub_range).total();
        assert_eq!(total("10.0.0.0/24", sub_range("10.0.0.8", "10.0.0.11")), 4);
        // Network, gateway and broadcast address are never allocated, whatever the sub-range.
        assert_eq!(total("10.0.0.0/24", sub_range("10.0.0.0", "10.0.0.3")), 2);
        assert_eq!(total("10.0.0.0/24", sub_range("10.0.0.254", "10.0.1.9")), 1);
        for outside in [
            sub_range("10.0.0.0", "10.0.0.1"),
            sub_range("10.0.1.0", "10.0.1.9"),
            sub_range("fd00::2", "fd00::9"),
        ] {
            assert_eq!(total("10.0.0.0/24", outside), 0, "{outside}");
        }
        assert_eq!(total("fd00::/64", SubRange::of("fd00::100/120".parse().unwrap())), 255);
        assert_eq!(SubRange::of("10.0.0.0/24".parse().unwrap()), sub_range("10.0.0.1", "10.0.0.254"));
        assert_eq!(SubRange::of("10.0.0.7/32".parse().unwrap()), sub_range("10.0.0.7", "10.0.0.7"));
        let here = pool("10.0.0.0/24").within(sub_range("10.0.0.8", "10.0.0.11"));
        let contains = |address: &str| here.contains(address.parse().unwrap());
        assert!(contains("10.0.0.8") && contains("10.0.0.11"));
        assert!(!contains("10.0.0.7") && !contains("10.0.0.12") && !contains("::a00:8"));
        assert!(sub_range("10.0.0.1", "10.0.0.5").overlaps(&sub_range("10.0.0.5", "10.0.0.9")));
        assert!(sub_range("10.0.0.1", "10.0.0.9").overlaps(&sub_range("10.0.0.2", "10.0.0.3")));
        assert!(!sub_range("10.0.0.1", "10.0.0.5").overlaps(&sub_range("10.0.0.6", "10.0.0.9")));
    }

    #[test]
    fn reserved_addresses_count_once_and_only_within_the_range() {
        let mut pool = pool("10.0.0.0/28");
        // A duplicate, one with the gateway address, one of another range, one of another family.
        pool.reserved = ["10.0.0.4/30", "10.0.0.5/32", "10.0.0.0/31", "10.9.0.0/16", "fd00::/8"]
            .map(|range| range.parse().unwrap())
            .to_vec();
        assert_eq!(pool.total(), 13 - 4);
        pool.reserved = vec!["10.0.0.0/8".parse().unwrap()];
        assert_eq!(pool.total(), 0);
    }
}
