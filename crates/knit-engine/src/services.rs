//! Services: their translation on this node, in place of kube-proxy.
//!
//! Services and EndpointSlices come from the API server and are not persistent: the kernel has what was compiled from them. Until
//! both have been listed after a start, everything in the kernel stays as it is. The chains belong to [`Unit::PacketFilter`], the
//! elements to [`Unit::Services`], which compares only the Services that changed.

mod chains;
mod connections;
mod reserved;
mod retry;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use knit_ipam::Time;
use knit_model::Scope;
use knit_model::filter::field::IpFamily;
use knit_model::filter::{ElementData, ElementKey, Filter, FilterSet, FilterTable, TableFamily};
use knit_model::provenance::{Dialect, Provenance};
use knit_service::{
    Announced, BackendChain, EndpointSlice, Frontend, HealthCheck, NodeFacts, Service, ServiceIndex,
    ServiceKey, SliceKey, UdpFrontends, chain_elements, dispatch, is_dynamic_set, is_service_name, pod_set,
};
use serde::{Deserialize, Serialize};

pub use self::connections::StaleConnections;
pub(crate) use self::reserved::{Reserved, on_reserved_change};
use self::retry::Retry;
use crate::cluster;
use crate::event::Unit;
use crate::packet_filter;
use crate::resolve::Resolved;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// A change of Services, or of what they refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceEvent {
    /// All Services.
    ServicesListed(Vec<Service>),
    /// A Service was created or changed.
    ServiceApplied(Box<Service>),
    /// A Service was deleted.
    ServiceDeleted(ServiceKey),
    /// All EndpointSlices.
    SlicesListed(Vec<EndpointSlice>),
    /// An EndpointSlice was created or changed.
    SliceApplied(Box<EndpointSlice>),
    /// An EndpointSlice was deleted.
    SliceDeleted(SliceKey),
    /// This node.
    Node(NodeFacts),
    /// UDP connections to these frontends could not be ended.
    ConnectionsNotEnded(Vec<Frontend>),
    /// A timer fired: something that failed is to be tried again.
    RetryTimer,
    /// Where the agent reaches the API server.
    ApiServer(BTreeSet<SocketAddr>),
}

/// How many Services a warning names.
const MAX_NAMED: usize = 10;

/// Elements of the packet filter.
type Elements = BTreeMap<ElementKey, ElementData>;

/// Services, and what of them is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceState {
    index: ServiceIndex,
    has_services: bool,
    has_slices: bool,
    has_node: bool,
    /// Where the agent reaches the API server.
    api_server: BTreeSet<SocketAddr>,
    /// Services with external or load balancer IPs, as they are at the API server.
    #[serde(with = "knit_model::serde_pairs")]
    with_external_ips: BTreeMap<ServiceKey, Service>,
    /// The Services that changed since they were compiled.
    pending: BTreeSet<ServiceKey>,
    /// Whether all elements are compared with the kernel.
    compares_all: bool,
    /// Whether the kernel has what was listed: no element from before the start leads to another chain.
    is_settled: bool,
    /// The change in flight.
    #[serde(skip)]
    applying: Option<Applying>,
    /// How many changes in a row failed.
    failures: u32,
    /// When the last one is tried again.
    change_retry: Option<Retry>,
    /// The elements of each Service in the kernel.
    #[serde(with = "knit_model::serde_pairs")]
    applied: BTreeMap<ServiceKey, Elements>,
    /// The Services among them with elements in sets of ranges.
    with_ranges: BTreeSet<ServiceKey>,
    /// Where UDP connections of each Service may lead, as of its elements in the kernel.
    #[serde(with = "knit_model::serde_pairs")]
    udp: BTreeMap<ServiceKey, UdpFrontends>,
    /// Frontends whose UDP connections could not be ended.
    unchecked: BTreeSet<Frontend>,
    /// When that is tried again.
    connection_retry: Option<Retry>,
    /// The chains in the tables: at least those that elements lead to, before and after pending changes.
    chains: BTreeSet<BackendChain>,
}

/// A change in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Applying {
    /// What it leaves of each Service that it compares. They may have changed again since.
    services: BTreeMap<ServiceKey, AppliedService>,
    /// Whether it compares everything.
    is_complete: bool,
}

/// What a change leaves of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AppliedService {
    elements: Elements,
    udp: UdpFrontends,
    /// Whether elements are in sets of ranges.
    has_ranges: bool,
}

impl State {
    /// Whether this node translates Services.
    pub fn translates_services(&self) -> bool {
        let node_routes = self.cluster().and_then(|cluster| cluster.node_routes);
        node_routes.is_some_and(|node_routes| node_routes.services)
    }

    /// Whether the chains in the kernel stay, because elements may lead to them.
    fn holds_services(&self) -> bool {
        self.translates_services() && !self.services.is_settled
    }

    /// The chains of Services, if this node translates them.
    pub(crate) fn service_chains(&self) -> Option<BTreeSet<BackendChain>> {
        self.translates_services().then(|| self.services.chains.clone())
    }

    /// The Services with addresses that Knit announces.
    pub(crate) fn announced_services(&self) -> Vec<ServiceKey> {
        let announced = self.services.index.services().filter(|service| service.announced);
        announced.map(|service| service.key.clone()).collect()
    }

    /// The addresses of a Service that Knit announces, each with the nodes that may do so. Reserved ones are among them: the node that
    /// would announce them reports why it does not.
    pub(crate) fn announced_addresses(&self, key: &ServiceKey) -> Announced {
        let mut all = self.services.index.announced(key);
        all.extend(reserved::refused_balancers(self, key).map(|address| (address, None)));
        all
    }

    /// The health checks of Services with local endpoints, by port of the node.
    pub fn service_health_checks(&self) -> BTreeMap<u16, HealthCheck> {
        match self.translates_services() {
            true => self.services.index.health_checks(),
            false => BTreeMap::new(),
        }
    }

    /// What of Services is not served, for the status of the cluster network.
    pub(crate) fn service_warnings(&self, key: &ObjectKey) -> Vec<String> {
        if *key != cluster::key() || !self.translates_services() {
            return Vec::new();
        }
        let limited = self.services.index.limited();
        let named: Vec<String> = limited.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let warning = || {
            format!(
                "{} Services exceed the limits of addresses, ports, source ranges or endpoints and are served in part: {}{}",
                limited.len(),
                named.join(", "),
                if limited.len() > MAX_NAMED { ", ..." } else { "" }
            )
        };
        let bypassed = self.settings.lacks_bridge_filter.then(|| {
            "connections through Services between pods of this node fail: the kernel module br_netfilter is not loaded"
                .to_owned()
        });
        bypassed.into_iter().chain((!limited.is_empty()).then(warning)).collect()
    }

    /// Whether everything was listed since the start that the elements follow from. Without the nodes it is not known which external
    /// IPs are theirs.
    pub fn has_synced_services(&self) -> bool {
        let ServiceState { has_services, has_slices, has_node, .. } = self.services;
        has_services && has_slices && has_node && self.nodes.has_synced()
    }
}

/// Handles a change. Returns the Services concerned.
pub(crate) fn handle(
    state: &mut State,
    event: ServiceEvent,
    now: Time,
    effects: &mut Effects,
) -> BTreeSet<ServiceKey> {
    let api_server = state.api_server();
    let mut affected = match event {
        ServiceEvent::ServicesListed(all) => {
            let all = reserved::restrict_all(state, all);
            state.services.has_services = true;
            state.services.index.set_services(all)
        }
        ServiceEvent::ServiceApplied(service) => {
            let service = reserved::restrict(state, *service);
            state.services.index.apply_service(service)
        }
        ServiceEvent::ServiceDeleted(key) => {
            state.services.with_external_ips.remove(&key);
            state.services.index.remove_service(&key)
        }
        ServiceEvent::SlicesListed(all) => {
            state.services.has_slices = true;
            state.services.index.set_slices(all)
        }
        ServiceEvent::SliceApplied(slice) => state.services.index.apply_slice(*slice),
        ServiceEvent::SliceDeleted(key) => state.services.index.remove_slice(&key),
        ServiceEvent::Node(node) => {
            state.services.has_node = true;
            state.services.index.set_node(node)
        }
        ServiceEvent::ConnectionsNotEnded(frontends) => {
            connections::on_failure(state, frontends, now);
            return BTreeSet::new();
        }
        ServiceEvent::RetryTimer => {
            retry::repeat_change(state);
            connections::end(state, BTreeSet::new(), effects);
            return BTreeSet::new();
        }
        ServiceEvent::ApiServer(addresses) => {
            state.services.api_server = addresses;
            BTreeSet::new()
        }
    };
    state.services.pending.extend(affected.iter().cloned());
    if api_server != state.api_server() {
        affected.extend(on_reserved_change(state));
    }
    queue(state);
    affected
}

/// Queues the elements, and the chains that they need.
fn queue(state: &mut State) {
    if !state.translates_services() || !state.has_synced_services() {
        return;
    }
    let services = &mut state.services;
    if !services.pending.is_empty() || !services.is_settled {
        state.dirty.insert(Unit::Services);
    }
    let new = chains::needed(&services.index);
    if !new.is_subset(&services.chains) {
        services.chains.extend(new);
        packet_filter::on_service_change(state);
    }
}

/// The cluster network changed: this node may translate Services from now on, or no longer.
pub(crate) fn on_setting_change(state: &mut State) {
    if state.translates_services() {
        return queue(state);
    }
    // The tables are removed with their elements.
    let services = &mut state.services;
    services.applied.clear();
    services.with_ranges.clear();
    services.chains.clear();
    services.udp.clear();
    services.unchecked.clear();
    services.applying = None;
    (services.failures, services.change_retry, services.connection_retry) = (0, None, None);
    services.is_settled = false;
    end_problems(state);
}

/// Compares everything with the kernel.
pub(crate) fn resync(state: &mut State) {
    if is_known(state) && state.translates_services() {
        state.services.compares_all = true;
        state.dirty.insert(Unit::Services);
    }
    if !state.translates_services() {
        end_problems(state);
    }
}

/// Without Services to translate nothing can fail: problems end with the next change, which is empty.
fn end_problems(state: &mut State) {
    if state.problems.contains_key(&Unit::Services) {
        state.dirty.insert(Unit::Services);
    }
}

/// Whether it is known what the elements have to be. Until then a change is not started: it is queued when the rest is listed.
pub(crate) fn is_known(state: &State) -> bool {
    !state.translates_services() || state.has_synced_services()
}

/// The desired elements of the Services that changed, or of all.
pub(crate) fn resolve(state: &mut State) -> Resolved {
    let mut resolved = Resolved::default();
    resolved.requesters.insert(cluster::key());
    let origin = Provenance {
        dialect: Dialect::Knit,
        object: None,
        field: "packet filter of Services".to_owned(),
        call: None,
    };
    resolved.desired.default_origin = Some(origin.into());
    if !state.translates_services() {
        return resolved;
    }
    let services = &mut state.services;
    services.change_retry = None;
    let table = TableFamily::Inet.table();
    let compares_all = std::mem::take(&mut services.compares_all) || !services.is_settled;
    let mut affected = std::mem::take(&mut services.pending);
    let sets = element_sets(&services.chains);
    let is_range_set = |name: &str| sets.get(name).is_some_and(|set| set.intervals);
    if compares_all {
        affected.extend(services.index.services().map(|service| service.key.clone()));
        affected.extend(services.applied.keys().cloned());
    }
    let mut has_ranges = false;
    let mut applying = Applying { is_complete: compares_all, ..Applying::default() };
    for key in affected {
        let new = services.index.elements_of(&key);
        for element in
            services.applied.get(&key).into_iter().flatten().chain(&new).map(|(element, _)| element)
        {
            has_ranges |= is_range_set(&element.set);
            if !compares_all && !is_range_set(&element.set) {
                resolved.observe.filter_elements.insert(element.clone());
            }
        }
        resolved.unit_state.filter.extend(new.clone());
        let udp = services.index.udp_frontends(&key);
        let with_ranges = new.keys().any(|element| is_range_set(&element.set));
        applying.services.insert(key, AppliedService { elements: new, udp, has_ranges: with_ranges });
    }
    if has_ranges && !compares_all {
        // Elements of sets of ranges are compared as a whole.
        let others = services.with_ranges.iter().filter(|key| !applying.services.contains_key(*key));
        let elements = others.filter_map(|key| services.applied.get(key)).flatten();
        let elements = elements.filter(|(key, _)| is_range_set(&key.set));
        resolved.unit_state.filter.extend(elements.map(|(key, data)| (key.clone(), data.clone())));
    }
    let observed = sets.iter().filter(|(_, set)| compares_all || has_ranges && set.intervals);
    resolved.observe.filter_sets.extend(observed.map(|(name, _)| (table.clone(), name.clone())));
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    filter.elements.extend(resolved.unit_state.filter.iter().map(|(key, data)| (key.clone(), data.clone())));
    services.applying = Some(applying);
    resolved
}

/// The sets and maps whose elements belong to [`Unit::Services`], in tables with these chains.
fn element_sets(chains: &BTreeSet<BackendChain>) -> BTreeMap<String, FilterSet> {
    let mut table = FilterTable::default();
    // Those that choose an endpoint have no sets of their own.
    let with_sets = chains.iter().filter(|chain| !matches!(chain, BackendChain::Choose { .. }));
    dispatch(&mut table, &with_sets.copied().collect());
    let of_tables: BTreeSet<String> = IpFamily::ALL.map(pod_set).into_iter().chain(chain_sets()).collect();
    table.sets.retain(|name, _| !of_tables.contains(name) && !is_dynamic_set(name));
    table.sets
}

/// The maps that lead to chains. Their elements belong to the tables.
fn chain_sets() -> BTreeSet<String> {
    let any = BackendChain::Choose { scope: knit_service::Scope::Cluster, slots: 1 };
    chain_elements(&[any].into()).into_iter().map(|(key, _)| key.set).collect()
}

/// Whether the elements of a set of ranges belong to [`Unit::Services`].
pub(crate) fn owns_set(name: &str) -> bool {
    is_service_name(name) && !IpFamily::ALL.into_iter().any(|family| pod_set(family) == name)
}

/// A change has ended successfully: connections to backends that are gone end, and after a comparison of everything chains that
/// nothing leads to are removed.
pub(crate) fn on_change_end(state: &mut State, effects: &mut Effects) {
    let services = &mut state.services;
    let Some(Applying { services: all, is_complete }) = services.applying.take() else { return };
    services.failures = 0;
    let mut changed = BTreeSet::new();
    for (key, AppliedService { elements, udp, has_ranges }) in all {
        match has_ranges {
            true => services.with_ranges.insert(key.clone()),
            false => services.with_ranges.remove(&key),
        };
        let before = services.udp.remove(&key).unwrap_or_default();
        let is_changed = |frontend: &&Frontend| before.get(*frontend) != udp.get(*frontend);
        changed.extend(before.keys().chain(udp.keys()).filter(is_changed).copied());
        if !udp.is_empty() {
            services.udp.insert(key.clone(), udp);
        }
        match elements.is_empty() {
            true => drop(services.applied.remove(&key)),
            false => drop(services.applied.insert(key, elements)),
        }
    }
    connections::end(state, changed, effects);
    let services = &mut state.services;
    if is_complete && !std::mem::replace(&mut services.is_settled, true) {
        state.dirty.insert(Unit::PacketFilter);
    }
    let services = &mut state.services;
    if is_complete && services.pending.is_empty() {
        let needed = chains::needed(&services.index);
        if services.chains != needed {
            services.chains = needed;
            packet_filter::on_service_change(state);
        }
    }
}

/// A change failed: everything is compared after a while, or with the next change.
pub(crate) fn on_failure(state: &mut State, now: Time) {
    give_up(state);
    let services = &mut state.services;
    services.change_retry = Some(Retry::after(services.failures, now));
    services.failures += 1;
}

/// A change has no effect: nothing of it is applied, and the next one compares everything.
pub(crate) fn give_up(state: &mut State) {
    let services = &mut state.services;
    let applying = services.applying.take().unwrap_or_default();
    services.pending.extend(applying.services.into_keys());
    services.compares_all = true;
}

/// The elements that the kernel should have by now.
pub(crate) fn applied_elements(state: &State) -> impl Iterator<Item = (&ElementKey, &ElementData)> {
    state.services.applied.values().flatten()
}

/// While elements in the kernel are not compared, the chains in the kernel stay, and what leads to them.
pub(crate) fn hold(state: &State, resolved: &mut Resolved, observed: &Filter) {
    if !state.holds_services() {
        return;
    }
    let key = TableFamily::Inet.table();
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    let (Some(table), Some(found)) = (filter.tables.get_mut(&key), observed.tables.get(&key)) else { return };
    let chains = found.chains.iter().filter(|(name, _)| is_service_name(name));
    table.chains.extend(chains.map(|(name, chain)| (name.clone(), chain.clone())));
    let sets = found.sets.iter().filter(|(name, _)| is_service_name(name));
    table.sets.extend(sets.map(|(name, set)| (name.clone(), set.clone())));
    let held = chain_sets();
    for (key, data) in observed.elements.iter().filter(|(key, _)| held.contains(&key.set)) {
        if !filter.elements.contains_key(key) {
            resolved.unit_state.filter.insert(key.clone(), data.clone());
            filter.elements.insert(key.clone(), data.clone());
        }
    }
}
