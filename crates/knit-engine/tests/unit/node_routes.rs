//! Routes and tunnels from the cluster network to other nodes, and masquerade, against an in-memory kernel.

use knit_engine::{Event, Record, Settings, StoredObject, Unit, cluster};
use knit_model::intent::{
    IntentSpec, NetworkIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Kind, Link, Veth, Vxlan};
use knit_model::plan::{Desired, diff};
use knit_model::route::NextHop;
use knit_model::{Address, NetState, Route, Rule, Scope, kernel_ids};

use crate::support::node::{Node, bridge, object, with_peers};
use crate::support::settings;

/// Another node, with pods in 10.1.<number>.0/24, at 192.0.2.<number> on eth0.
fn peer(number: u8) -> PeerNode {
    PeerNode {
        name: format!("node{number}"),
        ranges: vec![format!("10.1.{number}.0/24").parse().unwrap()],
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), "eth0".parse().unwrap())],
        off_link_addresses: vec![],
        key: None,
    }
}

/// Another node behind a router, with dual-stack pods.
fn far(number: u8) -> PeerNode {
    let mut ranges = peer(number).ranges;
    ranges.push(format!("fd01:{number}::/64").parse().unwrap());
    let far = vec![format!("203.0.113.{number}").parse().unwrap()];
    PeerNode { ranges, addresses: vec![], off_link_addresses: far, ..peer(number) }
}

/// The cluster network of node 1.
fn network(nodes: Vec<PeerNode>, masquerade: bool) -> StoredObject {
    with_tunnels(nodes, masquerade, None)
}

/// The same with tunnels: always, or only to nodes behind a router.
fn with_tunnels(nodes: Vec<PeerNode>, masquerade: bool, always: Option<bool>) -> StoredObject {
    let ranges = vec!["10.1.1.0/24".parse().unwrap()];
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    let tunnel = always.map(|always| NodeTunnelIntent {
        node: "node1".to_owned(),
        vni: 7500,
        port: 7475,
        always,
        endpoints: vec![TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 }],
    });
    let inside = vec!["198.51.100.0/24".parse().unwrap()];
    let node_routes =
        NodeRoutesIntent { masquerade, no_masquerade_ranges: inside, tunnel, ..NodeRoutesIntent::default() };
    let specs = vec![
        IntentSpec::Network(network),
        bridge("knit0", "10.1.1.0/24"),
        IntentSpec::NodeRoutes(node_routes),
    ];
    with_peers(object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs), &nodes)
}

/// A host with a NIC, its address and its subnet route.
fn host() -> NetState {
    host_with_nic("eth0")
}

fn host_with_nic(name: &str) -> NetState {
    let mut state = NetState::default();
    let mut nic = Link::new(name.parse().unwrap(), Kind::Veth(Veth::default()));
    nic.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let hop = NextHop { gateway: None, link: name.parse().unwrap(), weight: 1, onlink: false };
    let foreign = Route { owned: false, ..Route::through("192.0.2.0/24".parse().unwrap(), hop) };
    let address = Address::new(name.parse().unwrap(), "192.0.2.1/24".parse().unwrap());
    let scope = state.scope(&Scope::Host);
    scope.add_link(nic);
    scope.add_address(Address { owned: false, ..address });
    scope.add_route(foreign);
    state
}

/// Knit's routes through other nodes.
fn routes(node: &Node) -> Vec<String> {
    let seen = node.kernel.observe();
    let host = &seen.scopes[&Scope::Host];
    let remote = host.routes.values().filter(|route| route.owned && route.via[0].gateway.is_some());
    remote
        .map(|route| {
            let hop = &route.via[0];
            assert_eq!(route.table, kernel_ids::HOST_TABLE, "the main table is untouched");
            let covers = |rule: &&Rule| rule.to.is_some_and(|to| to.contains(&route.to));
            let is_found = |rule: &&Rule| covers(rule) && rule.table == route.table;
            let is_node = route.to.addr().is_ipv4() && route.to.prefix_len() == 32;
            assert!(is_node || host.rules.iter().any(|rule| is_found(&rule)), "{route}");
            format!("{} via {} dev {}", route.to, hop.gateway.unwrap(), hop.link)
        })
        .collect()
}

#[test]
fn each_node_has_a_route_that_follows_its_address() {
    let before = host();
    let mut node = Node::with_kernel(before.clone());
    node.handle(Event::ObjectApplied(network(vec![peer(2), peer(3)], false)));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    let second = "10.1.2.0/24 via 192.0.2.2 dev eth0";
    assert_eq!(routes(&node), [second, "10.1.3.0/24 via 192.0.2.3 dev eth0"]);
    // The node returns with another address.
    let moved = PeerNode { addresses: peer(9).addresses, ..peer(3) };
    node.handle(Event::ObjectApplied(network(vec![peer(2), moved], false)));
    assert_eq!(routes(&node), [second, "10.1.3.0/24 via 192.0.2.9 dev eth0"]);
    node.handle(Event::ObjectApplied(network(vec![peer(2)], false)));
    assert_eq!(routes(&node), [second]);
    // Idempotent, also with the state replayed from the journal.
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!(node.applied_steps, steps);
    let state = node.replayed();
    assert_eq!(state.units, node.state.units);
    // Deleted by hand.
    node.kernel.flush_table(&Scope::Host, kernel_ids::HOST_TABLE);
    node.handle(Event::Resync);
    assert_eq!(routes(&node), [second]);
    node.handle(Event::ObjectApplied(network(vec![], false)));
    assert_eq!(routes(&node), [""; 0], "the last route is deleted, too");
    node.handle(Event::ObjectApplied(network(vec![peer(2)], false)));
    node.handle(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before, "deletion restores the host");
}

#[test]
fn rules_do_not_grow_with_the_nodes() {
    let rules = |node: &Node| -> Vec<String> {
        let seen = node.kernel.observe();
        let rules = seen.scopes[&Scope::Host].rules.iter().filter_map(|rule| rule.to);
        let own = "10.1.1.0/24".parse().unwrap();
        rules.filter(|to| *to != own).map(|to| to.to_string()).collect()
    };
    let mut node = Node::with_kernel(host());
    let nodes: Vec<PeerNode> = (64..128).map(peer).collect();
    node.handle(Event::ObjectApplied(network(nodes.clone(), false)));
    assert_eq!(routes(&node).len(), 64);
    assert_eq!(rules(&node), ["10.1.64.0/18"], "{:?}", rules(&node));
    // A range in the middle that belongs to no node is not looked up in Knit's table.
    let others = nodes.into_iter().filter(|one| one.name != "node127").collect();
    node.handle(Event::ObjectApplied(network(others, false)));
    let expected =
        ["10.1.64.0/19", "10.1.96.0/20", "10.1.112.0/21", "10.1.120.0/22", "10.1.124.0/23", "10.1.126.0/24"];
    let mut found = rules(&node);
    found.sort_by_key(|text| text.parse::<ipnet::IpNet>().unwrap());
    assert_eq!(found, expected);
}

#[test]
fn joining_node_is_recorded_alone() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(network((2..100).map(peer).collect(), false)));
    let before = node.journal.len();
    node.set_peers(&(2..101).map(peer).collect::<Vec<_>>());
    let records = node.journal[before..].iter().filter_map(|record| match record {
        Record::Peers { applied, removed } => Some((applied.len(), removed.len())),
        Record::ObjectApplied(_) => Some((usize::MAX, 0)),
        _ => None,
    });
    assert_eq!(records.collect::<Vec<_>>(), [(1, 0)]);
    assert_eq!(routes(&node).len(), 99);
    let steps = node.applied_steps;
    node.set_peers(&(2..101).map(peer).collect::<Vec<_>>());
    assert_eq!(node.applied_steps, steps, "the same list changes nothing");
    assert_eq!(node.replayed().persistent(), node.state.persistent());
}

#[test]
fn node_behind_a_router_is_reported_without_tunnels() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(network(vec![far(2), peer(3)], false)));
    assert_eq!(routes(&node), ["10.1.3.0/24 via 192.0.2.3 dev eth0"]);
    assert!(warnings_of(&node).iter().any(|warning| warning.contains("node2")), "{:?}", warnings_of(&node));
}

fn warnings_of(node: &Node) -> Vec<String> {
    node.state.report(&cluster::key()).unwrap().warnings
}

/// The tunnel link, if it exists.
fn tunnel(node: &Node) -> Option<(Link, Vxlan)> {
    let seen = node.kernel.observe();
    let link = seen.link(&Scope::Host, &kernel_ids::TUNNEL_LINK_IPV4.parse().unwrap())?.clone();
    let Kind::Vxlan(vxlan) = link.kind.clone() else { panic!("{link:?}") };
    Some((link, vxlan))
}

#[test]
fn node_behind_a_router_is_reached_through_a_tunnel() {
    let before = host();
    let mut node = Node::with_kernel(before.clone());
    node.handle(Event::ObjectApplied(with_tunnels(vec![peer(2)], false, Some(false))));
    let near = "10.1.2.0/24 via 192.0.2.2 dev eth0";
    assert_eq!((routes(&node), tunnel(&node)), (vec![near.to_owned()], None), "no tunnel is needed");
    node.handle(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!((node.problems(cluster::NAME), warnings_of(&node)), (vec![], vec![]));
    let expected = [
        near,
        "10.1.3.0/24 via 10.1.3.1 dev knitvx4",
        "203.0.113.3/32 via 10.1.3.1 dev knitvx4",
        "fd01:3::/64 via fd01:3::1 dev knitvx4",
    ];
    assert_eq!(routes(&node), expected, "both families share one tunnel");
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
    let by_tunnel =
        host.routes.values().filter(|route| route.via[0].link.as_str() == kernel_ids::TUNNEL_LINK_IPV4);
    for route in by_tunnel.filter(|route| route.to.addr().is_ipv4()) {
        assert!(route.via[0].onlink, "{route}");
        assert_eq!(route.source, Some("10.1.1.1".parse().unwrap()), "{route}");
    }
    let pods = Rule::from_address(
        "10.1.1.0/24".parse().unwrap(),
        kernel_ids::HOST_TABLE,
        kernel_ids::HOST_RULE_PRIORITY,
    );
    assert!(host.rules.contains(&pods), "traffic from pods to nodes uses the tunnel, too");
    // Idempotent, also with the state replayed from the journal.
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!(node.applied_steps, steps);
    let state = node.replayed();
    assert_eq!(state.units, node.state.units);
    // Tunnels for all nodes, then for none.
    node.handle(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(true))));
    assert!(routes(&node).iter().all(|route| route.ends_with("knitvx4")), "{:?}", routes(&node));
    assert_eq!(tunnel(&node).unwrap().1.fdb.unwrap().len(), 2);
    node.handle(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!(routes(&node), expected);
    node.handle(Event::ObjectApplied(network(vec![peer(2), far(3)], false)));
    assert_eq!((routes(&node), tunnel(&node)), (vec![near.to_owned()], None));
    assert!(node.kernel.observe().scopes[&Scope::Host].neighbours.is_empty());
    node.handle(Event::ObjectApplied(with_tunnels(vec![far(3)], false, Some(false))));
    node.handle(Event::ObjectDeleted(cluster::key()));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn kernel_without_vxlan_keeps_direct_routes_and_attaches_pods() {
    let mut node = Node::with_kernel(host());
    node.missing_kind = Some("vxlan");
    node.handle(Event::ObjectApplied(with_tunnels(vec![peer(2), far(3)], false, Some(false))));
    assert_eq!(routes(&node), ["10.1.2.0/24 via 192.0.2.2 dev eth0"]);
    let warnings = warnings_of(&node);
    assert!(
        warnings.iter().any(|warning| warning.contains("node3") && warning.contains("has no vxlan")),
        "{warnings:?}"
    );
    // Also if the whole unit fails.
    let mut node = Node::with_kernel(host());
    node.failing_unit = Some(Unit::NodeRoutes.to_string());
    node.handle(Event::ObjectApplied(with_tunnels(vec![far(3)], false, Some(false))));
    assert!(node.kernel.observe().link(&Scope::Host, &"knit0".parse().unwrap()).is_some());
    assert_eq!(node.problems(cluster::NAME), ["injected failure"]);
}

#[test]
fn overlapping_pod_range_is_rejected_and_masqueraded() {
    let mut node = Node::with_kernel(host());
    let overlapping = PeerNode { ranges: vec!["10.0.0.0/8".parse().unwrap()], ..peer(3) };
    node.handle(Event::ObjectApplied(network(vec![peer(2), overlapping.clone()], true)));
    assert_eq!(routes(&node), ["10.1.2.0/24 via 192.0.2.2 dev eth0"]);
    let warnings = warnings_of(&node);
    assert!(
        warnings.iter().any(|warning| warning.contains("node3") && warning.contains("overlaps")),
        "{warnings:?}"
    );
    let exempt = elements(&node, "no_masquerade");
    assert!(
        exempt.contains(&"10.1.2.0/24".to_owned()) && !exempt.contains(&"10.0.0.0/8".to_owned()),
        "{exempt:?}"
    );
}

/// The ranges in sets of the packet filter, of both families.
fn elements(node: &Node, set: &str) -> Vec<String> {
    let filter = node.kernel.filter(&Scope::Host);
    let is_in = |name: &str| name.strip_prefix(set).is_some_and(|family| ["4", "6"].contains(&family));
    let all = filter.elements.keys().filter(|key| is_in(&key.set));
    all.map(|key| key.key[0].to_string()).collect()
}

#[test]
fn pod_and_node_ranges_are_exempt_from_masquerade() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(network(vec![peer(2), far(4)], true)));
    assert_eq!(elements(&node, "pod_ranges"), ["10.1.1.0/24"]);
    let exempt = [
        "10.1.1.0/24",
        "10.1.2.0/24",
        "10.1.4.0/24",
        "192.0.2.2",
        "198.51.100.0/24",
        "203.0.113.4",
        "fd01:4::/64",
    ];
    assert_eq!(elements(&node, "no_masquerade"), exempt);
    // A repeated object changes nothing, and disabling masquerade removes it.
    let steps = node.applied_steps;
    node.handle(Event::ObjectApplied(network(vec![peer(2), far(4)], true)));
    assert_eq!(node.applied_steps, steps);
    node.handle(Event::ObjectApplied(network(vec![peer(2), far(4)], false)));
    assert!(node.kernel.filter(&Scope::Host).elements.is_empty());
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
}

#[test]
fn reported_routes_and_warnings_do_not_grow_with_the_nodes() {
    let numbered = |number: u16| PeerNode {
        name: format!("node{number}"),
        ranges: vec![format!("10.{}.{}.0/24", 2 + number / 256, number % 256).parse().unwrap()],
        addresses: vec![],
        ..peer(0)
    };
    let far = |number: u16| {
        let address = format!("203.0.{}.{}", number / 256, number % 256).parse().unwrap();
        PeerNode { off_link_addresses: vec![address], ..numbered(number) }
    };
    let mut node = Node::with_kernel(host());
    // The last 300 have no address.
    let nodes = (0..300).map(far).chain((300..600).map(numbered)).collect();
    node.handle(Event::ObjectApplied(with_tunnels(nodes, false, Some(true))));
    assert_eq!(routes(&node).len(), 600, "there is a route to each node and to its pods");
    let report = node.state.node_states().into_iter().find(|one| one.object.name == cluster::NAME).unwrap();
    assert_eq!((report.items.len(), report.warnings.len()), (200, 201));
    assert_eq!(report.warnings[200], "100 more ranges or addresses of nodes are not used");
}

#[test]
fn tenant_bridge_never_gets_a_range_of_the_cluster() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(network(vec![peer(2), peer(3)], false)));
    let before = routes(&node);
    let tenant = |name: &str, range: &str| object("Bridge", "shop", name, vec![bridge(name, range)]);
    for (name, range, other) in [
        ("half", "10.1.2.0/25", "10.1.2.0/24 of node node2"),
        ("equal", "10.1.3.0/24", "10.1.3.0/24 of node node3"),
        ("larger", "10.1.0.0/16", "the pod range of this node 10.1.1.0/24"),
        ("address", "192.0.2.0/30", "192.0.2.2/32 of node node2"),
    ] {
        node.handle(Event::ObjectApplied(tenant(name, range)));
        assert_eq!(
            node.problems(name),
            [format!("spec.entries[0]: bridge {name}: {range} overlaps {other}")]
        );
    }
    assert_eq!(routes(&node), before, "traffic to other nodes is not affected");
    // A range that a node gets later is taken from the tenant, who gets it back when the node leaves.
    let addresses = |node: &Node| -> Vec<String> {
        let seen = node.kernel.observe();
        let addresses = seen.scopes[&Scope::Host].addresses.values();
        addresses.filter(|one| one.link.as_str() == "late").map(|one| one.address.to_string()).collect()
    };
    node.handle(Event::ObjectApplied(tenant("late", "10.1.4.0/25")));
    assert_eq!(addresses(&node), ["10.1.4.1/25"]);
    node.set_peers(&[peer(2), peer(3), peer(4)]);
    assert_eq!(addresses(&node), [""; 0]);
    let expected = "spec.entries[0]: bridge late: 10.1.4.0/25 overlaps 10.1.4.0/24 of node node4";
    assert_eq!(node.problems("late"), [expected]);
    node.set_peers(&[peer(2), peer(3)]);
    assert_eq!((addresses(&node), node.problems("late")), (vec!["10.1.4.1/25".to_owned()], vec![]));
}

#[test]
fn routes_to_nodes_can_be_left_out_of_a_comparison() {
    let mut node = Node::with_kernel(host());
    node.handle(Event::ObjectApplied(network(vec![peer(2)], false)));
    let before = routes(&node);
    assert_eq!(before.len(), 1);
    // Somebody else deletes the route.
    let seen = node.kernel.observe();
    let mut without = seen.clone();
    without.scope(&Scope::Host).routes.retain(|_, route| route.via[0].gateway.is_none());
    node.kernel.apply(&diff(&Desired { state: without, ..Desired::default() }, &seen)).unwrap();
    assert_eq!(routes(&node), [""; 0]);
    node.handle(Event::ResyncWithoutNodeRoutes);
    assert_eq!(routes(&node), [""; 0]);
    node.handle(Event::Resync);
    assert_eq!(routes(&node), before);
    // Everything else is compared.
    let bridge = node.host_link("knit0");
    node.kernel.delete_link(&Scope::Host, "knit0");
    node.handle(Event::ResyncWithoutNodeRoutes);
    assert!(bridge.is_some() && node.host_link("knit0") == bridge);
}

#[test]
fn tenant_bridge_never_gets_addresses_of_services_or_routes_of_the_host() {
    let mut node = Node::with_kernel(host());
    let tenant = |name: &str, range: &str| {
        Event::ObjectApplied(object("Bridge", "shop", name, vec![bridge(name, range)]))
    };
    node.handle(tenant("early", "10.96.0.0/30"));
    assert_eq!(node.problems("early"), [""; 0]);
    let denied = "spec.entries[0]: bridge early: 10.96.0.0/30 overlaps the range of Services 10.96.0.0/16";
    let services =
        |ranges: &[&str]| Event::ServiceRanges(ranges.iter().map(|range| range.parse().unwrap()).collect());
    node.handle(services(&["10.96.0.0/16"]));
    assert_eq!(node.problems("early"), [denied], "also of a bridge that exists");
    node.state = node.replayed();
    node.handle(Event::Restarted);
    node.handle(Event::Resync);
    assert_eq!(node.problems("early"), [denied], "also before the API server answers");
    node.handle(services(&[]));
    assert_eq!(node.problems("early"), [""; 0]);
    // The main network gets another route while the agent runs.
    node.handle(tenant("late", "10.244.1.0/25"));
    let changed = Settings { routed: vec!["10.244.0.0/16".parse().unwrap()], ..settings() };
    node.handle(Event::SettingsChanged(changed));
    let denied =
        "spec.entries[0]: bridge late: 10.244.1.0/25 overlaps the route of this node to 10.244.0.0/16";
    assert_eq!(node.problems("late"), [denied]);
    node.handle(Event::SettingsChanged(settings()));
    assert_eq!(node.problems("late"), [""; 0]);
    // The cluster network may take over the ranges of another one.
    let changed = Settings { routed: vec!["10.1.0.0/16".parse().unwrap()], ..settings() };
    node.handle(Event::SettingsChanged(changed));
    node.handle(Event::ObjectApplied(network(vec![], false)));
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
    // It keeps them if the host gets an address in them.
    let changed = Settings {
        forbidden: vec![("node's range".to_owned(), "10.1.1.0/24".parse().unwrap())],
        routed: vec![],
        ..settings()
    };
    node.handle(Event::SettingsChanged(changed));
    node.handle(Event::Resync);
    assert_eq!(node.problems(cluster::NAME), [""; 0]);
}

#[test]
fn tenant_bridge_with_the_name_of_a_nic_does_not_affect_routes_through_it() {
    // The second name is not among those that are denied.
    for nic in ["eth0", "lan7"] {
        let mut node = Node::with_kernel(host_with_nic(nic));
        let mut other = peer(2);
        other.addresses[0].1 = nic.parse().unwrap();
        node.handle(Event::ObjectApplied(network(vec![other], false)));
        let through_nic = [format!("10.1.2.0/24 via 192.0.2.2 dev {nic}")];
        assert_eq!(routes(&node), through_nic);
        let stored = object("Bridge", "shop", nic, vec![bridge(nic, "10.9.0.0/24")]);
        let key = knit_engine::ObjectKey::of(&stored.object);
        node.handle(Event::ObjectApplied(stored));
        assert_eq!(node.state.report(&key).unwrap().problems.len(), 1, "{nic}");
        assert_eq!(routes(&node), through_nic);
        node.handle(Event::ObjectDeleted(key));
        assert_eq!(routes(&node), through_nic);
    }
}

#[test]
fn tenant_bridge_never_gets_a_name_of_the_host() {
    let before = host();
    let mut node = Node::with_kernel(before.clone());
    for name in ["cni0", "knitwg0", "flannel.1", "eth7"] {
        let stored = object("Bridge", "shop", name, vec![bridge(name, "10.9.0.0/24")]);
        let key = knit_engine::ObjectKey::of(&stored.object);
        node.handle(Event::ObjectApplied(stored));
        let expected = format!("spec.entries[0]: bridge {name}: the name is reserved for links of the host");
        assert_eq!(node.problems(name), [expected]);
        let seen = node.kernel.observe();
        assert_eq!(seen.scopes[&Scope::Host].links, before.scopes[&Scope::Host].links);
        node.handle(Event::ObjectDeleted(key));
    }
}
