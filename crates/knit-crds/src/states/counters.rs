//! Traffic counters of pod interfaces.
//!
//! Counters change permanently, so they are written together with other changes, and on their own only after a
//! significant change ([`InterfaceCounters::has_significant_change`]).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InterfaceState, PodNetworkStateStatus};

/// Counters that change by fewer bytes than this, without errors or drops, are not written.
const SIGNIFICANT_BYTES: u64 = 1 << 20;

/// InterfaceCounters are the traffic counters of an interface since its creation, as seen by the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InterfaceCounters {
    /// rx counts received traffic.
    pub rx: DirectionCounters,
    /// tx counts sent traffic.
    pub tx: DirectionCounters,
}

/// DirectionCounters are the traffic counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DirectionCounters {
    /// bytes is the number of bytes.
    pub bytes: u64,
    /// packets is the number of packets.
    pub packets: u64,
    /// errors is the number of packets with errors.
    pub errors: u64,
    /// dropped is the number of dropped packets.
    pub dropped: u64,
}

impl InterfaceCounters {
    /// Whether they differ from earlier ones by enough to be written on their own.
    pub fn has_significant_change(&self, before: &Self) -> bool {
        let changed = |now: DirectionCounters, before: DirectionCounters| {
            now.bytes.abs_diff(before.bytes) >= SIGNIFICANT_BYTES
                || now.errors != before.errors
                || now.dropped != before.dropped
        };
        changed(self.rx, before.rx) || changed(self.tx, before.tx)
    }
}

/// Counters of a pod's interfaces, by interface name.
pub type PodCounters = BTreeMap<String, InterfaceCounters>;

impl PodNetworkStateStatus {
    /// Sets these counters, read at this time.
    #[must_use]
    pub fn with_counters(mut self, counters: &PodCounters, at: Time) -> Self {
        for interface in self.interfaces_mut() {
            interface.counters = counters.get(&interface.interface.name).copied();
        }
        let is_counted = self.counters().next().is_some();
        self.counted_at = is_counted.then_some(at);
        self
    }

    /// Removes the counters; the rest changes only with events.
    #[must_use]
    pub fn without_counters(mut self) -> Self {
        self.interfaces_mut().for_each(|interface| interface.counters = None);
        self.counted_at = None;
        self
    }

    /// The counters, by interface.
    pub fn counters(&self) -> impl Iterator<Item = (&str, InterfaceCounters)> {
        let interfaces = self.objects.iter().flat_map(|object| &object.interfaces);
        interfaces.filter_map(|interface| Some((interface.interface.name.as_str(), interface.counters?)))
    }

    fn interfaces_mut(&mut self) -> impl Iterator<Item = &mut InterfaceState> {
        self.objects.iter_mut().flat_map(|object| &mut object.interfaces)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counted(bytes: u64, dropped: u64) -> InterfaceCounters {
        InterfaceCounters {
            tx: DirectionCounters { bytes, dropped, ..DirectionCounters::default() },
            ..InterfaceCounters::default()
        }
    }

    #[test]
    fn a_megabyte_or_one_drop_is_significant_and_a_few_packets_are_not() {
        let before = counted(5_000, 1);
        assert!(!before.has_significant_change(&before));
        assert!(!counted(900_000, 1).has_significant_change(&before));
        assert!(counted(1_053_576, 1).has_significant_change(&before));
        assert!(counted(5_000, 2).has_significant_change(&before));
        assert!(counted(0, 0).has_significant_change(&counted(2_000_000, 0)), "the interface was recreated");
    }

    #[test]
    fn counters_are_set_by_name_and_removed_completely() {
        let state: PodNetworkStateStatus = serde_json::from_value(json!({"node": "n", "objects": [
            {"kind": "Veth", "name": "a", "ready": true, "interfaces": [
                {"field": "", "name": "net1", "ready": true}, {"field": "", "name": "net2", "ready": false}]}]}))
        .unwrap();
        let at = Time(jiff::Timestamp::UNIX_EPOCH);
        let counters = PodCounters::from([("net1".to_owned(), counted(7, 0))]);
        let with = state.clone().with_counters(&counters, at.clone());
        assert_eq!(with.counters().collect::<Vec<_>>(), [("net1", counted(7, 0))]);
        assert_eq!(with.counted_at, Some(at.clone()));
        assert_eq!(with.without_counters(), state);
        assert_eq!(state.clone().with_counters(&PodCounters::new(), at), state);
    }
}
