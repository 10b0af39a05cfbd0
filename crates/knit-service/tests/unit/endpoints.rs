//! Which endpoints are used.

use knit_service::{Endpoint, NodeFacts};

use crate::support::*;

/// The endpoints that pods of this node reach at the cluster IP.
fn used(endpoints: Vec<Endpoint>) -> std::collections::BTreeSet<String> {
    reached(&index(service("web", &[CLUSTER_IP]), endpoints), connection(POD, CLUSTER_IP, 80))
}

#[test]
fn ready_endpoints_are_used() {
    let not_ready = Endpoint { ready: false, serving: false, ..endpoint("10.75.0.3", "a") };
    let all = vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b"), not_ready];
    assert_eq!(used(all), set(&["10.75.0.1", "10.75.1.1"]));
}

#[test]
fn terminating_endpoints_are_used_only_without_ready_ones() {
    let all = vec![terminating("10.75.0.1", "a"), terminating("10.75.1.1", "b")];
    assert_eq!(used(all.clone()), set(&["10.75.0.1", "10.75.1.1"]));
    let with_ready = all.into_iter().chain([endpoint("10.75.1.2", "b")]).collect();
    assert_eq!(used(with_ready), set(&["10.75.1.2"]));
    let dead = Endpoint { serving: false, ..terminating("10.75.0.1", "a") };
    assert_eq!(used(vec![dead]), set(&["NoEndpoints"]));
}

#[test]
fn the_local_traffic_policy_uses_terminating_endpoints_of_this_node_before_ready_ones_of_others() {
    let mut local = service("web", &[CLUSTER_IP]);
    local.internal_local = true;
    let of =
        |endpoints: Vec<Endpoint>| reached(&index(local.clone(), endpoints), connection(POD, CLUSTER_IP, 80));
    let both = vec![terminating("10.75.0.1", "a"), endpoint("10.75.1.1", "b")];
    assert_eq!(of(both), set(&["10.75.0.1"]));
    assert_eq!(of(vec![endpoint("10.75.0.1", "a"), terminating("10.75.0.2", "a")]), set(&["10.75.0.1"]));
    assert_eq!(of(vec![endpoint("10.75.1.1", "b")]), set(&["NoLocalEndpoints"]));
    assert_eq!(of(Vec::new()), set(&["NoEndpoints"]));
}

fn in_zone(address: &str, zone: &str) -> Endpoint {
    Endpoint { zone_hints: vec![zone.to_owned()], ..endpoint(address, "b") }
}

fn on_node(address: &str, node: &str) -> Endpoint {
    Endpoint { node_hints: vec![node.to_owned()], ..in_zone(address, "east") }
}

#[test]
fn zone_hints_count_if_all_ready_endpoints_have_them_and_one_matches() {
    let (east, west) = (in_zone("10.75.1.1", "east"), in_zone("10.75.1.2", "west"));
    assert_eq!(used(vec![east.clone(), west.clone()]), set(&["10.75.1.1"]));
    assert_eq!(used(vec![west.clone()]), set(&["10.75.1.2"]), "none matches");
    let without = endpoint("10.75.1.3", "b");
    assert_eq!(
        used(vec![east.clone(), west.clone(), without]),
        set(&["10.75.1.1", "10.75.1.2", "10.75.1.3"])
    );
    // One that is not ready needs none.
    assert_eq!(used(vec![east.clone(), west.clone(), terminating("10.75.1.4", "b")]), set(&["10.75.1.1"]));
    // A node without a zone.
    let mut index = index(service("web", &[CLUSTER_IP]), vec![east, west]);
    index.set_node(NodeFacts { zone: None, ..node() });
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.1.1", "10.75.1.2"]));
}

#[test]
fn node_hints_come_before_zone_hints() {
    let (here, there) = (on_node("10.75.1.1", "a"), on_node("10.75.1.2", "b"));
    assert_eq!(used(vec![here.clone(), there.clone()]), set(&["10.75.1.1"]));
    // Without one for this node, the zone counts.
    let west = Endpoint { zone_hints: vec!["west".to_owned()], ..on_node("10.75.1.3", "b") };
    assert_eq!(used(vec![there.clone(), west]), set(&["10.75.1.2"]));
    assert_eq!(used(vec![here, in_zone("10.75.1.4", "east")]), set(&["10.75.1.1", "10.75.1.4"]));
}

#[test]
fn the_local_traffic_policy_ignores_hints() {
    let mut local = service("web", &[CLUSTER_IP]);
    local.internal_local = true;
    let here = Endpoint { zone_hints: vec!["west".to_owned()], ..endpoint("10.75.0.1", "a") };
    let all = vec![here, in_zone("10.75.1.1", "east")];
    assert_eq!(reached(&index(local, all), connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.1"]));
}

#[test]
fn slices_of_one_service_are_merged_and_equal_endpoints_count_once() {
    let mut index = index(service("web", &[CLUSTER_IP]), vec![endpoint("10.75.0.1", "a")]);
    index.apply_slice(slice("web", "second", vec![endpoint("10.75.0.1", "a"), endpoint("10.75.0.2", "a")]));
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.1", "10.75.0.2"]));
    index.remove_slice(&slice("web", "slice", Vec::new()).key);
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.1", "10.75.0.2"]));
    // A slice that another Service gets.
    index.apply_slice(slice("other", "second", vec![endpoint("10.75.0.1", "a")]));
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["NoEndpoints"]));
}

#[test]
fn a_port_uses_the_endpoints_with_its_name_and_protocol() {
    let mut named = service("web", &[CLUSTER_IP]);
    named.ports[0].name = "http".to_owned();
    let mut index = index(named, vec![endpoint("10.75.0.1", "a")]);
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["NoEndpoints"]));
    let mut with_name = slice("web", "named", vec![endpoint("10.75.0.2", "a")]);
    with_name.ports[0].name = "http".to_owned();
    index.apply_slice(with_name.clone());
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.0.2"]));
    with_name.ports[0].protocol = knit_service::Protocol::Udp;
    index.apply_slice(with_name);
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["NoEndpoints"]));
}
