//! What went through the interfaces of a pod.
//!
//! Counters move all the time and an API server is no place for that: they are written along with what changes anyway, and
//! by themselves only seldom, when they have moved enough to matter ([`InterfaceCounters::has_moved_since`]).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InterfaceState, PodNetworkStateStatus};

/// Counters that have moved by fewer bytes than this, and by no error and no drop, are not worth a write.
const WORTH: u64 = 1 << 20;

/// What went through an interface since it was made, seen from the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InterfaceCounters {
    /// What came in.
    pub rx: WayCounters,
    /// What went out.
    pub tx: WayCounters,
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WayCounters {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were broken.
    pub errors: u64,
    /// Packets that there was no room for.
    pub dropped: u64,
}

impl InterfaceCounters {
    /// Whether they differ from earlier ones by enough to be written for their own sake.
    pub fn has_moved_since(&self, before: &Self) -> bool {
        let way = |now: WayCounters, before: WayCounters| {
            now.bytes.abs_diff(before.bytes) >= WORTH
                || now.errors != before.errors
                || now.dropped != before.dropped
        };
        way(self.rx, before.rx) || way(self.tx, before.tx)
    }
}

/// Counters of a pod's interfaces, by their name in the pod.
pub type PodCounters = BTreeMap<String, InterfaceCounters>;

impl PodNetworkStateStatus {
    /// The same with these counters, read at this time.
    #[must_use]
    pub fn with_counters(mut self, counters: &PodCounters, at: Time) -> Self {
        for interface in self.interfaces_mut() {
            interface.counters = counters.get(&interface.name).copied();
        }
        let is_counted = self.counters().next().is_some();
        self.counted_at = is_counted.then_some(at);
        self
    }

    /// The same without counters: what is left changes only when something happens.
    #[must_use]
    pub fn without_counters(mut self) -> Self {
        self.interfaces_mut().for_each(|interface| interface.counters = None);
        self.counted_at = None;
        self
    }

    /// The counters, by interface.
    pub fn counters(&self) -> impl Iterator<Item = (&str, InterfaceCounters)> {
        let interfaces = self.objects.iter().flat_map(|object| &object.interfaces);
        interfaces.filter_map(|interface| Some((interface.name.as_str(), interface.counters?)))
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
            tx: WayCounters { bytes, dropped, ..WayCounters::default() },
            ..InterfaceCounters::default()
        }
    }

    #[test]
    fn a_megabyte_or_one_drop_is_worth_a_write_and_a_few_packets_are_not() {
        let before = counted(5_000, 1);
        assert!(!before.has_moved_since(&before));
        assert!(!counted(900_000, 1).has_moved_since(&before));
        assert!(counted(1_053_576, 1).has_moved_since(&before));
        assert!(counted(5_000, 2).has_moved_since(&before));
        assert!(counted(0, 0).has_moved_since(&counted(2_000_000, 0)), "the interface was made anew");
    }

    #[test]
    fn counters_are_put_in_by_name_and_taken_out_without_a_trace() {
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
