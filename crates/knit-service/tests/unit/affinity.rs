//! A client is led to the same backend.

use knit_service::{Backend, Connection, ServiceIndex};

use crate::packets::{Outcome, Tables};
use crate::support::*;

const SECONDS: u32 = 10_800;

fn with_affinity(external_local: bool, endpoints: Vec<knit_service::Endpoint>) -> ServiceIndex {
    let mut service = external("web");
    (service.affinity, service.external_local) = (Some(SECONDS), external_local);
    index(service, endpoints)
}

fn three() -> Vec<knit_service::Endpoint> {
    vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b"), endpoint("10.75.1.2", "b")]
}

fn send(tables: &mut Tables, connection: Connection, choice: u32) -> Backend {
    match tables.send(&connection, choice) {
        Outcome::Accepted { translated: Some(backend), .. } => backend,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_stays_with_its_backend_on_every_frontend() {
    let index = with_affinity(false, three());
    for (address, port) in frontends() {
        let mut tables = Tables::of(&index);
        for choice in 0..3 {
            tables.learned.clear();
            let first = send(&mut tables, connection(OUTSIDE, address, port), choice);
            for other in 0..3 {
                assert_eq!(send(&mut tables, connection(OUTSIDE, address, port), other), first);
            }
        }
        // Each client has its own.
        let others = [0, 1, 2].map(|choice| {
            let source = format!("198.51.100.{}", 10 + choice);
            send(&mut tables, connection(&source, address, port), choice)
        });
        assert_eq!(others.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }
}

#[test]
fn affinity_of_ipv6_works_with_all_registers() {
    let mut service = external("web");
    service.affinity = Some(60);
    service.cluster_ips.push(ip("fd96::1"));
    let mut index = index(service, Vec::new());
    let mut v6 = slice("web", "v6", vec![endpoint("fd75::1", "a"), endpoint("fd75:1::1", "b")]);
    v6.family = knit_model::filter::field::IpFamily::V6;
    index.apply_slice(v6);
    let mut tables = Tables::of(&index);
    for (address, port) in [("fd96::1", 80), ("fd02::1", 30080)] {
        tables.learned.clear();
        let first = send(&mut tables, connection("2001:db8::1", address, port), 1);
        assert_eq!(send(&mut tables, connection("2001:db8::1", address, port), 0), first);
    }
}

#[test]
fn a_client_whose_backend_is_gone_gets_another_and_stays_there() {
    let mut index = with_affinity(false, three());
    let mut tables = Tables::of(&index);
    let client = connection(OUTSIDE, EXTERNAL_IP, 80);
    let first = send(&mut tables, client, 0);
    let left: Vec<_> = three().into_iter().filter(|one| one.addresses[0] != first.address).collect();
    index.apply_slice(slice("web", "slice", left));
    let learned = std::mem::take(&mut tables.learned);
    tables = Tables::of(&index);
    tables.learned = learned;
    let second = send(&mut tables, client, 1);
    assert_ne!(second, first);
    assert_eq!(send(&mut tables, client, 0), second);
    assert_eq!(tables.learned.len(), 1);
}

#[test]
fn clients_reach_all_backends_when_no_more_can_be_recorded() {
    let index = with_affinity(false, three());
    let mut tables = Tables::of(&index);
    tables.is_full = true;
    for (address, port) in frontends() {
        let reached = [0, 1, 2].map(|choice| send(&mut tables, connection(OUTSIDE, address, port), choice));
        assert_eq!(reached.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }
    assert!(tables.learned.is_empty());
}

#[test]
fn affinity_never_leads_a_client_past_its_traffic_policy() {
    let index = with_affinity(true, three());
    let mut tables = Tables::of(&index);
    // The cluster IP leads a client outside anywhere, the load balancer only to this node.
    for choice in 0..3 {
        send(&mut tables, connection(OUTSIDE, CLUSTER_IP, 80), choice);
        assert_eq!(send(&mut tables, connection(OUTSIDE, BALANCER, 80), choice), backend("10.75.0.1"));
        tables.learned.clear();
    }
}

#[test]
fn all_services_share_a_map_and_not_their_clients() {
    let mut index = with_affinity(false, three());
    let mut other = service("other", &["10.96.0.2"]);
    other.affinity = Some(60);
    index.apply_slice(slice("other", "other", three()));
    index.apply_service(other);
    let mut tables = Tables::of(&index);
    let maps = tables.table.sets.keys().filter(|name| knit_service::is_dynamic_set(name));
    assert_eq!(maps.cloned().collect::<Vec<_>>(), ["service_affinity4", "service_node_port_affinity4"]);
    let first = send(&mut tables, connection(OUTSIDE, CLUSTER_IP, 80), 0);
    assert_ne!(send(&mut tables, connection(OUTSIDE, "10.96.0.2", 80), 1), first);
    assert_eq!(send(&mut tables, connection(OUTSIDE, CLUSTER_IP, 80), 1), first);
    assert_ne!(send(&mut tables, connection(OUTSIDE, "10.96.0.2", 80), 0), first);
}

#[test]
fn a_new_timeout_applies_to_known_clients() {
    let mut index = with_affinity(false, three());
    let mut tables = Tables::of(&index);
    let client = connection(OUTSIDE, EXTERNAL_IP, 80);
    send(&mut tables, client, 0);
    let mut service = external("web");
    service.affinity = Some(60);
    index.apply_service(service);
    let learned = std::mem::take(&mut tables.learned);
    tables = Tables::of(&index);
    tables.learned = learned.clone();
    let second = send(&mut tables, client, 1);
    assert_ne!(tables.learned, learned, "the timeout is part of what is learned");
    assert_eq!(send(&mut tables, client, 0), second);
}

#[test]
fn no_timeout_of_a_tenant_costs_connections_to_others_a_lookup() {
    let tables = |timeouts: u32| {
        let mut index = with_affinity(false, three());
        for seconds in 1..=timeouts {
            let name = format!("other{seconds}");
            let mut other = service(&name, &[&format!("10.97.{}.{}", seconds / 250, seconds % 250)]);
            other.affinity = Some(seconds * 86);
            index.apply_slice(slice(&name, &name, vec![endpoint("10.75.0.1", "a")]));
            index.apply_service(other);
        }
        Tables::of(&index).table
    };
    let (few, many) = (tables(0), tables(1_000));
    assert_eq!(few.sets, many.sets);
    assert!(few.chains.keys().eq(many.chains.keys().filter(|name| *name != "service_choose_1")));
    for (name, chain) in &few.chains {
        // What is evaluated only for clients with affinity has a rule for each timeout.
        if !name.starts_with("service_learn") {
            assert_eq!(*chain, many.chains[name], "{name}");
        }
    }
    assert!(many.chains["service_learn4"].rules.len() <= 16);
}
