//! Entries of the eBPF maps, with the layout that the C source declares.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::Mac;
use knit_model::route::GatewayRoute;

use super::RedirectPort;

/// `struct address`: an IPv4 address is mapped to IPv6.
pub(super) type Address = [u8; 16];

/// `struct port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortEntry(pub(super) [u8; 12]);

impl PortEntry {
    pub(super) fn new(link: u32, mac: Mac) -> Self {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&link.to_ne_bytes());
        bytes[4..10].copy_from_slice(&mac.bytes());
        Self(bytes)
    }

    /// The link index.
    pub(super) fn link(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_ne_bytes([a, b, c, d])
    }
}

/// The key of a next hop: prefix length and network address.
pub(super) type PrefixKey = (u32, Address);

/// `struct way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHopEntry(pub(super) [u8; 24]);

impl NextHopEntry {
    pub(super) fn new(link: u32, gateway: IpAddr) -> Self {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&link.to_ne_bytes());
        let family: u32 = if gateway.is_ipv4() { 2 } else { 10 };
        bytes[4..8].copy_from_slice(&family.to_ne_bytes());
        match gateway {
            IpAddr::V4(gateway) => bytes[8..12].copy_from_slice(&gateway.octets()),
            IpAddr::V6(gateway) => bytes[8..].copy_from_slice(&gateway.octets()),
        }
        Self(bytes)
    }
}

/// The next hop of each range.
pub(super) fn next_hops(ranges: &[(&GatewayRoute, u32)]) -> BTreeMap<PrefixKey, NextHopEntry> {
    ranges.iter().map(|(range, index)| (bits(range.to), NextHopEntry::new(*index, range.gateway))).collect()
}

fn bits(range: IpNet) -> PrefixKey {
    let of_family = u32::from(range.prefix_len());
    let mapped = if range.addr().is_ipv4() { 96 } else { 0 };
    (mapped + of_family, key(range.network()))
}

/// The port of each address. An address of two ports is left to the bridge.
pub(super) fn port_entries(ports: &[(&RedirectPort, u32)]) -> BTreeMap<Address, PortEntry> {
    let mut all: BTreeMap<Address, Option<PortEntry>> = BTreeMap::new();
    for (port, index) in ports {
        for address in &port.addresses {
            let place = PortEntry::new(*index, port.mac);
            all.entry(key(*address)).and_modify(|other| *other = None).or_insert(Some(place));
        }
    }
    all.into_iter().filter_map(|(address, place)| Some((address, place?))).collect()
}

fn key(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(link: &str, mac: u8, addresses: &[&str]) -> RedirectPort {
        RedirectPort {
            link: link.parse().unwrap(),
            mac: Mac::from_bytes([2, 0, 0, 0, 0, mac]),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_address_maps_to_the_link_and_mac_of_its_port() {
        let pod = port("a", 7, &["10.1.0.2", "fd00::2"]);
        let entries = port_entries(&[(&pod, 0x0102)]);
        let expected = PortEntry::new(0x0102, pod.mac);
        assert_eq!(expected.link(), 0x0102);
        assert_eq!(expected.0[4..], [2, 0, 0, 0, 0, 7, 0, 0]);
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 2];
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[&v4], expected);
        assert_eq!(entries[&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]], expected);
    }

    #[test]
    fn a_range_maps_to_a_link_and_a_gateway() {
        let range = |to: &str, gateway: &str| GatewayRoute {
            to: to.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            link: "eth0".parse().unwrap(),
        };
        let (v4, v6) = (range("10.1.2.7/24", "192.0.2.2"), range("fd00:2::/64", "2001:db8::2"));
        let next_hops = next_hops(&[(&v4, 3), (&v6, 3)]);
        let first = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 0];
        let next_hop = next_hops[&(120, first)].0;
        assert_eq!((&next_hop[..4], &next_hop[4..8]), (&3_u32.to_ne_bytes()[..], &2_u32.to_ne_bytes()[..]));
        assert_eq!(next_hop[8..], [192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let next_hop = next_hops[&(64, [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])].0;
        assert_eq!(next_hop[4..8], 10_u32.to_ne_bytes());
        assert_eq!(next_hop[8..], [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn an_address_of_two_ports_is_left_out() {
        let (one, other) = (port("a", 1, &["10.1.0.2", "10.1.0.3"]), port("b", 2, &["10.1.0.2"]));
        let entries = port_entries(&[(&one, 1), (&other, 2)]);
        assert_eq!(entries.into_values().collect::<Vec<_>>(), [PortEntry::new(1, one.mac)]);
    }
}
