//! Privileged sockets that Knit opens in a pod's network namespace on request.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Selector;
use crate::name::IfName;

/// A socket that each selected pod may request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// Only processes of this user may request it; `None`: all processes of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Name in the request, unique in the object.
    pub name: String,
    /// The socket.
    pub socket: Socket,
}

/// A socket in a pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Socket {
    /// Raw IP socket of one protocol.
    Raw {
        /// IP protocol number.
        protocol: u8,
        /// Bound address; an unspecified address only selects the family.
        address: IpAddr,
        /// Bound interface.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interface: Option<IfName>,
    },
    /// Packet socket on one interface.
    Packet {
        /// EtherType; 3 (`ETH_P_ALL`) is every type.
        ethertype: u16,
        /// The interface.
        interface: IfName,
    },
    /// Listening TCP socket.
    Tcp(SocketBinding),
    /// UDP socket.
    Udp(SocketBinding),
}

/// Binding of a TCP or UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketBinding {
    /// Local address and port.
    pub to: SocketAddr,
    /// Bound interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
}

impl Socket {
    /// `ETH_P_ALL`: every EtherType.
    pub const ALL_FRAMES: u16 = 3;

    /// The unspecified address of the family.
    pub fn any(is_ipv6: bool) -> IpAddr {
        if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    }

    /// The bound interface, if any.
    pub fn interface(&self) -> Option<&IfName> {
        match self {
            Self::Raw { interface, .. } => interface.as_ref(),
            Self::Packet { interface, .. } => Some(interface),
            Self::Tcp(bound) | Self::Udp(bound) => bound.interface.as_ref(),
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw { protocol, address, .. } => {
                let family = if address.is_ipv6() { "ipv6" } else { "ipv4" };
                write!(out, "raw {family} protocol {protocol}")?;
                if !address.is_unspecified() {
                    write!(out, " at {address}")?;
                }
            }
            Self::Packet { ethertype: Self::ALL_FRAMES, .. } => out.write_str("packet all")?,
            Self::Packet { ethertype, .. } => write!(out, "packet {ethertype:#06x}")?,
            Self::Tcp(bound) => write!(out, "tcp {}", bound.to)?,
            Self::Udp(bound) => write!(out, "udp {}", bound.to)?,
        }
        self.interface().map_or(Ok(()), |interface| write!(out, " on {interface}"))
    }
}
