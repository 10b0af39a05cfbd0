//! The translation of one connection, with its reason. It follows from Services and endpoints and not from elements.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_model::filter::field::IpFamily;
use serde::{Deserialize, Serialize};

use crate::affinity::rounded;
use crate::choice::choose;
use crate::claims::{Claim, Rank};
use crate::index::ServiceIndex;
use crate::limits::max_endpoints;
use crate::service::{Backend, Frontend, Protocol, Service, ServiceKey, ServicePort};

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// The address of the client.
    pub source: IpAddr,
    /// Where the client is.
    pub source_class: SourceClass,
    /// The destination before translation.
    pub destination: IpAddr,
    /// Whether the destination is an address of this node at which node ports are served: any except those of loopback.
    pub to_node_ports: bool,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceClass {
    /// In a range of the cluster's pods.
    Pod,
    /// On this node.
    Node,
    /// Anywhere else.
    External,
}

/// A kind of frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendKind {
    /// A cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// The IP of a load balancer.
    LoadBalancer,
    /// A node port.
    NodePort,
}

impl FrontendKind {
    /// The weight of its claims.
    pub(crate) fn rank(self) -> Rank {
        match self {
            Self::ClusterIp => Rank::ClusterIp,
            Self::LoadBalancer | Self::NodePort => Rank::Assigned,
            Self::ExternalIp => Rank::ExternalIp,
        }
    }
}

/// What a connection is addressed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMatch {
    /// The Service.
    pub service: ServiceKey,
    /// The name of its port, if it has names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// The kind of frontend.
    pub frontend: FrontendKind,
}

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// It is not addressed to a Service.
    NotAService,
    /// It is led to one of some backends.
    #[serde(rename_all = "camelCase")]
    Translated {
        /// What it is addressed to.
        to: ServiceMatch,
        /// The backends.
        backends: BTreeSet<Backend>,
        /// How many seconds the client is led to the same backend, rounded up to one of few timeouts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        affinity: Option<u32>,
        /// Whether it is masqueraded. A connection to the client itself always is.
        masquerade: bool,
    },
    /// It is rejected or dropped.
    #[serde(rename_all = "camelCase")]
    Denied {
        /// What it is addressed to.
        to: ServiceMatch,
        /// Why.
        reason: DenyReason,
    },
}

/// Why a connection is rejected or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DenyReason {
    /// The cluster IP, or the announced IP of the load balancer, has no such port. The match is without a port. Rejected.
    NoSuchPort,
    /// The Service has no endpoints. Rejected.
    NoEndpoints,
    /// The traffic policy is Local, and no endpoint is on this node. Dropped.
    NoLocalEndpoints,
    /// The load balancer allows other sources. Dropped.
    SourceNotAllowed,
}

impl DenyReason {
    /// Whether the client gets an answer.
    pub fn is_rejected(self) -> bool {
        matches!(self, Self::NoSuchPort | Self::NoEndpoints)
    }
}

impl ServiceIndex {
    /// What becomes of a new connection.
    pub fn evaluate(&self, connection: &Connection) -> Decision {
        let Connection { destination, protocol, port, .. } = *connection;
        let found = self.find(&Frontend::Address { address: destination, protocol, port });
        let family = IpFamily::of(destination);
        let node_port = || {
            let frontend = Frontend::NodePort { family, protocol, port };
            self.find(&frontend).filter(|_| connection.to_node_ports)
        };
        let cluster_ip = || self.claims.of_cluster_ip(destination);
        match (found, cluster_ip()) {
            (Some((service, port, kind)), _) => self.decide(connection, service, port, kind),
            (None, Some(service)) => Decision::Denied {
                to: ServiceMatch {
                    service: service.clone(),
                    port: String::new(),
                    frontend: FrontendKind::ClusterIp,
                },
                reason: DenyReason::NoSuchPort,
            },
            (None, None) => match (self.claims.of_announced(destination), node_port()) {
                // Only ports of Services are open at an announced address.
                (Some(service), _) if connection.to_node_ports => Decision::Denied {
                    to: ServiceMatch {
                        service: service.clone(),
                        port: String::new(),
                        frontend: FrontendKind::LoadBalancer,
                    },
                    reason: DenyReason::NoSuchPort,
                },
                (_, Some((service, port, kind))) => self.decide(connection, service, port, kind),
                (_, None) => Decision::NotAService,
            },
        }
    }

    /// The Service that has a frontend, and its port there.
    fn find(&self, frontend: &Frontend) -> Option<(&Service, &ServicePort, FrontendKind)> {
        let service = self.service(self.claims.owner(*frontend)?)?;
        let (family, kind, address) = match frontend {
            Frontend::NodePort { family, .. } => (*family, FrontendKind::NodePort, None),
            Frontend::Address { address, .. } => {
                let kind = if service.cluster_ips.contains(address) {
                    FrontendKind::ClusterIp
                } else if service.load_balancer_ips.contains(address) {
                    FrontendKind::LoadBalancer
                } else {
                    FrontendKind::ExternalIp
                };
                (IpFamily::of(*address), kind, Some(*address))
            }
        };
        let is_free = |address: IpAddr| self.claims.has(&service.key, Claim::Address(address), kind.rank());
        if kind != FrontendKind::ClusterIp && address.is_some_and(|address| !is_free(address)) {
            return None;
        }
        let port = service.ports.iter().find(|port| match frontend {
            Frontend::NodePort { protocol, port: number, .. } => {
                port.protocol == *protocol && port.node_port == Some(*number)
            }
            Frontend::Address { protocol, port: number, .. } => {
                port.protocol == *protocol && port.port == *number
            }
        })?;
        // A Service whose cluster IP another one has is not served.
        let address = service.cluster_ip(family)?;
        let identity = Frontend::Address { address, protocol: port.protocol, port: port.port };
        (self.claims.owner(identity) == Some(&service.key)).then_some((service, port, kind))
    }

    fn decide(
        &self,
        connection: &Connection,
        service: &Service,
        port: &ServicePort,
        frontend: FrontendKind,
    ) -> Decision {
        let to = ServiceMatch { service: service.key.clone(), port: port.name.clone(), frontend };
        let is_balanced = frontend == FrontendKind::LoadBalancer;
        if is_balanced && !self.is_source_allowed(service, connection) {
            return Decision::Denied { to, reason: DenyReason::SourceNotAllowed };
        }
        let endpoints = self.endpoints(&service.key, IpFamily::of(connection.destination), port);
        let chosen = choose(&endpoints, &self.node).limited(max_endpoints(service));
        if chosen.cluster.is_empty() {
            return Decision::Denied { to, reason: DenyReason::NoEndpoints };
        }
        let class = connection.source_class;
        let is_internal = frontend == FrontendKind::ClusterIp;
        let (is_local, masquerade) = match (is_internal, service.external_local) {
            (true, _) => (service.internal_local, class != SourceClass::Pod),
            (false, false) => (false, true),
            (false, true) => (class == SourceClass::External, class == SourceClass::Node),
        };
        let backends = if is_local { chosen.local } else { chosen.cluster };
        if backends.is_empty() {
            return Decision::Denied { to, reason: DenyReason::NoLocalEndpoints };
        }
        let affinity = service.affinity.map(rounded);
        Decision::Translated { to, backends, affinity, masquerade }
    }

    fn is_source_allowed(&self, service: &Service, connection: &Connection) -> bool {
        let family = IpFamily::of(connection.destination);
        let mut ranges = service.source_ranges.iter().filter(|range| IpFamily::of(range.addr()) == family);
        let is_in = |address: &IpAddr| service.source_ranges.iter().any(|range| range.contains(address));
        let is_balancer = service.load_balancer_ips.contains(&connection.source);
        ranges.next().is_none()
            || is_in(&connection.source)
            || is_balancer && self.node.addresses.iter().any(is_in)
    }
}
