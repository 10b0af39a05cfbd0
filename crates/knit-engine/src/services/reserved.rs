//! External and load balancer IPs that Services cannot have: whoever creates Services could take over the connections of others.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use knit_service::{Service, ServiceKey};

use super::queue;
use crate::nodes::NodeInfo;
use crate::packet_filter;
use crate::state::State;

/// The addresses of nodes, of the host, of the API server, of pods and of Services.
pub(crate) struct Reserved<'a> {
    /// Of Nodes and of the API server.
    of_nodes: BTreeSet<IpAddr>,
    of_host: &'a BTreeSet<IpAddr>,
    api_server: BTreeSet<SocketAddr>,
    pod_ranges: Vec<IpNet>,
    service_ranges: &'a [IpNet],
}

impl<'a> Reserved<'a> {
    /// Grows with the nodes: it is computed once for all addresses that are checked at a time.
    pub(crate) fn of(state: &'a State) -> Self {
        let api_server = state.api_server();
        let of_nodes = state.nodes.all().flat_map(NodeInfo::all_addresses).copied();
        Self {
            of_nodes: of_nodes.chain(api_server.iter().map(SocketAddr::ip)).collect(),
            of_host: &state.settings.addresses,
            api_server,
            pod_ranges: state.cluster().map(packet_filter::all_pod_ranges).unwrap_or_default(),
            service_ranges: &state.service_ranges,
        }
    }

    /// Whether an address is of a range of pods or Services, or none that packets from outside can have.
    fn is_for_none(&self, address: IpAddr) -> bool {
        let mut ranges = self.service_ranges.iter().chain(&self.pod_ranges);
        is_special(address) || ranges.any(|range| range.contains(&address))
    }

    fn has_external_ip(&self, address: IpAddr) -> bool {
        self.of_host.contains(&address) || self.has_announced(address)
    }

    /// No node may announce these for a Service. What this node announces already is an address of its host.
    pub(crate) fn has_announced(&self, address: IpAddr) -> bool {
        self.of_nodes.contains(&address) || self.is_for_none(address)
    }

    /// The IP of a load balancer may be the address of a node: it comes from the implementation of load balancers, which may use
    /// these. It must not take the ports of the API server.
    fn has_balancer(&self, address: IpAddr, ports: &BTreeSet<u16>) -> bool {
        let is_taken = |server: &SocketAddr| server.ip() == address && ports.contains(&server.port());
        self.api_server.iter().any(is_taken) || self.is_for_none(address)
    }

    fn remove_from(&self, mut service: Service) -> Service {
        let ports: BTreeSet<u16> = service.ports.iter().map(|port| port.port).collect();
        service.external_ips.retain(|address| !self.has_external_ip(*address));
        service.load_balancer_ips.retain(|address| !self.has_balancer(*address, &ports));
        service
    }
}

impl State {
    /// Where the API server is: where the agent reaches it, and its endpoints.
    pub(super) fn api_server(&self) -> BTreeSet<SocketAddr> {
        let service = ServiceKey { namespace: "default".to_owned(), name: "kubernetes".to_owned() };
        let mut all = self.services.index.endpoint_addresses(&service);
        all.extend(&self.services.api_server);
        all
    }
}

/// Whether a Service has addresses that may be those of others.
fn has_other_ips(service: &Service) -> bool {
    !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty()
}

/// Whether packets from outside cannot have this destination.
fn is_special(address: IpAddr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

/// The announced IPs of a Service's load balancer that were taken from it.
pub(super) fn refused_balancers(state: &State, key: &ServiceKey) -> impl Iterator<Item = IpAddr> {
    let all = state.services.with_external_ips.get(key).filter(|service| service.announced);
    let all = all.map(|service| service.load_balancer_ips.clone()).unwrap_or_default();
    let used = state.services.index.service(key).map(|service| service.load_balancer_ips.as_slice());
    let is_complete = used.is_some_and(|used| all.iter().all(|address| used.contains(address)));
    // The index leaves out what exceeds its limits, too.
    let open = match (is_complete, state.services.with_external_ips.get(key)) {
        (false, Some(service)) => Reserved::of(state).remove_from(service.clone()).load_balancer_ips,
        _ => all.clone(),
    };
    all.into_iter().filter(move |address| !open.contains(address))
}

/// These are all Services: returns them without external and load balancer IPs that belong to others.
pub(super) fn restrict_all(state: &mut State, services: Vec<Service>) -> Vec<Service> {
    state.services.with_external_ips.clear();
    let (with_external_ips, mut all): (Vec<Service>, Vec<Service>) =
        services.into_iter().partition(has_other_ips);
    if with_external_ips.is_empty() {
        return all;
    }
    let reserved = Reserved::of(state);
    all.extend(with_external_ips.iter().map(|service| reserved.remove_from(service.clone())));
    let by_key = with_external_ips.into_iter().map(|service| (service.key.clone(), service));
    state.services.with_external_ips.extend(by_key);
    all
}

/// The same for one Service.
pub(super) fn restrict(state: &mut State, service: Service) -> Service {
    state.services.with_external_ips.remove(&service.key);
    if !has_other_ips(&service) {
        return service;
    }
    let open = Reserved::of(state).remove_from(service.clone());
    state.services.with_external_ips.insert(service.key.clone(), service);
    open
}

/// Nodes, addresses of the host or of the API server, or the ranges of pods or Services, changed: external IPs may be theirs from
/// now on, or no longer. Returns the Services concerned.
pub(crate) fn on_reserved_change(state: &mut State) -> BTreeSet<ServiceKey> {
    let mut all_affected = BTreeSet::new();
    if !state.services.with_external_ips.is_empty() {
        let reserved = Reserved::of(state);
        let all = state.services.with_external_ips.values();
        let all: Vec<Service> = all.map(|service| reserved.remove_from(service.clone())).collect();
        for service in all {
            all_affected.extend(state.services.index.apply_service(service));
        }
        state.services.pending.extend(all_affected.iter().cloned());
    }
    queue(state);
    all_affected
}
