//! Sockets that a pod may ask for and could not open by itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Selector;
use crate::name::IfName;

/// A socket that each pod that matches may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketIntent {
    /// Which pods of the object's namespace.
    pub pods: Selector,
    /// Only processes of this user may ask; `None`: all of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The name that it is asked for by, once in each object.
    pub name: String,
    /// What it is.
    pub socket: Socket,
}

/// A socket of a pod's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Socket {
    /// IP packets of one protocol.
    Raw {
        /// The protocol's number.
        protocol: u8,
        /// Only packets for this address; one that is unspecified only says the family.
        address: IpAddr,
        /// Only by this interface.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interface: Option<IfName>,
    },
    /// Whole frames of one interface.
    Packet {
        /// The Ethernet type; 3 is all.
        ethertype: u16,
        /// The interface.
        interface: IfName,
    },
    /// A TCP socket that listens.
    Tcp(Bound),
    /// A UDP socket.
    Udp(Bound),
}

/// Where a TCP or UDP socket is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The address and the port.
    pub to: SocketAddr,
    /// Only by this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
}

impl Socket {
    /// Every Ethernet type.
    pub const ALL_FRAMES: u16 = 3;

    /// Any address of the family.
    pub fn any(is_ipv6: bool) -> IpAddr {
        if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    }

    /// The interface that it is about, if it is about one.
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
