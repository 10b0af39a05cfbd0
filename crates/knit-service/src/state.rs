//! What follows from one Service and its endpoints for this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::filter::field::IpFamily;
use serde::{Deserialize, Serialize};

use crate::affinity::rounded;
use crate::chain::{BackendChain, Scope};
use crate::claims::{Claim, Rank, ServiceClaims};
use crate::evaluate::FrontendKind;
use crate::service::{Backend, Frontend, Protocol, Service, ServiceKey, ServicePort};

/// A Service, and what follows for this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceState {
    pub(crate) service: Service,
    pub(crate) ports: Vec<PortState>,
    #[serde(with = "knit_model::serde_pairs")]
    pub(crate) claims: ServiceClaims,
    /// What of it others do not have.
    pub(crate) has: BTreeSet<Claim>,
    /// How many ready endpoints it has on this node.
    pub(crate) local_endpoints: usize,
    /// The nodes that may announce the IPs of its load balancer of a family, if not all may.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) announcing_nodes: BTreeMap<IpFamily, BTreeSet<String>>,
}

/// The backends of a port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortState {
    pub(crate) identity: Identity,
    /// The number of the port in the Service.
    pub(crate) port: usize,
    /// Those of the Cluster traffic policy, by slot.
    pub(crate) cluster: Vec<Backend>,
    /// Those of the Local traffic policy, by slot.
    pub(crate) local: Vec<Backend>,
    /// Whether the cluster has an endpoint.
    pub(crate) has_endpoints: bool,
    /// The addresses of backends that may be led to themselves by this node.
    pub(crate) hairpin: BTreeSet<IpAddr>,
    /// Of UDP: all that serve, or those in use if there are too many.
    pub(crate) serving: BTreeSet<Backend>,
    /// Whether there are more endpoints than are used.
    pub(crate) is_limited: bool,
}

/// What identifies the port of a Service in one family: its cluster IP and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) address: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

impl Identity {
    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(self.address)
    }

    pub(crate) fn frontend(&self) -> Frontend {
        Frontend::Address { address: self.address, protocol: self.protocol, port: self.port }
    }
}

/// The backends by slot. Those that stay keep their slots, as far as there are no holes: the last ones move there.
pub(crate) fn fill_slots(had: &[Backend], mut backends: BTreeSet<Backend>) -> Vec<Backend> {
    let mut slots: Vec<Option<Backend>> = had.iter().map(|one| backends.take(one)).collect();
    let mut new = backends.into_iter();
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = new.next();
    }
    slots.extend(new.map(Some));
    let mut filled: Vec<Backend> = Vec::with_capacity(slots.len());
    let mut rest = slots.into_iter();
    while let Some(slot) = rest.next() {
        let last = || rest.by_ref().rev().flatten().next();
        filled.extend(slot.or_else(last));
    }
    filled
}

impl ServiceState {
    /// What it claims.
    pub(crate) fn all_claims(&self) -> ServiceClaims {
        let mut claims = ServiceClaims::new();
        for port in &self.ports {
            claims.insert(Claim::Address(port.identity.address), Rank::ClusterIp);
            claims.insert(Claim::Frontend(port.identity.frontend()), Rank::ClusterIp);
            for (kind, frontend) in self.external_frontends(port) {
                let rank = kind.rank();
                if let Frontend::Address { address, .. } = frontend {
                    claims.insert(Claim::Address(address), rank);
                    if self.service.announced && kind == FrontendKind::LoadBalancer {
                        claims.insert(Claim::Announced(address), rank);
                    }
                }
                claims.insert(Claim::Frontend(frontend), rank);
            }
            claims.extend(port.hairpin.iter().map(|address| (Claim::Hairpin(*address), Rank::Assigned)));
        }
        claims
    }

    /// The frontends of a port besides its cluster IP, whether it has them or not.
    pub(crate) fn external_frontends(&self, port: &PortState) -> Vec<(FrontendKind, Frontend)> {
        let (family, service) = (port.identity.family(), &self.service);
        let ServicePort { protocol, port, node_port, .. } = service.ports[port.port];
        let of_kind = |kind: FrontendKind, addresses: Vec<IpAddr>| {
            let addresses = addresses.into_iter();
            addresses.map(move |address| (kind, Frontend::Address { address, protocol, port }))
        };
        let external = of_kind(FrontendKind::ExternalIp, service.external_ips_of(family));
        let balanced = of_kind(FrontendKind::LoadBalancer, service.load_balancer_ips_of(family));
        let node_port = node_port.map(|port| Frontend::NodePort { family, protocol, port });
        let node_port = node_port.map(|frontend| (FrontendKind::NodePort, frontend));
        external.chain(balanced).chain(node_port).collect()
    }

    /// The frontends that it has.
    pub(crate) fn frontends(&self, port: &PortState) -> Vec<(FrontendKind, Frontend)> {
        let own = (FrontendKind::ClusterIp, port.identity.frontend());
        if !self.has.contains(&Claim::Frontend(own.1)) {
            return Vec::new();
        }
        let has = |frontend: &Frontend| {
            let is_free = match frontend {
                Frontend::Address { address, .. } => self.has.contains(&Claim::Address(*address)),
                Frontend::NodePort { .. } => true,
            };
            is_free && self.has.contains(&Claim::Frontend(*frontend))
        };
        let others = self.external_frontends(port).into_iter().filter(|(_, frontend)| has(frontend));
        [own].into_iter().chain(others).collect()
    }

    /// The chains that it needs.
    pub(crate) fn chains(&self) -> BTreeSet<BackendChain> {
        let mut chains = BTreeSet::new();
        for port in self.ports.iter().filter(|port| !self.frontends(port).is_empty()) {
            for scope in [Scope::Cluster, Scope::Local] {
                let slots = port.slots(scope).len() as u32;
                if slots > 0 {
                    chains.insert(BackendChain::Choose { scope, slots });
                }
            }
            let family = port.identity.family();
            let seconds = self.service.affinity.map(rounded);
            chains.extend(seconds.map(|seconds| BackendChain::Recall { family, seconds }));
        }
        chains
    }

    /// Its health check port, and its place among the Services with the same one.
    pub(crate) fn health_check(&self) -> Option<(u16, (i64, ServiceKey))> {
        let port = self.service.health_check_node_port.filter(|_| self.service.external_local)?;
        Some((port, (self.service.created, self.service.key.clone())))
    }
}

impl PortState {
    /// All backends.
    pub(crate) fn backends(&self) -> BTreeSet<&Backend> {
        self.cluster.iter().chain(&self.local).collect()
    }

    /// The backends of a traffic policy, by slot.
    pub(crate) fn slots(&self, scope: Scope) -> &[Backend] {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }
}
