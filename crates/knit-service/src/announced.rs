//! The IPs of load balancers that Knit announces, and which nodes may announce them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::filter::field::IpFamily;

use crate::claims::Claim;
use crate::endpoints::Endpoint;
use crate::index::ServiceIndex;
use crate::service::{Service, ServiceKey};

/// The announced addresses of a Service, each with the nodes that may announce it; `None`: all.
pub type Announced = BTreeMap<IpAddr, Option<BTreeSet<String>>>;

impl ServiceIndex {
    /// The addresses of a Service that Knit announces.
    pub fn announced(&self, key: &ServiceKey) -> Announced {
        let Some(state) = self.state(key) else { return Announced::new() };
        let addresses = state.has.iter().filter_map(|claim| match claim {
            Claim::Announced(address) => Some(*address),
            _ => None,
        });
        let nodes = |address: IpAddr| state.announcing_nodes.get(&IpFamily::of(address)).cloned();
        addresses.map(|address| (address, nodes(address))).collect()
    }

    /// If clients outside the cluster reach only endpoints of the node that they come to (`externalTrafficPolicy: Local`), only
    /// nodes with an endpoint may announce.
    pub(crate) fn announcing_nodes(&self, service: &Service) -> BTreeMap<IpFamily, BTreeSet<String>> {
        let families = IpFamily::ALL.into_iter().filter(|_| service.announced && service.external_local);
        families.map(|family| (family, self.nodes_with_endpoints(&service.key, family))).collect()
    }

    /// The nodes with a ready endpoint; if there is none, those with one that terminates and still serves.
    fn nodes_with_endpoints(&self, key: &ServiceKey, family: IpFamily) -> BTreeSet<String> {
        let nodes = |is_used: fn(&Endpoint) -> bool| -> BTreeSet<String> {
            let slices =
                self.slices_of(key).filter(|slice| slice.family == family && !slice.ports.is_empty());
            let endpoints = slices.flat_map(|slice| slice.addresses()).map(|(_, endpoint)| endpoint);
            endpoints
                .filter(|endpoint| is_used(endpoint))
                .filter_map(|endpoint| endpoint.node.clone())
                .collect()
        };
        let ready = nodes(|endpoint| endpoint.ready);
        if ready.is_empty() { nodes(|endpoint| endpoint.serving && endpoint.terminating) } else { ready }
    }
}
