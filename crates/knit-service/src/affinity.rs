//! Affinity: for how long a client is led to the same backend, and the ids by which clients refer to backends.
//!
//! Whoever creates Services chooses their timeouts, and each timeout needs rules. Therefore there are few: others are rounded up.
//! All clients are in one map, in which each has the timeout of its backend's id.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::filter::field::Value;

use crate::service::Backend;

/// The timeouts in seconds, up to the longest one that Kubernetes accepts.
const TIMEOUTS: [u32; 16] =
    [5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400];
/// The bit of ids of backends, which slots do not have.
const ID: u32 = 0x4000_0000;
/// The first of the bits with the number of the timeout.
const TIMEOUT_SHIFT: u32 = 26;
/// The bits that ids with the same timeout have in common. The first one is that of backends of the Local traffic policy.
pub(crate) const TIMEOUT_MASK: u32 = !((1 << TIMEOUT_SHIFT) - 1);

fn number(seconds: u32) -> usize {
    TIMEOUTS.partition_point(|timeout| *timeout < seconds).min(TIMEOUTS.len() - 1)
}

/// The timeout that is used for one of a Service.
pub(crate) fn rounded(seconds: u32) -> u32 {
    TIMEOUTS[number(seconds)]
}

/// What the ids of backends with a timeout have in [`TIMEOUT_MASK`].
pub(crate) fn timeout_bits(seconds: u32) -> u32 {
    ID | (number(seconds) as u32) << TIMEOUT_SHIFT
}

/// The ids of a port's backends with a timeout. They follow from the backends, so that they are the same after a restart.
pub(crate) fn ids(backends: BTreeSet<&Backend>, seconds: u32) -> BTreeMap<Backend, u32> {
    let (mut ids, mut used) = (BTreeMap::new(), BTreeSet::new());
    let id = |number: u32| timeout_bits(seconds) | number & !TIMEOUT_MASK;
    for backend in backends {
        let mut number = hash(backend);
        while !used.insert(id(number)) {
            number = number.wrapping_add(1);
        }
        ids.insert(*backend, id(number));
    }
    ids
}

/// The 32-bit FNV-1a hash of a backend's address and port.
fn hash(backend: &Backend) -> u32 {
    let mut bytes = Value::from(backend.address).bytes();
    bytes.extend(backend.port.to_be_bytes());
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up_to_few() {
        let found = [1, 5, 6, 10, 600, 601, 10_800, 86_400, u32::MAX].map(rounded);
        assert_eq!(found, [5, 5, 10, 10, 600, 1_200, 10_800, 86_400, 86_400]);
        let bits: BTreeSet<u32> = (0..100_000).map(timeout_bits).collect();
        assert_eq!(bits.len(), TIMEOUTS.len());
        assert!(bits.iter().all(|bits| bits & !TIMEOUT_MASK == 0 && bits & 0x8000_0000 == 0));
    }
}
