//! Neighbours: permanent entries and proxy entries (proxy ARP and ND).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::mac::Mac;
use crate::name::IfName;

/// A permanent neighbour or a proxy entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The link.
    pub link: IfName,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Hardware address; `None`: a proxy entry, the link answers for the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Whether it carries Knit's protocol number.
    #[serde(default)]
    pub owned: bool,
}

/// Identity of a neighbour in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NeighbourKey {
    /// The link.
    pub link: IfName,
    /// The address.
    pub address: IpAddr,
    /// Whether it is a proxy entry; the kernel stores those separately.
    pub proxy: bool,
}

impl Neighbour {
    /// Its identity in the kernel.
    pub fn key(&self) -> NeighbourKey {
        NeighbourKey { link: self.link.clone(), address: self.address, proxy: self.mac.is_none() }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mac {
            Some(mac) => write!(out, "{} lladdr {mac} dev {}", self.address, self.link),
            None => write!(out, "proxy {} dev {}", self.address, self.link),
        }
    }
}
