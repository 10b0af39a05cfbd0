//! Queries and verification.

use knit_kernel::{ScopeQuery, StateQuery};
use knit_model::link::Kind;
use knit_model::{Scope, kernel_ids};

use crate::support::node::{TestNode, sandbox};
use crate::support::states::{self, name, net};

fn node(test: &str) -> TestNode {
    let mut node = TestNode::new(test, &["a"]);
    node.observe_sysctl(&sandbox("a"), "net/ipv4/ip_forward");
    node
}

#[test]
fn named_links_are_observed_like_all_links() {
    let node = node("named");
    node.converge(&states::everything());
    let all = node.observe();
    let query =
        ScopeQuery { neighbours: true, rules: true, ..ScopeQuery::named([name("br0"), name("nowhere")]) };
    let query = StateQuery::default().with_scope(Scope::Host, query);
    let mut observed = node.kernel().observe(&query, &mut node.namespaces()).unwrap();
    let (some, all) = (observed.scope(&Scope::Host).clone(), &all.scopes[&Scope::Host]);
    assert_eq!(some.links.keys().collect::<Vec<_>>(), [&name("br0")]);
    assert_eq!(some.links[&name("br0")], all.links[&name("br0")]);
    let mut neighbours = all.neighbours.clone();
    neighbours.retain(|key, _| key.link == name("br0"));
    assert_eq!((&some.rules, some.neighbours.len(), &some.neighbours), (&all.rules, 2, &neighbours));
    for (key, address) in some.addresses.iter().filter(|(_, address)| address.owned) {
        assert_eq!((&address.link, Some(address)), (&name("br0"), all.addresses.get(key)));
    }
    assert!(some.routes.values().any(|route| route.table == kernel_ids::HOST_TABLE && route.owned));
    assert!(some.routes.values().all(|route| route.via.iter().all(|hop| hop.link == name("br0"))));

    let query = ScopeQuery { tables: Some([80].into()), ..ScopeQuery::everything() };
    let mut observed = node
        .kernel()
        .observe(&StateQuery::default().with_scope(sandbox("a"), query), &mut node.namespaces())
        .unwrap();
    let tables: Vec<u32> = observed.scope(&sandbox("a")).routes.keys().map(|key| key.table).collect();
    assert_eq!(tables, [80]);
}

#[test]
fn routes_of_a_named_bridge_port_are_not_observed() {
    let node = node("port");
    let host = &node.host;
    host.ip(&["link", "add", "bridge", "type", "bridge"]);
    host.ip(&["link", "add", "port", "type", "veth", "peer", "name", "far"]);
    host.ip(&["link", "set", "port", "up"]);
    host.ip(&["route", "add", "10.66.0.0/16", "dev", "port"]);
    let query = StateQuery::default().with_scope(Scope::Host, ScopeQuery::named([name("port")]));
    let routes = || {
        let mut observed = node.kernel().observe(&query, &mut node.namespaces()).unwrap();
        observed.scope(&Scope::Host).routes.values().map(|route| route.to.to_string()).collect::<Vec<_>>()
    };
    assert!(routes().contains(&"10.66.0.0/16".to_owned()), "{:?}", routes());
    host.ip(&["link", "set", "port", "master", "bridge"]);
    assert_eq!(routes(), [""; 0]);
}

#[test]
fn blackhole_routes_of_knit_are_observed_without_a_link() {
    let node = node("blackhole");
    let (host, mark, table) =
        (&node.host, kernel_ids::PROTOCOL.to_string(), kernel_ids::HOST_TABLE.to_string());
    let observed = |blackhole_routes: bool| {
        let query = ScopeQuery { blackhole_routes, ..ScopeQuery::named([]) };
        let query = StateQuery::default().with_scope(Scope::Host, query);
        let mut observed = node.kernel().observe(&query, &mut node.namespaces()).unwrap();
        observed.scope(&Scope::Host).routes.values().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(observed(true), [""; 0], "the table does not exist");
    for (to, place, by) in [
        ("10.66.0.0/16", table.as_str(), mark.as_str()),
        ("fd66::/64", &table, &mark),
        ("10.67.0.0/16", "main", &mark),
        ("10.68.0.0/16", &table, "static"),
    ] {
        host.ip(&["route", "add", "unreachable", to, "table", place, "proto", by]);
    }
    assert_eq!(
        observed(true),
        [
            "unreachable 10.66.0.0/16 table 7500".to_owned(),
            "unreachable fd66::/64 metric 1024 table 7500".to_owned()
        ]
    );
    assert_eq!(observed(false), [""; 0]);
}

#[test]
fn without_owned_objects_only_links_and_routes_are_observed() {
    let node = node("unmarked");
    let (pod, scope) = (&node.sandboxes[0], sandbox("a"));
    pod.ip(&["link", "set", "lo", "up"]);
    pod.ip(&[
        "rule",
        "add",
        "from",
        "10.9.0.1",
        "lookup",
        "80",
        "protocol",
        &kernel_ids::PROTOCOL.to_string(),
    ]);
    pod.ip(&["route", "add", "blackhole", "10.77.0.0/16"]);
    let query = ScopeQuery { only_if_owned: true, ..ScopeQuery::everything() };
    let query = StateQuery::default().with_scope(scope.clone(), query);
    let observed = || node.kernel().observe(&query, &mut node.namespaces()).unwrap().scopes[&scope].clone();
    let unmarked = observed();
    assert_eq!(unmarked.links.keys().collect::<Vec<_>>(), [&name("lo")]);
    assert_eq!(unmarked.routes.values().filter(|route| route.to == net("10.77.0.0/16")).count(), 1);
    assert!(unmarked.addresses.is_empty() && unmarked.rules.is_empty());

    // A mark left behind after the journal was lost: everything is observed, so that all of it can be removed.
    let everything =
        || node.kernel().observe(&whole(&scope), &mut node.namespaces()).unwrap().scopes[&scope].clone();
    let left = ["blackhole", "10.78.0.0/16", "proto", &kernel_ids::PROTOCOL.to_string()];
    pod.ip(&[&["route", "add"][..], &left[..]].concat());
    let marked = observed();
    assert_eq!((marked.rules.len(), &marked), (1, &everything()));
    pod.ip(&[&["route", "del"][..], &left[..]].concat());
    assert!(observed().rules.is_empty());
    pod.ip(&["link", "property", "add", "dev", "lo", "altname", "knit-left"]);
    let marked = observed();
    assert_eq!(marked, everything());
    assert_eq!((marked.rules.len(), marked.addresses.is_empty()), (1, false));
}

fn whole(scope: &Scope) -> StateQuery {
    StateQuery::default().with_scope(scope.clone(), ScopeQuery::everything())
}

#[test]
fn a_query_for_one_family_omits_the_other() {
    let node = node("family");
    node.converge(&states::everything());
    for ipv6 in [false, true] {
        let query = ScopeQuery { ipv6: Some(ipv6), ..ScopeQuery::everything() };
        let query = StateQuery::default().with_scope(sandbox("a"), query);
        let mut observed = node.kernel().observe(&query, &mut node.namespaces()).unwrap();
        let mut all = node.observe();
        let (observed, all) = (observed.scope(&sandbox("a")), all.scope(&sandbox("a")));
        all.addresses.retain(|_, address| address.address.addr().is_ipv6() == ipv6);
        all.routes.retain(|_, route| route.to.addr().is_ipv6() == ipv6);
        assert!(!all.addresses.is_empty() && !all.routes.is_empty());
        assert_eq!((&observed.addresses, &observed.routes), (&all.addresses, &all.routes));
    }
}

#[test]
fn foreign_objects_are_observed_as_not_owned() {
    let node = node("marks");
    node.converge(&states::everything());
    let pod = &node.sandboxes[0];
    pod.ip(&["addr", "add", "10.50.7.7/32", "dev", "net1"]);
    pod.ip(&["route", "add", "10.77.0.0/16", "via", "10.50.0.1", "dev", "net1"]);
    let observed = node.observe();
    let observed = &observed.scopes[&sandbox("a")];
    assert!(!observed.addresses[&(name("net1"), net("10.50.7.7/32"))].owned);
    assert!(observed.addresses[&(name("net1"), net("fd50::2/64"))].owned);
    let owned = |to: &str| observed.routes.values().find(|route| route.to == net(to)).unwrap().owned;
    assert_eq!([owned("10.77.0.0/16"), owned("10.50.0.0/24"), owned("0.0.0.0/0")], [false, false, true]);
    assert!(observed.routes.keys().all(|key| key.table != 255), "the local table is left out");
    assert_eq!(observed.links[&name("lo")].owner, None);
    assert_eq!(observed.links[&name("lo")].kind, Kind::Other { name: String::new() });
    assert!(observed.links[&name("mv0")].owner.is_some());
}

#[test]
fn verify_describes_deviations() {
    let node = node("verify");
    let plan = node.converge(&states::everything());
    let pod = &node.sandboxes[0];
    pod.ip(&["route", "del", "default"]);
    pod.ip(&["addr", "del", "fd50::2/64", "dev", "net1"]);
    pod.ip(&["link", "set", "vx0", "mtu", "1300"]);
    pod.ip(&["link", "del", "mv0"]);
    pod.set_sysctl("net/ipv4/ip_forward", "0");
    node.host.ip(&["-6", "rule", "del", "priority", "7501"]);
    node.host.ip(&["link", "set", "ha", "down"]);
    node.host.ip(&["neigh", "del", "10.50.0.99", "dev", "br0"]);
    let missing = node.kernel().verify(&plan, &mut node.namespaces()).unwrap();
    for text in [
        "sandbox a: route 0.0.0.0/0 via 10.50.0.1 dev net1 is missing",
        "sandbox a: address fd50::2/64 dev net1 is missing",
        "sandbox a: link vx0: mtu is 1300, expected 1400",
        "sandbox a: link mv0 is missing",
        "sandbox a: link net1 is up, but its peer is not",
        "sandbox a: sysctl net/ipv4/ip_forward is 0, expected 1",
        "host: link ha: up is false, expected true",
        "host: neighbour 10.50.0.99 lladdr 02:00:00:00:00:99 dev br0 is missing",
    ] {
        assert!(missing.iter().any(|line| line == text), "{text:?} is not in {missing:#?}");
    }
    assert!(missing.iter().any(|line| line.starts_with("host: rule 7501: ")), "{missing:#?}");
}
