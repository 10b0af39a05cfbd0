//! What rules look at, what sets are keyed by, and the values of both.

use std::net::IpAddr;

use knit_model::{IfName, Mac};

use super::constants::*;
use super::expression::Load;

/// A version of the internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Something that is known of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name of the link that it came in by.
    InName,
    /// The name of the link that it leaves by.
    OutName,
    /// Its version of the internet protocol (`NFPROTO_*`). A bridge's table has [`Field::Frame`] for it.
    Version,
    /// What the frame holds ([`Frame`]).
    Frame,
    /// The hardware address that the frame comes from.
    Mac,
    /// The hardware address that an ARP packet says it is from.
    ArpMac,
    /// The address that an ARP packet says it is from.
    ArpSource,
    /// The address that an ARP packet asks for or answers to.
    ArpTarget,
    /// The protocol above that.
    Protocol,
    /// The address that it comes from. Only after its version was looked at.
    Source(Ip),
    /// The address that it goes to. Only after its version was looked at.
    Destination(Ip),
    /// The port that it comes from. Only after its protocol was looked at.
    SourcePort,
    /// The port that it goes to.
    DestinationPort,
    /// The type of an ICMP packet. Only after its protocol was looked at.
    IcmpType,
    /// The address that a solicitation or advertisement of a neighbour (ICMPv6) is about.
    IcmpTarget,
    /// What kind of address it goes to, for this node (`RTN_*`).
    DestinationKind,
    /// What the kernel has noted of its connection (`IPS_*`).
    ConnectionStatus,
    /// Whether it goes the way of its connection's first packet, or back (`IP_CT_DIR_*`).
    ConnectionDirection,
    /// Who it goes to next, once its way is chosen. Only after its version was looked at.
    NextHop(Ip),
    /// Its mark, which is this node's alone.
    Mark,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A packet of the internet protocol.
    Ip(Ip),
    /// A packet of the address resolution protocol.
    Arp,
}

/// The type of a part of a key.
///
/// The kernel only passes it on. Its numbers are those that the `nft` program gives its types, so that it can list Knit's
/// tables in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A protocol above the internet protocol.
    Protocol,
    /// A port.
    Port,
    /// A hardware address.
    Mac,
    /// The name of a link.
    Name,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An address.
    Address(IpAddr),
    /// A link's name.
    Name(IfName),
    /// A hardware address.
    Mac(Mac),
    /// One byte, such as a protocol.
    Byte(u8),
    /// A port, or another number of two bytes in network order.
    Port(u16),
    /// A number of the kernel's own, in the machine's order.
    Number(u32),
}

impl Ip {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The version of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The type of its addresses.
    pub fn kind(self) -> Kind {
        match self {
            Self::V4 => Kind::Ipv4,
            Self::V6 => Kind::Ipv6,
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::V4 => NFPROTO_IPV4,
            Self::V6 => NFPROTO_IPV6,
        }
    }
}

impl Field {
    /// How many bytes it has.
    pub(super) fn length(self) -> usize {
        match self {
            Self::InName | Self::OutName => Kind::Name.length(),
            Self::Version | Self::Protocol | Self::IcmpType | Self::ConnectionDirection => 1,
            Self::Source(version) | Self::Destination(version) | Self::NextHop(version) => {
                version.kind().length()
            }
            Self::Frame | Self::SourcePort | Self::DestinationPort => 2,
            Self::Mac | Self::ArpMac => Kind::Mac.length(),
            Self::ArpSource | Self::ArpTarget => Kind::Ipv4.length(),
            Self::IcmpTarget => Kind::Ipv6.length(),
            Self::DestinationKind | Self::ConnectionStatus | Self::Mark => 4,
        }
    }

    /// Where the kernel finds it.
    pub(super) fn load(self) -> Load {
        let payload = |base, offset| Load::Payload { base, offset, length: self.length() as u32 };
        match self {
            Self::InName => Load::Meta(NFT_META_IIFNAME),
            Self::OutName => Load::Meta(NFT_META_OIFNAME),
            Self::Version => Load::Meta(NFT_META_NFPROTO),
            Self::Frame => Load::Meta(NFT_META_PROTOCOL),
            Self::Protocol => Load::Meta(NFT_META_L4PROTO),
            Self::Mac => payload(NFT_PAYLOAD_LL_HEADER, 6),
            Self::ArpMac => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
            Self::ArpSource => payload(NFT_PAYLOAD_NETWORK_HEADER, 14),
            Self::ArpTarget => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
            Self::Source(Ip::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 12),
            Self::Destination(Ip::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 16),
            Self::Source(Ip::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
            Self::Destination(Ip::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
            Self::SourcePort | Self::IcmpType => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0),
            Self::DestinationPort => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2),
            Self::IcmpTarget => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 8),
            Self::DestinationKind => Load::DestinationKind,
            Self::ConnectionStatus => Load::Connection(NFT_CT_STATUS),
            Self::ConnectionDirection => Load::Connection(NFT_CT_DIRECTION),
            Self::Mark => Load::Meta(NFT_META_MARK),
            Self::NextHop(Ip::V4) => Load::Way(NFT_RT_NEXTHOP4),
            Self::NextHop(Ip::V6) => Load::Way(NFT_RT_NEXTHOP6),
        }
    }
}

impl Kind {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mac => 9,
            Self::Name => 41,
        }
    }

    pub(super) fn length(self) -> usize {
        match self {
            Self::Ipv4 => 4,
            Self::Ipv6 => 16,
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Mac => 6,
            Self::Name => 16,
        }
    }
}

impl Value {
    /// As the kernel compares it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(address)) => address.octets().to_vec(),
            Self::Address(IpAddr::V6(address)) => address.octets().to_vec(),
            Self::Name(name) => {
                let mut bytes = name.as_str().as_bytes().to_vec();
                bytes.resize(Kind::Name.length(), 0);
                bytes
            }
            Self::Mac(mac) => mac.bytes().to_vec(),
            Self::Byte(byte) => vec![*byte],
            Self::Port(port) => port.to_be_bytes().to_vec(),
            Self::Number(number) => number.to_ne_bytes().to_vec(),
        }
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<&IfName> for Value {
    fn from(name: &IfName) -> Self {
        Self::Name(name.clone())
    }
}

impl From<Mac> for Value {
    fn from(mac: Mac) -> Self {
        Self::Mac(mac)
    }
}

impl Frame {
    /// Its number in a frame's header.
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Ip(Ip::V4) => ETH_P_IP,
            Self::Ip(Ip::V6) => ETH_P_IPV6,
            Self::Arp => ETH_P_ARP,
        }
    }
}

impl From<Frame> for Value {
    fn from(frame: Frame) -> Self {
        Self::Port(frame.number())
    }
}

impl From<u8> for Value {
    fn from(byte: u8) -> Self {
        Self::Byte(byte)
    }
}

impl From<u16> for Value {
    fn from(port: u16) -> Self {
        Self::Port(port)
    }
}
