//! Gratuitous ARP and unsolicited neighbour advertisements: update the caches of neighbours when an address moves to
//! this node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use knit_model::{IfName, Mac};
use nix::sys::socket::{MsgFlags, send};

use crate::error::{Error, Result};
use crate::netns::Netns;
use crate::netns::switch::run_in;
use crate::sys;
use knit_model::filter::field::{EtherType, IpFamily};

/// The protocol number of ICMPv6.
const ICMPV6: u8 = 58;
/// The ICMPv6 type of a neighbour advertisement, and its override flag.
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const OVERRIDE: u8 = 0x20;
/// Neighbour discovery requires the maximum hop limit.
const HOP_LIMIT: u8 = 255;

/// A gratuitous ARP or unsolicited neighbour advertisement that is ready to be sent.
pub struct L2Announcement {
    socket: OwnedFd,
    frame: Vec<u8>,
}

impl L2Announcement {
    /// Prepares an announcement on a link; `None` if the link is not Ethernet.
    pub fn prepare(host: &Netns, link: &IfName, address: IpAddr) -> Result<Option<Self>> {
        let name = link.to_string();
        let opened = run_in(host, move || open_here(&name))?;
        let failed = |error| Error::system(format!("link {link}"), "prepare an address announcement", error);
        let Some((socket, mac)) = opened.map_err(failed)? else { return Ok(None) };
        Ok(Some(Self { socket, frame: frame(mac, address) }))
    }

    /// Sends it, once.
    pub fn send(&self) -> io::Result<()> {
        send(self.socket.as_raw_fd(), &self.frame, MsgFlags::empty())?;
        Ok(())
    }
}

/// A packet socket that receives nothing, and the link's MAC address.
fn open_here(link: &str) -> io::Result<Option<(OwnedFd, Mac)>> {
    let socket = sys::raw_socket(libc::AF_PACKET, 0)?;
    let index = sys::link_index(socket.as_fd(), link)?;
    sys::bind_packet(socket.as_fd(), 0, index)?;
    let mac = sys::hardware_address(socket.as_fd())?;
    Ok(mac.map(|mac| (socket, Mac::from_bytes(mac))))
}

/// The frame that announces an address: an ARP announcement (RFC 5227) or an unsolicited neighbour advertisement (RFC
/// 4861, 7.2.6).
pub fn frame(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => gratuitous_arp(mac, address),
        IpAddr::V6(address) => neighbour_advertisement(mac, address),
    }
}

fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet([0xff; 6], mac, EtherType::Arp);
    // Hardware type Ethernet, protocol IPv4, their address lengths, operation request.
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(mac.bytes());
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

fn neighbour_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    // Option: target link-layer address, one unit of eight bytes.
    message.extend([2, 1]);
    message.extend(mac.bytes());
    let sum = checksum(address, all_nodes, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet([0x33, 0x33, 0, 0, 0, 1], mac, EtherType::Ip(IpFamily::V6));
    let length = message.len() as u16;
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(address.octets());
    frame.extend(all_nodes.octets());
    frame.extend(message);
    frame
}

fn ethernet(to: [u8; 6], from: Mac, ether_type: EtherType) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(from.bytes());
    frame.extend(ether_type.number().to_be_bytes());
    frame
}

/// The internet checksum of an ICMPv6 message, with its pseudo-header (RFC 8200, 8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let length = (message.len() as u32).to_be_bytes();
    let all = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, ICMPV6], message].concat();
    let pairs = all.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = pairs.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac() -> Mac {
        "02:00:5e:00:53:01".parse().unwrap()
    }

    #[test]
    fn an_ipv4_address_is_announced_by_gratuitous_arp() {
        let frame = frame(mac(), "192.0.2.77".parse().unwrap());
        let expected = [
            &[0xff; 6][..],
            &[0x02, 0, 0x5e, 0, 0x53, 0x01, 0x08, 0x06],
            &[0, 1, 8, 0, 6, 4, 0, 1],
            &[0x02, 0, 0x5e, 0, 0x53, 0x01, 192, 0, 2, 77],
            &[0, 0, 0, 0, 0, 0, 192, 0, 2, 77],
        ];
        assert_eq!(frame, expected.concat());
    }

    #[test]
    fn an_ipv6_address_is_advertised_to_all_nodes_with_a_valid_checksum() {
        let address: Ipv6Addr = "2001:db8::77".parse().unwrap();
        let frame = frame(mac(), address.into());
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[12..14], [0x86, 0xdd]);
        assert_eq!((frame[20], frame[21]), (58, 255));
        let message = &frame[54..];
        assert_eq!((message[0], message[4]), (136, 0x20));
        assert_eq!(message[8..24], address.octets());
        // Over a message with a valid checksum the sum is zero.
        let all_nodes = "ff02::1".parse().unwrap();
        assert_eq!(checksum(address, all_nodes, message), 0);
    }
}
