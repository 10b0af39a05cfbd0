//! Leases: an address of a network, held for an attachment.

use std::fmt;
use std::net::IpAddr;

use knit_model::sandbox::Instance;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};

/// A moment, in milliseconds since 1970, as the host's clock had it. It is shown to people; nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// Which attachment: one interface of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The interface's name in it.
    pub interface: IfName,
}

/// What a lease is of. Ranges of different networks may overlap, so an address alone says nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The network's id.
    pub network: String,
    /// The address.
    pub address: IpAddr,
}

/// An address held for an attachment, or resting since it was given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who holds it, or held it last.
    pub owner: AttachmentId,
    /// Which life of the owner's sandbox.
    pub instance: Instance,
    /// When this life of the sandbox got it.
    pub since: Time,
    /// Whether it was asked for by value; such an address never answers a request for any address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
    /// The name under which it is kept for whoever asks for it next; it is the network's own business what the name means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Set once it was given back: the address is free, and rests while others are free longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
}

/// When a lease was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The clock's time, for people.
    pub at: Time,
    /// Its place among the releases of the network. The clock may jump; this only grows.
    pub order: u64,
}

impl Lease {
    /// Whether the address is held.
    pub fn is_live(&self) -> bool {
        self.released.is_none()
    }
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of sandbox {}", self.interface, self.sandbox)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of network {}", self.address, self.network)
    }
}
