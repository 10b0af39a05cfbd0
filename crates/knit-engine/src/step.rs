//! The step function: one event in, effects out.

mod affected;
pub(crate) mod blocks;
mod inputs;
pub(crate) mod last_applied;
mod observation;
mod original_values;
mod quota;
mod requeue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use knit_ipam::{LeaseKey, Time};
use knit_model::link::{Bridge, LinkKind};
use knit_model::plan::diff;
use knit_model::problem::{Problem, Reason};
use knit_model::{NetState, Sandbox, SandboxId, Scope};

use self::affected::bridges_named;
pub(crate) use self::inputs::{
    object_applied, object_deleted, sandbox_gone, sandbox_started, sandbox_updated,
};
use self::last_applied::LastApplied;
use self::observation::{attribute_problems, restrict_to_unit, unit_object};
use self::original_values::{original_values, restored};
use self::quota::requeue_denied;
use self::requeue::{
    frees_host_names, releases_addresses, requeue_bridges, requeue_conflicts, requeue_exhausted,
    requeue_ports, requeue_tunnel_peers,
};
use crate::call::{CallId, CallResult};
use crate::egress;
use crate::event::{
    ApplyFailure, ChangeEnded, ChangeStarted, Effect, Event, KeyError, PlanResult, PublicKeys, Record, Unit,
    UnsupportedKind,
};
use crate::extensions;
use crate::namespaces;
use crate::nodes;
use crate::objects::ObjectChange;
use crate::overlay;
use crate::packet_filter;
use crate::peers;
use crate::pending_calls;
use crate::pod_annotations;
use crate::pod_start;
use crate::pods;
use crate::policies;
use crate::pools;
use crate::resolve::{self, Resolved};
use crate::service_announcements;
use crate::services;
use crate::sockets;
use crate::state::{BridgeKey, NewLease, ObjectKey, OriginalValueKey, State, UnitState};
use crate::tenant_ranges;
use crate::unused_objects;

/// A change in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlightChange {
    pub(crate) resolved: Resolved,
    restored: Vec<OriginalValueKey>,
}

/// Handles an event and returns the effects. `now` is only recorded; no decision depends on it.
pub fn step(state: &mut State, event: Event, now: Time) -> Vec<Effect> {
    let mut effects = Effects::default();
    let is_resync = matches!(event, Event::Resync | Event::ResyncWithoutNodeRoutes);
    if let Event::ObjectApplied(_)
    | Event::Objects(_)
    | Event::SandboxStarted(_)
    | Event::SandboxUpdated(_)
    | Event::Pods(_)
    | Event::PodStarting(_)
    | Event::AttachRequested(_)
    | Event::ResyncUnits(_) = &event
    {
        packet_filter::retry_failed(state);
    }
    match event {
        Event::ObjectApplied(object) => object_applied(state, object, &mut effects),
        Event::ObjectDeleted(key) => object_deleted(state, &key, &mut effects),
        Event::Objects(update) => {
            for change in update.changes(state) {
                match change {
                    ObjectChange::Applied(object) => unused_objects::apply(state, *object, &mut effects),
                    ObjectChange::Deleted(key) => {
                        state.unused_objects.remove(&key);
                        object_deleted(state, &key, &mut effects);
                    }
                    ObjectChange::Listed { kind, keys } => state.unused_objects.retain_listed(&kind, &keys),
                }
            }
        }
        Event::ObjectsTranslated { namespace, objects } => {
            unused_objects::on_translated(state, &namespace, objects, &mut effects);
        }
        Event::SecretChanged { namespace, name } => {
            let users = state.required_secrets().remove(&(namespace, name)).unwrap_or_default();
            state.dirty.extend(users.into_iter().map(Unit::Sandbox));
        }
        Event::SandboxStarted(sandbox) => sandbox_started(state, sandbox, now, &mut effects),
        Event::SandboxUpdated(sandbox) => sandbox_updated(state, sandbox, &mut effects),
        Event::SandboxRemoved(id) => sandbox_gone(state, &id, now, &mut effects),
        Event::Pods(event) => pods::handle(state, event, now, &mut effects),
        Event::PodStarting(start) => pod_start::starting(state, *start, now, &mut effects),
        Event::ContainersStarting(id) => pod_start::record_start(state, &id, &mut effects),
        Event::Definitions(event) => pod_annotations::on_definitions(state, event, &mut effects),
        Event::NetworksTranslated(translated) => {
            pod_annotations::on_translated(state, *translated, now, &mut effects)
        }
        Event::Observed { unit, observed, keys } => {
            on_observed(state, &unit, observed, &keys, now, &mut effects)
        }
        Event::PlanApplied(applied) => on_applied(state, applied, now, &mut effects),
        Event::ResyncUnits(units) => {
            let is_known = |unit: &Unit| match unit {
                Unit::Sandbox(id) => state.sandboxes.contains_key(id) || state.units.contains_key(unit),
                Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => {
                    state.units.contains_key(unit)
                }
            };
            let known: Vec<Unit> = units.into_iter().filter(is_known).collect();
            if known.contains(&Unit::PacketFilter) {
                packet_filter::resync(state);
            }
            state.dirty.extend(known);
        }
        Event::Quotas(event) => quota::handle(state, event),
        Event::Blocks(event) => {
            let holders = peers::holders(state, &event);
            blocks::handle(state, event, &mut effects);
            overlay::on_block_change(state);
            peers::update(state, &holders, &mut effects);
        }
        Event::Nodes(event) => {
            if nodes::handle(state, event, &mut effects) {
                on_reserved_addresses(state, &mut effects);
            }
        }
        Event::ServiceRanges(ranges) => {
            if state.service_ranges != ranges {
                effects.record(state, Record::ServiceRanges(ranges.clone()));
                let affected = resolve::bridges_with_ranges(state, &ranges);
                state.dirty.extend(affected);
                packet_filter::on_reserved_ranges(state, &ranges);
                on_reserved_addresses(state, &mut effects);
            }
        }
        Event::SettingsChanged(settings) => {
            let of_nodes = settings.forbidden.iter().map(|(_, range)| *range);
            let ranges: Vec<IpNet> = of_nodes.chain(settings.routed.iter().copied()).collect();
            let opens_others = settings.tenant_ranges != state.settings.tenant_ranges;
            state.settings = settings;
            let affected = resolve::bridges_with_ranges(state, &ranges);
            state.dirty.extend(affected);
            packet_filter::on_reserved_ranges(state, &ranges);
            on_reserved_addresses(state, &mut effects);
            if opens_others {
                tenant_ranges::requeue(state);
            }
        }
        Event::TenantRanges(ranges) => tenant_ranges::handle(state, ranges, &mut effects),
        Event::TunnelEndpoints(config) => overlay::on_tunnel_endpoints(state, config, &mut effects),
        Event::Namespaces(event) => namespaces::handle(state, event, &mut effects),
        Event::Policies(event) => policies::handle(state, event),
        Event::Services(event) => {
            let affected = services::handle(state, event, now, &mut effects);
            service_announcements::on_services(state, &affected, &mut effects);
        }
        Event::RemotePods { namespace, addresses } => {
            egress::on_remote_pods(state, &namespace, &addresses, &mut effects);
        }
        Event::Resync => {
            resync(state, &mut effects);
            let node_routes = state.cluster().and_then(|cluster| cluster.node_routes);
            state.dirty.extend(node_routes.map(|_| Unit::NodeRoutes));
            state.dirty.extend(state.units.contains_key(&Unit::NodeRoutes).then_some(Unit::NodeRoutes));
        }
        Event::ResyncWithoutNodeRoutes => resync(state, &mut effects),
        Event::PacketFilterChanged => packet_filter::on_foreign_change(state),
        Event::SocketsOffered(offered) => sockets::on_offered(state, offered, &mut effects),
        about_a_call => pending_calls::handle(state, about_a_call, now, &mut effects),
    }
    extensions::end_stale_receipts(state, now, &mut effects);
    start_ready(state, now, &mut effects);
    quota::claim(state, &mut effects);
    blocks::claim_missing(state, &mut effects);
    blocks::return_single_addresses(state, &mut effects);
    pools::reconcile(state, &mut effects);
    pending_calls::plugin_chain::reconcile(state, now, &mut effects);
    pending_calls::plugin_chain::start_ready(state, &mut effects);
    sockets::reconcile(state, is_resync, &mut effects);
    pod_start::answer_starts(state, &mut effects);
    effects.list
}

/// Addresses that Services cannot have changed.
fn on_reserved_addresses(state: &mut State, effects: &mut Effects) {
    let affected = services::on_reserved_change(state);
    service_announcements::on_services(state, &affected, effects);
}

/// Queues everything except the routes to other nodes.
fn resync(state: &mut State, effects: &mut Effects) {
    unused_objects::collect(state, effects);
    pending_calls::plugin_chain::retry_failed(state);
    state.unsupported.clear();
    state.last_applied.clear();
    state.dirty.extend(state.sandboxes.keys().map(|id| Unit::Sandbox(id.clone())));
    state.dirty.extend(state.units.keys().filter(|unit| **unit != Unit::NodeRoutes).cloned());
    state.dirty.extend(state.objects.values().flat_map(bridges_named).map(Unit::Bridge));
    packet_filter::resync(state);
    services::resync(state);
}

#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
}

impl Effects {
    /// Applies a record to the state and has it journalled.
    pub(crate) fn record(&mut self, state: &mut State, record: Record) {
        state.record(&record);
        state.extensions.mark_stale(&record);
        packet_filter::on_record(state, &record);
        policies::on_record(state, &record);
        let namespace = match &record {
            Record::SandboxUpdated(sandbox) => Some(sandbox.namespace.clone()),
            _ => None,
        };
        self.list.push(Effect::Journal(record));
        if let Some(namespace) = namespace {
            unused_objects::use_namespace(state, &namespace, self);
        }
    }

    /// The same for the start or the end of a change of a unit. Of a unit whose changes are not recorded only its problems are.
    fn record_change(&mut self, state: &mut State, record: Record) {
        match record {
            Record::ChangeStarted(started) if !started.unit.is_recorded() => {}
            Record::ChangeEnded(ended) if !ended.unit.is_recorded() => {
                let known = state.problems.get(&ended.unit).map_or(&[][..], Vec::as_slice);
                if known != ended.problems {
                    let ended = ChangeEnded { unit_state: None, restored: Vec::new(), ..*ended };
                    self.record(state, Record::ChangeEnded(Box::new(ended)));
                }
            }
            record => self.record(state, record),
        }
    }

    pub(crate) fn respond(&mut self, call: &CallId, result: CallResult) {
        self.list.push(Effect::Respond { call: call.clone(), result });
    }

    pub(crate) fn changed(&mut self, objects: BTreeSet<ObjectKey>) {
        if !objects.is_empty() {
            self.list.push(Effect::ObjectsChanged(objects));
        }
    }
}

/// Starts every queued unit that waits for nothing. A sandbox waits for its bridges.
fn start_ready(state: &mut State, now: Time, effects: &mut Effects) {
    let waiting: Vec<Unit> = state.dirty.iter().cloned().collect();
    for unit in waiting {
        if let Unit::Sandbox(id) = &unit {
            queue_bridges(state, id);
        }
    }
    packet_filter::on_bridge_change(state);
    let ready: Vec<Unit> = state.dirty.iter().filter(|unit| can_start(state, unit)).cloned().collect();
    for unit in ready {
        state.dirty.remove(&unit);
        if let Unit::Bridge(key) = &unit
            && (resolve::is_draining(state, key) || is_of_other_nodes(state, &unit, key))
        {
            continue;
        }
        if unit == Unit::Services && !services::is_known(state) {
            continue;
        }
        let mut resolved = match &unit {
            Unit::Bridge(key) => resolve::bridge(state, key),
            Unit::Sandbox(id) => resolve::sandbox(state, id, now),
            Unit::NodeRoutes => resolve::node_routes(state),
            Unit::PacketFilter => {
                packet_filter::on_start(state);
                packet_filter::resolve(state)
            }
            Unit::Services => services::resolve(state),
            Unit::Policies => policies::rules::resolve(state),
        };
        for name in &resolved.unit_state.host_links {
            state.name_claims.insert(name.clone(), unit.clone());
        }
        if let Unit::Sandbox(id) = &unit {
            pending_calls::change_started(state, id);
        }
        match resolved.denied.is_zero() {
            true => state.denied.remove(&unit),
            false => state.denied.insert(unit.clone(), resolved.denied),
        };
        blocks::wait(state, &unit, std::mem::take(&mut resolved.waits));
        resolved.observe.links_only = last_applied::links_suffice(state, &unit, &resolved);
        effects.list.push(Effect::Observe { unit: unit.clone(), request: resolved.observe.clone() });
        state.in_flight.insert(unit.clone(), Box::new(InFlightChange { resolved, restored: Vec::new() }));
        quota::on_unit_change(state, &unit);
    }
}

/// Whether a bridge does not exist on this node and no pod here needs it.
fn is_of_other_nodes(state: &State, unit: &Unit, key: &BridgeKey) -> bool {
    let is_known = state.units.contains_key(unit) || state.problems.contains_key(unit);
    !is_known && !state.unfinished.contains_key(unit) && !resolve::is_needed(state, key)
}

/// Releases the host link names that a change reserved.
fn release_claims(state: &mut State, unit: &Unit, change: &InFlightChange) {
    for name in &change.resolved.observe.host_links {
        if state.name_claims.get(name) == Some(unit) {
            state.name_claims.remove(name);
        }
    }
}

/// Queues the bridges that a sandbox needs, unless they failed.
fn queue_bridges(state: &mut State, id: &SandboxId) {
    for key in resolve::bridges_of(state, id) {
        let is_missing = !state.units.contains_key(&Unit::Bridge(key.clone()));
        let is_incomplete = is_missing || resolve::needs_vlan_filter(state, id, &key);
        let unit = Unit::Bridge(key);
        if is_incomplete && !state.problems.contains_key(&unit) && !state.in_flight.contains_key(&unit) {
            state.dirty.insert(unit);
        }
    }
}

fn can_start(state: &State, unit: &Unit) -> bool {
    if state.in_flight.contains_key(unit) {
        return false;
    }
    let busy = |unit: &Unit| state.dirty.contains(unit) || state.in_flight.contains_key(unit);
    let is_cluster = |unit: &Unit| matches!(unit, Unit::Bridge(key) if state.cluster().is_none_or(|cluster| cluster.bridge_key() == *key));
    match unit {
        // Both write to the same routing table, so they run one after the other.
        Unit::Bridge(_) => {
            let shares_routes = state.in_flight.contains_key(&Unit::NodeRoutes) && is_cluster(unit);
            !shares_routes && !packet_filter::is_awaited(state)
        }
        Unit::NodeRoutes => !state.dirty.iter().chain(state.in_flight.keys()).any(is_cluster),
        Unit::PacketFilter => packet_filter::can_start(state),
        Unit::Services => !packet_filter::is_awaited_by_services(state),
        Unit::Policies => policies::rules::can_start(state),
        Unit::Sandbox(id) => {
            let awaits_objects = |sandbox: &Sandbox| state.unused_objects.is_awaited(&sandbox.namespace);
            !state.sandboxes.get(id).is_some_and(awaits_objects)
                && !packet_filter::is_awaited(state)
                && !policies::rules::is_awaited(state, id)
                && !resolve::bridges_of(state, id).into_iter().any(|key| busy(&Unit::Bridge(key)))
        }
    }
}

fn on_observed(
    state: &mut State,
    unit: &Unit,
    observed: NetState,
    keys: &PublicKeys,
    now: Time,
    effects: &mut Effects,
) {
    quota::on_unit_change(state, unit);
    let Some(mut change) = state.in_flight.remove(unit) else { return };
    if let Some(problem) = packet_filter::failure(state, unit, &change.resolved) {
        // Its leases are journalled as taken and released, like those of any failed change.
        let started = ChangeStarted {
            unit: unit.clone(),
            original_values: BTreeMap::new(),
            leases: change.resolved.leases.clone(),
            plan: Arc::default(),
        };
        effects.record_change(state, Record::ChangeStarted(Box::new(started)));
        state.in_flight.insert(unit.clone(), change);
        let failure = ApplyFailure { problem, rolled_back: true, missing_tables: false, unsupported: None };
        let result = Err(failure);
        return on_applied(state, PlanResult { unit: unit.clone(), result }, now, effects);
    }
    let had = state.units.shared(unit);
    let mut observed = restrict_to_unit(observed, &change.resolved.observe, &had, &change.resolved);
    if *unit == Unit::PacketFilter {
        let filter = &mut observed.scope(&Scope::Host).filter;
        packet_filter::restore_elements(state, &mut change.resolved, filter);
    }
    if *unit == Unit::Policies {
        policies::rules::add_applied(state, &mut observed);
    }
    if let Unit::Sandbox(id) = unit {
        let is_unknown =
            |key: &Result<_, KeyError>| matches!(key, Err(error) if error.reason == Reason::NotReady);
        match keys.values().any(is_unknown) {
            true => state.awaiting_keys.insert(id.clone()),
            false => state.awaiting_keys.remove(id),
        };
    }
    resolve::fill_keys(&mut change.resolved, keys, &observed);
    resolve::settle(state, &mut change.resolved, &observed);
    if *unit == Unit::NodeRoutes {
        resolve::drop_conflicting_addresses(state, &mut change.resolved, &observed);
        change.resolved.continues = resolve::fail_closed(&mut change.resolved, &observed);
    }
    let links_plan = change
        .resolved
        .observe
        .links_only
        .then(|| last_applied::links_plan(&mut change.resolved.desired, &observed));
    let mut plan = match links_plan {
        Some(Some(plan)) => plan,
        Some(None) => {
            // More than links was changed by hand: observe everything.
            release_claims(state, unit, &change);
            state.last_applied.remove(unit);
            state.dirty.insert(unit.clone());
            return;
        }
        None => diff(&change.resolved.desired, &observed),
    };
    attribute_problems(unit, &plan, &mut change.resolved);
    if matches!(unit, Unit::Bridge(_)) && !plan.problems.is_empty() {
        // A bridge is applied completely or not at all: its name is taken, or it has foreign ports.
        plan.steps.clear();
        change.resolved.unit_state.clone_from(&*had);
    }
    if *unit == Unit::PacketFilter {
        packet_filter::on_plan(state, &plan);
    }
    change.restored = restored(state, unit, &change.resolved);
    if plan.is_empty() && change.resolved.leases.is_empty() {
        release_claims(state, unit, &change);
        finish_change(state, unit, change, now, effects);
        return;
    }
    let plan = Arc::new(plan);
    let started = ChangeStarted {
        unit: unit.clone(),
        original_values: original_values(state, &plan, &had, &change.resolved, &observed),
        leases: change.resolved.leases.clone(),
        plan: Arc::clone(&plan),
    };
    effects.record_change(state, Record::ChangeStarted(Box::new(started)));
    blocks::on_leases(state, &change.resolved.leases);
    effects.list.push(Effect::Apply { unit: unit.clone(), plan });
    state.in_flight.insert(unit.clone(), change);
}

fn on_applied(state: &mut State, applied: PlanResult, now: Time, effects: &mut Effects) {
    let PlanResult { unit, result } = applied;
    quota::on_unit_change(state, &unit);
    let Some(mut change) = state.in_flight.remove(&unit) else { return };
    release_claims(state, &unit, &change);
    state.last_applied.remove(&unit);
    if result.is_err() {
        packet_filter::on_change_dropped(state, &unit, &change.resolved.unit_state);
    }
    match result {
        Ok(()) => {
            if matches!(&unit, Unit::Bridge(key) if state.cluster().is_some_and(|one| one.bridge_key() == *key))
            {
                // When an address of the bridge is removed, the kernel drops routes with that source.
                state.dirty.extend(
                    state.cluster().and_then(|cluster| cluster.node_routes).map(|_| Unit::NodeRoutes),
                );
            }
            finish_change(state, &unit, change, now, effects);
        }
        Err(ApplyFailure { missing_tables: true, rolled_back: true, .. }) if unit != Unit::PacketFilter => {
            retry(state, &unit, now, effects);
            packet_filter::on_missing_tables(state, &unit);
        }
        Err(ApplyFailure { unsupported: Some(missing), rolled_back: true, .. })
            if is_newly_unsupported(state, &unit, &missing) =>
        {
            state.unsupported.insert(missing.kind, missing.message);
            // Try again without that kind.
            retry(state, &unit, now, effects);
        }
        Err(ApplyFailure { problem, rolled_back, .. }) => {
            if !state.unfinished.contains_key(&unit) {
                // The change was never journalled, so its leases have to be released here.
                for NewLease { network, address, .. } in std::mem::take(&mut change.resolved.leases) {
                    state.leases.release_address(&LeaseKey { network, address }, now);
                }
            }
            let message = if rolled_back {
                problem.message
            } else {
                format!("{} (and the rollback is incomplete)", problem.message)
            };
            let problem = Problem { message, ..problem };
            packet_filter::on_failure(state, &unit, &problem, now);
            let mut requesters = std::mem::take(&mut change.resolved.requesters);
            if requesters.is_empty() {
                // The removal failed and no object requests the unit any more: report to the previous requesters.
                requesters
                    .extend(state.units.get(&unit).into_iter().flat_map(UnitState::requesters).cloned());
                requesters.extend(unit_object(&unit));
            }
            change
                .resolved
                .problems
                .extend(requesters.iter().map(|object| (object.clone(), problem.clone())));
            let problems = change.resolved.problems;
            effects.record_change(
                state,
                Record::ChangeEnded(Box::new(ChangeEnded {
                    unit: unit.clone(),
                    unit_state: None,
                    problems,
                    restored: Vec::new(),
                    at: now,
                })),
            );
            requeue_tunnel_peers(state, &unit);
            report_changes(state, &unit, requesters, &BTreeSet::new(), effects);
            pending_calls::change_ended(state, &unit, now, effects);
        }
    }
}

/// Queues a unit whose change was rolled back. Nothing is decided yet, so it keeps its problems until the next attempt.
fn retry(state: &mut State, unit: &Unit, now: Time, effects: &mut Effects) {
    let problems = state.problems.get(unit).cloned().unwrap_or_default();
    let ended = ChangeEnded { unit: unit.clone(), unit_state: None, problems, restored: Vec::new(), at: now };
    effects.record_change(state, Record::ChangeEnded(Box::new(ended)));
    state.dirty.insert(unit.clone());
}

/// Whether the unit can do without a kind that was not known to be unsupported.
fn is_newly_unsupported(state: &State, unit: &Unit, missing: &UnsupportedKind) -> bool {
    let is_bridge = matches!(unit, Unit::Bridge(_)) && missing.kind == Bridge::NAME;
    !is_bridge && !state.unsupported.contains_key(&missing.kind)
}

/// The unit has its desired state.
fn finish_change(
    state: &mut State,
    unit: &Unit,
    change: Box<InFlightChange>,
    now: Time,
    effects: &mut Effects,
) {
    let InFlightChange { resolved, restored } = *change;
    let has_links = !resolved.unit_state.interfaces.is_empty();
    if matches!(unit, Unit::Sandbox(_)) && has_links && resolved.problems.is_empty() {
        state.last_applied.insert(unit.clone(), LastApplied::of(resolved.desired.state));
    }
    let old = state.units.shared(unit);
    let unchanged = *old == resolved.unit_state && restored.is_empty();
    let frees_addresses = releases_addresses(&old, &resolved.unit_state);
    let same_problems = state.problems.get(unit).map_or(&[][..], Vec::as_slice) == resolved.problems;
    if !unchanged || !same_problems || state.unfinished.contains_key(unit) {
        let ended = ChangeEnded {
            unit: unit.clone(),
            unit_state: Some(Arc::new(resolved.unit_state)),
            problems: resolved.problems,
            restored,
            at: now,
        };
        effects.record_change(state, Record::ChangeEnded(Box::new(ended)));
    }
    if let Some(old) = &old.bridge {
        requeue_bridges(state, unit, old);
        requeue_ports(state, unit, old);
    }
    if !unchanged {
        requeue_tunnel_peers(state, unit);
        requeue_denied(state, unit, &old);
    }
    packet_filter::on_change_end(state, unit, &old, effects);
    if *unit == Unit::PacketFilter && !policies::rules::is_complete(state) {
        // All rules of policies are in place.
        end_problems(state, &Unit::Policies, now, effects);
    }
    if frees_addresses {
        requeue_exhausted(state);
    }
    if frees_host_names(&old, state.units.get(unit)) {
        requeue_conflicts(state);
    }
    if resolved.continues {
        state.dirty.insert(unit.clone());
    }
    let mut objects = resolved.requesters;
    objects.extend(old.requesters().cloned());
    report_changes(state, unit, objects, &old.used_bridges, effects);
    pending_calls::change_ended(state, unit, now, effects);
}

/// The problems of a unit were solved by the change of another one.
fn end_problems(state: &mut State, unit: &Unit, now: Time, effects: &mut Effects) {
    let Some(problems) = state.problems.get(unit) else { return };
    let objects = problems.iter().map(|(object, _)| object.clone()).collect();
    let (problems, restored) = (Vec::new(), Vec::new());
    let ended = ChangeEnded { unit: unit.clone(), unit_state: None, problems, restored, at: now };
    effects.record_change(state, Record::ChangeEnded(Box::new(ended)));
    effects.changed(objects);
}

/// Requeues bridges that may have lost their last user, and reports the changed objects.
fn report_changes(
    state: &mut State,
    unit: &Unit,
    objects: BTreeSet<ObjectKey>,
    used: &BTreeSet<BridgeKey>,
    effects: &mut Effects,
) {
    let now_used =
        state.units.get(unit).map(|unit_state| unit_state.used_bridges.clone()).unwrap_or_default();
    for key in used {
        let is_draining = !now_used.contains(key) && !resolve::is_needed(state, key);
        // The last port that needed VLAN filtering may be gone.
        if is_draining || resolve::can_disable_vlan_filter(state, key) {
            state.dirty.insert(Unit::Bridge(key.clone()));
        }
    }
    if let Unit::Sandbox(id) = unit
        && state.problems.contains_key(unit)
    {
        // A bridge that was created for a failed attach must not stay behind.
        let unneeded =
            resolve::bridges_of(state, id).into_iter().filter(|key| !resolve::is_needed(state, key));
        let unneeded: Vec<Unit> = unneeded.map(Unit::Bridge).collect();
        state.dirty.extend(unneeded);
    }
    effects.changed(objects);
}
