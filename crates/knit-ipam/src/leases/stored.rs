//! How leases look on disk: network, address, lease, and nothing that follows from them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Leases;
use crate::lease::Lease;

/// The plain maps.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Stored(BTreeMap<String, BTreeMap<IpAddr, Lease>>);

impl From<Stored> for Leases {
    fn from(stored: Stored) -> Self {
        let mut leases = Self::default();
        for (network, addresses) in stored.0 {
            for (address, lease) in addresses {
                leases.restore(&network, address, lease);
            }
        }
        leases
    }
}

impl From<Leases> for Stored {
    fn from(leases: Leases) -> Self {
        let mut stored = BTreeMap::<String, BTreeMap<IpAddr, Lease>>::new();
        for (network, address, lease) in leases.iter() {
            stored.entry(network.to_owned()).or_default().insert(address, lease.clone());
        }
        Self(stored)
    }
}
