//! Cluster IPs, external IPs, load balancers and node ports: who is led where, and with which source.

use knit_model::filter::field::IpFamily;
use knit_service::{EndpointSlice, Service};

use crate::support::*;

fn both() -> Vec<knit_service::Endpoint> {
    vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b")]
}

#[test]
fn every_frontend_leads_to_the_endpoints() {
    let index = index(external("web"), both());
    for (address, port) in frontends() {
        for source in ["10.75.0.2", NODE, OUTSIDE] {
            assert_eq!(
                reached(&index, connection(source, address, port)),
                set(&["10.75.0.1", "10.75.1.1"]),
                "{source} to {address}"
            );
        }
    }
    assert_eq!(reached(&index, connection(POD, "203.0.113.9", 80)), set(&["not a service"]));
    assert_eq!(reached(&index, connection(POD, EXTERNAL_IP, 81)), set(&["not a service"]));
}

#[test]
fn a_port_that_a_cluster_ip_does_not_have_is_rejected() {
    let index = index(external("web"), both());
    for source in [POD, NODE, OUTSIDE] {
        assert_eq!(reached(&index, connection(source, CLUSTER_IP, 81)), set(&["NoSuchPort"]));
    }
}

#[test]
fn external_frontends_masquerade_and_cluster_ips_only_for_clients_that_are_no_pods() {
    let index = index(external("web"), both());
    let masqueraded = |source: &str| {
        frontends().map(|(address, port)| is_masqueraded(&index, connection(source, address, port)))
    };
    assert_eq!(masqueraded("10.75.0.2"), [false, true, true, true]);
    assert_eq!(masqueraded(NODE), [true; 4]);
    assert_eq!(masqueraded(OUTSIDE), [true; 4]);
}

#[test]
fn the_external_local_policy_keeps_the_source_and_uses_local_endpoints_for_clients_outside() {
    let mut local = external("web");
    local.external_local = true;
    let index = index(local, both());
    let all = set(&["10.75.0.1", "10.75.1.1"]);
    for (address, port) in frontends().into_iter().skip(1) {
        let from = |source: &str| {
            let connection = connection(source, address, port);
            (reached(&index, connection), is_masqueraded(&index, connection))
        };
        assert_eq!(from(OUTSIDE), (set(&["10.75.0.1"]), false));
        assert_eq!(from("10.75.0.2"), (all.clone(), false), "a pod is in the cluster");
        assert_eq!(from("10.75.1.2"), (all.clone(), false), "a pod of another node, too");
        assert_eq!(from(NODE), (all.clone(), true), "the node itself, too");
    }
    assert_eq!(reached(&index, connection(OUTSIDE, CLUSTER_IP, 80)), all);
}

#[test]
fn the_external_local_policy_drops_what_has_no_local_endpoint_and_rejects_what_has_none() {
    let mut local = external("web");
    local.external_local = true;
    let remote = index(local.clone(), vec![endpoint("10.75.1.1", "b")]);
    let none = index(local, Vec::new());
    for (address, port) in frontends().into_iter().skip(1) {
        let reached = |index, source| reached(index, connection(source, address, port));
        assert_eq!(reached(&remote, OUTSIDE), set(&["NoLocalEndpoints"]));
        assert_eq!(reached(&remote, POD), set(&["10.75.1.1"]));
        assert_eq!(reached(&remote, NODE), set(&["10.75.1.1"]));
        assert_eq!(reached(&none, OUTSIDE), set(&["NoEndpoints"]));
        assert_eq!(reached(&none, POD), set(&["NoEndpoints"]));
        assert_eq!(reached(&none, NODE), set(&["NoEndpoints"]));
    }
}

#[test]
fn the_internal_local_policy_is_about_the_cluster_ip_only() {
    let mut local = external("web");
    local.internal_local = true;
    let index = index(local, vec![endpoint("10.75.1.1", "b")]);
    let from_pod = frontends().map(|(address, port)| reached(&index, connection(POD, address, port)));
    let remote = set(&["10.75.1.1"]);
    assert_eq!(from_pod, [set(&["NoLocalEndpoints"]), remote.clone(), remote.clone(), remote]);
}

#[test]
fn both_local_policies_lead_clients_in_the_cluster_to_all_endpoints_of_external_frontends() {
    let mut local = external("web");
    (local.internal_local, local.external_local) = (true, true);
    let index = index(local, both());
    let from =
        |source: &str| frontends().map(|(address, port)| reached(&index, connection(source, address, port)));
    let (here, all) = (set(&["10.75.0.1"]), set(&["10.75.0.1", "10.75.1.1"]));
    assert_eq!(from(POD), [here.clone(), all.clone(), all.clone(), all]);
    assert_eq!(from(OUTSIDE), [here.clone(), here.clone(), here.clone(), here]);
}

#[test]
fn a_pod_that_is_led_to_itself_is_masqueraded() {
    // `reached` compares the source with each backend.
    for external_local in [false, true] {
        let mut service = external("web");
        service.external_local = external_local;
        let index = index(service, both());
        for (address, port) in frontends() {
            reached(&index, connection("10.75.0.1", address, port));
            reached(&index, connection(NODE, address, port));
        }
        // One of another node comes through this one only by its node port.
        reached(&index, connection("10.75.1.1", NODE, 30080));
    }
}

fn dual_stack() -> (Service, EndpointSlice) {
    let mut both = external("web");
    both.cluster_ips.push(ip("fd96::1"));
    let mut slice = slice("web", "v6", vec![endpoint("fd75::1", "a"), endpoint("fd75:1::1", "b")]);
    slice.family = IpFamily::V6;
    (both, slice)
}

#[test]
fn each_family_has_its_own_endpoints() {
    let (service, slice) = dual_stack();
    let mut index = index(service, both());
    assert_eq!(reached(&index, connection("fd75::2", "fd96::1", 80)), set(&["NoEndpoints"]));
    index.apply_slice(slice);
    let v6 = set(&["fd75::1", "fd75:1::1"]);
    assert_eq!(reached(&index, connection("fd75::2", "fd96::1", 80)), v6);
    assert_eq!(reached(&index, connection(OUTSIDE, CLUSTER_IP, 80)), set(&["10.75.0.1", "10.75.1.1"]));
    assert_eq!(reached(&index, connection("2001:db8::1", "fd02::1", 30080)), v6);
}

#[test]
fn a_family_without_a_cluster_ip_is_not_served() {
    let mut service = external("web");
    service.external_ips.push(ip("2001:db8::80"));
    let index = index(service, both());
    assert_eq!(reached(&index, connection("fd75::2", "2001:db8::80", 80)), set(&["not a service"]));
    assert_eq!(reached(&index, connection("fd75::2", "fd02::1", 30080)), set(&["not a service"]));
}

#[test]
fn an_external_ip_that_is_an_address_of_the_node_is_served() {
    let mut service = external("web");
    service.external_ips = vec![ip(NODE)];
    let mut index = index(service, both());
    assert_eq!(reached(&index, connection(OUTSIDE, NODE, 80)), set(&["10.75.0.1", "10.75.1.1"]));
    index.apply_slice(slice("web", "slice", Vec::new()));
    assert_eq!(reached(&index, connection(OUTSIDE, NODE, 80)), set(&["NoEndpoints"]));
    assert_eq!(reached(&index, connection(NODE, NODE, 80)), set(&["NoEndpoints"]));
}

#[test]
fn the_oldest_service_has_a_frontend_and_the_next_one_gets_it() {
    let pods = [("old", "10.75.0.1"), ("new", "10.75.0.2")];
    let mut index = index(service("unrelated", &["10.96.0.9"]), Vec::new());
    for (number, (name, pod)) in pods.into_iter().enumerate().rev() {
        let mut service = external(name);
        service.cluster_ips = vec![ip(&format!("10.96.0.{}", number + 1))];
        service.created = number as i64;
        index.apply_slice(slice(name, name, vec![endpoint(pod, "a")]));
        index.apply_service(service);
    }
    let owner = |index: &_| {
        let all = frontends().into_iter().skip(1);
        let all: Vec<_> =
            all.map(|(address, port)| reached(index, connection(OUTSIDE, address, port))).collect();
        assert!(all.iter().all(|one| one == &all[0]), "{all:?}");
        all[0].clone()
    };
    assert_eq!(owner(&index), set(&["10.75.0.1"]));
    assert_eq!(reached(&index, connection(OUTSIDE, "10.96.0.2", 80)), set(&["10.75.0.2"]), "its cluster IP");
    let changed = index.remove_service(&key("old"));
    assert_eq!(changed, [key("new"), key("old")].into());
    assert_eq!(owner(&index), set(&["10.75.0.2"]));
}

#[test]
fn a_cluster_ip_cannot_be_taken_over_as_an_external_ip() {
    let mut thief = service("thief", &["10.96.0.2"]);
    thief.external_ips = vec![ip(CLUSTER_IP)];
    thief.created = -1;
    thief.ports.push(knit_service::ServicePort { port: 81, ..thief.ports[0].clone() });
    let mut index = index(thief, vec![endpoint("10.75.0.2", "a")]);
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.2"]));
    index.apply_slice(slice("web", "web", vec![endpoint("10.75.0.1", "a")]));
    let changed = index.apply_service(service("web", &[CLUSTER_IP]));
    assert_eq!(changed, [key("thief"), key("web")].into());
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.1"]));
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 81)), set(&["NoSuchPort"]), "nor another port");
    index.remove_service(&key("web"));
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 81)), set(&["10.75.0.2"]));
}

/// An older Service with the external IP that is another one's load balancer IP, and with the port 81, too.
fn with_the_ip_of_a_load_balancer(namespace: &str) -> knit_service::ServiceIndex {
    let mut thief = service("thief", &["10.96.0.2"]);
    thief.key.namespace = namespace.to_owned();
    thief.external_ips = vec![ip(BALANCER)];
    thief.created = -1;
    thief.ports.push(knit_service::ServicePort { port: 81, ..thief.ports[0].clone() });
    let of_thief = EndpointSlice {
        service: thief.key.clone(),
        ..slice("thief", "thief", vec![endpoint("10.75.0.2", "a")])
    };
    let mut index = index(thief, Vec::new());
    index.apply_slice(of_thief);
    index
}

#[test]
fn the_ip_of_a_load_balancer_cannot_be_taken_over_as_an_external_ip() {
    let mut index = with_the_ip_of_a_load_balancer("green");
    let thief = knit_service::ServiceKey { namespace: "green".to_owned(), name: "thief".to_owned() };
    let reached = |index: &_, port| reached(index, connection(OUTSIDE, BALANCER, port));
    assert_eq!([80, 81].map(|port| reached(&index, port)), [(); 2].map(|()| set(&["10.75.0.2"])));
    index.apply_slice(slice("web", "web", vec![endpoint("10.75.0.1", "a")]));
    assert_eq!(index.apply_service(external("web")), [key("web"), thief.clone()].into());
    assert_eq!(reached(&index, 80), set(&["10.75.0.1"]));
    assert_eq!(reached(&index, 81), set(&["not a service"]), "nor another port");
    assert_eq!(index.remove_service(&key("web")), [key("web"), thief].into());
    assert_eq!(reached(&index, 81), set(&["10.75.0.2"]));
}

#[test]
fn a_namespace_may_use_its_load_balancer_ip_as_an_external_ip_at_other_ports() {
    let mut index = with_the_ip_of_a_load_balancer("blue");
    index.apply_slice(slice("web", "web", vec![endpoint("10.75.0.1", "a")]));
    index.apply_service(external("web"));
    let reached = |port| reached(&index, connection(OUTSIDE, BALANCER, port));
    assert_eq!([80, 81].map(reached), [set(&["10.75.0.1"]), set(&["10.75.0.2"])]);
}
