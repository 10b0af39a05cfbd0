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
use knit_model::intent::{
    IntentSpec, NetworkIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Kind, Link, Veth, Vxlan};
use knit_model::route::NextHop;
use knit_model::{Address, NetState, Route, Rule, Scope, marks};
use support::node::{Node, bridge, object};

/// Another node, with pods in 10.1.<number>.0/24, at 192.0.2.<number> on eth0.
fn peer(number: u8) -> PeerNode {
    PeerNode {
        name: format!("node{number}"),
        ranges: vec![format!("10.1.{number}.0/24").parse().unwrap()],
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), "eth0".parse().unwrap())],
        far: vec![],
        key: None,
    }
}

/// Another node that is behind a router, with both families of pods.
fn far(number: u8) -> PeerNode {
    let mut ranges = peer(number).ranges;
    ranges.push(format!("fd01:{number}::/64").parse().unwrap());
    let far = vec![format!("203.0.113.{number}").parse().unwrap()];
    PeerNode { ranges, addresses: vec![], far, ..peer(number) }
}

/// The cluster's network of node 1.
fn network(nodes: Vec<PeerNode>, masquerade: bool) -> StoredObject {
    with_tunnels(nodes, masquerade, None)
}

/// The same where nodes may be reached by tunnels: always, or only where there is no other way.
fn with_tunnels(nodes: Vec<PeerNode>, masquerade: bool, always: Option<bool>) -> StoredObject {
    let ranges = vec!["10.1.1.0/24".parse().unwrap()];
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, span: None };
    let tunnel = always.map(|always| NodeTunnelIntent {
        node: "node1".to_owned(),
        vni: 7500,
        port: 7475,
        always,
        ends: vec![TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 }],
    });
    let inside = vec!["198.51.100.0/24".parse().unwrap()];
    let ways = NodeRoutesIntent { nodes, masquerade, inside, tunnel, ..NodeRoutesIntent::default() };
    let wants =
        vec![IntentSpec::Network(network), bridge("knit0", "10.1.1.0/24"), IntentSpec::NodeRoutes(ways)];
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
        let is_found = |rule: &&Rule| rule.to == Some(route.to) && rule.table == route.table;
        let is_node = route.to.addr().is_ipv4() && route.to.prefix_len() == 32;
        assert!(is_node || host.rules.iter().any(|rule| is_found(&rule)), "{route}");
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
    let moved = PeerNode { addresses: peer(9).addresses, ..peer(3) };
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
    node.hear(Event::ObjectApplied(network(vec![far(2), peer(3)], false)));
    assert_eq!(routes(&node), ["10.1.3.0/24 via 192.0.2.3 dev eth0"]);
    assert!(warnings(&node).iter().any(|warning| warning.contains("node2")), "{:?}", warnings(&node));
}

fn warnings(node: &Node) -> Vec<String> {
    node.state.report(&cluster::key()).unwrap().warnings
}

/// The tunnels' link, if it is there.
fn tunnel(node: &Node) -> Option<(Link, Vxlan)> {
    let seen = node.kernel.observe();
    let link = seen.link(&Scope::Host, &marks::TUNNEL_IPV4.parse().unwrap())?.clone();
    let Kind::Vxlan(vxlan) = link.kind.clone() else { panic!("{link:?}") };
    Some((link, vxlan))
}

#[test]
fn a_node_behind_a_router_is_reached_by_a_tunnel_and_the_others_as_before() {
    let before = host();
    let mut node = Node::holding(before.clone());
    node.hear(Event::ObjectApplied(with_tunnels(vec![peer(2)], false, Some(false))));
    let near = "10.1.2.0/24 via 192.0.2.2 dev eth0";
    assert_eq!((routes(&node), tunnel(&node)), (vec![near.to_owned()], None), "nobody needs one");
    node.hear(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!((node.problems(cluster::NAME), warnings(&node)), (vec![], vec![]));
    let ways = [
        near,
        "10.1.3.0/24 via 10.1.3.1 dev knitvx4",
        "203.0.113.3/32 via 10.1.3.1 dev knitvx4",
        "fd01:3::/64 via fd01:3::1 dev knitvx4",
    ];
    assert_eq!(routes(&node), ways, "both families over one");
    let (link, vxlan) = tunnel(&node).unwrap();
    assert_eq!((link.attrs.mtu, link.attrs.up, vxlan.learning), (Some(1450), Some(true), Some(false)));
    assert_eq!((vxlan.vni, vxlan.port, vxlan.remote), (7500, Some(7475), None));
    let entries = vxlan.fdb.unwrap();
    assert_eq!(entries.values().map(ToString::to_string).collect::<Vec<_>>(), ["203.0.113.3"]);
    let seen = node.kernel.observe();
    let host = &seen.scopes[&Scope::Host];
    let neighbours: Vec<String> = host.neighbours.values().map(|one| one.address.to_string()).collect();
    assert_eq!(neighbours, ["10.1.3.1", "fd01:3::1"]);
    assert!(host.neighbours.values().all(|one| one.owned && one.mac == entries.keys().next().copied()));
    let by_tunnel = host.routes.values().filter(|route| route.via[0].link.as_str() == marks::TUNNEL_IPV4);
    for route in by_tunnel.filter(|route| route.to.addr().is_ipv4()) {
        assert!(route.via[0].onlink, "{route}");
        assert_eq!(route.source, Some("10.1.1.1".parse().unwrap()), "{route}");
    }
    let pods =
        Rule::from_address("10.1.1.0/24".parse().unwrap(), marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
    assert!(host.rules.contains(&pods), "what pods say to nodes goes the same way");
    // Nothing is left to do, also for one who only knows what is written down.
    let steps = node.steps;
    node.hear(Event::Resync);
    assert_eq!(node.steps, steps);
    assert_eq!(node.replayed().made, node.state.made);
    // All ways can be tunnels, and then none.
    node.hear(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(true))));
    assert!(routes(&node).iter().all(|route| route.ends_with("knitvx4")), "{:?}", routes(&node));
    assert_eq!(tunnel(&node).unwrap().1.fdb.unwrap().len(), 2);
    node.hear(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!(routes(&node), ways);
    node.hear(Event::ObjectApplied(network(vec![peer(2), far(3)], false)));
    assert_eq!((routes(&node), tunnel(&node)), (vec![near.to_owned()], None));
    assert!(node.kernel.observe().scopes[&Scope::Host].neighbours.is_empty());
    node.hear(Event::ObjectApplied(with_tunnels(vec![far(3)], false, Some(false))));
    node.hear(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn without_tunnels_in_the_kernel_the_other_ways_are_there_and_pods_can_come() {
    let mut node = Node::holding(host());
    node.without = Some("vxlan");
    node.hear(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!(routes(&node), ["10.1.2.0/24 via 192.0.2.2 dev eth0"]);
    let told = warnings(&node);
    assert!(told.iter().any(|why| why.contains("node3") && why.contains("has no vxlan")), "{told:?}");
    // Also where nothing of it can be had.
    let mut node = Node::holding(host());
    node.broken = Some("the way to other nodes".to_owned());
    node.hear(Event::ObjectApplied(with_tunnels(vec![far(3)], false, Some(false))));
    assert!(node.kernel.observe().link(&Scope::Host, &"knit0".parse().unwrap()).is_some());
    assert_eq!(node.problems(cluster::NAME), ["it is broken"]);
}

#[test]
fn a_range_that_is_anothers_is_refused_and_stays_outside() {
    let mut node = Node::holding(host());
    let greedy = PeerNode { ranges: vec!["10.0.0.0/8".parse().unwrap()], ..peer(3) };
    node.hear(Event::ObjectApplied(network(vec![peer(2), greedy.clone()], true)));
    assert_eq!(routes(&node), ["10.1.2.0/24 via 192.0.2.2 dev eth0"]);
    let told = warnings(&node);
    assert!(told.iter().any(|why| why.contains("node3") && why.contains("overlaps")), "{told:?}");
    let mut state = State::default();
    let seen = outside(&mut state, Event::ObjectApplied(network(vec![peer(2), greedy], true))).unwrap();
    assert!(!seen.unwrap().inside.contains(&"10.0.0.0/8".parse().unwrap()));
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
    let seen =
        outside(&mut state, Event::ObjectApplied(network(vec![peer(2), far(4)], true))).unwrap().unwrap();
    assert_eq!(seen.pods, ["10.1.1.0/24".parse().unwrap()]);
    let inside: Vec<String> = seen.inside.iter().map(ToString::to_string).collect();
    let nodes = ["192.0.2.2/32", "198.51.100.0/24", "203.0.113.4/32"];
    assert_eq!(inside[..3], ["10.1.1.0/24", "10.1.2.0/24", "10.1.4.0/24"]);
    assert_eq!(
        (&inside[3..6], &inside[6..]),
        (&nodes.map(str::to_owned)[..], &["fd01:4::/64".to_owned()][..])
    );
    step(&mut state, Event::Forwarded(Ok(())), Time(2));
    // The same again asks for nothing, and without it the table goes.
    assert_eq!(outside(&mut state, Event::ObjectApplied(network(vec![peer(2), far(4)], true))), None);
    assert_eq!(outside(&mut state, Event::ObjectApplied(network(vec![peer(2), far(4)], false))), Some(None));
}
