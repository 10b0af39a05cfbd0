//! The decision again, by looking at everything: written from the documentation of Services, to compare with.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_model::filter::field::IpFamily;
use knit_service::{
    Backend, Connection, Decision, DenyReason, Endpoint, EndpointSlice, FrontendKind, NodeFacts, Service,
    ServiceMatch, ServicePort, SourceClass,
};

/// A cluster as its objects.
pub struct Cluster<'a> {
    pub node: &'a NodeFacts,
    pub services: Vec<&'a Service>,
    pub slices: Vec<&'a EndpointSlice>,
}

impl Cluster<'_> {
    pub fn evaluate(&self, connection: &Connection) -> Decision {
        let Connection { destination, protocol, port, .. } = *connection;
        let family = IpFamily::of(destination);
        let mut services = self.services.clone();
        services.sort_by_key(|service| (service.created, &service.key));
        // Without its own cluster IP and port a Service has nothing.
        let is_served = |one: &Service, at: &ServicePort| {
            let Some(address) = one.cluster_ip(family) else { return false };
            let same = |other: &&&Service| {
                let ports = &other.ports;
                other.cluster_ips.contains(&address)
                    && ports.iter().any(|port| (port.protocol, port.port) == (at.protocol, at.port))
            };
            services.iter().find(same).is_some_and(|first| first.key == one.key)
        };
        let port_of = |service: &Service| {
            service.ports.iter().position(|one| (one.protocol, one.port) == (protocol, port))
        };
        let of_cluster_ip = services.iter().find(|service| service.cluster_ips.contains(&destination));
        if let Some(first) = of_cluster_ip {
            let with_port =
                services.iter().find(|one| one.cluster_ips.contains(&destination) && port_of(one).is_some());
            return match with_port {
                Some(service) => {
                    self.decide(connection, service, port_of(service).unwrap(), FrontendKind::ClusterIp)
                }
                None => Decision::Denied {
                    to: ServiceMatch {
                        service: first.key.clone(),
                        port: String::new(),
                        frontend: FrontendKind::ClusterIp,
                    },
                    reason: DenyReason::NoSuchPort,
                },
            };
        }
        let has_cluster_ip = |service: &&&Service| service.cluster_ip(family).is_some();
        let balanced: Vec<&&Service> = services
            .iter()
            .filter(has_cluster_ip)
            .filter(|service| service.load_balancer_ips.contains(&destination) && !service.ports.is_empty())
            .collect();
        let is_foreign = |service: &&&Service| {
            !balanced.contains(service)
                && balanced.iter().any(|other| other.key.namespace != service.key.namespace)
        };
        let has_external_ip = |service: &&&Service| service.external_ips.contains(&destination);
        let by_external_ip = services.iter().filter(has_cluster_ip).filter(has_external_ip);
        let by_external_ip = by_external_ip.filter(|service| !is_foreign(service));
        let mut external = balanced.iter().copied().chain(by_external_ip);
        if let Some(service) = external.find(|service| port_of(service).is_some()) {
            let at = port_of(service).unwrap();
            if is_served(service, &service.ports[at]) {
                let kind = match service.load_balancer_ips.contains(&destination) {
                    true => FrontendKind::LoadBalancer,
                    false => FrontendKind::ExternalIp,
                };
                return self.decide(connection, service, at, kind);
            }
        }
        let node_port_of = |service: &Service| {
            service.ports.iter().position(|one| (one.protocol, one.node_port) == (protocol, Some(port)))
        };
        let mut announcing = services.iter().filter(has_cluster_ip).filter(|service| service.announced);
        let announced = announcing.find(|service| service.load_balancer_ips.contains(&destination));
        if let Some(service) = announced.filter(|_| connection.to_node_ports) {
            return Decision::Denied {
                to: ServiceMatch {
                    service: service.key.clone(),
                    port: String::new(),
                    frontend: FrontendKind::LoadBalancer,
                },
                reason: DenyReason::NoSuchPort,
            };
        }
        let mut at_node = services.iter().filter(has_cluster_ip);
        match at_node.find(|service| connection.to_node_ports && node_port_of(service).is_some()) {
            Some(service) if is_served(service, &service.ports[node_port_of(service).unwrap()]) => {
                let at = node_port_of(service).unwrap();
                self.decide(connection, service, at, FrontendKind::NodePort)
            }
            _ => Decision::NotAService,
        }
    }

    fn decide(
        &self,
        connection: &Connection,
        service: &Service,
        port: usize,
        frontend: FrontendKind,
    ) -> Decision {
        let port = &service.ports[port];
        let to = ServiceMatch { service: service.key.clone(), port: port.name.clone(), frontend };
        let family = IpFamily::of(connection.destination);
        if frontend == FrontendKind::LoadBalancer && !self.is_allowed(service, connection.source, family) {
            return Decision::Denied { to, reason: DenyReason::SourceNotAllowed };
        }
        let mut all: Vec<(Backend, &Endpoint)> = Vec::new();
        for slice in &self.slices {
            if slice.service != service.key || slice.family != family {
                continue;
            }
            for of_slice in &slice.ports {
                if (&of_slice.name, of_slice.protocol) != (&port.name, port.protocol) {
                    continue;
                }
                for endpoint in &slice.endpoints {
                    let backend = Backend { address: endpoint.addresses[0], port: of_slice.port };
                    // Of several with one address kube-proxy takes the first, or the last on this node.
                    match all.iter_mut().find(|(known, _)| *known == backend) {
                        Some((_, known)) if endpoint.node.as_ref() == Some(&self.node.name) => {
                            *known = endpoint
                        }
                        Some(_) => {}
                        None => all.push((backend, endpoint)),
                    }
                }
            }
        }
        let (policy_is_local, masquerade) = match (frontend, connection.source_class) {
            (FrontendKind::ClusterIp, SourceClass::Pod) => (service.internal_local, false),
            (FrontendKind::ClusterIp, _) => (service.internal_local, true),
            _ if !service.external_local => (false, true),
            (_, SourceClass::Pod) => (false, false),
            (_, SourceClass::Node) => (false, true),
            (_, SourceClass::External) => (true, false),
        };
        let usable = |is_used: &dyn Fn(&Endpoint) -> bool| -> BTreeSet<Backend> {
            all.iter().filter(|(_, endpoint)| is_used(endpoint)).map(|(backend, _)| *backend).collect()
        };
        let is_draining = |one: &Endpoint| one.serving && one.terminating;
        if usable(&|one| one.ready || is_draining(one)).is_empty() {
            return Decision::Denied { to, reason: DenyReason::NoEndpoints };
        }
        let here = |one: &Endpoint| one.node.as_ref() == Some(&self.node.name);
        let for_node = |one: &Endpoint| one.node_hints.contains(&self.node.name);
        let for_zone =
            |one: &Endpoint| one.zone_hints.iter().any(|zone| Some(zone) == self.node.zone.as_ref());
        let ready: Vec<&Endpoint> = all.iter().map(|(_, one)| *one).filter(|one| one.ready).collect();
        let by_node =
            ready.iter().all(|one| !one.node_hints.is_empty()) && ready.iter().any(|one| for_node(one));
        let by_zone =
            ready.iter().all(|one| !one.zone_hints.is_empty()) && ready.iter().any(|one| for_zone(one));
        let backends = match policy_is_local {
            true if ready.iter().any(|one| here(one)) => usable(&|one| one.ready && here(one)),
            true => usable(&|one| is_draining(one) && here(one)),
            false if ready.is_empty() => usable(&is_draining),
            false if by_node => usable(&|one| one.ready && for_node(one)),
            false if by_zone => usable(&|one| one.ready && for_zone(one)),
            false => usable(&|one| one.ready),
        };
        if backends.is_empty() {
            return Decision::Denied { to, reason: DenyReason::NoLocalEndpoints };
        }
        Decision::Translated { to, backends, affinity: service.affinity, masquerade }
    }

    fn is_allowed(&self, service: &Service, source: IpAddr, family: IpFamily) -> bool {
        let ranges: Vec<_> =
            service.source_ranges.iter().filter(|range| IpFamily::of(range.addr()) == family).collect();
        let contains = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
        let with_balancer = self.node.addresses.iter().any(contains);
        ranges.is_empty() || contains(&source) || with_balancer && service.load_balancer_ips.contains(&source)
    }
}
