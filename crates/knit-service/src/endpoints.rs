//! EndpointSlices, and the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::filter::field::IpFamily;
use serde::{Deserialize, Serialize};

use crate::service::{Backend, Protocol, ServiceKey};

/// An EndpointSlice by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A part of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Its name.
    pub key: SliceKey,
    /// The Service, from the label `kubernetes.io/service-name`.
    pub service: ServiceKey,
    /// The family of its addresses.
    pub family: IpFamily,
    /// Its ports. Those without a number are left out.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlicePort {
    /// The name of the Service's port, which may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the endpoints.
    pub port: u16,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its addresses. Only the first one is used, as by kube-proxy.
    pub addresses: Vec<IpAddr>,
    /// Whether it accepts connections and does not terminate; true if the condition is missing.
    pub ready: bool,
    /// Whether it accepts connections; the same as `ready` if the condition is missing.
    pub serving: bool,
    /// Whether it terminates; false if the condition is missing.
    pub terminating: bool,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The zones whose clients should use it (`hints.forZones`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zone_hints: Vec<String>,
    /// The nodes whose clients should use it (`hints.forNodes`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_hints: Vec<String>,
}

/// What the choice of endpoints depends on at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its zone, from the label `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its addresses. If source ranges of a load balancer contain one, connections from the load balancer's IP are allowed,
    /// too: it is the source of the node's own connections if it is bound to a link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// An endpoint at one port of a Service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortEndpoint<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) is_local: bool,
}

impl PortEndpoint<'_> {
    /// Whether it is used if no endpoint is ready.
    pub(crate) fn is_serving_terminating(&self) -> bool {
        self.endpoint.serving && self.endpoint.terminating
    }
}

impl EndpointSlice {
    /// The addresses of its endpoints, in its family.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, &Endpoint)> {
        let first = |endpoint: &'_ Endpoint| endpoint.addresses.first().copied();
        let all = self.endpoints.iter().filter_map(move |endpoint| Some((first(endpoint)?, endpoint)));
        all.filter(|(address, _)| IpFamily::of(*address) == self.family)
    }
}

/// The ports of a Service's EndpointSlices of a family, by name and protocol.
pub(crate) struct SlicePorts<'a>(BTreeMap<(&'a str, Protocol), Vec<(&'a EndpointSlice, u16)>>);

impl<'a> SlicePorts<'a> {
    pub(crate) fn new(slices: impl IntoIterator<Item = &'a EndpointSlice>, family: IpFamily) -> Self {
        let mut ports: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for slice in slices.into_iter().filter(|slice| slice.family == family) {
            for port in &slice.ports {
                ports.entry((port.name.as_str(), port.protocol)).or_default().push((slice, port.port));
            }
        }
        Self(ports)
    }

    /// The endpoints of a port. Of several with the same address and port one on this node counts, otherwise the first.
    pub(crate) fn endpoints(
        &self,
        port: (&str, Protocol),
        node: &NodeFacts,
    ) -> BTreeMap<Backend, PortEndpoint<'a>> {
        let mut all = BTreeMap::new();
        for (slice, port) in self.0.get(&port).into_iter().flatten() {
            for (address, endpoint) in slice.addresses() {
                let is_local = endpoint.node.as_ref() == Some(&node.name);
                let backend = Backend { address, port: *port };
                if is_local || !all.contains_key(&backend) {
                    all.insert(backend, PortEndpoint { endpoint, is_local });
                }
            }
        }
        all
    }
}
