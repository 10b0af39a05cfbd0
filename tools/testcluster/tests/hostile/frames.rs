//! Ethernet frames, honest and forged.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub type Mac = [u8; 6];

pub const BROADCAST: Mac = [0xff; 6];
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

pub fn parse_mac(text: &str) -> Mac {
    let bytes: Vec<u8> = text.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

pub fn show_mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Hexadecimal digits, as `knit-frames` reads them.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

pub fn frame(from: Mac, to: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from[..], &ethertype.to_be_bytes(), payload].concat()
}

/// An IP packet in a frame; both addresses are of one family.
pub fn packet(macs: (Mac, Mac), addresses: (IpAddr, IpAddr), protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (ethertype, bytes) = ip(addresses, protocol, payload);
    frame(macs.0, macs.1, ethertype, &bytes)
}

/// An IP packet and its EtherType. Checksums that IPv6 requires are filled in.
pub fn ip(addresses: (IpAddr, IpAddr), protocol: u8, payload: &[u8]) -> (u16, Vec<u8>) {
    let length = u16::try_from(payload.len()).unwrap();
    match addresses {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0];
            header[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            header.extend(from.octets().into_iter().chain(to.octets()));
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            (IPV4, [&header[..], payload].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes().into_iter().chain([protocol, 255]));
            header.extend(from.octets().into_iter().chain(to.octets()));
            let mut payload = payload.to_vec();
            // The place of the checksum, which both protocols require over IPv6.
            let place = if protocol == ICMPV6 { 2 } else { 6 };
            if [ICMPV6, UDP].contains(&protocol) {
                let pseudo = [
                    &from.octets()[..],
                    &to.octets(),
                    &u32::from(length).to_be_bytes(),
                    &[0, 0, 0, protocol],
                ];
                let sum = checksum(&[&pseudo.concat()[..], &payload].concat());
                payload[place..place + 2].copy_from_slice(&sum.to_be_bytes());
            }
            (IPV6, [&header[..], &payload].concat())
        }
        _ => panic!("{addresses:?} are of different families"),
    }
}

/// An ARP reply to everyone: `address` is at `claimed`. The note follows the message.
pub fn arp_reply(macs: (Mac, Mac), claimed: Mac, address: IpAddr, to: IpAddr, note: &str) -> Vec<u8> {
    let (IpAddr::V4(address), IpAddr::V4(to)) = (address, to) else { panic!("ARP is of IPv4") };
    let mut payload = vec![0, 1, 8, 0, 6, 4, 0, 2];
    payload.extend(claimed.into_iter().chain(address.octets()));
    payload.extend(macs.1.into_iter().chain(to.octets()));
    payload.extend(note.as_bytes());
    frame(macs.0, macs.1, ARP, &payload)
}

/// A UDP datagram without a checksum, which is optional over IPv4.
pub fn udp(from_port: u16, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let header = [from_port, to_port, length, 0].map(u16::to_be_bytes).concat();
    [&header[..], payload].concat()
}

/// A neighbour advertisement (override, solicited): `address` is at `claimed`. An unknown option contains the note.
pub fn advertisement(address: IpAddr, claimed: Mac, note: &str) -> Vec<u8> {
    let IpAddr::V6(address) = address else { panic!("neighbour discovery is of IPv6") };
    let head = [136, 0, 0, 0, 0x60, 0, 0, 0];
    let claim = [&[2, 1][..], &claimed].concat();
    [&head[..], &address.octets(), &claim, &note_option(note)].concat()
}

/// A router advertisement: this sender is a default router with high preference, and gives addresses of a prefix.
pub fn router_advertisement(claimed: Mac, note: &str) -> Vec<u8> {
    let head = [134, 0, 0, 0, 64, 0x08, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    let source = [&[1, 1][..], &claimed].concat();
    let prefix: Ipv6Addr = "fd66::".parse().unwrap();
    let times = [0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0];
    let prefix = [&[3, 4, 64, 0xc0][..], &times, &prefix.octets()].concat();
    [&head[..], &source, &prefix, &note_option(note)].concat()
}

/// A redirect: `target` is reached through `router`.
pub fn redirect_v6(router: IpAddr, target: IpAddr, note: &str) -> Vec<u8> {
    let (IpAddr::V6(router), IpAddr::V6(target)) = (router, target) else { panic!("of IPv6") };
    [&[137, 0, 0, 0, 0, 0, 0, 0][..], &router.octets(), &target.octets(), &note_option(note)].concat()
}

/// A DHCP offer with the sender as router and DNS server.
pub fn dhcp_offer(client: Mac, server: Ipv4Addr, note: &str) -> Vec<u8> {
    let mut message = vec![2, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0x80, 0];
    message.extend([[0; 4], [10, 66, 0, 66], server.octets(), [0; 4]].concat());
    message.extend(client);
    message.extend([0; 202]);
    message.extend([99, 130, 83, 99, 53, 1, 2, 54, 4]);
    message.extend(server.octets());
    message.extend([&[3, 4][..], &server.octets(), &[6, 4], &server.octets(), &[255]].concat());
    message.extend(note.as_bytes());
    udp(67, 68, &message)
}

/// A VXLAN packet with a frame inside.
pub fn vxlan(vni: u32, inner: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    udp(40000, super::stage::TUNNEL, &[&[8, 0, 0, 0, a, b, c, 0][..], inner].concat())
}

/// An option of neighbour discovery for experiments (RFC 4727), padded to eight bytes.
fn note_option(note: &str) -> Vec<u8> {
    let length = (2 + note.len()).div_ceil(8);
    let mut option = vec![253, u8::try_from(length).unwrap()];
    option.extend(note.as_bytes());
    option.resize(length * 8, 0);
    option
}

/// The internet checksum (RFC 1071).
pub fn header_checksum(header: &[u8]) -> u16 {
    checksum(header)
}

fn checksum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    !pairs.fold(0, |sum: u32, pair| {
        let sum = sum + u32::from(pair);
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}
