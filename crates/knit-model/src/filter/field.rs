//! Packet fields that rules match, data types of set keys, and values.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::mac::Mac;
use crate::name::IfName;

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A packet field or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Field {
    /// The name of the input interface (`iifname`).
    IifName,
    /// The name of the output interface (`oifname`).
    OifName,
    /// The IP family of a table of both (`meta nfproto`). Bridge tables use [`Field::EtherType`].
    NfProto,
    /// The protocol of the frame ([`EtherType`]).
    EtherType,
    /// The source MAC address of the frame.
    SourceMac,
    /// The destination MAC address of the frame.
    DestinationMac,
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
    /// The destination port. The rule must match the protocol first.
    DestinationPort,
    /// The flags of a TCP header (bits of [`tcp_flags`]). The rule must match the protocol first.
    TcpFlags,
    /// The ICMP type. The rule must match the protocol first.
    IcmpType,
    /// The target address of an ICMPv6 neighbour solicitation or advertisement.
    NdTarget,
    /// The type of the destination address on this node (`fib daddr type`).
    FibDestinationType,
    /// The type of the source address on this node (`fib saddr type`).
    FibSourceType,
    /// The input interface if the route to the source address uses it, otherwise 0 (`fib saddr . iif oif`).
    FibReversePath,
    /// The state of its connection (`ct state`, bits of [`ct_state`]).
    CtState,
    /// The status of its connection (`ct status`, bits of [`ct_status`]).
    CtStatus,
    /// The mark of its connection (`ct mark`).
    CtMark,
    /// The direction within its connection (`ct direction`).
    CtDirection,
    /// The original destination address of its connection (`ct original ip daddr`).
    CtOriginalDestination(IpFamily),
    /// The address of the connection's initiator, before SNAT (`ct original ip saddr`).
    CtOriginalSource(IpFamily),
    /// The address of the end that answers, after DNAT (`ct reply ip saddr`).
    CtReplySource(IpFamily),
    /// The port of the end that answers, after DNAT (`ct reply proto-src`).
    CtReplySourcePort,
    /// The layer 4 protocol of its connection, which an ICMP error belongs to (`ct protocol`).
    CtProtocol,
    /// The next hop after routing (`rt nexthop`). The rule must match the family first.
    NextHop(IpFamily),
    /// The packet mark (`meta mark`).
    Mark,
    /// The packet's priority for queueing (`meta priority`).
    Priority,
}

/// Bits of `ct state`.
pub mod ct_state {
    /// No connection can be found for the packet.
    pub const INVALID: u32 = 1;
    /// The connection has seen packets in both directions.
    pub const ESTABLISHED: u32 = 2;
    /// The connection belongs to another one, such as an ICMP error.
    pub const RELATED: u32 = 4;
    /// The first packet of a connection.
    pub const NEW: u32 = 8;
    /// Not tracked.
    pub const UNTRACKED: u32 = 64;
}

/// Bits of the flags of a TCP header.
pub mod tcp_flags {
    /// The first packet of a direction.
    pub const SYN: u8 = 2;
}

/// Bits of `ct status`.
pub mod ct_status {
    /// The connection has source NAT.
    pub const SNAT: u32 = 0x10;
    /// The connection has destination NAT.
    pub const DNAT: u32 = 0x20;
}

/// The number of `fib ... type local`.
pub const FIB_LOCAL: u32 = 2;

/// The protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// IPv4 or IPv6.
    Ip(IpFamily),
    /// ARP.
    Arp,
}

/// The data type of a field or of a part of a set key. The kernel knows only lengths; `nft` lists keys by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// A packet or connection mark.
    Mark,
    /// An IP family.
    NfProto,
    /// The protocol of a frame.
    EtherType,
    /// An ICMP type.
    IcmpType,
    /// Flags of a TCP header.
    TcpFlags,
    /// The state of a connection.
    CtState,
    /// The status of a connection.
    CtStatus,
    /// The direction within a connection.
    CtDirection,
    /// The type of an address.
    AddressType,
    /// An interface index.
    Index,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// A number of four bytes in host byte order.
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
    pub fn data_type(self) -> DataType {
        match self {
            Self::V4 => DataType::Ipv4,
            Self::V6 => DataType::Ipv6,
        }
    }

    /// Its number in netfilter (`NFPROTO_*`).
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// A name with the suffix `4` or `6`, for sets of one family.
    pub fn suffixed(self, name: &str) -> String {
        format!("{name}{}", self.suffix())
    }

    /// The name without its suffix, if it has the one of a family.
    pub fn without_suffix(name: &str) -> Option<&str> {
        Self::ALL.iter().find_map(|family| name.strip_suffix(family.suffix()))
    }

    fn suffix(self) -> char {
        match self {
            Self::V4 => '4',
            Self::V6 => '6',
        }
    }
}

impl Field {
    /// Every field.
    pub const ALL: [Self; 38] = [
        Self::IifName,
        Self::OifName,
        Self::NfProto,
        Self::EtherType,
        Self::SourceMac,
        Self::DestinationMac,
        Self::ArpSenderMac,
        Self::ArpSenderIp,
        Self::ArpTargetIp,
        Self::L4Protocol,
        Self::Source(IpFamily::V4),
        Self::Source(IpFamily::V6),
        Self::Destination(IpFamily::V4),
        Self::Destination(IpFamily::V6),
        Self::SourcePort,
        Self::DestinationPort,
        Self::TcpFlags,
        Self::IcmpType,
        Self::NdTarget,
        Self::FibDestinationType,
        Self::FibSourceType,
        Self::FibReversePath,
        Self::CtState,
        Self::CtStatus,
        Self::CtMark,
        Self::CtDirection,
        Self::CtOriginalDestination(IpFamily::V4),
        Self::CtOriginalDestination(IpFamily::V6),
        Self::CtOriginalSource(IpFamily::V4),
        Self::CtOriginalSource(IpFamily::V6),
        Self::CtReplySource(IpFamily::V4),
        Self::CtReplySource(IpFamily::V6),
        Self::CtReplySourcePort,
        Self::CtProtocol,
        Self::NextHop(IpFamily::V4),
        Self::NextHop(IpFamily::V6),
        Self::Mark,
        Self::Priority,
    ];

    /// The type of its values.
    pub fn data_type(self) -> DataType {
        match self {
            Self::IifName | Self::OifName => DataType::Name,
            Self::NfProto => DataType::NfProto,
            Self::EtherType => DataType::EtherType,
            Self::SourceMac | Self::DestinationMac | Self::ArpSenderMac => DataType::Mac,
            Self::ArpSenderIp | Self::ArpTargetIp => DataType::Ipv4,
            Self::L4Protocol | Self::CtProtocol => DataType::Protocol,
            Self::Source(family)
            | Self::Destination(family)
            | Self::NextHop(family)
            | Self::CtOriginalDestination(family)
            | Self::CtOriginalSource(family)
            | Self::CtReplySource(family) => family.data_type(),
            Self::SourcePort | Self::DestinationPort | Self::CtReplySourcePort => DataType::Port,
            Self::TcpFlags => DataType::TcpFlags,
            Self::IcmpType => DataType::IcmpType,
            Self::NdTarget => DataType::Ipv6,
            Self::FibDestinationType | Self::FibSourceType => DataType::AddressType,
            Self::FibReversePath => DataType::Index,
            Self::CtState => DataType::CtState,
            Self::CtStatus => DataType::CtStatus,
            Self::CtDirection => DataType::CtDirection,
            Self::Mark | Self::CtMark | Self::Priority => DataType::Mark,
        }
    }

    /// Its length in bytes.
    pub fn length(self) -> usize {
        self.data_type().length()
    }
}

impl DataType {
    /// The length of its values in bytes.
    pub fn length(self) -> usize {
        match self {
            Self::Ipv4 | Self::Mark | Self::CtState | Self::CtStatus | Self::AddressType | Self::Index => 4,
            Self::Ipv6 | Self::Name => 16,
            Self::Protocol | Self::NfProto | Self::IcmpType | Self::TcpFlags | Self::CtDirection => 1,
            Self::Port | Self::EtherType => 2,
            Self::Mac => 6,
        }
    }

    /// The value that these bytes encode; `None` if they do not.
    pub fn decode(self, bytes: &[u8]) -> Option<Value> {
        Some(match self {
            Self::Ipv4 => Value::Address(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            Self::Ipv6 => Value::Address(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
            Self::Mac => Value::Mac(Mac::from_bytes(bytes.try_into().ok()?)),
            Self::Name => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                Value::Name(std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?)
            }
            Self::Protocol | Self::NfProto | Self::IcmpType | Self::TcpFlags | Self::CtDirection => {
                match bytes {
                    [byte] => Value::Byte(*byte),
                    _ => return None,
                }
            }
            Self::Port | Self::EtherType => Value::Port(u16::from_be_bytes(bytes.try_into().ok()?)),
            Self::Mark | Self::CtState | Self::CtStatus | Self::AddressType | Self::Index => {
                Value::Number(u32::from_ne_bytes(bytes.try_into().ok()?))
            }
        })
    }
}

impl Value {
    /// The encoding that the kernel compares.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DataType::Name.length());
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends the encoding that the kernel compares.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Address(IpAddr::V4(address)) => bytes.extend(address.octets()),
            Self::Address(IpAddr::V6(address)) => bytes.extend(address.octets()),
            Self::Name(name) => {
                let end = bytes.len() + DataType::Name.length();
                bytes.extend(name.as_str().as_bytes());
                bytes.resize(end, 0);
            }
            Self::Mac(mac) => bytes.extend(mac.bytes()),
            Self::Byte(byte) => bytes.push(*byte),
            Self::Port(port) => bytes.extend(port.to_be_bytes()),
            Self::Number(number) => bytes.extend(number.to_ne_bytes()),
        }
    }
}

impl EtherType {
    /// Its number in the Ethernet header.
    pub fn number(self) -> u16 {
        match self {
            Self::Ip(IpFamily::V4) => 0x0800,
            Self::Ip(IpFamily::V6) => 0x86dd,
            Self::Arp => 0x0806,
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

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

/// The network mask of a range, as a value.
pub(super) fn mask_of(range: IpNet) -> Value {
    Value::Address(range.netmask())
}

impl fmt::Display for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = |family: IpFamily| if family == IpFamily::V4 { "ip" } else { "ip6" };
        match *self {
            Self::IifName => out.write_str("iifname"),
            Self::OifName => out.write_str("oifname"),
            Self::NfProto => out.write_str("meta nfproto"),
            Self::EtherType => out.write_str("meta protocol"),
            Self::SourceMac => out.write_str("ether saddr"),
            Self::DestinationMac => out.write_str("ether daddr"),
            Self::ArpSenderMac => out.write_str("arp saddr ether"),
            Self::ArpSenderIp => out.write_str("arp saddr ip"),
            Self::ArpTargetIp => out.write_str("arp daddr ip"),
            Self::L4Protocol => out.write_str("meta l4proto"),
            Self::Source(family) => write!(out, "{} saddr", ip(family)),
            Self::Destination(family) => write!(out, "{} daddr", ip(family)),
            Self::SourcePort => out.write_str("th sport"),
            Self::DestinationPort => out.write_str("th dport"),
            Self::TcpFlags => out.write_str("tcp flags"),
            Self::IcmpType => out.write_str("icmp type"),
            Self::NdTarget => out.write_str("icmpv6 taddr"),
            Self::FibDestinationType => out.write_str("fib daddr type"),
            Self::FibSourceType => out.write_str("fib saddr type"),
            Self::FibReversePath => out.write_str("fib saddr . iif oif"),
            Self::CtState => out.write_str("ct state"),
            Self::CtStatus => out.write_str("ct status"),
            Self::CtMark => out.write_str("ct mark"),
            Self::CtDirection => out.write_str("ct direction"),
            Self::CtOriginalDestination(family) => write!(out, "ct original {} daddr", ip(family)),
            Self::CtOriginalSource(family) => write!(out, "ct original {} saddr", ip(family)),
            Self::CtReplySource(family) => write!(out, "ct reply {} saddr", ip(family)),
            Self::CtReplySourcePort => out.write_str("ct reply proto-src"),
            Self::CtProtocol => out.write_str("ct protocol"),
            Self::NextHop(family) => write!(out, "rt {} nexthop", ip(family)),
            Self::Mark => out.write_str("meta mark"),
            Self::Priority => out.write_str("meta priority"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(out, "{address}"),
            Self::Name(name) => write!(out, "{name}"),
            Self::Mac(mac) => write!(out, "{mac}"),
            Self::Byte(byte) => write!(out, "{byte}"),
            Self::Port(port) => write!(out, "{port}"),
            Self::Number(number) => write!(out, "{number:#x}"),
        }
    }
}
