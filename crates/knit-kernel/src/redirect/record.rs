//! What the program's map holds, byte for byte as its source says.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::Mac;

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
    fn an_address_of_two_ports_is_nowhere() {
        let (one, other) = (port("a", 1, &["10.1.0.2", "10.1.0.3"]), port("b", 2, &["10.1.0.2"]));
        let places = places(&[(&one, 1), (&other, 2)]);
        assert_eq!(places.into_values().collect::<Vec<_>>(), [Place::new(1, one.mac)]);
    }
}
