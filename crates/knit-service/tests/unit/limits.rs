//! Objects of a tenant that are as large as the API server accepts.

use std::net::Ipv4Addr;

use knit_service::{Protocol, Service, ServicePort, SlicePort};

use crate::support::*;

fn addresses(count: u32) -> Vec<std::net::IpAddr> {
    let first = u32::from(Ipv4Addr::new(203, 0, 0, 1));
    (0..count).map(|number| Ipv4Addr::from(first + number).into()).collect()
}

fn endpoints(count: u32) -> Vec<knit_service::Endpoint> {
    let address = |number: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 75, 1, 0)) + number).to_string();
    (0..count).map(|number| endpoint(&address(number), "b")).collect()
}

/// A Service with this many ports, all of which its EndpointSlice has.
fn with_ports(count: u16, endpoints: Vec<knit_service::Endpoint>) -> (Service, knit_service::EndpointSlice) {
    let name = |number: u16| format!("p{number}");
    let port = |number| ServicePort {
        name: name(number),
        protocol: Protocol::Tcp,
        port: number,
        node_port: Some(number),
    };
    let slice_port = |number| SlicePort { name: name(number), protocol: Protocol::Tcp, port: number };
    let service = Service { ports: (1..=count).map(port).collect(), ..service("web", &[CLUSTER_IP]) };
    let ports = (1..=count).map(slice_port).collect();
    (service, knit_service::EndpointSlice { ports, ..slice("web", "web", endpoints) })
}

#[test]
fn the_elements_of_a_service_are_limited_whatever_it_asks_for() {
    for (ports, external, balanced, ranges, pods) in [
        (20, 1_000, 0, 0, 1_000),
        (1, 5_000, 5_000, 5_000, 1_000),
        (20_000, 0, 0, 0, 5),
        (1, 0, 0, 0, 100_000),
    ] {
        let (mut service, slice) = with_ports(ports, endpoints(pods));
        service.external_ips = addresses(external);
        service.load_balancer_ips = addresses(external + balanced).split_off(external as usize);
        service.source_ranges = addresses(ranges).into_iter().map(ipnet::IpNet::from).collect();
        service.affinity = Some(60);
        service.external_local = true;
        let mut index = index(service.clone(), Vec::new());
        index.apply_slice(slice);
        let count = index.elements_of(&service.key).len();
        assert!(count < 300_000, "{count} elements of {ports} ports, {external} IPs and {pods} endpoints");
        assert_eq!(index.limited().into_iter().collect::<Vec<_>>(), [&service.key], "it is reported");
        index.remove_service(&service.key);
        assert!(index.limited().is_empty());
    }
}

#[test]
fn a_large_service_is_served_as_a_whole() {
    let (mut service, slice) = with_ports(3, endpoints(4_000));
    service.external_ips = addresses(2);
    let mut index = index(service, Vec::new());
    index.apply_slice(slice);
    assert!(index.limited().is_empty());
    assert_eq!(reached_count(&index), 4_000);
}

#[test]
fn rules_and_decision_leave_out_the_same() {
    let (mut service, slice) = with_ports(1_000, endpoints(40));
    service.external_ips = addresses(5);
    let mut index = index(service, Vec::new());
    index.apply_slice(slice);
    let sixteen = reached(&index, connection(OUTSIDE, CLUSTER_IP, 2));
    assert_eq!(sixteen.len(), 16);
    assert_eq!(reached(&index, connection(OUTSIDE, "203.0.0.2", 999)), sixteen);
    assert_eq!(reached(&index, connection(OUTSIDE, "203.0.0.3", 2)), set(&["not a service"]));
}

fn reached_count(index: &knit_service::ServiceIndex) -> usize {
    match index.evaluate(&connection(OUTSIDE, CLUSTER_IP, 2)) {
        knit_service::Decision::Translated { backends, .. } => backends.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn source_ranges_that_are_too_many_open_no_load_balancer() {
    let mut service = external("web");
    service.cluster_ips.push(ip("fd96::1"));
    service.load_balancer_ips.push(ip("2001:db8::2"));
    service.source_ranges = addresses(50_000).into_iter().map(ipnet::IpNet::from).collect();
    service.source_ranges.push("2001:db8:1::/48".parse().unwrap());
    let index = index(service, vec![endpoint("10.75.0.1", "a")]);
    assert_eq!(index.limited().len(), 1);
    for (source, balancer) in [(OUTSIDE, BALANCER), ("2001:db8:2::1", "2001:db8::2")] {
        assert_eq!(reached(&index, connection(source, balancer, 80)), set(&["SourceNotAllowed"]));
    }
    assert_eq!(reached(&index, connection("203.0.0.1", BALANCER, 80)), set(&["10.75.0.1"]));
}
