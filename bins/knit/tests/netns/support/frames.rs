//! Raw frames with spoofed addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use knit_testbed::Namespace;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket};

pub type Mac = [u8; 6];

pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

/// A packet socket on a link.
pub struct Wire(OwnedFd);

impl Wire {
    /// All frames of a link in both directions.
    pub fn open(namespace: &Namespace, link: &str) -> Self {
        Self(namespace.run(|| {
            let fd =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
            let fd = fd.unwrap();
            // getifaddrs returns the MAC address of a link.
            let mut mine = getifaddrs().unwrap().filter(|one| one.interface_name == link);
            let address = mine.find_map(|one| one.address?.as_link_addr().copied());
            bind(fd.as_raw_fd(), &address.unwrap()).unwrap();
            fd
        }))
    }

    pub fn send(&self, frame: &[u8]) {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty()).unwrap();
    }

    /// The frames since the last call.
    pub fn received(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        let next = || {
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()?;
            Some(buffer[..length].to_vec())
        };
        std::iter::from_fn(next).collect()
    }
}

/// The MAC address of a link.
pub fn mac(namespace: &Namespace, link: &str) -> Mac {
    let shown = namespace.ip_json(&["link", "show", "dev", link]);
    let parts = shown[0]["address"].as_str().unwrap().split(':');
    let bytes: Vec<u8> = parts.map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

pub fn frame(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes(), payload].concat()
}

/// An IPv4 or IPv6 packet in a frame.
pub fn packet(macs: (Mac, Mac), from: &str, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            header[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            header.extend(from.octets().into_iter().chain(to.octets()));
            let sum = !header.chunks(2).fold(0, |sum: u32, pair| {
                let sum = sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]));
                (sum & 0xffff) + (sum >> 16)
            }) as u16;
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame(macs.1, macs.0, IPV4, &[&header[..], payload].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes().into_iter().chain([protocol, 255]));
            header.extend(from.octets().into_iter().chain(to.octets()));
            frame(macs.1, macs.0, IPV6, &[&header[..], payload].concat())
        }
        _ => panic!("{from} and {to} are of different versions"),
    }
}

/// An ARP reply: `address` is at `mac`.
pub fn arp(macs: (Mac, Mac), mac: Mac, address: &str, note: &str) -> Vec<u8> {
    let address: Ipv4Addr = address.parse().unwrap();
    let mut payload = vec![0, 1, 8, 0, 6, 4, 0, 2];
    payload.extend(mac.into_iter().chain(address.octets()));
    payload.extend(macs.1.into_iter().chain([10, 75, 0, 3]));
    payload.extend(note.as_bytes());
    frame(macs.1, macs.0, ARP, &payload)
}

/// A UDP datagram with a note.
pub fn udp(from_port: u16, note: &str) -> Vec<u8> {
    let length = 8 + note.len() as u16;
    let header = [from_port, 9, length, 0].map(u16::to_be_bytes).concat();
    [&header[..], note.as_bytes()].concat()
}

/// An ICMPv6 message about an address, with a note.
pub fn icmp(kind: u8, about: &str, note: &str) -> Vec<u8> {
    let about: Ipv6Addr = about.parse().unwrap();
    [&[kind, 0, 0, 0, 0, 0, 0, 0], &about.octets()[..], note.as_bytes()].concat()
}
