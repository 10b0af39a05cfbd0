//! Captures the IP packets on links.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use knit_kernel::{Netns, sockets};
use knit_model::intent::Socket;
use knit_testbed::Namespace;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ICMPV6: u8 = 58;

pub struct PacketCapture {
    sockets: Vec<UdpSocket>,
}

/// An IP packet on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    /// UDP destination port.
    pub port: Option<u16>,
    bytes: Vec<u8>,
}

impl PacketCapture {
    pub fn new(namespace: &Namespace, links: &[String]) -> Self {
        let netns = Netns::open(namespace.path()).unwrap();
        let open = |link: &String| {
            let spec = Socket::Packet { ethertype: Socket::ALL_FRAMES, interface: link.parse().unwrap() };
            // Packet sockets are read like any other datagram socket.
            let socket = UdpSocket::from(sockets::open(&netns, &spec).unwrap());
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Self { sockets: links.iter().map(open).collect() }
    }

    /// All IP packets since the last call, except IPv6 neighbour discovery and multicast listener reports.
    pub fn packets(&self) -> Vec<CapturedPacket> {
        let mut all = Vec::new();
        let mut frame = vec![0; 1 << 16];
        for socket in &self.sockets {
            while let Ok(length) = socket.recv(&mut frame) {
                all.extend(packet(&frame[..length]).filter(|packet| !packet.is_link_management()));
            }
        }
        all
    }
}

impl CapturedPacket {
    /// Whether the packet contains these bytes.
    pub fn contains(&self, text: &[u8]) -> bool {
        self.bytes.windows(text.len()).any(|part| part == text)
    }

    /// The inner frame of a VXLAN packet over IPv4.
    pub fn vxlan_payload(&self) -> Option<&[u8]> {
        // After the IPv4, UDP and VXLAN headers.
        self.bytes.get(20 + 8 + 8..).filter(|_| self.port.is_some() && self.from.is_ipv4())
    }

    /// Neighbour discovery and multicast listener reports.
    fn is_link_management(&self) -> bool {
        let is_local = |address: IpAddr| match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
        };
        let kind = self.bytes.get(40).copied();
        let is_neighbour = self.protocol == ICMPV6 && kind.is_some_and(|kind| (133..=137).contains(&kind));
        is_neighbour || is_local(self.to) && [HOP_BY_HOP, ICMPV6].contains(&self.protocol)
    }
}

fn packet(frame: &[u8]) -> Option<CapturedPacket> {
    let bytes = frame.get(14..)?;
    let (from, to, protocol, header): (IpAddr, IpAddr, u8, usize) =
        match u16::from_be_bytes(*frame.get(12..)?.first_chunk()?) {
            IPV4 => {
                let address = |at: usize| Some(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into());
                (address(12)?, address(16)?, *bytes.get(9)?, usize::from(bytes.first()? & 0x0f) * 4)
            }
            IPV6 => {
                let address = |at: usize| {
                    Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?)))
                };
                (address(8)?, address(24)?, *bytes.get(6)?, 40)
            }
            _ => return None,
        };
    let port = || Some(u16::from_be_bytes(*bytes.get(header + 2..)?.first_chunk()?));
    Some(CapturedPacket {
        from,
        to,
        protocol,
        port: (protocol == UDP).then(port).flatten(),
        bytes: bytes.to_vec(),
    })
}
