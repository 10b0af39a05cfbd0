//! The Services of the benchmark and their EndpointSlices.
//!
//! Most are fillers, whose endpoints have fictitious addresses and are never connected to. A few lead to a pod of one of the
//! measured nodes. All have a cluster IP that follows from their number, so that none has to be read.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use serde_json::{Value, json};

use crate::scale::api;
use crate::scale::manifests::Create;
use knit_soak::harness::KnitCluster;

/// The namespace of the Services.
pub const NAMESPACE: &str = "services";
/// The port of every Service.
pub const SERVICE_PORT: u16 = 80;
/// The port of every endpoint.
pub const ENDPOINT_PORT: u16 = 8080;
/// The number of endpoints of a filler.
pub const ENDPOINTS: usize = 10;
/// The largest number of fillers.
pub const MAX_FILLERS: usize = 30_000;
/// One Service of each measured node per this many fillers leads to a pod.
pub const FILLERS_PER_PROBE: usize = 100;

/// The first cluster IP, inside the test cluster's range of Services.
const FIRST_CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 16, 0);
/// The cluster IPs of a measured node's own Services.
const OWN_SERVICES: usize = 1_000;
/// The first fictitious endpoint: no test cluster has pods there.
const FIRST_ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// The number of fictitious nodes.
const NODES: usize = 1_000;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/services/endpointslices";

/// A Service with one EndpointSlice, which has the Service's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The name.
    pub name: String,
    /// Its cluster IP.
    pub address: Ipv4Addr,
    endpoints: Vec<Endpoint>,
}

/// An endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address of the pod.
    pub address: IpAddr,
    /// The name of the pod's node.
    pub node: String,
}

impl Service {
    /// A filler with this many endpoints.
    pub fn filler(number: usize, endpoints: usize) -> Self {
        let endpoint = |index: usize| {
            let all = number * ENDPOINTS + index;
            Endpoint { address: plus(FIRST_ENDPOINT, all).into(), node: format!("worker-{:05}", all % NODES) }
        };
        Self {
            name: format!("service-{number:05}"),
            address: plus(FIRST_CLUSTER_IP, number),
            endpoints: (0..endpoints).map(endpoint).collect(),
        }
    }

    /// A Service that leads to a pod of a measured node, the `number`th one of this node.
    pub fn of_node(name: String, node: u8, number: usize, endpoint: Endpoint) -> Self {
        let address = plus(FIRST_CLUSTER_IP, MAX_FILLERS + usize::from(node) * OWN_SERVICES + number);
        Self { name, address, endpoints: vec![endpoint] }
    }

    /// Where clients connect to.
    pub fn destination(&self) -> SocketAddr {
        (self.address, SERVICE_PORT).into()
    }

    /// The path of its EndpointSlice.
    pub fn slice_path(&self) -> String {
        format!("{SLICES}/{}", self.name)
    }

    /// The Service.
    fn create(&self) -> Create {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/name": self.name}},
            "spec": {
                "clusterIP": self.address,
                "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": ENDPOINT_PORT, "protocol": "TCP"}],
            },
        });
        Create { path: format!("/api/v1/namespaces/{NAMESPACE}/services"), body }
    }

    /// Its EndpointSlice.
    fn create_slice(&self) -> Create {
        let body = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": self.name, "labels": {SERVICE_NAME: self.name}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": ENDPOINT_PORT, "protocol": "TCP"}],
            "endpoints": self.endpoints.iter().map(Endpoint::manifest).collect::<Vec<_>>(),
        });
        Create { path: SLICES.to_owned(), body }
    }
}

impl Endpoint {
    /// The endpoint as a controller writes it.
    pub fn manifest(&self) -> Value {
        json!({
            "addresses": [self.address],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": self.node,
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("pod-{}", self.address)},
        })
    }
}

/// Creates the namespace of the Services.
pub fn create_namespace(knit: &KnitCluster) -> Result<()> {
    let body = json!({"metadata": {"name": NAMESPACE}});
    api::create_all(knit, "namespaces", 1, move |_| Create {
        path: "/api/v1/namespaces".to_owned(),
        body: body.clone(),
    })
    .map(drop)
}

/// Creates Services with their EndpointSlices, many at a time, in about this order.
pub fn create(knit: &KnitCluster, services: Vec<Service>) -> Result<()> {
    api::create_all(knit, "Services and EndpointSlices", 2 * services.len(), move |number| {
        let service = &services[number / 2];
        if number.is_multiple_of(2) { service.create() } else { service.create_slice() }
    })
    .map(drop)
}

fn plus(first: Ipv4Addr, number: usize) -> Ipv4Addr {
    let number = u32::try_from(number).expect("there are fewer addresses than 2^32");
    Ipv4Addr::from(u32::from(first) + number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn services() -> Vec<Service> {
        let endpoint = || Endpoint { address: Ipv4Addr::new(10, 224, 0, 1).into(), node: "node1".to_owned() };
        let own = (1..=2).flat_map(|node| (0..OWN_SERVICES).map(move |number| (node, number)));
        let own = own
            .map(|(node, number)| Service::of_node(format!("own-{node}-{number}"), node, number, endpoint()));
        (0..MAX_FILLERS).map(|number| Service::filler(number, ENDPOINTS)).chain(own).collect()
    }

    #[test]
    fn names_and_cluster_ips_are_unique_and_in_the_range_of_services() {
        let all = services();
        let names: BTreeSet<_> = all.iter().map(|service| &service.name).collect();
        let addresses: BTreeSet<_> = all.iter().map(|service| service.address).collect();
        assert_eq!((names.len(), addresses.len()), (all.len(), all.len()));
        assert!(addresses.iter().all(|address| address.octets()[..2] == [10, 96]));
    }

    #[test]
    fn fictitious_endpoints_are_unique_and_outside_the_test_clusters() {
        let all = services();
        let fillers = all[..MAX_FILLERS].iter();
        let addresses: BTreeSet<_> =
            fillers.flat_map(|service| &service.endpoints).map(|endpoint| endpoint.address).collect();
        assert_eq!(addresses.len(), MAX_FILLERS * ENDPOINTS);
        assert!(addresses.iter().all(|address| match address {
            IpAddr::V4(address) => (128..224).contains(&address.octets()[1]),
            IpAddr::V6(_) => false,
        }));
    }

    #[test]
    fn a_slice_belongs_to_its_service() {
        let service = Service::filler(7, ENDPOINTS);
        let Create { path, body } = service.create_slice();
        assert_eq!(service.slice_path(), format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()));
        assert_eq!(body["metadata"]["labels"][SERVICE_NAME], service.create().body["metadata"]["name"]);
        assert_eq!(body["endpoints"].as_array().unwrap().len(), ENDPOINTS);
    }
}
