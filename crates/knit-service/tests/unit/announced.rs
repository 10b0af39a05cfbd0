//! The IPs of load balancers that Knit announces.

use std::collections::{BTreeMap, BTreeSet};

use knit_service::{Announced, DenyReason, Service};

use crate::support::*;

fn announced(external_local: bool) -> Service {
    let mut service = external("web");
    (service.announced, service.external_local) = (true, external_local);
    // As on the node that announces it.
    service.load_balancer_ips = vec![ip(NODE)];
    service
}

fn nodes(names: &[&str]) -> Announced {
    let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
    BTreeMap::from([(ip(NODE), Some(names))])
}

#[test]
fn only_the_ports_of_the_service_are_open_at_an_announced_address() {
    let closed = format!("{:?}", DenyReason::NoSuchPort);
    let endpoints = || vec![endpoint(POD, "a")];
    let index_of = |service: Service| index(service, endpoints());
    let open = index_of(announced(false));
    for source in [OUTSIDE, POD, NODE] {
        assert_eq!(reached(&open, connection(source, NODE, 80)), set(&[POD]), "{source}");
        assert_eq!(reached(&open, connection(source, NODE, 22)), set(&[&closed]), "{source}");
        assert_eq!(reached(&open, connection(source, NODE, 30080)), set(&[&closed]), "a node port");
        assert_eq!(reached(&open, connection(source, "192.0.2.10", 30080)), set(&[POD]), "another address");
    }
    // An address of another program.
    let other = index_of(Service { announced: false, ..announced(false) });
    assert_eq!(reached(&other, connection(OUTSIDE, NODE, 22)), set(&["not a service"]));
    assert_eq!(reached(&other, connection(OUTSIDE, NODE, 30080)), set(&[POD]));
}

#[test]
fn with_the_local_policy_only_nodes_with_an_endpoint_may_announce() {
    let mut index = index(announced(false), vec![endpoint(POD, "a")]);
    assert_eq!(index.announced(&key("web")), BTreeMap::from([(ip(NODE), None)]));
    let service = announced(true);
    assert_eq!(index.apply_service(service.clone()), BTreeSet::from([key("web")]));
    assert_eq!(index.announced(&key("web")), nodes(&["a"]));
    // The endpoints of another zone are not used here, but their nodes may announce.
    let hinted = |address: &str, node: &str, zone: &str, ready: bool| {
        let all = if ready { endpoint(address, node) } else { terminating(address, node) };
        knit_service::Endpoint { zone_hints: vec![zone.to_owned()], ..all }
    };
    let mine = || hinted(POD, "a", "east", true);
    let both = vec![mine(), hinted("10.75.1.1", "b", "west", true)];
    index.apply_slice(slice("web", "slice", both));
    assert_eq!(index.announced(&key("web")), nodes(&["a", "b"]));
    let changed =
        index.apply_slice(slice("web", "slice", vec![mine(), hinted("10.75.1.1", "c", "west", true)]));
    assert_eq!((changed, index.announced(&key("web"))), (BTreeSet::from([key("web")]), nodes(&["a", "c"])));
    let terminating = vec![hinted(POD, "a", "east", false), hinted("10.75.1.1", "c", "west", true)];
    index.apply_slice(slice("web", "slice", terminating));
    assert_eq!(index.announced(&key("web")), nodes(&["c"]));
    index.apply_slice(slice("web", "slice", vec![hinted(POD, "a", "east", false)]));
    assert_eq!(index.announced(&key("web")), nodes(&["a"]), "it still serves");
    index.apply_slice(slice("web", "slice", vec![]));
    assert_eq!(index.announced(&key("web")), nodes(&[]));
}

#[test]
fn the_older_of_two_services_announces_an_address_of_both() {
    let mut index = index(Service { created: 7, ..announced(false) }, vec![]);
    let mut older = Service { created: 3, ..announced(false) };
    (older.key, older.cluster_ips) = (key("older"), vec![ip("10.96.0.9")]);
    let changed = index.apply_service(older);
    assert!(changed.contains(&key("web")), "{changed:?}");
    assert_eq!(index.announced(&key("older")).len(), 1);
    assert_eq!(index.announced(&key("web")), Announced::new());
    index.remove_service(&key("older"));
    assert_eq!(index.announced(&key("web")).len(), 1);
}
