//! Leases of addresses to attachments.

use std::fmt;
use std::net::IpAddr;

use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};

/// Unix time in milliseconds. For display only; no decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// Identity of an attachment: one interface of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Name of the interface in the sandbox.
    pub interface: IfName,
}

/// Identity of a lease. Ranges of networks may overlap, so an address alone does not identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    /// Id of the network.
    pub network: String,
    /// The address.
    pub address: IpAddr,
}

/// An address that is leased to an attachment, or was released by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Current or last holder.
    pub owner: AttachmentId,
    /// Instance of the owner's sandbox.
    pub instance: SandboxInstance,
    /// When this instance got it.
    pub since: Time,
    /// Whether the address was requested by value; such a lease never satisfies a request for any address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
    /// Sticky name: the next request with this name gets the address again. Its meaning is up to the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Set once it is released: the address is free, but reused only after addresses that were released earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Release>,
}

/// When a lease was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Wall clock time, for display.
    pub at: Time,
    /// Sequence number among the releases of the network; monotonic, unlike the clock.
    pub order: u64,
}

impl Lease {
    /// Whether the address is leased.
    pub fn is_live(&self) -> bool {
        self.released.is_none()
    }
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of sandbox {}", self.interface, self.sandbox)
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of network {}", self.address, self.network)
    }
}
