//! What the programs' maps hold, byte for byte as their source says.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::Mac;
use knit_model::route::Through;

use super::Port;

/// `struct address`: an IPv4 address is mapped into IPv6.
pub(super) type Address = [u8; 16];

/// `struct port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) [u8; 12]);

impl Place {
    pub(super) fn new(link: u32, mac: Mac) -> Self {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&link.to_ne_bytes());
        bytes[4..10].copy_from_slice(&mac.bytes());
        Self(bytes)
    }

    /// The number of the link.
    pub(super) fn link(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_ne_bytes([a, b, c, d])
    }
}

/// The key of a way: how many bits, and the first address.
pub(super) type Bits = (u32, Address);

/// `struct way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way(pub(super) [u8; 24]);

impl Way {
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

/// The way to each range.
pub(super) fn ways(ranges: &[(&Through, u32)]) -> BTreeMap<Bits, Way> {
    ranges.iter().map(|(range, index)| (bits(range.to), Way::new(*index, range.gateway))).collect()
}

fn bits(range: IpNet) -> Bits {
    let of_family = u32::from(range.prefix_len());
    let mapped = if range.addr().is_ipv4() { 96 } else { 0 };
    (mapped + of_family, key(range.network()))
}

/// Where each address is. One that two ports have is nowhere: the bridge decides.
pub(super) fn places(ports: &[(&Port, u32)]) -> BTreeMap<Address, Place> {
    let mut all: BTreeMap<Address, Option<Place>> = BTreeMap::new();
    for (port, index) in ports {
        for address in &port.addresses {
            let place = Place::new(*index, port.mac);
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

    fn port(link: &str, mac: u8, addresses: &[&str]) -> Port {
        Port {
            link: link.parse().unwrap(),
            mac: Mac::from_bytes([2, 0, 0, 0, 0, mac]),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_address_leads_to_its_ports_link_and_hardware_address() {
        let pod = port("a", 7, &["10.1.0.2", "fd00::2"]);
        let places = places(&[(&pod, 0x0102)]);
        let expected = Place::new(0x0102, pod.mac);
        assert_eq!(expected.link(), 0x0102);
        assert_eq!(expected.0[4..], [2, 0, 0, 0, 0, 7, 0, 0]);
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 2];
        assert_eq!(places.len(), 2);
        assert_eq!(places[&v4], expected);
        assert_eq!(places[&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]], expected);
    }

    #[test]
    fn a_range_leads_to_a_link_and_a_next_hop() {
        let range = |to: &str, gateway: &str| Through {
            to: to.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            link: "eth0".parse().unwrap(),
        };
        let (v4, v6) = (range("10.1.2.7/24", "192.0.2.2"), range("fd00:2::/64", "2001:db8::2"));
        let ways = ways(&[(&v4, 3), (&v6, 3)]);
        let first = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 0];
        let way = ways[&(120, first)].0;
        assert_eq!((&way[..4], &way[4..8]), (&3_u32.to_ne_bytes()[..], &2_u32.to_ne_bytes()[..]));
        assert_eq!(way[8..], [192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let way = ways[&(64, [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])].0;
        assert_eq!(way[4..8], 10_u32.to_ne_bytes());
        assert_eq!(way[8..], [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn an_address_of_two_ports_is_nowhere() {
        let (one, other) = (port("a", 1, &["10.1.0.2", "10.1.0.3"]), port("b", 2, &["10.1.0.2"]));
        let places = places(&[(&one, 1), (&other, 2)]);
        assert_eq!(places.into_values().collect::<Vec<_>>(), [Place::new(1, one.mac)]);
    }
}
