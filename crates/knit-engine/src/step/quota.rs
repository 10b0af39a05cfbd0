//! Requeues units when more of a quota is available.

use std::collections::BTreeSet;

use knit_model::quota::ResourceCounts;

use crate::event::Unit;
use crate::quota::count;
use crate::state::{ObjectKey, State, UnitState};

/// This node was granted a share of a quota. Denied units are retried if the share grew.
pub(super) fn quota_granted(state: &mut State, quota: ObjectKey, counts: ResourceCounts) {
    let before = state.granted_quotas.insert(quota.clone(), counts);
    if counts.exceeds(before.unwrap_or_default()) {
        let blocked = state.blocked_by_quota(&quota.namespace);
        state.dirty.extend(blocked);
    }
}

/// When a unit uses less than before, requeues denied units of its namespace.
pub(super) fn requeue_denied(state: &mut State, unit: &Unit, old: &UnitState) {
    if state.denied.is_empty() {
        return;
    }
    let mut namespaces: BTreeSet<String> = old.requesters().map(|object| object.namespace.clone()).collect();
    if let Unit::Bridge(key) = unit {
        namespaces.insert(key.namespace.clone());
    }
    let none = UnitState::default();
    for namespace in namespaces {
        let now = count(unit, state.units.get(unit).unwrap_or(&none), &namespace);
        if count(unit, old, &namespace).exceeds(now) {
            let blocked = state.blocked_by_quota(&namespace);
            state.dirty.extend(blocked);
        }
    }
}
