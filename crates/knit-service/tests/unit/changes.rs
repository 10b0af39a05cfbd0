//! What a change affects.

use std::collections::BTreeSet;

use knit_model::filter::{ElementData, ElementKey};
use knit_service::{BackendChain, Frontend, NodeFacts, Protocol, Scope, ServiceIndex, SliceKey};

use crate::support::*;

fn elements(index: &ServiceIndex, name: &str) -> BTreeSet<(ElementKey, String)> {
    let all = index.elements_of(&key(name)).into_iter();
    all.map(|(key, data): (ElementKey, ElementData)| (key, data.to_string())).collect()
}

#[test]
fn what_is_applied_again_affects_nothing() {
    let mut index = index(external("web"), vec![endpoint("10.75.0.1", "a")]);
    assert!(index.apply_service(external("web")).is_empty());
    assert!(index.apply_slice(slice("web", "slice", vec![endpoint("10.75.0.1", "a")])).is_empty());
    assert!(index.set_node(node()).is_empty());
    assert!(index.set_services(vec![external("web")]).is_empty());
    assert!(index.set_slices(vec![slice("web", "slice", vec![endpoint("10.75.0.1", "a")])]).is_empty());
    // Endpoints of a Service that is not known, and those that are not used.
    assert!(index.apply_slice(slice("absent", "absent", vec![endpoint("10.75.0.2", "a")])).is_empty());
    assert!(index.apply_slice(slice("web", "more", vec![terminating("10.75.1.2", "b")])).is_empty());
    assert!(
        index.remove_slice(&SliceKey { namespace: "blue".to_owned(), name: "none".to_owned() }).is_empty()
    );
    assert!(index.remove_service(&key("none")).is_empty());
}

#[test]
fn a_backend_that_goes_changes_few_elements() {
    let pods: Vec<_> = (1..=50).map(|number| endpoint(&format!("10.75.1.{number}"), "b")).collect();
    let mut index = index(service("web", &[CLUSTER_IP]), pods.clone());
    let before = elements(&index, "web");
    let left = pods.into_iter().filter(|one| one.addresses[0] != ip("10.75.1.20")).collect();
    assert_eq!(index.apply_slice(slice("web", "slice", left)), [key("web")].into());
    let after = elements(&index, "web");
    // The hole, the last slot, and the number of slots of the only frontend.
    let (gone, new) = (before.difference(&after).count(), after.difference(&before).count());
    assert_eq!((gone, new), (3, 2));
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)).len(), 49);
}

#[test]
fn a_backend_that_is_replaced_changes_one_element() {
    let mut index =
        index(service("web", &[CLUSTER_IP]), vec![endpoint("10.75.1.1", "b"), endpoint("10.75.1.2", "b")]);
    let before = elements(&index, "web");
    index.apply_slice(slice("web", "slice", vec![endpoint("10.75.1.3", "b"), endpoint("10.75.1.2", "b")]));
    assert_eq!(before.difference(&elements(&index, "web")).count(), 1);
}

#[test]
fn chains_are_those_of_services_in_use() {
    let chain = |scope: Scope, slots: u32| BackendChain::Choose { scope, slots };
    let mut local = external("web");
    local.external_local = true;
    let mut index = index(local.clone(), vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b")]);
    assert_eq!(index.chains(), [chain(Scope::Cluster, 2), chain(Scope::Local, 1)].into());
    index.apply_slice(slice("other", "other", vec![endpoint("10.75.0.1", "a"), endpoint("10.75.0.2", "a")]));
    index.apply_service(service("other", &["10.96.0.2"]));
    local.external_local = false;
    index.apply_service(local);
    assert_eq!(index.chains(), [chain(Scope::Cluster, 2)].into());
    index.remove_service(&key("web"));
    assert_eq!(index.chains(), [chain(Scope::Cluster, 2)].into());
    index.remove_service(&key("other"));
    assert!(index.chains().is_empty());
}

#[test]
fn a_node_that_moves_to_another_zone_changes_services_with_hints() {
    let mut hinted = endpoint("10.75.1.1", "b");
    hinted.zone_hints = vec!["west".to_owned()];
    let mut other = endpoint("10.75.1.2", "b");
    other.zone_hints = vec!["east".to_owned()];
    let mut index = index(service("web", &[CLUSTER_IP]), vec![hinted, other]);
    index.apply_service(service("other", &["10.96.0.2"]));
    let changed = index.set_node(NodeFacts { zone: Some("west".to_owned()), ..node() });
    assert_eq!(changed, [key("web")].into());
    assert_eq!(reached(&index, connection(POD, CLUSTER_IP, 80)), set(&["10.75.1.1"]));
}

#[test]
fn health_checks_count_ready_endpoints_of_this_node() {
    let mut local = external("web");
    (local.external_local, local.health_check_node_port) = (true, Some(30999));
    let all = vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b"), terminating("10.75.0.2", "a")];
    let mut index = index(local.clone(), all);
    let count = |index: &ServiceIndex| index.health_checks().get(&30999).map(|check| check.local_endpoints);
    assert_eq!(count(&index), Some(1));
    let changed = index.apply_slice(slice("web", "slice", vec![terminating("10.75.0.2", "a")]));
    assert_eq!(changed, [key("web")].into());
    assert_eq!(count(&index), Some(0));
    local.external_local = false;
    index.apply_service(local);
    assert_eq!(count(&index), None);
}

#[test]
fn udp_flows_may_lead_to_all_backends_that_serve() {
    let mut dns = external("web");
    dns.ports[0].protocol = Protocol::Udp;
    let slice = |endpoints| {
        let mut slice = slice("web", "slice", endpoints);
        slice.ports[0].protocol = Protocol::Udp;
        slice
    };
    let mut index = index(dns, Vec::new());
    assert_eq!(index.udp_frontends(&key("web")).len(), 4);
    assert!(index.udp_frontends(&key("web")).values().all(BTreeSet::is_empty));
    let changed = index.apply_slice(slice(vec![endpoint("10.75.0.1", "a"), terminating("10.75.0.2", "a")]));
    assert_eq!(changed, [key("web")].into());
    let facts = index.udp_frontends(&key("web"));
    let frontend = Frontend::Address { address: ip(CLUSTER_IP), protocol: Protocol::Udp, port: 80 };
    assert_eq!(facts[&frontend], [backend("10.75.0.1"), backend("10.75.0.2")].into());
    // One that ends changes nothing but this.
    let changed = index.apply_slice(slice(vec![endpoint("10.75.0.1", "a")]));
    assert_eq!(changed, [key("web")].into());
    assert_eq!(index.udp_frontends(&key("web"))[&frontend], [backend("10.75.0.1")].into());
    index.remove_service(&key("web"));
    assert!(index.udp_frontends(&key("web")).is_empty());
}

#[test]
fn a_pod_behind_two_services_has_one_hairpin_element() {
    let pod = vec![endpoint("10.75.0.1", "a")];
    let mut index = index(service("web", &[CLUSTER_IP]), pod.clone());
    index.apply_slice(slice("api", "api", pod));
    index.apply_service(service("api", &["10.96.0.2"]));
    // The interpreter accepts no element twice.
    reached(&index, connection("10.75.0.1", CLUSTER_IP, 80));
    let changed = index.remove_service(&key("api"));
    assert_eq!(changed, [key("api"), key("web")].into(), "the element moves");
    reached(&index, connection("10.75.0.1", CLUSTER_IP, 80));
}

#[test]
fn an_index_that_was_stored_and_loaded_is_the_same() {
    let mut service = external("web");
    (service.affinity, service.external_local) = (Some(60), true);
    let index = index(service, vec![endpoint("10.75.0.1", "a"), endpoint("10.75.1.1", "b")]);
    let text = serde_json::to_string(&index).unwrap();
    assert_eq!(serde_json::from_str::<ServiceIndex>(&text).unwrap(), index);
}
