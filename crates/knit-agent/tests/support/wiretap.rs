//! Listens on cables, and tells what goes over them in clear.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use knit_kernel::{Netns, sockets};
use knit_model::intent::Socket;
use knit_testbed::Namespace;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ICMPV6: u8 = 58;

pub struct Wiretap {
    cables: Vec<UdpSocket>,
}

/// An IP packet on a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    /// Of UDP: the port that it goes to.
    pub port: Option<u16>,
    bytes: Vec<u8>,
}

impl Wiretap {
    pub fn new(at: &Namespace, cables: &[String]) -> Self {
        let netns = Netns::open(at.path()).unwrap();
        let open = |cable: &String| {
            let wanted = Socket::Packet { ethertype: Socket::ALL_FRAMES, interface: cable.parse().unwrap() };
            // Whatever the socket is of, it is read like any other.
            let socket = UdpSocket::from(sockets::open(&netns, &wanted).unwrap());
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Self { cables: cables.iter().map(open).collect() }
    }

    /// All IP packets so far, but for what IPv6 says about links themselves.
    pub fn heard(&self) -> Vec<Heard> {
        let mut all = Vec::new();
        let mut frame = vec![0; 1 << 16];
        for cable in &self.cables {
            while let Ok(length) = cable.recv(&mut frame) {
                all.extend(packet(&frame[..length]).filter(|packet| !packet.is_about_links()));
            }
        }
        all
    }
}

impl Heard {
    /// Whether it says this anywhere.
    pub fn says(&self, text: &[u8]) -> bool {
        self.bytes.windows(text.len()).any(|part| part == text)
    }

    /// The frame that a VXLAN packet over IPv4 holds.
    pub fn inside(&self) -> Option<&[u8]> {
        // Behind the headers of IPv4, UDP and VXLAN.
        self.bytes.get(20 + 8 + 8..).filter(|_| self.port.is_some() && self.from.is_ipv4())
    }

    /// Neighbours that look for each other, and groups that are joined.
    fn is_about_links(&self) -> bool {
        let is_local = |address: IpAddr| match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
        };
        let kind = self.bytes.get(40).copied();
        let is_neighbour = self.protocol == ICMPV6 && kind.is_some_and(|kind| (133..=137).contains(&kind));
        is_neighbour || is_local(self.to) && [HOP_BY_HOP, ICMPV6].contains(&self.protocol)
    }
}

fn packet(frame: &[u8]) -> Option<Heard> {
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
    Some(Heard { from, to, protocol, port: (protocol == UDP).then(port).flatten(), bytes: bytes.to_vec() })
}
