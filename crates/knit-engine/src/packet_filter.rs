//! The desired packet filter of the node: anti-spoofing on the ports of pods, host ports (DNAT), masquerading and egress
//! gateways (SNAT), and isolation of gateway addresses on overlay tunnels.
//!
//! The structure of the tables belongs to the unit [`Unit::PacketFilter`], together with elements that no single pod owns.
//! The elements of a pod belong to its sandbox, those of an overlay tunnel to its bridge: they are applied, rolled back and
//! removed with its links. Units whose elements need another structure wait for it.

pub(crate) mod elements;
mod host;
mod ports;
mod rerouted;
mod sources;
pub(crate) mod tables;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::filter::{ElementKey, Filter, FilterItem, FilterSet, FilterStep, TableFamily};
use knit_model::plan::{ItemKey, PlannedStep};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::{Dialect, Provenance};
use knit_model::report::InterfaceReport;
use knit_model::route::GatewayRoute;
use knit_model::{IfName, Mac, Plan, SandboxId, Scope, Step};
use knit_policy::is_peer_set;
use knit_service::is_service_name;
use serde::{Deserialize, Serialize};

use self::elements::Element;
pub(crate) use self::host::all_pod_ranges;
use self::host::{HostFilter, has_guarded_bridges, no_masquerade_ranges};
use self::ports::{fast_path, fast_path_ports, guarded_ports, has_other_fast_path};
use self::rerouted::rerouted;
use self::sources::{requeue_in_ranges, requeue_neighbours, requeue_ports_with_gateway};
use self::tables::Features;
use crate::call::{ATTACHMENT_KIND, Attachment, PortMapping};
use crate::cluster::{self};
use crate::egress::EgressPaths;
use crate::event::{Effect, ObserveRequest, Record, Unit};
use crate::policies;
use crate::pools;
use crate::resolve::Resolved;
use crate::services;
use crate::state::{ObjectKey, State, UnitState};
use crate::step::Effects;

/// A host port that is mapped (DNAT) to one pod address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPortMapping {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Restricts the mapping to this address of the node.
    pub host_ip: Option<IpAddr>,
    /// The host port.
    pub host_port: u16,
    /// The pod's address.
    pub to: IpAddr,
    /// The pod's port.
    pub port: u16,
}

/// A bridge port with anti-spoofing: its pod may send only from these addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuardedPort {
    /// The host link.
    pub link: IfName,
    /// The MAC addresses that the pod may use.
    pub macs: BTreeSet<Mac>,
    /// The IP addresses that the pod may use.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether only the MAC address is checked: the pod has no address here, or is a router.
    pub only_macs: bool,
    /// Whether it may send DHCP server messages and router advertisements: its bridge belongs to the pod's namespace.
    pub may_serve: bool,
    /// Whether the eBPF fast path may bypass the bridge for this port: it is one end of a veth pair on the cluster bridge
    /// with a single MAC address, and nothing on the slow path (bandwidth limits, VLANs) would be skipped.
    pub fast_path: bool,
}

/// A change of the eBPF fast path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastPathChange {
    /// Everything.
    All(FastPath),
    /// These ports are new.
    Add(Vec<GuardedPort>),
}

/// The desired eBPF fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastPath {
    /// All ports that may use it.
    pub ports: Vec<GuardedPort>,
    /// The bridge of the cluster network.
    pub bridge: Option<IfName>,
    /// Routes to pods of other nodes that need no tunnel. A large list that rarely changes.
    pub node_routes: Arc<[GatewayRoute]>,
}

/// Connections that have to be routed again because the egress path of their pods changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerouted {
    /// The pods' addresses.
    pub pods: BTreeSet<IpAddr>,
    /// Connections to these destinations stay as they are.
    pub kept: Vec<IpNet>,
}

/// What does not depend on a single pod. Not persistent: it is rebuilt after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PacketFilterState {
    desired: HostFilter,
    /// The features of the tables in the kernel; `None` if they are not known to be complete.
    applied: Option<Features>,
    /// The features of the change in flight, and the egress paths that it follows from.
    applying: Option<(Features, EgressPaths)>,
    /// The egress paths of the last successful change.
    applied_egress_paths: EgressPaths,
    /// Whether another program changed the tables: the next change compares the elements of all units.
    compares_all: bool,
    /// Why the tables could not be applied.
    failure: Option<Problem>,
    /// Sandboxes with host ports.
    with_host_ports: BTreeSet<SandboxId>,
}

/// Computes what does not depend on a single pod, and queues what is affected by a change.
fn update(state: &mut State) {
    let new = HostFilter::of(state);
    if new == state.packet_filter.desired {
        return;
    }
    let old = std::mem::replace(&mut state.packet_filter.desired, new);
    let new = &state.packet_filter.desired;
    state.dirty.insert(Unit::PacketFilter);
    // Masquerade options are relative to the ranges; the bridge decides which ports are guarded.
    let all = old.features.bridge != new.features.bridge
        || old.fast_path_bridge != new.fast_path_bridge
        || old.features.masquerade != new.features.masquerade
        || old.pod_ranges != new.pod_ranges;
    if !all && old.egress_paths == new.egress_paths {
        return;
    }
    let is_rerouted = |namespace: &String| old.egress_paths.get(namespace) != new.egress_paths.get(namespace);
    let affected = state.sandboxes.values().filter(|sandbox| all || is_rerouted(&sandbox.namespace));
    let affected: Vec<Unit> = affected.map(|sandbox| Unit::Sandbox(sandbox.id.clone())).collect();
    state.dirty.extend(affected.into_iter().filter(|unit| state.units.contains_key(unit)));
}

/// The cluster network, an overlay network or a pool changed.
pub(crate) fn on_object_change(state: &mut State, object: &ObjectKey) {
    if object.kind == cluster::KIND || object.kind == pools::KIND {
        update(state);
    }
    if object.kind == cluster::KIND {
        policies::on_setting_change(state);
        services::on_setting_change(state);
        services::on_reserved_change(state);
    }
}

/// Other nodes changed: their addresses and pod ranges are not masqueraded, and may be on the fast path.
pub(crate) fn on_peers_change(state: &mut State) {
    update(state);
}

/// Addresses of nodes with overlay tunnels changed.
pub(crate) fn on_underlay_change(state: &mut State) {
    update(state);
}

/// Pods may have policies from now on, or no longer.
pub(crate) fn on_policy_change(state: &mut State) {
    if state.packet_filter.desired.features.policies != state.needs_policy_tables() {
        update(state);
    }
}

/// The chains of Services changed.
pub(crate) fn on_service_change(state: &mut State) {
    update(state);
}

/// Gateways, their active nodes, or their remote pods changed.
pub(crate) fn on_egress_change(state: &mut State) {
    update(state);
}

/// Namespace options changed: they apply to running pods at once.
pub(crate) fn on_namespace_change(state: &mut State, changed: &BTreeSet<String>) {
    update(state);
    let affected = state.sandboxes.values().filter(|sandbox| changed.contains(&sandbox.namespace));
    let affected: Vec<Unit> = affected.map(|sandbox| Unit::Sandbox(sandbox.id.clone())).collect();
    state.dirty.extend(affected.into_iter().filter(|unit| state.units.contains_key(unit)));
}

/// A record was applied: attachments with host ports may have appeared or disappeared.
pub(crate) fn on_record(state: &mut State, record: &Record) {
    let id = match record {
        Record::Attached(attachment) => &attachment.sandbox,
        Record::Detached { sandbox, .. } => sandbox,
        Record::SandboxRemoved { id, .. } => id,
        _ => return,
    };
    let has_ports = state.attachments.of(id).any(|attachment| !attachment.request.ports.is_empty());
    let all = &mut state.packet_filter.with_host_ports;
    let was_used = !all.is_empty();
    if has_ports {
        all.insert(id.clone());
    } else {
        all.remove(id);
    }
    if was_used == state.packet_filter.with_host_ports.is_empty() {
        update(state);
    }
}

/// Bridges may have appeared or disappeared.
pub(crate) fn on_bridge_change(state: &mut State) {
    let desired = &state.packet_filter.desired;
    let cluster = state.cluster().map(|cluster| cluster.bridge_key());
    let has_cluster_bridge = cluster.is_some_and(|key| state.units.contains_key(&Unit::Bridge(key)));
    if desired.features.guarded_ports != has_guarded_bridges(state)
        || desired.loopback != (desired.features.host_ports && has_cluster_bridge)
    {
        update(state);
    }
}

/// After a start. What the kernel has is found by the next resync, as for all units: a command that only reports drift must
/// not repair it.
pub(crate) fn rebuild(state: &mut State) {
    let with_ports = state.attachments.all().filter(|attachment| !attachment.request.ports.is_empty());
    state.packet_filter.with_host_ports = with_ports.map(|attachment| attachment.sandbox.clone()).collect();
    policies::rebuild(state);
    state.packet_filter.desired = HostFilter::of(state);
}

/// Whether there are tables or there should be. Tables that no unit owns may belong to another Knit.
fn is_used(state: &State) -> bool {
    state.units.contains_key(&Unit::PacketFilter) || !state.packet_filter.desired.features.is_unused()
}

/// Compares the tables with the kernel. Until then no unit adds elements: a set may be missing.
pub(crate) fn resync(state: &mut State) {
    policies::rules::on_resync(state);
    update(state);
    // A problem of policies ends when everything was compared.
    if is_used(state) || state.problems.contains_key(&Unit::Policies) {
        retry(state);
    }
}

fn retry(state: &mut State) {
    state.packet_filter.applied = None;
    state.dirty.insert(Unit::PacketFilter);
}

/// A change of the tables starts.
pub(crate) fn on_start(state: &mut State) {
    let desired = &state.packet_filter.desired;
    state.packet_filter.applying = Some((desired.features.clone(), desired.egress_paths.clone()));
}

/// The tables are about to change: until then no unit adds elements to new sets.
pub(crate) fn on_plan(state: &mut State, plan: &Plan) {
    let new_set = |planned: &PlannedStep| match &planned.step {
        Step::Filter(FilterStep::AddSet(_, name, _)) => Some(is_service_name(name)),
        _ => None,
    };
    let new_sets: BTreeSet<bool> = plan.steps.iter().filter_map(new_set).collect();
    if new_sets.contains(&false) {
        state.packet_filter.applied = None;
    }
    if let Some(applied) = state.packet_filter.applied.as_mut().filter(|_| new_sets.contains(&true)) {
        applied.services = None;
    }
}

/// Whether units have to wait until the tables have what their elements need.
pub(crate) fn is_awaited(state: &State) -> bool {
    is_busy(state) && changes_structure(state)
}

/// The same for the elements of Services, which need chains and sets that no other unit needs.
pub(crate) fn is_awaited_by_services(state: &State) -> bool {
    is_busy(state) && (changes_structure(state) || changes_services(state))
}

fn is_busy(state: &State) -> bool {
    state.dirty.contains(&Unit::PacketFilter) || state.in_flight.contains_key(&Unit::PacketFilter)
}

fn changes_structure(state: &State) -> bool {
    let PacketFilterState { applied, desired, .. } = &state.packet_filter;
    applied.as_ref().is_none_or(|applied| !applied.has_same_structure(&desired.features))
}

fn changes_services(state: &State) -> bool {
    let PacketFilterState { applied, desired, .. } = &state.packet_filter;
    applied.as_ref().is_none_or(|applied| applied.services != desired.features.services)
}

/// Whether the tables can be changed. Sets are not removed or recreated while a change of their elements is in flight.
pub(crate) fn can_start(state: &State) -> bool {
    if state.in_flight.contains_key(&Unit::Policies) {
        return false;
    }
    let has_elements = |unit: &Unit, resolved: &Resolved| {
        let had = state.units.get(unit).is_some_and(|had| !had.filter.is_empty());
        had || !resolved.unit_state.filter.is_empty()
    };
    let (of_all, of_services) = (changes_structure(state), changes_services(state));
    let is_affected = |unit: &Unit| of_all || of_services && *unit == Unit::Services;
    let mut in_flight = state.in_flight.iter();
    !in_flight.any(|(unit, change)| is_affected(unit) && has_elements(unit, &change.resolved))
}

/// Why the elements of a unit cannot be applied, or a bridge cannot be created: its ports need anti-spoofing.
pub(crate) fn failure(state: &State, unit: &Unit, resolved: &Resolved) -> Option<Problem> {
    let has_elements = !resolved.unit_state.filter.is_empty();
    let is_new_bridge = resolved.unit_state.bridge.is_some() && !state.units.contains_key(unit);
    let needs_tables = has_elements || is_new_bridge && state.packet_filter.desired.features.guarded_ports;
    state.packet_filter.failure.clone().filter(|_| needs_tables && *unit != Unit::PacketFilter)
}

/// Something new is requested: tables that could not be applied are tried again.
pub(crate) fn retry_failed(state: &mut State) {
    if state.packet_filter.failure.is_some() {
        retry(state);
    }
}

/// Why there are no tables for overlay tunnels.
pub(crate) fn problem(state: &State) -> Option<&Problem> {
    state.packet_filter.failure.as_ref()
}

/// Another program changed Knit's tables.
pub(crate) fn on_foreign_change(state: &mut State) {
    state.packet_filter.compares_all = true;
    policies::rules::on_resync(state);
    state.dirty.insert(Unit::PacketFilter);
}

/// The desired tables.
pub(crate) fn resolve(state: &mut State) -> Resolved {
    let mut resolved = Resolved::default();
    resolved.observe.filter_with_elements = std::mem::take(&mut state.packet_filter.compares_all);
    let desired = &state.packet_filter.desired;
    resolved.observe.filter_tables.extend([TableFamily::Inet.table(), TableFamily::Bridge.table()]);
    if state.cluster().is_some() {
        resolved.requesters.insert(cluster::key());
    }
    let origin = derived("packet filter".to_owned());
    resolved.desired.default_origin = Some(origin.clone().into());
    let tables = tables::tables(&desired.features);
    resolved.unit_state.has_tables = !tables.is_empty();
    for (key, table) in &tables {
        let item = ItemKey::Filter(FilterItem::Table(key.clone()));
        resolved.add_origin(&Scope::Host, item, &origin);
        let shared = table.sets.iter().filter(|(name, set)| is_shared_set(name, set) && !is_peer_set(name));
        resolved.observe.filter_sets.extend(shared.map(|(name, _)| (key.clone(), name.clone())));
    }
    resolved.desired.state.scope(&Scope::Host).filter.tables = tables;
    let all_rules = !state.holds_policies() && policies::rules::is_complete(state);
    if all_rules {
        policies::rules::add_all(state, &mut resolved);
    }
    let desired = &state.packet_filter.desired;
    let had = state.units.get(&Unit::PacketFilter);
    add(&mut resolved, had, desired.elements(), &origin);
    if let Some(cluster) = state.cluster() {
        let path = format!("net/ipv4/conf/{}/route_localnet", cluster.bridge);
        let has_bridge = state.units.contains_key(&Unit::Bridge(cluster.bridge_key()));
        let was_open = had.is_some_and(|had| had.sysctls.contains(&path));
        if desired.loopback {
            resolved.unit_state.sysctls.insert(path.clone());
        }
        if desired.loopback || was_open && has_bridge {
            resolved.add_origin(&Scope::Host, ItemKey::Sysctl(path.clone()), &origin);
            resolved.observe.sysctls.insert(path.clone());
            let value = if desired.loopback { "1" } else { "0" };
            resolved.desired.state.scope(&Scope::Host).sysctls.insert(path, value.to_owned());
        }
    }
    resolved
}

/// Adds the elements of all units to a change of the tables if these are missing, or if another program changed them: they
/// are restored in the same transaction. Elements of changes in flight are left alone.
pub(crate) fn restore_elements(state: &mut State, resolved: &mut Resolved, observed: &mut Filter) {
    policies::add_to_tables(state, resolved, observed);
    services::hold(state, resolved, observed);
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    let compares_all = resolved.observe.filter_with_elements;
    let is_restored = |key: &ElementKey| {
        filter.tables.contains_key(&key.table) && (compares_all || !observed.tables.contains_key(&key.table))
    };
    let units = state.units.iter().filter(|(unit, _)| **unit != Unit::PacketFilter);
    let of_units = units.flat_map(|(_, unit_state)| &unit_state.filter);
    let elements = of_units.chain(services::applied_elements(state)).filter(|(key, _)| is_restored(key));
    let declared = |key: &ElementKey| filter.tables[&key.table].sets.contains_key(&key.set);
    let elements: Vec<_> = elements.filter(|(key, _)| declared(key)).collect();
    filter.elements.extend(elements.into_iter().map(|(key, data)| (key.clone(), data.clone())));
    if compares_all {
        let own = state.units.get(&Unit::PacketFilter).map(|unit_state| &unit_state.filter);
        let request = &resolved.observe;
        let is_known = |key: &ElementKey| {
            filter.elements.contains_key(key)
                || own.is_some_and(|own| own.contains_key(key))
                || is_observed_whole(request, key)
        };
        observed.elements.retain(|key, _| is_known(key));
    }
}

/// Whether the elements of a set belong to [`Unit::PacketFilter`] as a whole. They are as many as the nodes or the pods of the
/// cluster, so they are observed together and not recorded one by one.
pub fn is_shared_set(name: &str, set: &FilterSet) -> bool {
    (set.intervals && !services::owns_set(name)) || is_peer_set(name)
}

/// Adds elements to a unit. Those that it had are observed, too. Sets that are observed as a whole need no record of their
/// elements, which are as many as the nodes of the cluster.
fn add(resolved: &mut Resolved, had: Option<&UnitState>, all: Vec<Element>, origin: &Provenance) {
    let had = had.into_iter().flat_map(|had| had.filter.keys()).filter(|key| !key.has_range());
    resolved.observe.filter_elements.extend(had.cloned());
    if !all.is_empty() {
        resolved.set_element_origin(&Scope::Host, origin);
    }
    for (key, data) in all {
        if !is_observed_whole(&resolved.observe, &key) {
            resolved.observe.filter_elements.insert(key.clone());
            resolved.unit_state.filter.insert(key.clone(), data.clone());
        }
        resolved.desired.state.scope(&Scope::Host).filter.add(key, data);
    }
}

/// Whether all elements of the set are observed, whether desired or not.
fn is_observed_whole(request: &ObserveRequest, key: &ElementKey) -> bool {
    request.filter_sets.iter().any(|(table, set)| *table == key.table && *set == key.set)
}

/// Adds the elements of an overlay tunnel to its bridge.
pub(crate) fn add_tunnel(state: &State, unit: &Unit, origin: Option<&Provenance>, resolved: &mut Resolved) {
    let all = resolved.unit_state.tunnel.as_ref().map_or_else(Vec::new, elements::of_tunnel);
    let derived = derived("packet filter of the tunnel".to_owned());
    add(resolved, state.units.get(unit), all, origin.unwrap_or(&derived));
}

/// The origin of what Knit adds by itself.
fn derived(field: String) -> Provenance {
    Provenance { dialect: Dialect::Knit, object: None, field, call: None }
}

/// Adds the elements of a sandbox, which follow from its interfaces.
pub(crate) fn add_sandbox(state: &State, id: &SandboxId, resolved: &mut Resolved) {
    let unit = Unit::Sandbox(id.clone());
    let had = state.units.get(&unit);
    let desired = &state.packet_filter.desired;
    let (ports, warnings) = guarded_ports(state, id, resolved);
    let mut all: Vec<Element> = ports.iter().flat_map(elements::of_port).collect();
    let interfaces = &resolved.unit_state.interfaces;
    let forwards = host_ports(state, id, interfaces);
    all.extend(elements::of_host_ports(&forwards, desired.features.bridge.is_some()));
    let namespace = state.sandboxes.get(id).map(|sandbox| sandbox.namespace.as_str()).unwrap_or_default();
    let paths = desired.egress_paths.get(namespace);
    let masquerade = state.namespace_options(id).masquerade.filter(|_| desired.features.masquerade);
    let addresses = cluster_addresses(state, interfaces);
    // On one node pods reach each other's link-local addresses, too.
    let link_local = cluster_macs(state, interfaces).map(|mac| IpAddr::V6(elements::link_local(mac)));
    let with_link_local: Vec<IpAddr> = addresses.iter().copied().chain(link_local).collect();
    all.extend(policies::elements_of(state, id, &with_link_local, had));
    for address in addresses {
        let in_range = desired.pod_ranges.iter().any(|range| range.contains(&address));
        let option = masquerade.filter(|is_masqueraded| *is_masqueraded != in_range);
        all.extend(option.map(|is_masqueraded| elements::of_masquerade_option(address, is_masqueraded)));
        let path = paths.and_then(|paths| paths.get(&address.is_ipv6()));
        all.extend(path.into_iter().flat_map(|path| elements::of_egress(address, path)));
    }
    resolved.unit_state.warnings.extend(warnings);
    let origin = derived(format!("packet filter of {}", resolved.title));
    add(resolved, had, all, &origin);
}

/// A change in flight was given up: other pods may get the addresses that it was to use.
pub(crate) fn on_change_dropped(state: &mut State, unit: &Unit, dropped: &UnitState) {
    let had = state.units.shared(unit);
    requeue_neighbours(state, unit, dropped, &had);
}

/// Ranges became those of nodes, Services, or routes of the host.
pub(crate) fn on_reserved_ranges(state: &mut State, ranges: &[IpNet]) {
    requeue_in_ranges(state, ranges);
}

/// A change of a unit has ended successfully: the fast path, connections and the ports of other pods follow.
pub(crate) fn on_change_end(state: &mut State, unit: &Unit, old: &UnitState, effects: &mut Effects) {
    let new = state.units.shared(unit);
    match unit {
        Unit::Sandbox(_) => requeue_neighbours(state, unit, old, &new),
        Unit::Bridge(key) => requeue_ports_with_gateway(state, key, old),
        Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => {}
    }
    let mut pods = rerouted(&old.filter, &new.filter);
    match unit {
        // Connections of pods that are gone end by themselves.
        Unit::Sandbox(_) => {
            let addresses = cluster_addresses(state, &new.interfaces);
            pods.retain(|pod| addresses.contains(pod));
        }
        Unit::PacketFilter => {
            let applying = state.packet_filter.applying.as_ref();
            let is_moved =
                applying.is_some_and(|(_, paths)| *paths != state.packet_filter.applied_egress_paths);
            pods.retain(|pod| is_moved || new.filter.keys().any(|key| key.address() == Some(*pod)));
        }
        Unit::Bridge(_) | Unit::NodeRoutes | Unit::Services | Unit::Policies => {}
    }
    if !pods.is_empty() {
        let kept = state.cluster().map(no_masquerade_ranges).unwrap_or_default();
        effects.list.push(Effect::RerouteConnections(Rerouted { pods, kept }));
    }
    match unit {
        Unit::PacketFilter => {
            policies::rules::on_tables_applied(state);
            if let Some((features, paths)) = state.packet_filter.applying.take() {
                state.packet_filter.applied = Some(features);
                state.packet_filter.applied_egress_paths = paths;
            }
            if state.packet_filter.failure.take().is_some() {
                state.dirty.extend(state.problems.keys().cloned());
            }
            effects.list.push(Effect::UpdateFastPath(FastPathChange::All(fast_path(state))));
        }
        Unit::Sandbox(_) => {
            let policies_changed = policies::restricts(old) || policies::restricts(&new);
            let (before, now) = (fast_path_ports(state, old), fast_path_ports(state, &new));
            let added: Vec<GuardedPort> = now.iter().filter(|port| !before.contains(port)).cloned().collect();
            // Deleted ports need no update, only the last one: the program is unloaded then.
            let keeps = |port: &GuardedPort, now: &GuardedPort| {
                now.link == port.link && now.addresses.is_superset(&port.addresses)
            };
            let is_demoted = before
                .iter()
                .any(|port| new.host_links.contains(&port.link) && !now.iter().any(|now| keeps(port, now)));
            let is_first_or_last = before.is_empty() != now.is_empty() && !has_other_fast_path(state, unit);
            if is_demoted || is_first_or_last {
                effects.list.push(Effect::UpdateFastPath(FastPathChange::All(fast_path(state))));
            } else if !added.is_empty() {
                effects.list.push(Effect::UpdateFastPath(FastPathChange::Add(added)));
            }
            if policies_changed {
                // Chains that no pod uses any more are removed.
                policies::rules::on_pod_change(state);
                on_policy_change(state);
            }
        }
        Unit::Services => services::on_change_end(state, effects),
        Unit::Policies => policies::rules::on_change_end(state),
        Unit::Bridge(_) | Unit::NodeRoutes => {}
    }
}

/// A change found no tables, because another program removed them: it is repeated once they are restored.
pub(crate) fn on_missing_tables(state: &mut State, unit: &Unit) {
    state.packet_filter.applied = None;
    on_foreign_change(state);
    match unit {
        Unit::Policies => policies::rules::on_failure(state),
        unit => {
            if *unit == Unit::Services {
                // What is restored is what was applied before.
                services::give_up(state);
            }
            state.dirty.insert(unit.clone());
        }
    }
}

/// A plan failed. Without the tables there are no overlay tunnels; and if elements could not be added, the tables may have
/// been changed by hand.
pub(crate) fn on_failure(state: &mut State, unit: &Unit, problem: &Problem, now: Time) {
    if *unit == Unit::PacketFilter {
        state.packet_filter.applied = None;
        state.packet_filter.applying = None;
        policies::rules::on_tables_failed(state);
        if state.packet_filter.failure.as_ref() == Some(problem) {
            return;
        }
        state.packet_filter.failure = Some(problem.clone());
        let in_flight = state.in_flight.iter().map(|(unit, change)| (unit, &change.resolved.unit_state));
        let tunnels =
            state.units.iter().chain(in_flight).filter(|(_, unit_state)| unit_state.tunnel.is_some());
        let tunnels: Vec<Unit> = tunnels.map(|(unit, _)| unit.clone()).collect();
        state.dirty.extend(tunnels);
    } else if *unit == Unit::Services {
        services::on_failure(state, now);
        retry(state);
    } else if *unit == Unit::Policies {
        policies::rules::on_failure(state);
        retry(state);
    } else if state.unfinished.get(unit).is_some_and(|started| changes_filter(&started.plan)) {
        retry(state);
    }
}

fn changes_filter(plan: &Plan) -> bool {
    plan.steps.iter().any(|planned| matches!(planned.step, Step::Filter(_)))
}

/// The sandbox's addresses on the cluster network.
fn cluster_addresses(state: &State, interfaces: &[(ObjectKey, InterfaceReport)]) -> Vec<IpAddr> {
    let on_it = on_cluster_network(state, interfaces);
    on_it.flat_map(|report| &report.addresses).map(IpNet::addr).collect()
}

/// The sandbox's MAC addresses on the cluster network.
fn cluster_macs(state: &State, interfaces: &[(ObjectKey, InterfaceReport)]) -> impl Iterator<Item = Mac> {
    on_cluster_network(state, interfaces).filter_map(|report| report.mac)
}

fn on_cluster_network<'a>(
    state: &State,
    interfaces: &'a [(ObjectKey, InterfaceReport)],
) -> impl Iterator<Item = &'a InterfaceReport> {
    let bridge = state.cluster().map(|cluster| cluster.bridge.clone());
    let reports = interfaces.iter().map(|(_, report)| report);
    reports.filter(move |report| bridge.is_some() && report.master == bridge)
}

fn host_ports(
    state: &State,
    id: &SandboxId,
    interfaces: &[(ObjectKey, InterfaceReport)],
) -> BTreeSet<HostPortMapping> {
    let mut all = BTreeSet::new();
    for attachment in state.attachments.of(id).filter(|attachment| !attachment.request.ports.is_empty()) {
        let mine = interfaces
            .iter()
            .filter(|(object, report)| object.kind == ATTACHMENT_KIND && report.name == attachment.interface);
        for address in mine.flat_map(|(_, report)| &report.addresses).map(|address| address.addr()) {
            let fits =
                |port: &&PortMapping| port.host_ip.is_none_or(|host| host.is_ipv4() == address.is_ipv4());
            all.extend(attachment.request.ports.iter().filter(fits).map(|port| HostPortMapping {
                protocol: port.protocol.clone(),
                host_ip: port.host_ip,
                host_port: port.host_port,
                to: address,
                port: port.container_port,
            }));
        }
    }
    all
}

/// Rejects host ports that another attachment uses.
pub(crate) fn check<'a>(
    state: &State,
    id: &SandboxId,
    ports: impl Iterator<Item = (&'a IfName, &'a PortMapping)>,
) -> Result<(), Problem> {
    let ports: Vec<(&IfName, &PortMapping)> = ports.collect();
    let clash = |one: &PortMapping, other: &PortMapping| {
        let same_address = one.host_ip.is_none() || other.host_ip.is_none() || one.host_ip == other.host_ip;
        one.protocol == other.protocol && one.host_port == other.host_port && same_address
    };
    for (at, (interface, port)) in ports.iter().enumerate() {
        // A repeated request for the same interface keeps its ports.
        let is_same =
            |attachment: &Attachment| attachment.sandbox == *id && attachment.interface == **interface;
        let mut others = state.attachments.all().filter(|attachment| !is_same(attachment));
        let taken = others.find(|attachment| attachment.request.ports.iter().any(|other| clash(port, other)));
        let twice = ports[..at].iter().any(|(_, other)| clash(port, other));
        let state = match (taken, twice) {
            (Some(attachment), _) => format!("already used by sandbox {}", attachment.sandbox),
            (None, true) => "requested twice".to_owned(),
            (None, false) => continue,
        };
        let message = format!("{} host port {} is {state}", port.protocol, port.host_port);
        let field = format!("port_mappings[{at}].host_port");
        return Err(Problem::new(field, Reason::Conflict, message));
    }
    Ok(())
}
