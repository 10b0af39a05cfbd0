//! Routes, rules, neighbours and sysctls without an interface: what they wait for, which object wins, and what
//! stays untouched.

use knit_engine::{Event, StoredObject};
use knit_model::intent::{
    IntentSpec, InterfaceIntent, LinkChangeIntent, NameRule, NextHopIntent, RouteIntent, RoutingEntry,
    RoutingIntent, Selector, SysctlIntent,
};
use knit_model::link::{Attrs, Kind, Vrf};
use knit_model::report::Phase;
use knit_model::route::{MAIN_TABLE, NextHop, RouteAction};
use knit_model::{Address, Neighbour, Route, Rule, ScopeState};

use crate::support::node::{Node, key, object, sandbox, scope, veth, with_eth0};

fn entry(entry: RoutingEntry) -> IntentSpec {
    IntentSpec::Routing(Box::new(RoutingIntent { pods: Selector::label("net", "x"), vrf: None, entry }))
}

fn in_vrf(vrf: &str, intent: IntentSpec) -> IntentSpec {
    let IntentSpec::Routing(intent) = intent else { unreachable!() };
    IntentSpec::Routing(Box::new(RoutingIntent { vrf: Some(vrf.parse().unwrap()), ..*intent }))
}

/// A route `to`, through next hops, each `<gateway>` or `<gateway>@<link>`.
fn route(to: &str, via: &[&str]) -> IntentSpec {
    let hop = |text: &&str| {
        let (gateway, link) =
            text.split_once('@').map_or((*text, None), |(gateway, link)| (gateway, Some(link)));
        NextHopIntent {
            gateway: Some(gateway)
                .filter(|gateway| !gateway.is_empty())
                .map(|gateway| gateway.parse().unwrap()),
            link: link.map(|link| link.parse().unwrap()),
            weight: 1,
            onlink: false,
        }
    };
    entry(RoutingEntry::Route(RouteIntent {
        to: to.parse().unwrap(),
        action: if via.is_empty() { RouteAction::Blackhole } else { RouteAction::Forward },
        via: via.iter().map(hop).collect(),
        table: MAIN_TABLE,
        metric: 0,
        source: None,
        scope: None,
        mtu: None,
    }))
}

fn sysctl(link: Option<&str>, key: &str, value: &str) -> IntentSpec {
    let link = link.map(|link| link.parse().unwrap());
    entry(RoutingEntry::Sysctl(SysctlIntent { link, key: key.to_owned(), value: value.to_owned() }))
}

fn neighbour(mac: &str) -> IntentSpec {
    entry(RoutingEntry::Neighbour(Neighbour {
        link: "eth0".parse().unwrap(),
        address: "10.5.0.9".parse().unwrap(),
        mac: Some(mac.parse().unwrap()),
        owned: true,
    }))
}

fn podroute(name: &str, intents: Vec<IntentSpec>) -> StoredObject {
    object("PodRoute", "cnf", name, intents)
}

/// Interface `net1` on `br0` with 10.1.0.0/24.
fn net1() -> StoredObject {
    object("Veth", "cnf", "net1", vec![exact("net1", |_| {})])
}

fn exact(name: &str, edit: impl FnOnce(&mut InterfaceIntent)) -> IntentSpec {
    let IntentSpec::Interface(mut intent) = veth("x", "unused", "br0", "10.1.0.0/24") else { unreachable!() };
    intent.name = NameRule::Exact(name.parse().unwrap());
    edit(&mut intent);
    IntentSpec::Interface(intent)
}

/// A pod with an `eth0` and a route that Knit did not make.
fn node() -> Node {
    let mut state = with_eth0(&["a"]);
    let pod = state.scope(&scope("a"));
    let mut address = Address::new("eth0".parse().unwrap(), "10.5.0.2/24".parse().unwrap());
    address.owned = false;
    pod.add_address(address);
    let hop = NextHop {
        gateway: Some("10.5.0.1".parse().unwrap()),
        link: "eth0".parse().unwrap(),
        weight: 1,
        onlink: false,
    };
    pod.add_route(Route { owned: false, ..Route::through("0.0.0.0/0".parse().unwrap(), hop) });
    for (key, value) in [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/eth0/rp_filter", "1"),
        ("net/ipv4/conf/default/rp_filter", "7"),
        ("net/ipv6/conf/default/accept_ra", "1"),
    ] {
        pod.sysctls.insert(key.to_owned(), value.to_owned());
    }
    let mut node = Node::with_kernel(state);
    node.handle(Event::SandboxUpdated(sandbox("a", 5, "cnf", "x")));
    node
}

fn pod(node: &Node) -> ScopeState {
    node.kernel.observe().scopes[&scope("a")].clone()
}

fn routes(node: &Node) -> Vec<String> {
    pod(node).routes.values().filter(|route| route.owned).map(ToString::to_string).collect()
}

fn phase(node: &Node, object: &StoredObject) -> Phase {
    node.state.report(&key(object)).unwrap().phase
}

#[test]
fn route_waits_for_its_interface_and_is_deleted_with_it() {
    let mut node = node();
    let before = node.kernel.observe();
    let mine =
        podroute("mine", vec![route("10.9.0.0/16", &["10.1.0.1"]), route("10.8.0.0/16", &["10.5.0.1"])]);
    node.handle(Event::ObjectApplied(mine.clone()));
    assert_eq!(
        node.problems("mine"),
        ["spec.entries[0]: pod cnf/a waits for an interface whose subnet contains the gateway 10.1.0.1"]
    );
    // The other entry of the object does not wait.
    assert_eq!(routes(&node), ["10.8.0.0/16 via 10.5.0.1 dev eth0"]);
    assert_eq!(phase(&node, &mine), Phase::Configuring);

    node.handle(Event::ObjectApplied(net1()));
    assert_eq!(node.problems("mine"), [""; 0]);
    assert_eq!(phase(&node, &mine), Phase::Configured);
    assert_eq!(routes(&node), ["10.8.0.0/16 via 10.5.0.1 dev eth0", "10.9.0.0/16 via 10.1.0.1 dev net1"]);

    // The interface is deleted by hand: resync restores it and its route.
    node.kernel.delete_link(&scope("a"), "net1");
    assert_eq!(routes(&node), ["10.8.0.0/16 via 10.5.0.1 dev eth0"]);
    node.handle(Event::Resync);
    assert_eq!(routes(&node).len(), 2);

    // The interface moves to another range: the route waits again.
    let IntentSpec::Interface(mut intent) = exact("net1", |_| {}) else { unreachable!() };
    intent.ranges = vec!["10.2.0.0/24".parse().unwrap()];
    node.handle(Event::ObjectApplied(object("Veth", "cnf", "net1", vec![IntentSpec::Interface(intent)])));
    assert_eq!(routes(&node).len(), 1);
    node.handle(Event::ObjectDeleted(key(&net1())));
    assert_eq!(phase(&node, &mine), Phase::Configuring);
    node.handle(Event::ObjectDeleted(key(&mine)));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn next_hop_link_may_be_the_name_prefix_of_an_interface() {
    let mut node = node();
    let mine =
        podroute("mine", vec![route("10.9.0.0/16", &["10.1.0.1@pc0"]), route("10.8.0.0/16", &["@pc0"])]);
    node.handle(Event::ObjectApplied(mine.clone()));
    assert_eq!(
        node.problems("mine")[0],
        "spec.entries[0]: pod cnf/a waits for interface pc0, which does not exist"
    );
    let pair = object("PodConfig", "cnf", "pair", vec![veth("x", "pc0", "br0", "10.1.0.0/24")]);
    node.handle(Event::ObjectApplied(pair));
    assert_eq!(routes(&node), ["10.8.0.0/16 dev pc05", "10.9.0.0/16 via 10.1.0.1 dev pc05"]);
}

#[test]
fn first_object_keeps_a_route_and_the_next_gets_it_after_deletion() {
    let mut node = node();
    let first = podroute("first", vec![route("10.9.0.0/16", &["10.5.0.1"])]);
    let second = podroute("second", vec![route("10.9.0.0/16", &["10.5.0.7"])]);
    node.handle(Event::ObjectApplied(first.clone()));
    node.handle(Event::ObjectApplied(second.clone()));
    assert_eq!(
        node.problems("second"),
        [
            "spec.entries[0]: route 10.9.0.0/16 of pod cnf/a is already requested by podroute/first in cnf, which is older"
        ]
    );
    assert_eq!(routes(&node), ["10.9.0.0/16 via 10.5.0.1 dev eth0"]);
    assert_eq!((phase(&node, &first), phase(&node, &second)), (Phase::Configured, Phase::Configuring));
    node.handle(Event::ObjectDeleted(key(&first)));
    assert_eq!(routes(&node), ["10.9.0.0/16 via 10.5.0.7 dev eth0"]);
    assert_eq!(phase(&node, &second), Phase::Configured);
}

#[test]
fn entries_of_other_programs_are_kept_and_reported() {
    let mut node = node();
    let theirs: Rule = Rule::from_address("10.5.0.0/24".parse().unwrap(), 9, 100);
    let mut state = node.kernel.observe();
    let pod_state = state.scope(&scope("a"));
    pod_state.foreign_rules.insert(theirs.clone());
    let IntentSpec::Routing(intent) = neighbour("02:00:00:00:00:01") else { unreachable!() };
    let RoutingEntry::Neighbour(mut foreign) = intent.entry else { unreachable!() };
    foreign.owned = false;
    pod_state.add_neighbour(foreign);
    node.kernel = crate::support::kernel::FakeKernel::with_state(state.clone());
    let mine = podroute(
        "mine",
        vec![
            route("0.0.0.0/0", &["10.5.0.7"]),
            entry(RoutingEntry::Rule(theirs)),
            neighbour("02:00:00:00:00:09"),
            route("10.1.0.0/24", &["10.5.0.1"]),
        ],
    );
    node.handle(Event::ObjectApplied(net1()));
    node.handle(Event::ObjectApplied(mine));
    assert_eq!(
        node.problems("mine"),
        [
            "spec.entries[0]: route 0.0.0.0/0 of pod cnf/a exists and is not owned by Knit",
            "spec.entries[1]: rule 100: from 10.5.0.0/24 lookup 9 of pod cnf/a exists and is not owned by Knit",
            "spec.entries[2]: neighbour 10.5.0.9 on eth0 of pod cnf/a exists and is not owned by Knit",
            "spec.entries[3]: route 10.1.0.0/24 of pod cnf/a is the kernel's prefix route of the address 10.1.0.2/24 dev net1",
        ]
    );
    node.handle(Event::ObjectDeleted(key(&net1())));
    assert_eq!(pod(&node).neighbours, state.scope(&scope("a")).neighbours);
    // A route of an interface never replaces an entry of another program either.
    let default_route = exact("net2", |intent| intent.gateways = vec!["10.1.0.1".parse().unwrap()]);
    node.handle(Event::ObjectApplied(object("Veth", "cnf", "default-route", vec![default_route])));
    assert_eq!(
        node.problems("default-route"),
        ["spec.entries[0]: route 0.0.0.0/0 of pod cnf/a exists and is not owned by Knit"]
    );
}

#[test]
fn changed_field_replaces_route_and_neighbour() {
    let mut node = node();
    let intents = |gateway: &str, mac: &str| vec![route("10.9.0.0/16", &[gateway]), neighbour(mac)];
    node.handle(Event::ObjectApplied(podroute("mine", intents("10.5.0.1", "02:00:00:00:00:01"))));
    let steps = node.applied_steps;
    node.handle(Event::ObjectApplied(podroute("mine", intents("10.5.0.7", "02:00:00:00:00:02"))));
    assert_eq!(node.applied_steps - steps, 2, "one step each");
    assert_eq!(routes(&node), ["10.9.0.0/16 via 10.5.0.7 dev eth0"]);
    let neighbours: Vec<String> = pod(&node).neighbours.values().map(ToString::to_string).collect();
    assert_eq!(neighbours, ["10.5.0.9 lladdr 02:00:00:00:00:02 dev eth0"]);
}

#[test]
fn sysctl_is_restored_also_on_knits_own_interfaces() {
    let mut node = node();
    let value = |node: &Node, key: &str| pod(node).sysctls.get(key).cloned().unwrap_or_default();
    let mine = podroute(
        "mine",
        vec![
            sysctl(None, "net/ipv4/ip_forward", "1"),
            sysctl(Some("eth0"), "ipv4/rp_filter", "2"),
            sysctl(Some("net1"), "ipv4/rp_filter", "2"),
            sysctl(Some("eth0"), "ipv4/no_such", "2"),
        ],
    );
    node.handle(Event::ObjectApplied(mine.clone()));
    assert_eq!(
        node.problems("mine"),
        [
            "spec.entries[2]: pod cnf/a waits for interface net1, which does not exist",
            "spec.entries[3]: this kernel has no sysctl net.ipv4.conf.eth0.no_such"
        ]
    );
    node.handle(Event::ObjectApplied(net1()));
    let net1_filter = "net/ipv4/conf/net1/rp_filter";
    assert_eq!(
        (value(&node, "net/ipv4/ip_forward").as_str(), value(&node, net1_filter).as_str()),
        ("1", "2")
    );
    // A second request for the same sysctl is reported.
    let other = podroute("other", vec![sysctl(None, "net/ipv4/ip_forward", "0")]);
    node.handle(Event::ObjectApplied(other.clone()));
    assert!(
        node.problems("other")[0].contains("is already requested by podroute/mine in cnf, which is older")
    );
    node.handle(Event::ObjectDeleted(key(&other)));

    node.handle(Event::ObjectDeleted(key(&mine)));
    assert_eq!(value(&node, "net/ipv4/ip_forward"), "0");
    assert_eq!(value(&node, "net/ipv4/conf/eth0/rp_filter"), "1");
    assert_eq!(value(&node, net1_filter), "7", "the default of new interfaces");
    assert!(node.state.original_values.is_empty(), "{:?}", node.state.original_values);

    // The same for a sysctl that the interface's own object sets and then drops.
    let stated = |value: Option<&str>| {
        let sysctls = value.map(|value| ("ipv4/rp_filter".to_owned(), value.to_owned()));
        object(
            "Veth",
            "cnf",
            "net1",
            vec![exact("net1", |intent| intent.sysctls = sysctls.into_iter().collect())],
        )
    };
    for value in [Some("1"), Some("2"), None] {
        node.handle(Event::ObjectApplied(stated(value)));
    }
    assert_eq!(value(&node, net1_filter), "7");
    node.handle(Event::ObjectApplied(stated(Some("1"))));
    node.handle(Event::ObjectDeleted(key(&net1())));
    assert!(
        node.state.original_values.is_empty(),
        "deleted with the interface: {:?}",
        node.state.original_values
    );
    assert_eq!(node.state.persistent(), node.replayed());
}

#[test]
fn vrf_routes_are_in_its_table_and_wait_for_it() {
    let mut node = node();
    let red = |table: u32| {
        let intent = exact("red", |intent| {
            intent.kind = Kind::Vrf(Vrf { table });
            intent.master = None;
            intent.ranges.clear();
        });
        object("Vrf", "cnf", "red", vec![intent])
    };
    let port =
        object("Veth", "cnf", "port", vec![exact("net1", |intent| intent.vrf = Some("red".to_owned()))]);
    let mine = podroute(
        "mine",
        vec![in_vrf("red", route("10.9.0.0/16", &["10.1.0.1"])), in_vrf("red", route("10.7.0.0/16", &[]))],
    );
    node.handle(Event::ObjectApplied(mine.clone()));
    assert_eq!(
        node.problems("mine")[1],
        "spec.entries[1]: pod cnf/a waits for VRF red, which does not exist"
    );
    node.handle(Event::ObjectApplied(red(10)));
    node.handle(Event::ObjectApplied(port));
    let mine_in = |node: &Node, table: u32| {
        let routes = pod(node).routes;
        let mine = routes.values().filter(|route| route.table == table && route.metric == 0);
        mine.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        mine_in(&node, 10),
        ["blackhole 10.7.0.0/16 table 10", "10.9.0.0/16 via 10.1.0.1 dev net1 table 10"]
    );
    // The VRF is recreated with another table, and so are its routes.
    node.handle(Event::ObjectApplied(red(11)));
    assert_eq!((mine_in(&node, 10).len(), mine_in(&node, 11).len()), (0, 2));
    node.handle(Event::ObjectDeleted(key(&red(11))));
    assert_eq!(phase(&node, &mine), Phase::Configuring);
    assert_eq!(mine_in(&node, 11), [""; 0]);
}

#[test]
fn foreign_link_blocks_only_what_needs_it() {
    let mut node = node();
    let mut state = node.kernel.observe();
    let mut foreign = state.link(&scope("a"), &"eth0".parse().unwrap()).unwrap().clone();
    foreign.name = "net1".parse().unwrap();
    state.scope(&scope("a")).add_link(foreign);
    node.kernel = crate::support::kernel::FakeKernel::with_state(state);
    let mine =
        podroute("mine", vec![route("10.9.0.0/16", &["10.1.0.1@net1"]), route("10.8.0.0/16", &["10.5.0.1"])]);
    node.handle(Event::ObjectApplied(net1()));
    node.handle(Event::ObjectApplied(mine.clone()));
    assert_eq!(node.problems("mine"), ["link net1 exists and is not owned by Knit"]);
    assert_eq!(routes(&node), ["10.8.0.0/16 via 10.5.0.1 dev eth0"]);
}

#[test]
fn two_changes_of_one_sysctl_are_reported() {
    let mut node = node();
    let change = |value: &str| {
        IntentSpec::LinkChange(LinkChangeIntent {
            pods: Selector::label("net", "x"),
            name: "eth0".parse().unwrap(),
            attrs: Attrs::default(),
            sysctls: [("ipv4/rp_filter".to_owned(), value.to_owned())].into(),
            routes: Vec::new(),
        })
    };
    node.handle(Event::ObjectApplied(object("PrimaryNetwork", "cnf", "first", vec![change("2")])));
    node.handle(Event::ObjectApplied(object("PrimaryNetwork", "cnf", "second", vec![change("0")])));
    assert_eq!(
        node.problems("second"),
        ["spec.entries[0].sysctls: ipv4/rp_filter of eth0 is set by another object already"]
    );
}
