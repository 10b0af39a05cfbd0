//! Quotas: what is tried again when there is more room.

use std::collections::BTreeSet;

use knit_model::quota::Counts;

use crate::event::Unit;
use crate::quota::count;
use crate::state::{Made, ObjectKey, State};

/// This node may use so much of a quota. What was refused before is tried again where there is more now.
pub(super) fn allowed(state: &mut State, quota: ObjectKey, counts: Counts) {
    let before = state.allowances.insert(quota.clone(), counts);
    if counts.exceeds(before.unwrap_or_default()) {
        let blocked = state.blocked_by_quota(&quota.namespace);
        state.dirty.extend(blocked);
    }
}

/// When a unit has less than before, others of its namespace may have what a quota refused them.
pub(super) fn give_room(state: &mut State, unit: &Unit, old: &Made) {
    if state.refused.is_empty() {
        return;
    }
    let mut namespaces: BTreeSet<String> = old.askers().map(|object| object.namespace.clone()).collect();
    if let Unit::Bridge(key) = unit {
        namespaces.insert(key.namespace.clone());
    }
    let none = Made::default();
    for namespace in namespaces {
        let now = count(unit, state.made.get(unit).unwrap_or(&none), &namespace);
        if count(unit, old, &namespace).exceeds(now) {
            let blocked = state.blocked_by_quota(&namespace);
            state.dirty.extend(blocked);
        }
    }
}
