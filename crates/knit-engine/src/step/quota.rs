//! Quota events, claims, and the units that are requeued when more of a quota is available.

use std::collections::BTreeSet;

use super::Effects;
use crate::event::{Effect, Unit};
use crate::quota::{KIND, QuotaClaims, QuotaEvent, count};
use crate::state::{ObjectKey, State, UnitState};

/// Handles a quota event.
pub(super) fn handle(state: &mut State, event: QuotaEvent) {
    match event {
        QuotaEvent::Listed(all) => {
            let listed: BTreeSet<ObjectKey> = all.iter().map(|claims| claims.key.clone()).collect();
            state.shared_quotas.retain(&listed);
            all.into_iter().for_each(|claims| applied(state, claims));
        }
        QuotaEvent::Applied(claims) => applied(state, claims),
        QuotaEvent::Deleted(key) => state.shared_quotas.remove(&key),
        // The quota may have been deleted since the request.
        QuotaEvent::ClaimWritten(claims) => {
            if state.shared_quotas.get(&claims.key, &claims.uid).is_some() {
                applied(state, claims);
            }
        }
    }
}

/// A new version of a quota. Denied units are retried if this node may use more.
fn applied(state: &mut State, claims: QuotaClaims) {
    let key = claims.key.clone();
    let before = state.granted_quota(&key).unwrap_or_default();
    let is_new = state.shared_quotas.store(claims);
    if is_new && state.granted_quota(&key).unwrap_or_default().exceeds(before) {
        let blocked = state.blocked_by_quota(&key.namespace);
        state.dirty.extend(blocked);
    }
}

/// A quota was applied: its claim is computed, if it has one.
pub(super) fn on_object_change(state: &mut State, key: &ObjectKey) {
    if key.kind == KIND {
        state.shared_quotas.mark_dirty(&key.namespace);
    }
}

/// A change of this unit starts or ends: the claims of its namespaces are computed again.
pub(super) fn on_unit_change(state: &mut State, unit: &Unit) {
    if state.shared_quotas.is_empty() {
        return;
    }
    let applied = state.units.get(unit);
    let in_flight = state.in_flight.get(unit).map(|change| &change.resolved.unit_state);
    let requesters = applied.into_iter().chain(in_flight).flat_map(UnitState::requesters);
    // The unit outlives its sandbox.
    let mut namespaces: BTreeSet<String> = requesters.map(|object| object.namespace.clone()).collect();
    namespaces.extend(match unit {
        Unit::Bridge(key) => Some(key.namespace.clone()),
        Unit::Sandbox(id) => state.sandboxes.get(id).map(|sandbox| sandbox.namespace.clone()),
        Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => None,
    });
    namespaces.iter().for_each(|namespace| state.shared_quotas.mark_dirty(namespace));
}

/// Requests the claims that differ from what is needed, in namespaces where something has changed.
pub(super) fn claim(state: &mut State, effects: &mut Effects) {
    for namespace in state.shared_quotas.take_dirty() {
        let quotas = state.shared_quotas_of(&namespace);
        if quotas.is_empty() {
            continue;
        }
        let used = state.used_by(&namespace);
        let denied = state.denied_to(&namespace);
        let mut is_result = false;
        for (key, uid) in quotas {
            let Some(quota) = state.shared_quotas.get_mut(&key, &uid) else { continue };
            let was_settled = quota.is_settled();
            effects.list.extend(quota.adjust(used, used + denied).map(Effect::ClaimQuota));
            is_result |= !was_settled && quota.is_settled();
        }
        if is_result && !denied.is_zero() {
            // What is denied now exceeds the quota: from now on it is reported.
            effects.changed(state.objects_beyond_quota(&namespace));
        }
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
