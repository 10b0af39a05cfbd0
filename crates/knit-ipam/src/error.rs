//! Allocation errors.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::problem::Reason;
use thiserror::Error;

use crate::lease::AttachmentId;

/// Why no address was allocated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocError {
    /// All addresses of the pools are leased.
    #[error("network {network} range {ranges} {}", exhausted(*.total))]
    Exhausted {
        /// The network.
        network: String,
        /// The ranges or sub-ranges of the pools.
        ranges: String,
        /// Number of allocatable addresses.
        total: u128,
    },
    /// The requested address is not in the range.
    #[error("network {network}: {address} is not in the range {range}")]
    OutsideRange {
        /// The network.
        network: String,
        /// The range of the pool.
        range: IpNet,
        /// The requested address.
        address: IpAddr,
    },
    /// The requested address is never allocated.
    #[error("network {network}: {address} cannot be allocated: it is {reason}")]
    Unavailable {
        /// The network.
        network: String,
        /// The requested address.
        address: IpAddr,
        /// What it is reserved for.
        reason: UnavailableReason,
    },
    /// The requested address is leased to another attachment.
    #[error("network {network}: {address} is in use by {owner}")]
    InUse {
        /// The network.
        network: String,
        /// The requested address.
        address: IpAddr,
        /// The holder.
        owner: AttachmentId,
    },
}

/// Why an address of a range is never allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnavailableReason {
    /// The first address of an IPv4 range.
    #[error("the range's network address")]
    Network,
    /// The last address of an IPv4 range.
    #[error("the range's broadcast address")]
    Broadcast,
    /// The zero address of an IPv6 range (RFC 4291, 2.6.1).
    #[error("the range's subnet-router anycast address")]
    Anycast,
    /// The first usable address.
    #[error("the gateway address of the bridge")]
    Gateway,
    /// Reserved by the pool.
    #[error("reserved")]
    Reserved,
}

impl AllocError {
    /// Stable reason for conditions, Events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Exhausted { .. } => Reason::AddressesExhausted,
            Self::OutsideRange { .. } => Reason::InvalidValue,
            Self::Unavailable { .. } => Reason::NotAllowed,
            Self::InUse { .. } => Reason::Conflict,
        }
    }
}

fn exhausted(total: u128) -> String {
    match total {
        0 => "has no allocatable address: all are reserved".to_owned(),
        1 => "is exhausted: its only address is in use".to_owned(),
        total => format!("is exhausted: all {total} addresses are in use"),
    }
}
