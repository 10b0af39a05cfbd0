//! Load balancer addresses of Services.

mod api;
mod random;

use knit_controller_engine::{CLASS, Effect, NodeAddresses};
use serde_json::json;

use self::api::{ApiServer, addresses, service};
use crate::ready;

const LAN: &str = "192.0.2.128/29";
const LAN6: &str = "2001:db8:1::/125";

#[test]
fn a_service_gets_an_address_of_its_class_and_a_condition() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": [LAN]}));
    api.put("shop", "web", service());
    let unclassed = api::Service { class: None, ..service() };
    api.put("shop", "cloud", unclassed);
    api.put("shop", "other", api::Service { class: Some("example.com/lb".to_owned()), ..service() });
    let events = api.settle();
    let address = api.only_address("shop", "web");
    assert!(address.to_string().starts_with("192.0.2.1"), "{address}");
    assert_eq!(events, [format!("Normal AddressAssigned shop/web {address} of pool lan")]);
    for other in ["cloud", "other"] {
        assert_eq!(api.status("shop", other), (addresses(&[]), None), "{other}");
    }
    assert_eq!(api.settle(), [""; 0]);
    let ingress = json!([{"ip": address.to_string(), "ipMode": "VIP"}]);
    assert_eq!(api.last_manifest["status"]["loadBalancer"]["ingress"], ingress);
    let condition = &api.last_manifest["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["lastTransitionTime"]),
        (&json!("knit.opdev.io/AddressAssigned"), &json!("True"), &json!("1970-01-01T00:16:40Z"))
    );
    assert_eq!(CLASS, "knit.opdev.io/load-balancer");
    assert_eq!(api.counts("lan"), Some((6, 1, 5)));
}

#[test]
fn services_without_a_class_get_addresses_only_if_a_pool_is_for_them() {
    let mut api = ApiServer::new();
    api.apply_pool("classless", json!({"cidrs": [LAN], "servicesWithoutClass": true}));
    api.put("shop", "web", api::Service { class: None, ..service() });
    api.put("shop", "taken", api::Service { class: None, ..service() });
    api.set_foreign_ingress("shop", "taken", "192.0.2.130");
    api.settle();
    let address = api.only_address("shop", "web");
    assert_ne!(address.to_string(), "192.0.2.130");
    assert_eq!(
        api.status("shop", "taken"),
        (addresses(&["192.0.2.130"]), None),
        "another program assigned it"
    );
    // The pool is not for them any more: what Knit assigned is withdrawn.
    api.apply_pool("classless", json!({"cidrs": [LAN]}));
    assert_eq!(api.settle(), [format!("Normal AddressReleased shop/web {address} released")]);
    assert_eq!(api.status("shop", "web"), (addresses(&[]), None));
    assert_eq!(api.status("shop", "taken"), (addresses(&["192.0.2.130"]), None));
}

#[test]
fn an_address_stays_through_restarts_and_changes_of_the_pool_that_contain_it() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": [LAN]}));
    for name in ["a", "b", "c"] {
        api.put("shop", name, service());
    }
    api.settle();
    let before: Vec<_> = ["a", "b", "c"].map(|name| api.only_address("shop", name)).into();
    api.restart();
    assert_eq!(api.settle(), [""; 0], "a new leader changes nothing");
    api.apply_pool("lan", json!({"cidrs": ["198.51.100.0/24", "192.0.2.128/25"]}));
    api.settle();
    let after: Vec<_> = ["a", "b", "c"].map(|name| api.only_address("shop", name)).into();
    assert_eq!(before, after);
    // A pool without it: each gets another one.
    api.apply_pool("lan", json!({"cidrs": ["198.51.100.0/24"]}));
    api.settle();
    assert!(api.only_address("shop", "a").to_string().starts_with("198.51.100."));
    // A deleted pool: the addresses are withdrawn.
    api.delete_pool("lan");
    let events = api.settle();
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(
        events[0].starts_with("Warning NoAddressPool shop/a there is no ServiceAddressPool"),
        "{events:?}"
    );
    assert_eq!(api.status("shop", "a").0, addresses(&[]));
}

#[test]
fn a_pool_can_be_replaced_without_a_change_of_addresses() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": [LAN]}));
    api.put("shop", "web", service());
    api.settle();
    let before = api.only_address("shop", "web");
    for (new, old) in [("other", "lan"), ("another", "other")] {
        api.apply_pool(new, json!({"cidrs": [LAN]}));
        api.settle();
        api.delete_pool(old);
        api.settle();
        assert_eq!(api.only_address("shop", "web"), before, "{new}");
        assert_eq!(api.counts(new), Some((6, 1, 5)));
    }
}

#[test]
fn a_service_that_is_created_again_gets_the_same_address() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": ["198.51.100.0/24"]}));
    api.put("shop", "web", service());
    api.settle();
    let before = api.only_address("shop", "web");
    api.delete("shop", "web");
    api.settle();
    api.put("shop", "web", service());
    api.settle();
    assert_eq!(api.only_address("shop", "web"), before);
}

#[test]
fn addresses_are_released_with_type_class_and_service() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": ["192.0.2.130/32"]}));
    api.put("shop", "first", service());
    api.put("shop", "second", service());
    let events = api.settle();
    assert_eq!(api.only_address("shop", "first").to_string(), "192.0.2.130");
    let exhausted = "Warning AddressesExhausted shop/second pool lan has no free address".to_owned();
    assert!(events.contains(&exhausted), "{events:?}");
    assert_eq!(api.counts("lan"), Some((1, 1, 0)));
    api.change("shop", "first", |service| service.is_load_balancer = false);
    api.settle();
    assert_eq!(api.status("shop", "first"), (addresses(&[]), None));
    assert_eq!(api.only_address("shop", "second").to_string(), "192.0.2.130");
    api.delete("shop", "second");
    api.settle();
    assert_eq!(api.counts("lan"), Some((1, 0, 1)));
}

#[test]
fn namespaces_labels_and_annotations_choose_the_pool() {
    let mut api = ApiServer::new();
    api.apply_pool("all", json!({"cidrs": ["192.0.2.128/29"]}));
    api.apply_pool("shop", json!({"cidrs": ["198.51.100.0/29"], "namespaces": ["shop"]}));
    let selector = json!({"matchLabels": {"tier": "gold"}});
    api.apply_pool("gold", json!({"cidrs": ["203.0.113.0/29"], "serviceSelector": selector}));
    api.put("shop", "web", service());
    api.put("lab", "web", service());
    let gold = [("tier".to_owned(), "gold".to_owned())].into();
    api.put("lab", "gold", api::Service { labels: gold, pool: Some("gold".to_owned()), ..service() });
    api.put("lab", "base", api::Service { pool: Some("gold".to_owned()), ..service() });
    api.put("lab", "shop", api::Service { pool: Some("shop".to_owned()), ..service() });
    api.put("lab", "none", api::Service { pool: Some("none".to_owned()), ..service() });
    api.settle();
    for (namespace, name, prefix) in
        [("shop", "web", "198.51.100."), ("lab", "web", "192.0.2."), ("lab", "gold", "203.0.113.")]
    {
        let address = api.only_address(namespace, name).to_string();
        assert!(address.starts_with(prefix), "{namespace}/{name}: {address}");
    }
    for name in ["base", "shop", "none"] {
        assert_eq!(api.reason("lab", name), "PoolNotAllowed", "{name}");
    }
    // A namespace that loses its pool loses its addresses.
    api.apply_pool("shop", json!({"cidrs": ["198.51.100.0/29"], "namespaces": ["lab"]}));
    api.settle();
    assert!(api.only_address("shop", "web").to_string().starts_with("192.0.2."));
}

#[test]
fn requested_addresses_are_assigned_or_the_reason_is_reported() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": [LAN, LAN6]}));
    let request = |text: &str| api::Service { requested: Some(text.to_owned()), ..service() };
    api.put("shop", "a", request("192.0.2.133"));
    api.settle();
    assert_eq!(api.only_address("shop", "a").to_string(), "192.0.2.133");
    for (name, text, reason) in [
        ("b", "192.0.2.133", "AddressInUse"),
        ("c", "192.0.2.128", "AddressNotInPool"),
        ("d", "198.51.100.1", "AddressNotInPool"),
        ("e", "2001:db8:1::1", "InvalidAddress"),
        ("f", "lan", "InvalidAddress"),
        ("g", "192.0.2.129,192.0.2.130", "InvalidAddress"),
    ] {
        api.put("shop", name, request(text));
        let events = api.settle();
        assert_eq!(api.reason("shop", name), reason, "{text}");
        assert_eq!(api.status("shop", name).0, addresses(&[]));
        assert!(events[0].starts_with(&format!("Warning {reason} shop/{name} ")), "{events:?}");
    }
    // It becomes free.
    api.change("shop", "a", |service| service.requested = Some("192.0.2.134".to_owned()));
    api.settle();
    assert_eq!(api.only_address("shop", "a").to_string(), "192.0.2.134");
    assert_eq!(api.only_address("shop", "b").to_string(), "192.0.2.133");
}

#[test]
fn families_follow_the_service_and_its_policy() {
    let mut api = ApiServer::new();
    api.apply_pool("v4", json!({"cidrs": [LAN]}));
    let both = || api::Service { families: vec![false, true], ..service() };
    api.put("shop", "preferred", both());
    api.put("shop", "needed", api::Service { needs_all_families: true, ..both() });
    api.settle();
    assert!(api.only_address("shop", "preferred").is_ipv4());
    assert_eq!(api.reason("shop", "needed"), "NoAddressPool");
    api.apply_pool("v6", json!({"cidrs": [LAN6]}));
    api.settle();
    for name in ["preferred", "needed"] {
        let families: Vec<bool> =
            api.status("shop", name).0.iter().map(|address| address.is_ipv6()).collect();
        assert_eq!(families, [false, true], "{name}");
    }
    api.change("shop", "preferred", |service| service.families = vec![true]);
    api.settle();
    assert!(api.only_address("shop", "preferred").is_ipv6());
}

#[test]
fn addresses_of_nodes_gateways_and_other_services_are_not_assigned() {
    let mut api = ApiServer::new();
    let node = NodeAddresses { addresses: addresses(&["192.0.2.129"]), ..NodeAddresses::default() };
    api.set_node("node1", node);
    api.apply_gateway("192.0.2.130");
    let external = api::Service { external_ips: addresses(&["192.0.2.131"]), ..service() };
    api.put("shop", "external", api::Service { is_load_balancer: false, ..external });
    api.apply_pool("lan", json!({"cidrs": ["192.0.2.128/29"]}));
    for name in ["a", "b", "c", "d"] {
        api.put("shop", name, service());
    }
    api.settle();
    let assigned: Vec<String> = api.all_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(assigned, ["192.0.2.132", "192.0.2.133", "192.0.2.134"]);
    assert_eq!(api.counts("lan"), Some((6, 3, 0)));
}

#[test]
fn a_pool_over_other_ranges_assigns_nothing_and_reports_it() {
    let mut api = ApiServer::new();
    let node = NodeAddresses { pod_ranges: vec!["10.1.0.0/24".parse().unwrap()], ..NodeAddresses::default() };
    api.set_node("node1", node);
    let cluster_ip = api::Service { cluster_ips: addresses(&["10.96.0.1"]), ..service() };
    api.put("default", "kubernetes", api::Service { is_load_balancer: false, ..cluster_ip });
    api.put("shop", "web", service());
    for (cidr, what) in [
        ("10.1.0.0/16", "overlaps 10.1.0.0/24, the pods of node node1"),
        ("10.96.0.0/16", "overlaps 10.96.0.1/32, the cluster IP of Service default/kubernetes"),
        ("192.0.2.0/25", "overlaps pool first"),
    ] {
        if what.ends_with("first") {
            api.apply_pool("first", json!({"cidrs": ["192.0.2.0/24"], "namespaces": ["lab"]}));
        }
        api.apply_pool("lan", json!({"cidrs": [cidr]}));
        api.settle();
        assert_eq!(api.reason("shop", "web"), "PoolNotReady", "{cidr}");
        let (status, reason, message) = ready(&api.pool_status["lan"]);
        assert_eq!((status, reason), ("False", "RangeOverlap"));
        assert_eq!(message, format!("spec.cidrs: {what}"));
    }
    api.apply_pool("lan", json!({"cidrs": ["198.51.100.0/24"]}));
    api.settle();
    assert_eq!(ready(&api.pool_status["lan"]).0, "True");
    api.only_address("shop", "web");
}

#[test]
fn the_older_of_two_services_keeps_an_address_that_both_have() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": [LAN]}));
    for (name, created) in [("a", 9), ("b", 7)] {
        api.put("shop", name, api::Service { created, ..service() });
        api.set_own_ingress("shop", name, "192.0.2.130");
    }
    api.settle();
    assert_eq!(api.only_address("shop", "b").to_string(), "192.0.2.130");
    assert_ne!(api.only_address("shop", "a").to_string(), "192.0.2.130");
}

#[test]
fn a_failed_write_is_repeated_later_and_its_address_stays_reserved() {
    let mut api = ApiServer::new();
    api.apply_pool("lan", json!({"cidrs": ["192.0.2.130/32"]}));
    api.put("shop", "web", service());
    let effects = api.reconcile_without_writes();
    let writes = |effects: &[Effect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::WriteServiceStatus { .. })).count()
    };
    assert_eq!(writes(&effects), 1);
    api.write_failed("shop", "web");
    api.put("shop", "other", service());
    assert_eq!(
        writes(&api.reconcile_without_writes()),
        1,
        "only the status that the other one gets no address"
    );
    assert_eq!(api.reason_written("other"), "AddressesExhausted");
    api.now += 10_000;
    assert_eq!(writes(&api.reconcile_without_writes()), 1, "repeated");
    api.now += 10_000;
    assert_eq!(writes(&api.reconcile_without_writes()), 0);
}

#[test]
fn nothing_is_assigned_where_agents_do_not_translate_services() {
    let mut api = ApiServer::without_service_proxy();
    api.apply_pool("lan", json!({"cidrs": [LAN], "servicesWithoutClass": true}));
    api.put("shop", "web", service());
    assert_eq!(api.settle(), [""; 0]);
    assert_eq!(api.status("shop", "web"), (addresses(&[]), None));
    let (status, reason, message) = ready(&api.pool_status["lan"]);
    assert_eq!((status, reason), ("False", "NotReady"));
    assert!(message.contains("serviceProxy: knit"), "{message}");
}
