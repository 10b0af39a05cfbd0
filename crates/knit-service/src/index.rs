//! Services and their endpoints, and what follows from them for this node.
//!
//! A change is computed for the Services concerned, never for all: that of the object, and those that win or lose a frontend
//! by it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use knit_model::filter::field::IpFamily;
use serde::{Deserialize, Serialize};

use crate::chain::BackendChain;
use crate::choice::{Choice, choose};
use crate::claims::{Claims, ServiceClaims};
use crate::endpoints::{Endpoint, EndpointSlice, NodeFacts, PortEndpoint, SliceKey, SlicePorts};
use crate::limits::{limited, max_endpoints};
use crate::service::{Backend, Protocol, Service, ServiceKey, ServicePort};
use crate::state::{Identity, PortState, ServiceState, fill_slots};
use crate::udp::UdpFrontends;

/// What a node reports on a health check port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// The Service.
    pub service: ServiceKey,
    /// How many ready endpoints it has on this node.
    pub local_endpoints: usize,
}

/// Services and their endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceIndex {
    pub(crate) node: NodeFacts,
    #[serde(with = "knit_model::serde_pairs")]
    slices: BTreeMap<SliceKey, EndpointSlice>,
    #[serde(with = "knit_model::serde_pairs")]
    slices_of: BTreeMap<ServiceKey, BTreeSet<SliceKey>>,
    #[serde(with = "knit_model::serde_pairs")]
    states: BTreeMap<ServiceKey, ServiceState>,
    pub(crate) claims: Claims,
    /// How many Services use each chain.
    #[serde(with = "knit_model::serde_pairs")]
    chains: BTreeMap<BackendChain, usize>,
    /// The Services of which addresses, ports or source ranges are left out.
    limited: BTreeSet<ServiceKey>,
    /// The Services of which endpoints are left out.
    with_limited_endpoints: BTreeSet<ServiceKey>,
    /// The Services with each health check port, oldest first.
    #[serde(with = "knit_model::serde_pairs")]
    health_checks: BTreeMap<u16, BTreeSet<(i64, ServiceKey)>>,
}

impl ServiceIndex {
    /// Changes what is known about the node. Returns the Services concerned.
    pub fn set_node(&mut self, node: NodeFacts) -> BTreeSet<ServiceKey> {
        if self.node == node {
            return BTreeSet::new();
        }
        let sources = self.node.addresses != node.addresses;
        self.node = node;
        let keys: Vec<ServiceKey> = self.states.keys().cloned().collect();
        let mut changed = self.refresh(&keys);
        if sources {
            let restricted = self.states.values().filter(|state| !state.service.source_ranges.is_empty());
            changed.extend(restricted.map(|state| state.service.key.clone()));
        }
        changed
    }

    /// Replaces all Services. Returns those concerned.
    pub fn set_services(&mut self, services: Vec<Service>) -> BTreeSet<ServiceKey> {
        let kept: BTreeSet<ServiceKey> = services.iter().map(|service| service.key.clone()).collect();
        let gone: Vec<ServiceKey> = self.states.keys().filter(|key| !kept.contains(key)).cloned().collect();
        let mut changed = BTreeSet::new();
        gone.iter().for_each(|key| changed.extend(self.remove_service(key)));
        services.into_iter().for_each(|service| changed.extend(self.apply_service(service)));
        changed
    }

    /// Adds or replaces a Service. Returns the Services concerned.
    pub fn apply_service(&mut self, service: Service) -> BTreeSet<ServiceKey> {
        let key = service.key.clone();
        let (given, service) = (service.clone(), limited(service));
        match given == service {
            true => self.limited.remove(&key),
            false => self.limited.insert(key.clone()),
        };
        if self.states.get(&key).is_some_and(|state| state.service == service) {
            return BTreeSet::new();
        }
        self.replace(&key, Some(service))
    }

    /// Removes a Service. Returns the Services concerned.
    pub fn remove_service(&mut self, key: &ServiceKey) -> BTreeSet<ServiceKey> {
        self.limited.remove(key);
        self.replace(key, None)
    }

    /// Replaces all EndpointSlices. Returns the Services concerned.
    pub fn set_slices(&mut self, slices: Vec<EndpointSlice>) -> BTreeSet<ServiceKey> {
        let kept: BTreeSet<&SliceKey> = slices.iter().map(|slice| &slice.key).collect();
        let gone: Vec<SliceKey> = self.slices.keys().filter(|key| !kept.contains(key)).cloned().collect();
        let mut services = BTreeSet::new();
        gone.iter().for_each(|key| services.extend(self.take_slice(key)));
        slices.into_iter().for_each(|slice| services.extend(self.put_slice(slice)));
        self.refresh(&services)
    }

    /// Adds or replaces an EndpointSlice. Returns the Services concerned.
    pub fn apply_slice(&mut self, slice: EndpointSlice) -> BTreeSet<ServiceKey> {
        let services = self.put_slice(slice);
        self.refresh(&services)
    }

    /// Removes an EndpointSlice. Returns the Services concerned.
    pub fn remove_slice(&mut self, key: &SliceKey) -> BTreeSet<ServiceKey> {
        let service = self.take_slice(key);
        self.refresh(&service)
    }

    /// A Service.
    pub fn service(&self, key: &ServiceKey) -> Option<&Service> {
        Some(&self.states.get(key)?.service)
    }

    /// All Services.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.states.values().map(|state| &state.service)
    }

    /// The Services of which something exceeds the limits and is not used.
    pub fn limited(&self) -> BTreeSet<&ServiceKey> {
        self.limited.union(&self.with_limited_endpoints).collect()
    }

    /// The backend chains in use.
    pub fn chains(&self) -> BTreeSet<BackendChain> {
        self.chains.keys().copied().collect()
    }

    /// What this node reports on health check ports. Of several Services with the same port the oldest one counts.
    pub fn health_checks(&self) -> BTreeMap<u16, HealthCheck> {
        let check = |(port, services): (&u16, &BTreeSet<(i64, ServiceKey)>)| {
            let (_, service) = services.first()?;
            let local_endpoints = self.states.get(service)?.local_endpoints;
            Some((*port, HealthCheck { service: service.clone(), local_endpoints }))
        };
        self.health_checks.iter().filter_map(check).collect()
    }

    /// What conntrack may contain about a Service's UDP ports. Flows to frontends that were there before a change and are not
    /// any more are stale.
    pub fn udp_frontends(&self, key: &ServiceKey) -> UdpFrontends {
        let Some(state) = self.states.get(key) else { return UdpFrontends::new() };
        let udp = state.ports.iter().filter(|port| port.identity.protocol == Protocol::Udp);
        let of_port = |port: &PortState| {
            let frontends = state.frontends(port).into_iter();
            let serving = port.serving.clone();
            frontends.map(move |(_, frontend)| (frontend, serving.clone())).collect::<Vec<_>>()
        };
        udp.flat_map(of_port).collect()
    }

    /// All endpoints of a Service, whatever their state, also if there is no such Service.
    pub fn endpoint_addresses(&self, key: &ServiceKey) -> BTreeSet<SocketAddr> {
        let of_slice = |slice: &EndpointSlice| {
            let ports = slice.ports.iter().map(|port| port.port);
            ports
                .flat_map(|port| slice.addresses().map(move |(address, _)| SocketAddr::new(address, port)))
                .collect::<Vec<_>>()
        };
        self.slices_of(key).flat_map(of_slice).collect()
    }

    pub(crate) fn state(&self, key: &ServiceKey) -> Option<&ServiceState> {
        self.states.get(key)
    }

    /// The endpoints of a Service's port.
    pub(crate) fn endpoints(
        &self,
        key: &ServiceKey,
        family: IpFamily,
        port: &ServicePort,
    ) -> BTreeMap<Backend, PortEndpoint<'_>> {
        SlicePorts::new(self.slices_of(key), family).endpoints((&port.name, port.protocol), &self.node)
    }

    pub(crate) fn slices_of(&self, key: &ServiceKey) -> impl Iterator<Item = &EndpointSlice> {
        self.slices_of.get(key).into_iter().flatten().filter_map(|slice| self.slices.get(slice))
    }

    /// Stores an EndpointSlice. Returns the Services that it belongs to now and before.
    fn put_slice(&mut self, slice: EndpointSlice) -> BTreeSet<ServiceKey> {
        if self.slices.get(&slice.key) == Some(&slice) {
            return BTreeSet::new();
        }
        let mut services = self.take_slice(&slice.key);
        services.insert(slice.service.clone());
        self.slices_of.entry(slice.service.clone()).or_default().insert(slice.key.clone());
        self.slices.insert(slice.key.clone(), slice);
        services
    }

    fn take_slice(&mut self, key: &SliceKey) -> BTreeSet<ServiceKey> {
        let Some(slice) = self.slices.remove(key) else { return BTreeSet::new() };
        if let Some(slices) = self.slices_of.get_mut(&slice.service) {
            slices.remove(key);
            if slices.is_empty() {
                self.slices_of.remove(&slice.service);
            }
        }
        [slice.service].into()
    }

    /// Computes what follows from changed endpoints. Returns the Services concerned.
    fn refresh<'a>(&mut self, keys: impl IntoIterator<Item = &'a ServiceKey>) -> BTreeSet<ServiceKey> {
        let mut changed = BTreeSet::new();
        for key in keys {
            if let Some(service) = self.service(key).cloned() {
                changed.extend(self.replace(key, Some(service)));
            }
        }
        changed
    }

    /// Replaces a Service and what follows from it and its endpoints. Returns the Services concerned.
    fn replace(&mut self, key: &ServiceKey, service: Option<Service>) -> BTreeSet<ServiceKey> {
        let before = self.states.remove(key);
        let after = service.map(|service| self.compute(service, before.as_ref()));
        let others = self.claims.replace(key, before.as_ref().map(claims_of), after.as_ref().map(claims_of));
        let mut changed: BTreeSet<ServiceKey> = self.settle(key, before, after).into_iter().collect();
        for other in others {
            let Some(before) = self.states.remove(&other) else { continue };
            changed.extend(self.settle(&other, Some(before.clone()), Some(before)));
        }
        changed
    }

    /// Stores a Service, with what of it others do not have. Returns it if it differs from before.
    fn settle(
        &mut self,
        key: &ServiceKey,
        before: Option<ServiceState>,
        mut after: Option<ServiceState>,
    ) -> Option<ServiceKey> {
        if let Some(after) = &mut after {
            let has = after.claims.iter().filter(|(claim, rank)| self.claims.has(key, **claim, **rank));
            after.has = has.map(|(claim, _)| *claim).collect();
        }
        match after.as_ref().is_some_and(|after| after.ports.iter().any(|port| port.is_limited)) {
            true => self.with_limited_endpoints.insert(key.clone()),
            false => self.with_limited_endpoints.remove(key),
        };
        let is_changed = before != after;
        if is_changed {
            self.count(before.as_ref(), after.as_ref());
        }
        self.states.extend(after.map(|after| (key.clone(), after)));
        is_changed.then(|| key.clone())
    }

    /// Counts the chains of a Service, and records its health check port.
    fn count(&mut self, before: Option<&ServiceState>, after: Option<&ServiceState>) {
        for chain in after.map(ServiceState::chains).unwrap_or_default() {
            *self.chains.entry(chain).or_default() += 1;
        }
        for chain in before.map(ServiceState::chains).unwrap_or_default() {
            if let Some(count) = self.chains.get_mut(&chain) {
                *count -= 1;
                if *count == 0 {
                    self.chains.remove(&chain);
                }
            }
        }
        if let Some((port, entry)) = before.and_then(ServiceState::health_check)
            && let Some(services) = self.health_checks.get_mut(&port)
        {
            services.remove(&entry);
            if services.is_empty() {
                self.health_checks.remove(&port);
            }
        }
        if let Some((port, entry)) = after.and_then(ServiceState::health_check) {
            self.health_checks.entry(port).or_default().insert(entry);
        }
    }

    /// What follows from a Service and its endpoints. Backends keep the slots that they had.
    fn compute(&self, service: Service, before: Option<&ServiceState>) -> ServiceState {
        let mut ports = Vec::new();
        let before = before.into_iter().flat_map(|before| &before.ports);
        let before: BTreeMap<Identity, &PortState> = before.map(|port| (port.identity, port)).collect();
        let mut known = BTreeSet::new();
        for address in IpFamily::ALL.into_iter().filter_map(|family| service.cluster_ip(family)) {
            let slice_ports = SlicePorts::new(self.slices_of(&service.key), IpFamily::of(address));
            for (number, port) in service.ports.iter().enumerate() {
                let identity = Identity { address, protocol: port.protocol, port: port.port };
                if known.insert(identity) {
                    let endpoints = slice_ports.endpoints((&port.name, port.protocol), &self.node);
                    let had = before.get(&identity).copied();
                    ports.push(self.compute_port(&service, number, identity, &endpoints, had));
                }
            }
        }
        let local_endpoints = self.local_endpoints(&service.key);
        let announcing_nodes = self.announcing_nodes(&service);
        let mut state = ServiceState {
            service,
            ports,
            claims: ServiceClaims::new(),
            has: BTreeSet::new(),
            local_endpoints,
            announcing_nodes,
        };
        state.claims = state.all_claims();
        state
    }

    fn compute_port(
        &self,
        service: &Service,
        number: usize,
        identity: Identity,
        endpoints: &BTreeMap<Backend, PortEndpoint<'_>>,
        had: Option<&PortState>,
    ) -> PortState {
        let (family, port) = (identity.family(), &service.ports[number]);
        let max = max_endpoints(service);
        let chosen = choose(endpoints, &self.node);
        let is_limited = chosen.cluster.len().max(chosen.local.len()) > max;
        let Choice { cluster, local } = chosen.limited(max);
        let is_external = service.is_external(family, port);
        let uses_cluster = !service.internal_local || is_external;
        let uses_local = service.internal_local || service.external_local && is_external;
        let has_endpoints = !cluster.is_empty();
        let cluster = if uses_cluster { cluster } else { BTreeSet::new() };
        let local = if uses_local { local } else { BTreeSet::new() };
        // Pods of other nodes come through here with their own address only by such frontends.
        let from_other_nodes = service.external_local && is_external;
        let is_local = |backend: &&Backend| endpoints.get(backend).is_some_and(|endpoint| endpoint.is_local);
        let hairpin = cluster.union(&local).filter(|backend| from_other_nodes || is_local(backend));
        let hairpin = hairpin.map(|backend| backend.address).collect();
        let is_serving = |endpoint: &PortEndpoint<'_>| endpoint.endpoint.serving || endpoint.endpoint.ready;
        let serving = endpoints.iter().filter(|(_, endpoint)| is_serving(endpoint));
        let serving: BTreeSet<Backend> = match (port.protocol, endpoints.len() > max) {
            (Protocol::Udp, false) => serving.map(|(backend, _)| *backend).collect(),
            (Protocol::Udp, true) => cluster.union(&local).copied().collect(),
            _ => BTreeSet::new(),
        };
        PortState {
            identity,
            port: number,
            cluster: fill_slots(had.map(|had| &had.cluster[..]).unwrap_or_default(), cluster),
            local: fill_slots(had.map(|had| &had.local[..]).unwrap_or_default(), local),
            has_endpoints,
            hairpin,
            serving,
            is_limited,
        }
    }

    /// How many ready endpoints a Service has on this node. Those with addresses of two families count once.
    fn local_endpoints(&self, key: &ServiceKey) -> usize {
        let count = |family: IpFamily| {
            let slices =
                self.slices_of(key).filter(|slice| slice.family == family && !slice.ports.is_empty());
            let is_here =
                |endpoint: &Endpoint| endpoint.ready && endpoint.node.as_ref() == Some(&self.node.name);
            let here = slices.flat_map(EndpointSlice::addresses).filter(|(_, endpoint)| is_here(endpoint));
            here.map(|(address, _)| address).collect::<BTreeSet<IpAddr>>().len()
        };
        IpFamily::ALL.into_iter().map(count).max().unwrap_or_default()
    }
}

fn claims_of(state: &ServiceState) -> (&ServiceClaims, i64) {
    (&state.claims, state.service.created)
}
