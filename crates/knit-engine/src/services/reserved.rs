//! External IPs that Services cannot have: whoever creates Services could take over the connections of others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_service::Service;

use super::queue;
use crate::packet_filter;
use crate::state::State;

/// The addresses of nodes, pods and Services.
struct Reserved<'a> {
    addresses: BTreeSet<IpAddr>,
    pod_ranges: Vec<IpNet>,
    service_ranges: &'a [IpNet],
}

impl<'a> Reserved<'a> {
    /// Grows with the nodes: it is computed once for all addresses that are checked at a time.
    fn of(state: &'a State) -> Self {
        Self {
            addresses: state.nodes.all().flat_map(|node| &node.addresses).copied().collect(),
            pod_ranges: state.cluster().map(packet_filter::all_pod_ranges).unwrap_or_default(),
            service_ranges: &state.service_ranges,
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let mut ranges = self.service_ranges.iter().chain(&self.pod_ranges);
        is_special(address)
            || self.addresses.contains(&address)
            || ranges.any(|range| range.contains(&address))
    }

    fn remove_from(&self, mut service: Service) -> Service {
        service.external_ips.retain(|address| !self.contains(*address));
        service
    }
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

/// These are all Services: returns them without external IPs that belong to others.
pub(super) fn restrict_all(state: &mut State, services: Vec<Service>) -> Vec<Service> {
    state.services.with_external_ips.clear();
    let (with_external_ips, mut all): (Vec<Service>, Vec<Service>) =
        services.into_iter().partition(|service| !service.external_ips.is_empty());
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
    if service.external_ips.is_empty() {
        return service;
    }
    let open = Reserved::of(state).remove_from(service.clone());
    state.services.with_external_ips.insert(service.key.clone(), service);
    open
}

/// Nodes, or the ranges of pods or Services, changed: external IPs may be theirs from now on, or no longer.
pub(crate) fn on_reserved_change(state: &mut State) {
    if !state.services.with_external_ips.is_empty() {
        let reserved = Reserved::of(state);
        let all = state.services.with_external_ips.values();
        let all: Vec<Service> = all.map(|service| reserved.remove_from(service.clone())).collect();
        for service in all {
            let affected = state.services.index.apply_service(service);
            state.services.pending.extend(affected);
        }
    }
    queue(state);
}
