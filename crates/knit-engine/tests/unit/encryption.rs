//! WireGuard between nodes, against an in-memory kernel: which nodes are reached, and that nothing leaves
//! unencrypted.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_engine::{Event, StoredObject, cluster};
use knit_model::intent::{
    EncryptionIntent, IntentSpec, NetworkIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Kind, Link, Veth, WireGuard, WireGuardPeer};
use knit_model::route::NextHop;
use knit_model::{Address, NetState, PublicKey, Route, Rule, Scope, kernel_ids};

use crate::support::node::{Node, bridge, object, with_peers};

const REDIRECTS: &str = "net/ipv4/conf/all/send_redirects";

/// Another node, with pods of both families, at 192.0.2.<number> on eth0 and, in IPv6, behind a router.
fn peer(number: u8) -> PeerNode {
    PeerNode {
        name: format!("node{number}"),
        ranges: vec![
            format!("10.1.{number}.0/24").parse().unwrap(),
            format!("fd01:{number}::/64").parse().unwrap(),
        ],
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), "eth0".parse().unwrap())],
        off_link_addresses: vec![format!("2001:db8:{number}::1").parse().unwrap()],
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

/// The cluster network of node 1, with encryption.
fn encrypted(nodes: Vec<PeerNode>) -> StoredObject {
    let encryption = Some(EncryptionIntent { port: 7476, endpoints: ends() });
    with_peers(network(NodeRoutesIntent { encryption, ..NodeRoutesIntent::default() }), &nodes)
}

/// The same without encryption.
fn unencrypted(nodes: Vec<PeerNode>) -> StoredObject {
    let tunnel = NodeTunnelIntent {
        node: "node1".to_owned(),
        vni: 7500,
        port: 7475,
        always: false,
        endpoints: ends(),
    };
    with_peers(network(NodeRoutesIntent { tunnel: Some(tunnel), ..NodeRoutesIntent::default() }), &nodes)
}

fn network(node_routes: NodeRoutesIntent) -> StoredObject {
    let ranges = vec!["10.1.1.0/24".parse().unwrap()];
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    let specs = vec![
        IntentSpec::Network(network),
        bridge("knit0", "10.1.1.0/24"),
        IntentSpec::NodeRoutes(node_routes),
    ];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs)
}

/// A host with a NIC, and the kernel's initial state.
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
    let link = node.host_link(kernel_ids::WIREGUARD_LINK)?;
    let Kind::WireGuard(wireguard) = link.kind.clone() else { panic!("{link:?}") };
    Some((link, wireguard))
}

/// A peer as text.
fn peer_text(peer: &WireGuardPeer) -> String {
    let allowed: Vec<String> = peer.allowed_ips.iter().flatten().map(ToString::to_string).collect();
    format!("{}: {}", peer.endpoint.unwrap(), allowed.join(" "))
}

fn peers(node: &Node) -> Vec<(PublicKey, String)> {
    let (_, wireguard) = wireguard(node).unwrap();
    wireguard.peers.unwrap().iter().map(|(key, peer)| (*key, peer_text(peer))).collect()
}

/// Knit's routes to other nodes.
fn routes(node: &Node) -> Vec<String> {
    let seen = node.kernel.observe();
    let owned = seen.scopes[&Scope::Host].routes.values().filter(|route| route.owned);
    let others = owned.filter(|route| route.via.first().is_none_or(|hop| hop.link.as_str() != "knit0"));
    others.inspect(|route| assert_eq!(route.table, kernel_ids::HOST_TABLE)).map(ToString::to_string).collect()
}

fn warnings_of(node: &Node) -> Vec<String> {
    node.state.report(&cluster::key()).unwrap().warnings
}

#[test]
fn one_wireguard_link_has_a_peer_per_node() {
    let before = host();
    let mut node = Node::with_kernel(before.clone());
    node.handle(Event::ObjectApplied(encrypted(vec![])));
    let (_, without_peers) =
        wireguard(&node).expect("the link exists without peers: other nodes need its key");
    assert_eq!(node.state.public_key(), without_peers.private_key.unwrap().public);
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert_eq!((node.problems(cluster::NAME), warnings_of(&node)), (vec![], vec![]));
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
    let lines = routes(&node);
    let destinations: Vec<&str> = lines.iter().map(|route| route.split(' ').next().unwrap()).collect();
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
    assert!(lines.iter().all(|route| route.contains("dev knitwg0")), "{lines:?}");
    let seen = node.kernel.observe();
    let host = &seen.scopes[&Scope::Host];
    let sources: BTreeSet<_> = host
        .routes
        .values()
        .filter(|route| route.owned && route.to.addr().is_ipv4())
        .filter_map(|route| route.source)
        .collect();
    assert!(
        sources.contains(&"10.1.1.1".parse().unwrap()),
        "the node's source address is in its own pod range"
    );
    let pods = Rule::from_address(
        "10.1.1.0/24".parse().unwrap(),
        kernel_ids::HOST_TABLE,
        kernel_ids::HOST_RULE_PRIORITY,
    );
    assert!(host.rules.contains(&pods), "traffic from pods to nodes is encrypted, too");
    assert_eq!(host.sysctls[REDIRECTS], "0");
    // The journal holds the public key only.
    let written = serde_json::to_string(&node.journal).unwrap();
    assert!(written.contains(&node.state.public_key().unwrap().to_string()));
    // Idempotent, also with the state replayed from the journal.
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!(node.applied_steps, steps);
    let state = node.replayed();
    assert_eq!(state.units, node.state.units);
    assert!(node.state.wireguard_key_name().is_some());
    node.handle(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before, "deletion restores the host");
    assert_eq!((node.state.public_key(), node.state.wireguard_key_name()), (None, None));
    assert!(node.state.original_values.is_empty());
}

#[test]
fn enabling_and_disabling_encryption_leaves_nothing_of_the_other_mode() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(unencrypted(vec![peer(2), peer(3)])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    let before = node.kernel.observe();
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), PeerNode { key: None, ..peer(3) }])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert_eq!(node.host_link(kernel_ids::TUNNEL_LINK_IPV4), None);
    assert!(routes(&node).iter().all(|route| !route.contains("eth0")), "{:?}", routes(&node));
    node.handle(Event::ObjectApplied(unencrypted(vec![peer(2), peer(3)])));
    assert_eq!(node.kernel.observe(), before);
    assert_eq!(node.state.public_key(), None);
}

#[test]
fn node_without_a_published_key_is_unreachable() {
    let mut node = Node::with_kernel(host());
    let keyless = PeerNode { key: None, ..peer(3) };
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), keyless])));
    let warnings = warnings_of(&node);
    assert!(
        warnings.contains(
            &"pods of node node3 in 10.1.3.0/24 are not reached: it has not published a WireGuard public key"
                .to_owned()
        ),
        "{warnings:?}"
    );
    let unreachable: Vec<String> =
        routes(&node).into_iter().filter(|route| route.starts_with("unreachable")).collect();
    assert_eq!(
        unreachable.iter().map(|route| route.split(' ').nth(1).unwrap()).collect::<Vec<_>>(),
        ["10.1.3.0/24", "192.0.2.3/32", "2001:db8:3::1/128", "fd01:3::/64"],
        "pods do not reach the node either"
    );
    assert_eq!(peers(&node).len(), 1);
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!(node.applied_steps, steps);
    // The node publishes a key, and later another one.
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert!(routes(&node).iter().all(|route| route.contains("knitwg0")), "{:?}", routes(&node));
    assert_eq!(warnings_of(&node), [""; 0]);
    let rekeyed = PeerNode { key: Some(key(9)), ..peer(3) };
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), rekeyed])));
    assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(2), key(9)]);
}

#[test]
fn key_of_another_node_is_not_used() {
    let mut node = Node::with_kernel(host());
    let copied = PeerNode { key: Some(key(2)), ..peer(3) };
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), copied, peer(4)])));
    assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(4)]);
    let warnings = warnings_of(&node);
    assert!(
        warnings.iter().any(|warning| warning.contains("the same WireGuard public key as node node3")),
        "{warnings:?}"
    );
    assert!(
        warnings.iter().any(|warning| warning.contains("the same WireGuard public key as node node2")),
        "{warnings:?}"
    );
    // This node's own key, also before it is generated.
    let own = node.state.public_key().unwrap();
    let duplicate = PeerNode { key: Some(own), ..peer(3) };
    for mut node in [node, Node::with_kernel(host())] {
        node.handle(Event::ObjectApplied(encrypted(vec![duplicate.clone(), peer(4)])));
        assert_eq!(peers(&node).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(4)]);
        node.handle(Event::Resync);
        assert_eq!(peers(&node).len(), 1);
        let warnings = warnings_of(&node);
        assert!(
            warnings.iter().any(|warning| warning.contains("node3") && warning.contains("is not its own")),
            "{warnings:?}"
        );
    }
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(encrypted(vec![PeerNode { key: Some(PublicKey::NONE), ..peer(3) }])));
    assert_eq!(peers(&node), []);
}

#[test]
fn allowed_ips_of_peers_never_overlap() {
    let mut node = Node::with_kernel(host());
    let overlapping = PeerNode {
        ranges: vec![
            "10.1.0.0/16".parse().unwrap(),
            "192.0.2.0/24".parse().unwrap(),
            "10.1.4.0/24".parse().unwrap(),
        ],
        off_link_addresses: vec!["192.0.2.2".parse().unwrap(), "10.1.2.9".parse().unwrap()],
        ..peer(3)
    };
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), overlapping, peer(5)])));
    let (_, wireguard) = wireguard(&node).unwrap();
    let ranges: Vec<IpNet> =
        wireguard.peers.unwrap().into_values().flat_map(|peer| peer.allowed_ips.unwrap()).collect();
    for (index, range) in ranges.iter().enumerate() {
        assert!(ranges[..index].iter().all(|other| !knit_ipam::overlaps(*other, *range)), "{ranges:?}");
    }
    let own: IpNet = "10.1.1.0/24".parse().unwrap();
    assert!(ranges.iter().all(|range| !knit_ipam::overlaps(own, *range)), "{ranges:?}");
    assert!(ranges.contains(&"10.1.4.0/24".parse().unwrap()), "its own range is allowed");
}

#[test]
fn route_over_ipv6_has_a_smaller_mtu() {
    let mut node = Node::with_kernel(host());
    let far = PeerNode { addresses: vec![], ..peer(3) };
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), far])));
    let seen = node.kernel.observe();
    let lines = seen.scopes[&Scope::Host].routes.values().filter(|route| route.owned);
    for route in lines.filter(|route| route.via[0].link.as_str() == kernel_ids::WIREGUARD_LINK) {
        let expected = ["10.1.3.0", "2001:db8:3::1", "fd01:3::"]
            .contains(&route.to.addr().to_string().as_str())
            .then_some(1420);
        assert_eq!(route.mtu, expected, "{route}");
    }
    assert!(peers(&node)[1].1.starts_with("[2001:db8:3::1]:7476"), "{:?}", peers(&node));
}

#[test]
fn kernel_without_wireguard_sends_nothing_unencrypted_and_reports_it() {
    let mut node = Node::with_kernel(host());
    node.missing_kind = Some("wireguard");
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2)])));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert_eq!((wireguard(&node), node.state.public_key()), (None, None));
    let lines = routes(&node);
    assert!(lines.len() == 4 && lines.iter().all(|route| route.starts_with("unreachable")), "{lines:?}");
    let warnings = warnings_of(&node);
    assert!(
        warnings.iter().any(|warning| warning.contains("node2") && warning.contains("has no wireguard")),
        "{warnings:?}"
    );
    assert!(warnings.iter().any(|warning| warning.starts_with("no traffic to other nodes")), "{warnings:?}");
    let rules = &node.kernel.observe().scopes[&Scope::Host].rules;
    assert!(rules.iter().any(|rule| rule.to == Some("10.1.2.0/24".parse().unwrap())), "the rule exists");
}

#[test]
fn failed_wireguard_setup_leaves_nothing_unencrypted() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(unencrypted(vec![peer(2)])));
    node.rejected_kind = Some("wireguard");
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2)])));
    assert_eq!(node.problems(cluster::NAME), ["injected failure"]);
    let closed = |node: &Node| {
        let lines = routes(node);
        assert!(lines.iter().all(|route| route.starts_with("unreachable")), "{lines:?}");
        assert_eq!(node.state.public_key(), None, "other nodes must not send to this node");
        lines.len()
    };
    assert_eq!(closed(&node), 4);
    let state = node.replayed();
    assert_eq!(state.units, node.state.units);
    // Also for a node that is added later, on every retry.
    node.handle(Event::ObjectApplied(encrypted(vec![peer(2), peer(3)])));
    assert_eq!(closed(&node), 8);
    node.handle(Event::Resync);
    assert_eq!((closed(&node), node.problems(cluster::NAME)), (8, vec!["injected failure".to_owned()]));
    node.rejected_kind = None;
    node.handle(Event::Resync);
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    assert!(routes(&node).iter().all(|route| route.contains("knitwg0")), "{:?}", routes(&node));
    // The link is deleted by hand: its routes are deleted with it, and resync restores both.
    node.kernel.delete_link(&Scope::Host, kernel_ids::WIREGUARD_LINK);
    node.handle(Event::Resync);
    assert!(routes(&node).iter().all(|route| route.contains("knitwg0")), "{:?}", routes(&node));
}
