//! The ways from the cluster's network to other nodes and to the outside, with a kernel made of plain data.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
}

use knit_engine::forward::Outside;
use knit_engine::{Effect, Event, State, StoredObject, cluster, step};
use knit_ipam::Time;
use knit_model::intent::{NetworkWant, PeerWant, Want, WaysWant};
use knit_model::link::{Attrs, Kind, Link, Veth};
use knit_model::route::NextHop;
use knit_model::{Address, NetState, Route, Scope, marks};
use support::node::{Node, bridge, object};

/// Another node, with pods in 10.1.<number>.0/24, at 192.0.2.<number> on eth0.
fn peer(number: u8) -> PeerWant {
    PeerWant {
        name: format!("node{number}"),
        ranges: vec![format!("10.1.{number}.0/24").parse().unwrap()],
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), "eth0".parse().unwrap())],
    }
}

/// The cluster's network of node 1.
fn network(nodes: Vec<PeerWant>, masquerade: bool) -> StoredObject {
    let ranges = vec!["10.1.1.0/24".parse().unwrap()];
    let network = NetworkWant { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None };
    let ways = WaysWant {
        nodes,
        masquerade,
        inside: vec!["198.51.100.0/24".parse().unwrap()],
        ..WaysWant::default()
    };
    let wants = vec![Want::Network(network), bridge("knit0", "10.1.1.0/24"), Want::Ways(ways)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, wants)
}

/// A host with a NIC that has an address, and the route of its network.
fn host() -> NetState {
    let mut state = NetState::default();
    let mut eth0 = Link::new("eth0".parse().unwrap(), Kind::Veth(Veth::default()));
    eth0.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let hop = NextHop { gateway: None, link: "eth0".parse().unwrap(), weight: 1, onlink: false };
    let foreign = Route { owned: false, ..Route::through("192.0.2.0/24".parse().unwrap(), hop) };
    let address = Address::new("eth0".parse().unwrap(), "192.0.2.1/24".parse().unwrap());
    let scope = state.scope(&Scope::Host);
    scope.add_link(eth0);
    scope.add_address(Address { owned: false, ..address });
    scope.add_route(foreign);
    state
}

/// Knit's routes through other nodes, in words.
fn routes(node: &Node) -> Vec<String> {
    let seen = node.kernel.observe();
    let host = &seen.scopes[&Scope::Host];
    let ways = host.routes.values().filter(|route| route.owned && route.via[0].gateway.is_some());
    ways.map(|route| {
        let hop = &route.via[0];
        assert_eq!(route.table, marks::HOST_TABLE, "the main table stays as it is");
        assert!(host.rules.iter().any(|rule| rule.to == Some(route.to) && rule.table == route.table));
        format!("{} via {} dev {}", route.to, hop.gateway.unwrap(), hop.link)
    })
    .collect()
}

#[test]
fn each_node_is_a_route_and_what_goes_takes_its_route_along() {
    let before = host();
    let mut node = Node::holding(before.clone());
    node.hear(Event::ObjectApplied(network(vec![peer(2), peer(3)], false)));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    let second = "10.1.2.0/24 via 192.0.2.2 dev eth0";
    assert_eq!(routes(&node), [second, "10.1.3.0/24 via 192.0.2.3 dev eth0"]);
    // It comes back with another address.
    let moved = PeerWant { addresses: peer(9).addresses, ..peer(3) };
    node.hear(Event::ObjectApplied(network(vec![peer(2), moved], false)));
    assert_eq!(routes(&node), [second, "10.1.3.0/24 via 192.0.2.9 dev eth0"]);
    node.hear(Event::ObjectApplied(network(vec![peer(2)], false)));
    assert_eq!(routes(&node), [second]);
    // Nothing is left to do, also for one who only knows what is written down.
    let steps = node.steps;
    node.hear(Event::Resync);
    assert_eq!(node.steps, steps);
    assert_eq!(node.replayed().made, node.state.made);
    // Somebody removes it by hand.
    node.kernel.drop_routes(&Scope::Host, marks::HOST_TABLE);
    node.hear(Event::Resync);
    assert_eq!(routes(&node), [second]);
    node.hear(Event::ObjectApplied(network(vec![], false)));
    assert_eq!(routes(&node), [""; 0], "also the last one");
    node.hear(Event::ObjectApplied(network(vec![peer(2)], false)));
    node.hear(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before, "and the whole network");
}

#[test]
fn a_node_that_is_not_on_a_link_of_this_one_is_told_in_words() {
    let mut node = Node::holding(host());
    let far = PeerWant { addresses: vec![], ..peer(2) };
    node.hear(Event::ObjectApplied(network(vec![far, peer(3)], false)));
    assert_eq!(routes(&node), ["10.1.3.0/24 via 192.0.2.3 dev eth0"]);
    let report = node.state.report(&cluster::key()).unwrap();
    assert!(report.warnings.iter().any(|warning| warning.contains("node2")), "{:?}", report.warnings);
}

/// What the host is asked for last.
fn outside(state: &mut State, event: Event) -> Option<Option<Outside>> {
    let effects = step(state, event, Time(1));
    effects.into_iter().rev().find_map(|effect| match effect {
        Effect::Forward(asked) => Some(asked.outside),
        _ => None,
    })
}

#[test]
fn pods_and_nodes_are_inside_and_everything_else_is_not() {
    let mut state = State::default();
    let seen = outside(&mut state, Event::ObjectApplied(network(vec![peer(2)], true))).unwrap().unwrap();
    assert_eq!(seen.pods, ["10.1.1.0/24".parse().unwrap()]);
    let inside: Vec<String> = seen.inside.iter().map(ToString::to_string).collect();
    assert_eq!(inside, ["10.1.1.0/24", "10.1.2.0/24", "192.0.2.2/32", "198.51.100.0/24"]);
    step(&mut state, Event::Forwarded(Ok(())), Time(2));
    // The same again asks for nothing, and without it the table goes.
    assert_eq!(outside(&mut state, Event::ObjectApplied(network(vec![peer(2)], true))), None);
    assert_eq!(outside(&mut state, Event::ObjectApplied(network(vec![peer(2)], false))), Some(None));
}
