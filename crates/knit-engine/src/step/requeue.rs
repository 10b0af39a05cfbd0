//! Which units are queued again because an object or another unit changed.

use ipnet::IpNet;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{BridgeReport, InterfaceReport};

use crate::event::Unit;
use crate::resolve;
use crate::state::{ObjectKey, State, UnitState};

/// When a bridge releases an address, another bridge may be waiting for it.
pub(super) fn requeue_bridges(state: &mut State, unit: &Unit, old: &BridgeReport) {
    let bridge = state.units.get(unit).and_then(|unit_state| unit_state.bridge.as_ref());
    let has: &[IpNet] = bridge.map_or(&[], |bridge| &bridge.addresses);
    if old.addresses.iter().all(|address| has.contains(address)) {
        return;
    }
    let in_flight = state.in_flight.iter().map(|(unit, change)| (unit, &change.resolved.unit_state));
    let all = state.units.iter().chain(in_flight);
    let waiting =
        all.filter(|(_, unit_state)| unit_state.bridge.is_some() && !unit_state.warnings.is_empty());
    let waiting: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(waiting);
}

/// Whether an interface lost an address.
pub(super) fn releases_addresses(old: &UnitState, new: &UnitState) -> bool {
    let has = |(object, had): &(ObjectKey, InterfaceReport)| {
        let now = new.interfaces.iter().find(|(asker, now)| asker == object && now.name == had.name);
        now.is_some_and(|(_, now)| had.addresses.iter().all(|address| now.addresses.contains(address)))
    };
    !old.interfaces.iter().all(has)
}

/// Requeues units with a problem that a change of this object may solve: problems of objects in its namespace or of
/// objects that use a bridge of its namespace; all problems if the object is cluster-wide.
pub(super) fn requeue_blocked(state: &mut State, changed: &ObjectKey) {
    let uses_namespace = |object: &ObjectKey| {
        let intents = state.objects.get(object).into_iter().flat_map(|stored| &stored.intents);
        let mut interfaces = intents.filter_map(|intent| intent.spec.interface());
        interfaces.any(|spec| spec.tenant(&object.namespace) == changed.namespace)
    };
    let may_help = |(object, _): &(ObjectKey, Problem)| {
        changed.namespace.is_empty() || object.namespace == changed.namespace || uses_namespace(object)
    };
    let blocked = state.problems.iter().filter(|(_, problems)| problems.iter().any(may_help));
    let blocked: Vec<Unit> = blocked.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(blocked);
}

/// Whether a unit released a host link name.
pub(super) fn frees_host_names(old: &UnitState, new: Option<&UnitState>) -> bool {
    let has = |name| new.is_some_and(|new| new.host_links.contains(name));
    !old.host_links.iter().all(has)
}

/// Requeues units that lost a host link to another unit.
pub(super) fn requeue_conflicts(state: &mut State) {
    let is_conflict = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::Conflict;
    let waiting = state.problems.iter().filter(|(_, problems)| problems.iter().any(is_conflict));
    let waiting: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(waiting);
}

/// Requeues units that found no free address.
pub(super) fn requeue_exhausted(state: &mut State) {
    let is_exhausted = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::AddressesExhausted;
    let waiting = state.problems.iter().filter(|(_, problems)| problems.iter().any(is_exhausted));
    let waiting: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(waiting);
    state.dirty.extend(state.blocks.waits.keys().cloned());
}

/// Requeues tunnels whose remote end is this pod.
pub(super) fn requeue_tunnel_peers(state: &mut State, unit: &Unit) {
    if let Unit::Sandbox(id) = unit
        && let Some(sandbox) = state.sandboxes.get(id)
    {
        let tunnel_peers = resolve::tunnel_peers(state, sandbox);
        state.dirty.extend(tunnel_peers);
    }
}

/// Requeues the ports of a bridge whose VLAN filtering or default VLAN changed.
pub(super) fn requeue_ports(state: &mut State, unit: &Unit, old: &BridgeReport) {
    let Unit::Bridge(key) = unit else { return };
    let bridge = state.units.get(unit).and_then(|unit_state| unit_state.bridge.as_ref());
    if bridge.is_some_and(|bridge| bridge.default_vlan != old.default_vlan) {
        let users = state.units.users_of(key).cloned();
        // Including those that could not become ports so far.
        let is_meant = |id: &&SandboxId| resolve::bridges_of(state, id).contains(key);
        let meant = state.sandboxes.keys().filter(is_meant).cloned().map(Unit::Sandbox);
        let ports: Vec<Unit> = users.chain(meant).collect();
        state.dirty.extend(ports);
    }
}
