//! A small cluster, on whose node `a` the tables are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::filter::field::IpFamily;
use knit_service::{
    Backend, Connection, Decision, Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceIndex,
    ServiceKey, ServicePort, SliceKey, SlicePort, SourceClass,
};

use crate::packets::{Masquerade, Outcome, Tables};

pub const CLUSTER_IP: &str = "10.96.0.1";
pub const EXTERNAL_IP: &str = "203.0.113.1";
pub const BALANCER: &str = "203.0.113.2";
pub const NODE: &str = "192.0.2.1";
pub const OUTSIDE: &str = "198.51.100.1";
/// Of the first pod, which is on this node.
pub const POD: &str = "10.75.0.1";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn pod_ranges() -> [IpNet; 2] {
    ["10.75.0.0/16", "fd75::/32"].map(|range| range.parse().unwrap())
}

pub fn node_addresses() -> Vec<IpAddr> {
    [NODE, "192.0.2.10", "127.0.0.1", "127.7.0.1", "fd02::1", "::1"].map(ip).to_vec()
}

pub fn node() -> NodeFacts {
    NodeFacts {
        name: "a".to_owned(),
        zone: Some("east".to_owned()),
        addresses: vec![ip(NODE), ip("fd02::1")],
    }
}

pub fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "blue".to_owned(), name: name.to_owned() }
}

/// A Service with port 80, and node port 30080.
pub fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        key: key(name),
        cluster_ips: cluster_ips.iter().map(|address| ip(address)).collect(),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        announced: false,
        source_ranges: Vec::new(),
        ports: vec![ServicePort { name: String::new(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        affinity: None,
        internal_local: false,
        external_local: false,
        health_check_node_port: None,
        created: 0,
    }
}

/// With every kind of frontend.
pub fn external(name: &str) -> Service {
    let mut all = service(name, &[CLUSTER_IP]);
    all.external_ips = vec![ip(EXTERNAL_IP)];
    all.load_balancer_ips = vec![ip(BALANCER)];
    all.ports[0].node_port = Some(30080);
    all
}

/// Each kind of frontend of such a Service, with its port.
pub fn frontends() -> [(&'static str, u16); 4] {
    [(CLUSTER_IP, 80), (EXTERNAL_IP, 80), (BALANCER, 80), (NODE, 30080)]
}

/// A ready endpoint.
pub fn endpoint(address: &str, node: &str) -> Endpoint {
    Endpoint {
        addresses: vec![ip(address)],
        ready: true,
        serving: true,
        terminating: false,
        node: Some(node.to_owned()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    }
}

/// One that terminates and still serves.
pub fn terminating(address: &str, node: &str) -> Endpoint {
    Endpoint { ready: false, terminating: true, ..endpoint(address, node) }
}

/// An EndpointSlice of IPv4, for port 8080 of the endpoints.
pub fn slice(service: &str, name: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        key: SliceKey { namespace: "blue".to_owned(), name: name.to_owned() },
        service: key(service),
        family: IpFamily::V4,
        ports: vec![SlicePort { name: String::new(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints,
    }
}

/// The index of a node with one Service and its endpoints.
pub fn index(service: Service, endpoints: Vec<Endpoint>) -> ServiceIndex {
    let mut index = ServiceIndex::default();
    index.set_node(node());
    index.apply_slice(slice(&service.key.name, "slice", endpoints));
    index.apply_service(service);
    index
}

/// A TCP connection.
pub fn connection(source: &str, destination: &str, port: u16) -> Connection {
    let (source, destination) = (ip(source), ip(destination));
    connection_to(source, destination, Protocol::Tcp, port)
}

pub fn connection_to(source: IpAddr, destination: IpAddr, protocol: Protocol, port: u16) -> Connection {
    let source_class = if pod_ranges().iter().any(|range| range.contains(&source)) {
        SourceClass::Pod
    } else if node_addresses().contains(&source) {
        SourceClass::Node
    } else {
        SourceClass::External
    };
    let to_node_ports = node_addresses().contains(&destination) && !destination.is_loopback();
    Connection { source, source_class, destination, to_node_ports, protocol, port }
}

/// Which backends connections reach, as addresses, or what else becomes of them: by the rules, which have to agree with the
/// decision.
pub fn reached(index: &ServiceIndex, connection: Connection) -> BTreeSet<String> {
    compare(index, &mut Tables::of(index), &connection);
    match index.evaluate(&connection) {
        Decision::NotAService => ["not a service".to_owned()].into(),
        Decision::Denied { reason, .. } => [format!("{reason:?}")].into(),
        Decision::Translated { backends, .. } => {
            backends.iter().map(|backend| backend.address.to_string()).collect()
        }
    }
}

pub fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Whether connections are masqueraded.
pub fn is_masqueraded(index: &ServiceIndex, connection: Connection) -> bool {
    compare(index, &mut Tables::of(index), &connection);
    match index.evaluate(&connection) {
        Decision::Translated { masquerade, .. } => masquerade,
        other => panic!("{other:?}"),
    }
}

/// Compares the rules with the decision, for every random number.
pub fn compare(index: &ServiceIndex, tables: &mut Tables, connection: &Connection) {
    let decision = index.evaluate(connection);
    let count = match &decision {
        Decision::Translated { backends, .. } => backends.len() as u32,
        _ => 1,
    };
    let mut found = BTreeSet::new();
    for choice in 0..count {
        tables.learned.clear();
        let outcome = tables.send(connection, choice);
        match (&decision, &outcome) {
            (Decision::NotAService, Outcome::Accepted { translated: None, masquerade }) => {
                assert_ne!(*masquerade, Masquerade::Yes, "{connection:?}");
            }
            (Decision::Denied { reason, .. }, Outcome::Rejected) if reason.is_rejected() => {}
            (Decision::Denied { reason, .. }, Outcome::Dropped) if !reason.is_rejected() => {}
            (
                Decision::Translated { backends, masquerade, .. },
                Outcome::Accepted { translated: Some(backend), masquerade: done },
            ) => {
                assert!(backends.contains(backend), "{connection:?}: {backend} of {decision:?}");
                // A host is not masqueraded for itself: both addresses are its own.
                let expected = *masquerade || connection.source == backend.address;
                let is_as_expected = match done {
                    Masquerade::Yes => expected,
                    Masquerade::No => !expected,
                    Masquerade::NotReached => true,
                };
                assert!(is_as_expected, "{connection:?} to {backend}: {done:?}, {decision:?}");
                found.insert(*backend);
            }
            _ => panic!("{connection:?}: {outcome:?}, but {decision:?}"),
        }
    }
    if let Decision::Translated { backends, .. } = &decision {
        assert_eq!(found, *backends, "{connection:?} reaches all backends");
    }
}

pub fn backend(address: &str) -> Backend {
    Backend { address: ip(address), port: 8080 }
}
