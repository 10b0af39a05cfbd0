//! Serialized form of leases: network, address, lease, without indexes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize, Serializer};

use super::Leases;
use crate::lease::Lease;

/// Leases by network and address.
#[derive(Deserialize)]
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

impl Serialize for Leases {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut stored = BTreeMap::<&str, BTreeMap<IpAddr, &Lease>>::new();
        for (network, address, lease) in self.iter() {
            stored.entry(network).or_default().insert(address, lease);
        }
        stored.serialize(serializer)
    }
}
