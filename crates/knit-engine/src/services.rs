//! Services: their translation on this node, in place of kube-proxy.
//!
//! Services and EndpointSlices come from the API server and are not persistent: the kernel has what was compiled from them. Until
//! both have been listed after a start, everything in the kernel stays as it is. The chains belong to [`Unit::PacketFilter`], the
//! elements to [`Unit::Services`], which compares only the Services that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use knit_model::Scope;
use knit_model::filter::field::IpFamily;
use knit_model::filter::{ElementData, ElementKey, Filter, FilterSet, FilterTable, TableFamily};
use knit_model::provenance::{Dialect, Provenance};
use knit_service::{
    Announced, Backend, BackendChain, EndpointSlice, Frontend, HealthCheck, NodeFacts, Protocol, Service,
    ServiceIndex, ServiceKey, SliceKey, TableOptions, UdpFrontends, chain_elements, dispatch, is_dynamic_set,
    is_service_name, pod_set,
};
use serde::{Deserialize, Serialize};

use crate::cluster;
use crate::event::{Effect, Unit};
use crate::packet_filter;
use crate::resolve::Resolved;
use crate::state::State;
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
}

/// Elements of the packet filter.
type Elements = BTreeMap<ElementKey, ElementData>;

/// Services, and what of them is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceState {
    index: ServiceIndex,
    has_services: bool,
    has_slices: bool,
    has_node: bool,
    /// Services with external IPs, as they are at the API server.
    #[serde(with = "knit_model::serde_pairs")]
    with_external_ips: BTreeMap<ServiceKey, Service>,
    /// The Services that changed since they were compiled.
    pending: BTreeSet<ServiceKey>,
    /// Whether all elements are compared with the kernel.
    compares_all: bool,
    /// Whether the kernel has what was listed: no element from before the start leads to another chain.
    is_settled: bool,
    /// The Services of the change in flight.
    #[serde(skip)]
    applying: BTreeMap<ServiceKey, Elements>,
    /// The elements of each Service in the kernel.
    #[serde(with = "knit_model::serde_pairs")]
    applied: BTreeMap<ServiceKey, Elements>,
    /// Where UDP connections of each Service may lead.
    #[serde(with = "knit_model::serde_pairs")]
    udp: BTreeMap<ServiceKey, UdpFrontends>,
    /// The chains that elements lead to, before or after pending changes.
    chains: BTreeSet<BackendChain>,
}

/// UDP connections through Services whose backend is not chosen any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleConnections {
    /// Where connections to these frontends may lead. Those that lead elsewhere are stale.
    pub frontends: UdpFrontends,
}

impl StaleConnections {
    /// Whether a connection with this original destination may not go to this end: it is no backend any more, or the connection
    /// was opened before there was one.
    pub fn contains(&self, to: SocketAddr, has_dnat: bool, backend: SocketAddr) -> bool {
        let (protocol, port) = (Protocol::Udp, to.port());
        let address = Frontend::Address { address: to.ip(), protocol, port };
        // Without translation a connection to the port of a node is none through a Service.
        let family = IpFamily::of(to.ip());
        let node_port = has_dnat.then_some(Frontend::NodePort { family, protocol, port });
        let frontends = [Some(address), node_port].into_iter().flatten();
        let backend = Backend { address: backend.ip(), port: backend.port() };
        frontends.filter_map(|frontend| self.frontends.get(&frontend)).any(|all| !all.contains(&backend))
    }
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

    /// The addresses of a Service that Knit announces, each with the nodes that may do so.
    pub(crate) fn announced_addresses(&self, key: &ServiceKey) -> Announced {
        self.services.index.announced(key)
    }

    /// The health checks of Services with local endpoints, by port of the node.
    pub fn service_health_checks(&self) -> BTreeMap<u16, HealthCheck> {
        match self.translates_services() {
            true => self.services.index.health_checks(),
            false => BTreeMap::new(),
        }
    }

    /// Whether everything was listed since the start that the elements follow from. Without the nodes it is not known which external
    /// IPs are theirs.
    pub fn has_synced_services(&self) -> bool {
        let ServiceState { has_services, has_slices, has_node, .. } = self.services;
        has_services && has_slices && has_node && self.nodes.has_synced()
    }
}

/// Handles a change. Returns the Services concerned.
pub(crate) fn handle(state: &mut State, event: ServiceEvent) -> BTreeSet<ServiceKey> {
    let event = match event {
        ServiceEvent::ServicesListed(all) => {
            state.services.with_external_ips.clear();
            ServiceEvent::ServicesListed(all.into_iter().map(|one| restricted(state, one)).collect())
        }
        ServiceEvent::ServiceApplied(service) => {
            ServiceEvent::ServiceApplied(Box::new(restricted(state, *service)))
        }
        other => other,
    };
    let services = &mut state.services;
    let index = &mut services.index;
    let affected = match event {
        ServiceEvent::ServicesListed(all) => {
            services.has_services = true;
            index.set_services(all)
        }
        ServiceEvent::ServiceApplied(service) => index.apply_service(*service),
        ServiceEvent::ServiceDeleted(key) => {
            services.with_external_ips.remove(&key);
            index.remove_service(&key)
        }
        ServiceEvent::SlicesListed(all) => {
            services.has_slices = true;
            index.set_slices(all)
        }
        ServiceEvent::SliceApplied(slice) => index.apply_slice(*slice),
        ServiceEvent::SliceDeleted(key) => index.remove_slice(&key),
        ServiceEvent::Node(node) => {
            services.has_node = true;
            index.set_node(node)
        }
    };
    services.pending.extend(affected.iter().cloned());
    queue(state);
    affected
}

/// The Service without external IPs that belong to others: whoever creates Services could take over their connections.
fn restricted(state: &mut State, service: Service) -> Service {
    state.services.with_external_ips.remove(&service.key);
    if service.external_ips.is_empty() {
        return service;
    }
    let open = without_reserved_ips(state, service.clone());
    state.services.with_external_ips.insert(service.key.clone(), service);
    open
}

fn without_reserved_ips(state: &State, mut service: Service) -> Service {
    service.external_ips.retain(|address| !is_reserved(state, *address));
    service
}

/// Whether an address is that of a node, or of a range of pods or Services, or is none that packets from outside can have.
pub(crate) fn is_reserved(state: &State, address: IpAddr) -> bool {
    let is_special = address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
    let pod_ranges = state.cluster().map(packet_filter::all_pod_ranges).unwrap_or_default();
    let contains = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&address));
    is_special
        || contains(&state.service_ranges)
        || contains(&pod_ranges)
        || state.nodes.all().any(|node| node.addresses.contains(&address))
}

/// Nodes, or the ranges of pods or Services, changed: external IPs may be theirs from now on, or no longer.
pub(crate) fn on_reserved_change(state: &mut State) {
    let all: Vec<Service> = state.services.with_external_ips.values().cloned().collect();
    for service in all {
        let open = without_reserved_ips(state, service);
        let affected = state.services.index.apply_service(open);
        state.services.pending.extend(affected);
    }
    queue(state);
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
    let new: BTreeSet<BackendChain> = services.index.chains();
    if !new.is_subset(&services.chains) {
        services.chains.extend(new);
        packet_filter::on_service_change(state);
    }
}

/// The cluster network changed: this node may translate Services from now on, or no longer.
pub(crate) fn on_setting_change(state: &mut State) {
    let is_on = state.translates_services();
    if !is_on && !state.services.applied.is_empty() {
        // The tables are removed with their elements.
        state.services.applied.clear();
        state.services.chains.clear();
        state.services.udp.clear();
        state.services.is_settled = false;
    }
    if is_on {
        queue(state);
    }
}

/// Compares everything with the kernel.
pub(crate) fn resync(state: &mut State) {
    if state.translates_services() && state.has_synced_services() {
        state.services.compares_all = true;
        state.dirty.insert(Unit::Services);
    }
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
    resolved.desired.default_origin = Some(origin);
    if !state.translates_services() || !state.has_synced_services() {
        return resolved;
    }
    let services = &mut state.services;
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
        services.applying.insert(key, new);
    }
    if has_ranges && !compares_all {
        // Elements of sets of ranges are compared as a whole.
        let others = services.applied.iter().filter(|(key, _)| !services.applying.contains_key(*key));
        let elements = others.flat_map(|(_, elements)| elements).filter(|(key, _)| is_range_set(&key.set));
        resolved.unit_state.filter.extend(elements.map(|(key, data)| (key.clone(), data.clone())));
    }
    let observed = sets.iter().filter(|(_, set)| compares_all || has_ranges && set.intervals);
    resolved.observe.filter_sets.extend(observed.map(|(name, _)| (table.clone(), name.clone())));
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    filter.elements.extend(resolved.unit_state.filter.iter().map(|(key, data)| (key.clone(), data.clone())));
    resolved
}

/// The sets and maps whose elements belong to [`Unit::Services`], in tables with these chains.
fn element_sets(chains: &BTreeSet<BackendChain>) -> BTreeMap<String, FilterSet> {
    let mut table = FilterTable::default();
    dispatch(&mut table, chains, &TableOptions::default());
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

/// A change has ended successfully: connections to backends that are gone end, and chains that nothing leads to are removed.
pub(crate) fn on_change_end(state: &mut State, effects: &mut Effects) {
    let services = &mut state.services;
    let mut stale = StaleConnections::default();
    for (key, elements) in std::mem::take(&mut services.applying) {
        let now = services.index.udp_frontends(&key);
        let before = services.udp.remove(&key).unwrap_or_default();
        let is_changed = |frontend: &&Frontend| before.get(*frontend) != now.get(*frontend);
        let changed = before.keys().chain(now.keys()).filter(is_changed);
        let backends = |frontend: &Frontend| now.get(frontend).cloned().unwrap_or_default();
        stale.frontends.extend(changed.map(|frontend| (*frontend, backends(frontend))));
        if !now.is_empty() {
            services.udp.insert(key.clone(), now);
        }
        match elements.is_empty() {
            true => drop(services.applied.remove(&key)),
            false => drop(services.applied.insert(key, elements)),
        }
    }
    if !stale.frontends.is_empty() {
        effects.list.push(Effect::EndConnections(stale));
    }
    if !std::mem::replace(&mut services.is_settled, true) {
        state.dirty.insert(Unit::PacketFilter);
    }
    let services = &mut state.services;
    if services.pending.is_empty() {
        let used: BTreeSet<BackendChain> = services.index.chains();
        if services.chains != used {
            services.chains = used;
            packet_filter::on_service_change(state);
        }
    }
}

/// A change failed: it is repeated as a whole at the next resync, or with the next change.
pub(crate) fn on_failure(state: &mut State) {
    let services = &mut state.services;
    services.pending.extend(std::mem::take(&mut services.applying).into_keys());
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
