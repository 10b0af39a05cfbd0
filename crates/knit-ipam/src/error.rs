//! Why no address could be given, in words.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::problem::Reason;
use thiserror::Error;

use crate::lease::AttachmentId;

/// Why no address could be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocError {
    /// Every address that the pools may give is held.
    #[error("network {network} range {ranges} {}", exhausted(*.total))]
    Exhausted {
        /// The network.
        network: String,
        /// The pools' ranges, or the parts of them that were asked for.
        ranges: String,
        /// How many addresses the pools may give.
        total: u128,
    },
    /// An address was asked for that is not of the range.
    #[error("network {network}: {address} is not in the range {range}")]
    OutsideRange {
        /// The network.
        network: String,
        /// The pool's range.
        range: IpNet,
        /// The address that was asked for.
        address: IpAddr,
    },
    /// An address was asked for that is never given.
    #[error("network {network}: {address} cannot be given: it is {withheld}")]
    Withheld {
        /// The network.
        network: String,
        /// The address that was asked for.
        address: IpAddr,
        /// What it is kept for.
        withheld: Withheld,
    },
    /// An address was asked for that another attachment holds.
    #[error("network {network}: {address} is in use by {owner}")]
    InUse {
        /// The network.
        network: String,
        /// The address that was asked for.
        address: IpAddr,
        /// Who holds it.
        owner: AttachmentId,
    },
}

/// Why an address of a range is never given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Withheld {
    /// The first address of an IPv4 range names the range itself.
    #[error("the range's network address")]
    Network,
    /// The last address of an IPv4 range.
    #[error("the range's broadcast address")]
    Broadcast,
    /// The zero address of an IPv6 range (RFC 4291, 2.6.1).
    #[error("the range's subnet-router anycast address")]
    Anycast,
    /// The first usable address.
    #[error("the bridge's")]
    Gateway,
    /// The pool keeps it back.
    #[error("reserved")]
    Reserved,
}

impl AllocError {
    /// The stable word for conditions, Events and metrics; it also says whether a retry may help.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Exhausted { .. } => Reason::AddressesExhausted,
            Self::OutsideRange { .. } => Reason::InvalidValue,
            Self::Withheld { .. } => Reason::NotAllowed,
            Self::InUse { .. } => Reason::Conflict,
        }
    }
}

fn exhausted(total: u128) -> String {
    match total {
        0 => "has no address to give: what is not the bridge's is reserved".to_owned(),
        1 => "is exhausted: its only address is in use".to_owned(),
        total => format!("is exhausted: all {total} addresses are in use"),
    }
}
