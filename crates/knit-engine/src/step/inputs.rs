//! Objects and sandboxes that appear, change and go: what is recorded, and which units are compared.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::{Sandbox, SandboxId};

use super::affected::affected;
use super::requeue::{requeue_blocked, requeue_exhausted, requeue_tunnel_peers};
use super::{Effects, quota, release_claims};
use crate::egress;
use crate::event::{Record, Unit};
use crate::packet_filter;
use crate::pending_calls;
use crate::resolve;
use crate::service_announcements;
use crate::state::{ObjectKey, State, StoredObject};

/// An object was created or changed.
pub(crate) fn object_applied(state: &mut State, object: StoredObject, effects: &mut Effects) {
    let key = object.key();
    if let Some(old) = state.objects.get(&key) {
        let affected = affected(state, old);
        state.dirty.extend(affected);
    }
    effects.record(state, Record::ObjectApplied(Box::new(object)));
    let object = &state.objects[&key];
    let requested = object.intents.iter().filter_map(|intent| intent.spec.interface());
    for form in requested.flat_map(|spec| spec.kind.kernel_kinds()) {
        state.unsupported.remove(*form);
    }
    let affected = affected(state, object);
    state.dirty.extend(affected);
    requeue_blocked(state, &key);
    quota::on_object_change(state, &key);
    packet_filter::on_object_change(state, &key);
    egress::on_object_change(state, &key, effects);
    service_announcements::on_object_change(state, &key, effects);
    effects.changed(BTreeSet::from([key]));
}

/// An object was deleted, or nothing on this node can need it any more.
pub(crate) fn object_deleted(state: &mut State, key: &ObjectKey, effects: &mut Effects) {
    let Some(old) = state.objects.get(key) else { return };
    let affected = affected(state, old);
    effects.record(state, Record::ObjectDeleted(key.clone()));
    state.dirty.extend(affected);
    requeue_blocked(state, key);
    packet_filter::on_object_change(state, key);
    egress::on_object_change(state, key, effects);
    service_announcements::on_object_change(state, key, effects);
    effects.changed(BTreeSet::from([key.clone()]));
}

/// A sandbox of a machine without a cluster started. A known one keeps its labels, which may have been changed since.
pub(crate) fn sandbox_started(state: &mut State, sandbox: Sandbox, now: Time, effects: &mut Effects) {
    let known = state.sandboxes.get(&sandbox.id);
    if known.is_none_or(|known| known.instance != sandbox.instance) {
        sandbox_gone(state, &sandbox.id, now, effects);
        sandbox_updated(state, sandbox, effects);
    }
}

/// A sandbox appeared or changed.
pub(crate) fn sandbox_updated(state: &mut State, sandbox: Sandbox, effects: &mut Effects) {
    if state.sandboxes.get(&sandbox.id) != Some(&sandbox) {
        let unit = Unit::Sandbox(sandbox.id.clone());
        effects.record(state, Record::SandboxUpdated(sandbox));
        state.dirty.insert(unit);
    }
}

/// A sandbox is gone: what remains of it on the host is removed.
pub(crate) fn sandbox_gone(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    if !state.sandboxes.contains_key(id) {
        return;
    }
    pending_calls::sandbox_lost(state, id, effects);
    state.awaiting_keys.remove(id);
    let unit = Unit::Sandbox(id.clone());
    state.last_applied.remove(&unit);
    quota::on_unit_change(state, &unit);
    if let Some(change) = state.in_flight.remove(&unit) {
        release_claims(state, &unit, &change);
        packet_filter::on_change_dropped(state, &unit, &change.resolved.unit_state);
    }
    requeue_tunnel_peers(state, &unit);
    let objects = state.units.get(&unit).map(|unit_state| unit_state.requesters().cloned().collect());
    // Bridges may have been created for this sandbox and never used.
    let bridges = resolve::bridges_of(state, id);
    effects.record(state, Record::SandboxRemoved { id: id.clone(), at: now });
    requeue_exhausted(state);
    state.dirty.extend(bridges.into_iter().map(Unit::Bridge));
    // What remains on the host is removed in a separate change.
    state.dirty.insert(unit);
    effects.changed(objects.unwrap_or_default());
}
