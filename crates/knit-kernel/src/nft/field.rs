//! Packet fields that rules match, data types of set keys, and values.

use std::net::IpAddr;

use knit_model::{IfName, Mac};

use super::constants::*;
use super::expression::Load;

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A packet field or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name of the input interface (`iifname`).
    IifName,
    /// The name of the output interface (`oifname`).
    OifName,
    /// The IP family of an `inet` table (`NFPROTO_*`). Bridge tables use [`Field::EtherType`].
    NfProto,
    /// The protocol of the frame ([`EtherType`]).
    EtherType,
    /// The source MAC address of the frame.
    SourceMac,
    /// The sender MAC address of an ARP packet.
    ArpSenderMac,
    /// The sender IP address of an ARP packet.
    ArpSenderIp,
    /// The target IP address of an ARP packet.
    ArpTargetIp,
    /// The layer 4 protocol.
    L4Protocol,
    /// The source address. The rule must match the family first.
    Source(IpFamily),
    /// The destination address. The rule must match the family first.
    Destination(IpFamily),
    /// The source port. The rule must match the protocol first.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The ICMP type. The rule must match the protocol first.
    IcmpType,
    /// The target address of an ICMPv6 neighbour solicitation or advertisement.
    NdTarget,
    /// The type of the destination address on this node (`fib daddr type`, `RTN_*`).
    FibDestinationType,
    /// The status of its connection (`ct status`, `IPS_*`).
    CtStatus,
    /// The direction within its connection (`ct direction`, `IP_CT_DIR_*`).
    CtDirection,
    /// The next hop after routing (`rt nexthop`). The rule must match the family first.
    NextHop(IpFamily),
    /// The packet mark (`meta mark`).
    Mark,
}

/// The protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// IPv4 or IPv6.
    Ip(IpFamily),
    /// ARP.
    Arp,
}

/// The data type of a part of a set key.
///
/// The kernel does not interpret it. The numbers are those of the `nft` program, so that it can list Knit's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A layer 4 protocol.
    Protocol,
    /// A port.
    Port,
    /// A MAC address.
    Mac,
    /// An interface name.
    Name,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An address.
    Address(IpAddr),
    /// An interface name.
    Name(IfName),
    /// A MAC address.
    Mac(Mac),
    /// One byte, such as a protocol.
    Byte(u8),
    /// A port, or another number of two bytes in network byte order.
    Port(u16),
    /// A number in host byte order.
    Number(u32),
}

impl IpFamily {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The data type of its addresses.
    pub fn kind(self) -> DataType {
        match self {
            Self::V4 => DataType::Ipv4,
            Self::V6 => DataType::Ipv6,
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
    /// Its length in bytes.
    pub(super) fn length(self) -> usize {
        match self {
            Self::IifName | Self::OifName => DataType::Name.length(),
            Self::NfProto | Self::L4Protocol | Self::IcmpType | Self::CtDirection => 1,
            Self::Source(version) | Self::Destination(version) | Self::NextHop(version) => {
                version.kind().length()
            }
            Self::EtherType | Self::SourcePort | Self::DestinationPort => 2,
            Self::SourceMac | Self::ArpSenderMac => DataType::Mac.length(),
            Self::ArpSenderIp | Self::ArpTargetIp => DataType::Ipv4.length(),
            Self::NdTarget => DataType::Ipv6.length(),
            Self::FibDestinationType | Self::CtStatus | Self::Mark => 4,
        }
    }

    /// How the kernel loads it.
    pub(super) fn load(self) -> Load {
        let payload = |base, offset| Load::Payload { base, offset, length: self.length() as u32 };
        match self {
            Self::IifName => Load::Meta(NFT_META_IIFNAME),
            Self::OifName => Load::Meta(NFT_META_OIFNAME),
            Self::NfProto => Load::Meta(NFT_META_NFPROTO),
            Self::EtherType => Load::Meta(NFT_META_PROTOCOL),
            Self::L4Protocol => Load::Meta(NFT_META_L4PROTO),
            Self::SourceMac => payload(NFT_PAYLOAD_LL_HEADER, 6),
            Self::ArpSenderMac => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
            Self::ArpSenderIp => payload(NFT_PAYLOAD_NETWORK_HEADER, 14),
            Self::ArpTargetIp => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
            Self::Source(IpFamily::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 12),
            Self::Destination(IpFamily::V4) => payload(NFT_PAYLOAD_NETWORK_HEADER, 16),
            Self::Source(IpFamily::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
            Self::Destination(IpFamily::V6) => payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
            Self::SourcePort | Self::IcmpType => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0),
            Self::DestinationPort => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2),
            Self::NdTarget => payload(NFT_PAYLOAD_TRANSPORT_HEADER, 8),
            Self::FibDestinationType => Load::FibDestinationType,
            Self::CtStatus => Load::Conntrack(NFT_CT_STATUS),
            Self::CtDirection => Load::Conntrack(NFT_CT_DIRECTION),
            Self::Mark => Load::Meta(NFT_META_MARK),
            Self::NextHop(IpFamily::V4) => Load::Route(NFT_RT_NEXTHOP4),
            Self::NextHop(IpFamily::V6) => Load::Route(NFT_RT_NEXTHOP6),
        }
    }
}

impl DataType {
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
    /// The encoding that the kernel compares.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(address)) => address.octets().to_vec(),
            Self::Address(IpAddr::V6(address)) => address.octets().to_vec(),
            Self::Name(name) => {
                let mut bytes = name.as_str().as_bytes().to_vec();
                bytes.resize(DataType::Name.length(), 0);
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

impl EtherType {
    /// Its number in the Ethernet header.
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Ip(IpFamily::V4) => ETH_P_IP,
            Self::Ip(IpFamily::V6) => ETH_P_IPV6,
            Self::Arp => ETH_P_ARP,
        }
    }
}

impl From<EtherType> for Value {
    fn from(frame: EtherType) -> Self {
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
