//! Encrypted ways to other nodes, with a kernel made of plain data: who is reached, and that nobody else is.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
}

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_engine::{Event, StoredObject, cluster};
use knit_model::intent::{
    EncryptionIntent, IntentSpec, NetworkIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Kind, Link, Veth, WgPeer, WireGuard};
use knit_model::route::NextHop;
use knit_model::{Address, NetState, PublicKey, Route, Rule, Scope, marks};
use support::node::{Node, bridge, object};

const REDIRECTS: &str = "net/ipv4/conf/all/send_redirects";

/// Another node, with pods of both families, at 192.0.2.<number> on eth0 and, in the other family, behind a router.
fn peer(number: u8) -> PeerNode {
    PeerNode {
        name: format!("node{number}"),
        ranges: vec![
            format!("10.1.{number}.0/24").parse().unwrap(),
            format!("fd01:{number}::/64").parse().unwrap(),
        ],
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), "eth0".parse().unwrap())],
        far: vec![format!("2001:db8:{number}::1").parse().unwrap()],
        key: Some(key(number)),
    }
}

fn key(number: u8) -> PublicKey {
    PublicKey::from_bytes([number; 32])
}

fn ends() -> Vec<TunnelEndpoint> {
    let end = |text: &str| TunnelEndpoint { address: text.parse().unwrap(), mtu: 1500 };
    vec![end("2001:db8:1::1"), end("192.0.2.1")]
}

/// The cluster's network of node 1, with all ways encrypted.
fn encrypted(nodes: Vec<PeerNode>) -> StoredObject {
    let encryption = Some(EncryptionIntent { port: 7476, ends: ends() });
    network(NodeRoutesIntent { nodes, encryption, ..NodeRoutesIntent::default() })
}

/// The same in clear.
fn clear(nodes: Vec<PeerNode>) -> StoredObject {
    let tunnel =
        NodeTunnelIntent { node: "node1".to_owned(), vni: 7500, port: 7475, always: false, ends: ends() };
    network(NodeRoutesIntent { nodes, tunnel: Some(tunnel), ..NodeRoutesIntent::default() })
}

fn network(ways: NodeRoutesIntent) -> StoredObject {
    let ranges = vec!["10.1.1.0/24".parse().unwrap()];
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, span: None };
    let wants =
        vec![IntentSpec::Network(network), bridge("knit0", "10.1.1.0/24"), IntentSpec::NodeRoutes(ways)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, wants)
}

/// A host with a NIC, and what the kernel begins with.
fn host() -> NetState {
    let mut state = NetState::default();
    let mut eth0 = Link::new("eth0".parse().unwrap(), Kind::Veth(Veth::default()));
    eth0.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let hop = NextHop { gateway: None, link: "eth0".parse().unwrap(), weight: 1, onlink: false };
    let scope = state.scope(&Scope::Host);
    scope.add_link(eth0);
    let address = Address::new("eth0".parse().unwrap(), "192.0.2.1/24".parse().unwrap());
    scope.add_address(Address { owned: false, ..address });
    scope.add_route(Route { owned: false, ..Route::through("192.0.2.0/24".parse().unwrap(), hop) });
    scope.sysctls.insert(REDIRECTS.to_owned(), "1".to_owned());
    state
}

fn wireguard(node: &Node) -> Option<(Link, WireGuard)> {
    let link = node.host_link(marks::TUNNEL_WIREGUARD)?;
    let Kind::WireGuard(wireguard) = link.kind.clone() else { panic!("{link:?}") };
    Some((link, wireguard))
}

/// A peer in words.
fn in_words(peer: &WgPeer) -> String {
    let allowed: Vec<String> = peer.allowed.iter().flatten().map(ToString::to_string).collect();
    format!("{}: {}", peer.endpoint.unwrap(), allowed.join(" "))
}

fn peers(node: &Node) -> Vec<(PublicKey, String)> {
    let (_, wireguard) = wireguard(node).unwrap();
    wireguard.peers.unwrap().iter().map(|(key, peer)| (*key, in_words(peer))).collect()
}

/// Knit's routes to other nodes, in words.
fn routes(node: &Node) -> Vec<String> {
    let seen = node.kernel.observe();
    let owned = seen.scopes[&Scope::Host].routes.values().filter(|route| route.owned);
    let others = owned.filter(|route| route.via.first().is_none_or(|hop| hop.link.as_str() != "knit0"));
    others.inspect(|route| assert_eq!(route.table, marks::HOST_TABLE)).map(ToString::to_string).collect()
}

fn warnings(node: &Node) -> Vec<String> {
    node.state.report(&cluster::key()).unwrap().warnings
}

#[test]
fn all_nodes_are_reached_by_one_link_with_a_peer_for_each() {
    let before = host();
    let mut node = Node::holding(before.clone());
    node.hear(Event::ObjectApplied(encrypted(vec![])));
    let (_, alone) = wireguard(&node).expect("also while there is nobody: the others wait for the key");
    assert_eq!(node.state.public_key(), alone.private_key.unwrap().public);
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert_eq!((node.problems(cluster::NAME), warnings(&node)), (vec![], vec![]));
    assert_eq!(
        peers(&node),
        [
            (key(2), "192.0.2.2:7476: 10.1.2.0/24 192.0.2.2/32 2001:db8:2::1/128 fd01:2::/64".to_owned()),
            (key(3), "192.0.2.3:7476: 10.1.3.0/24 192.0.2.3/32 2001:db8:3::1/128 fd01:3::/64".to_owned()),
        ]
    );
    let (link, wireguard_now) = wireguard(&node).unwrap();
    assert_eq!((link.attrs.mtu, link.attrs.up), (Some(1440), Some(true)));
    assert_eq!(wireguard_now.listen_port, Some(7476));
    let ways = routes(&node);
    let destinations: Vec<&str> = ways.iter().map(|way| way.split(' ').next().unwrap()).collect();
    assert_eq!(
        destinations,
        [
            "10.1.2.0/24",
            "10.1.3.0/24",
            "192.0.2.2/32",
            "192.0.2.3/32",
            "2001:db8:2::1/128",
            "2001:db8:3::1/128",
            "fd01:2::/64",
            "fd01:3::/64",
        ]
    );
    assert!(ways.iter().all(|way| way.contains("dev knitwg0")), "{ways:?}");
    let seen = node.kernel.observe();
    let host = &seen.scopes[&Scope::Host];
    let sources: BTreeSet<_> = host
        .routes
        .values()
        .filter(|way| way.owned && way.to.addr().is_ipv4())
        .filter_map(|way| way.source)
        .collect();
    assert!(sources.contains(&"10.1.1.1".parse().unwrap()), "the node speaks from its own range");
    let pods =
        Rule::from_address("10.1.1.0/24".parse().unwrap(), marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
    assert!(host.rules.contains(&pods), "what pods say to nodes is encrypted, too");
    assert_eq!(host.sysctls[REDIRECTS], "0");
    // The private key is named, never told.
    let written = serde_json::to_string(&node.journal).unwrap();
    assert!(written.contains(&node.state.public_key().unwrap().to_string()));
    // Nothing is left to do, also for one who only knows what is written down.
    let steps = node.steps;
    node.hear(Event::Resync);
    assert_eq!(node.steps, steps);
    assert_eq!(node.replayed().made, node.state.made);
    assert!(node.state.key_of_ways().is_some());
    node.hear(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before, "and nothing is left when it goes");
    assert_eq!((node.state.public_key(), node.state.key_of_ways()), (None, None));
    assert!(node.state.held.is_empty());
}

#[test]
fn turning_it_on_and_off_again_leaves_nothing_of_the_other() {
    let mut node = Node::holding(host());
    node.hear(Event::ObjectApplied(clear(vec![peer(2), peer(3)])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    let in_clear = node.kernel.observe();
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), PeerNode { key: None, ..peer(3) }])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert_eq!(node.host_link(marks::TUNNEL_IPV4), None);
    assert!(routes(&node).iter().all(|way| !way.contains("eth0")), "{:?}", routes(&node));
    node.hear(Event::ObjectApplied(clear(vec![peer(2), peer(3)])));
    assert_eq!(node.kernel.observe(), in_clear);
    assert_eq!(node.state.public_key(), None);
}

#[test]
fn a_node_without_a_key_is_reached_by_nobody_until_it_tells_one() {
    let mut node = Node::holding(host());
    let silent = PeerNode { key: None, ..peer(3) };
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), silent])));
    let told = warnings(&node);
    assert!(
        told.contains(
            &"pods of node node3 in 10.1.3.0/24 are not reached: it has told no WireGuard key".to_owned()
        ),
        "{told:?}"
    );
    let dead: Vec<String> = routes(&node).into_iter().filter(|way| way.starts_with("unreachable")).collect();
    assert_eq!(
        dead.iter().map(|way| way.split(' ').nth(1).unwrap()).collect::<Vec<_>>(),
        ["10.1.3.0/24", "192.0.2.3/32", "2001:db8:3::1/128", "fd01:3::/64"],
        "also for what pods say to the node"
    );
    assert_eq!(peers(&node).len(), 1);
    let steps = node.steps;
    node.hear(Event::Resync);
    assert_eq!(node.steps, steps);
    // It tells one, and later another.
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert!(routes(&node).iter().all(|way| way.contains("knitwg0")), "{:?}", routes(&node));
    assert_eq!(warnings(&node), [""; 0]);
    let reborn = PeerNode { key: Some(key(9)), ..peer(3) };
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), reborn])));
    assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(2), key(9)]);
}

#[test]
fn a_key_that_is_not_a_nodes_own_is_not_used() {
    let mut node = Node::holding(host());
    let copied = PeerNode { key: Some(key(2)), ..peer(3) };
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), copied, peer(4)])));
    assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(4)]);
    let told = warnings(&node);
    assert!(told.iter().any(|why| why.contains("the same WireGuard key as node node3")), "{told:?}");
    assert!(told.iter().any(|why| why.contains("the same WireGuard key as node node2")), "{told:?}");
    // This node's own key, also before it is known.
    let own = node.state.public_key().unwrap();
    let thief = PeerNode { key: Some(own), ..peer(3) };
    for mut node in [node, Node::holding(host())] {
        node.hear(Event::ObjectApplied(encrypted(vec![thief.clone(), peer(4)])));
        assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(4)]);
        node.hear(Event::Resync);
        assert_eq!(peers(&node).len(), 1);
        let told = warnings(&node);
        assert!(told.iter().any(|why| why.contains("node3") && why.contains("is not its own")), "{told:?}");
    }
    let mut node = Node::holding(host());
    node.hear(Event::ObjectApplied(encrypted(vec![PeerNode { key: Some(PublicKey::NONE), ..peer(3) }])));
    assert_eq!(peers(&node), []);
}

#[test]
fn no_address_is_behind_two_peers() {
    let mut node = Node::holding(host());
    let greedy = PeerNode {
        ranges: vec![
            "10.1.0.0/16".parse().unwrap(),
            "192.0.2.0/24".parse().unwrap(),
            "10.1.4.0/24".parse().unwrap(),
        ],
        far: vec!["192.0.2.2".parse().unwrap(), "10.1.2.9".parse().unwrap()],
        ..peer(3)
    };
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), greedy, peer(5)])));
    let (_, wireguard) = wireguard(&node).unwrap();
    let ranges: Vec<IpNet> =
        wireguard.peers.unwrap().into_values().flat_map(|peer| peer.allowed.unwrap()).collect();
    for (index, range) in ranges.iter().enumerate() {
        assert!(ranges[..index].iter().all(|other| !knit_ipam::overlaps(*other, *range)), "{ranges:?}");
    }
    let own: IpNet = "10.1.1.0/24".parse().unwrap();
    assert!(ranges.iter().all(|range| !knit_ipam::overlaps(own, *range)), "{ranges:?}");
    assert!(ranges.contains(&"10.1.4.0/24".parse().unwrap()), "what is its own, it has");
}

#[test]
fn a_way_over_ipv6_says_that_it_has_less_room() {
    let mut node = Node::holding(host());
    let far = PeerNode { addresses: vec![], ..peer(3) };
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), far])));
    let seen = node.kernel.observe();
    let ways = seen.scopes[&Scope::Host].routes.values().filter(|way| way.owned);
    for way in ways.filter(|way| way.via[0].link.as_str() == marks::TUNNEL_WIREGUARD) {
        let expected = ["10.1.3.0", "2001:db8:3::1", "fd01:3::"]
            .contains(&way.to.addr().to_string().as_str())
            .then_some(1420);
        assert_eq!(way.mtu, expected, "{way}");
    }
    assert!(peers(&node)[1].1.starts_with("[2001:db8:3::1]:7476"), "{:?}", peers(&node));
}

#[test]
fn a_kernel_without_wireguard_sends_nothing_in_clear_and_says_so() {
    let mut node = Node::holding(host());
    node.without = Some("wireguard");
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2)])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert_eq!((wireguard(&node), node.state.public_key()), (None, None));
    let ways = routes(&node);
    assert!(ways.len() == 4 && ways.iter().all(|way| way.starts_with("unreachable")), "{ways:?}");
    let told = warnings(&node);
    assert!(told.iter().any(|why| why.contains("node2") && why.contains("has no wireguard")), "{told:?}");
    assert!(told.iter().any(|why| why.starts_with("nothing goes to other nodes")), "{told:?}");
    let rules = &node.kernel.observe().scopes[&Scope::Host].rules;
    assert!(rules.iter().any(|rule| rule.to == Some("10.1.2.0/24".parse().unwrap())), "they are found");
}

#[test]
fn what_the_kernel_refuses_leaves_nothing_in_clear() {
    let mut node = Node::holding(host());
    node.hear(Event::ObjectApplied(clear(vec![peer(2)])));
    node.refused = Some("wireguard");
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2)])));
    assert_eq!(node.problems(cluster::NAME), ["it is broken"]);
    let closed = |node: &Node| {
        let ways = routes(node);
        assert!(ways.iter().all(|way| way.starts_with("unreachable")), "{ways:?}");
        assert_eq!(node.state.public_key(), None, "nobody sends anything here");
        ways.len()
    };
    assert_eq!(closed(&node), 4);
    assert_eq!(node.replayed().made, node.state.made);
    // Also for a node that comes later, and however often it is tried.
    node.hear(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert_eq!(closed(&node), 8);
    node.hear(Event::Resync);
    assert_eq!((closed(&node), node.problems(cluster::NAME)), (8, vec!["it is broken".to_owned()]));
    node.refused = None;
    node.hear(Event::Resync);
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert!(routes(&node).iter().all(|way| way.contains("knitwg0")), "{:?}", routes(&node));
    // Somebody deletes the link: its routes go with it, and all is as before in two steps.
    node.kernel.drop_link(&Scope::Host, marks::TUNNEL_WIREGUARD);
    node.hear(Event::Resync);
    assert!(routes(&node).iter().all(|way| way.contains("knitwg0")), "{:?}", routes(&node));
}
