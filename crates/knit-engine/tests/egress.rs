//! Gateways: which node has the address, how the others reach it, and what is asked of the packet filter.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod tasks;
}

use std::collections::{BTreeSet, VecDeque};

use knit_engine::call::{Asked, Notes, Wished};
use knit_engine::forward::{Forwarding, Leaving};
use knit_engine::{
    Attach, CallId, Effect, Event, ObjectKey, Record, State, StoredObject, cluster, egress, step,
};
use knit_ipam::Time;
use knit_model::intent::{
    EgressGatewayIntent, EncryptionIntent, IntentSpec, LocalNode, NetworkIntent, NodeRoutesIntent,
    NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Link, Veth};
use knit_model::provenance::Dialect;
use knit_model::{Address, Kind, NetState, Scope, marks};
use support::kernel::Kernel;
use support::node::{bridge, object};
use support::tasks::{carry_out, newborn};

/// A node whose packet filter does at once what it is asked.
struct Node {
    state: State,
    kernel: Kernel,
    journal: Vec<Record>,
    filter: Forwarding,
}

/// Two pods, and a NIC with an address.
fn host() -> NetState {
    let mut state = newborn(&["a", "b"]);
    let mut eth0 = Link::new("eth0".parse().unwrap(), Kind::Veth(Veth::default()));
    eth0.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let scope = state.scope(&Scope::Host);
    scope.add_link(eth0);
    for address in ["192.0.2.1/24", "2001:db8::1/64"] {
        let address = Address::new("eth0".parse().unwrap(), address.parse().unwrap());
        scope.add_address(Address { owned: false, ..address });
    }
    state
}

/// Another node, with pods in 10.1.<number>.0/24 and fd01:<number>::/64, on eth0; or behind a router.
fn peer(number: u8, is_near: bool) -> PeerNode {
    let own = [format!("192.0.2.{number}").parse().unwrap(), format!("2001:db8::{number}").parse().unwrap()];
    let ranges = [format!("10.1.{number}.0/24"), format!("fd01:{number}::/64")];
    let near = own.iter().map(|address| (*address, "eth0".parse().unwrap()));
    PeerNode {
        name: format!("node{number}"),
        ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        addresses: if is_near { near.collect() } else { vec![] },
        far: if is_near { vec![] } else { own.to_vec() },
        key: None,
    }
}

/// The cluster's network of node 1.
fn network(nodes: Vec<PeerNode>) -> StoredObject {
    let ranges: Vec<_> = ["10.1.1.0/24", "fd01:1::/64"].iter().map(|range| range.parse().unwrap()).collect();
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, span: None };
    let eth0 = || "eth0".parse().unwrap();
    let own = LocalNode {
        name: "node1".to_owned(),
        addresses: vec![("192.0.2.1".parse().unwrap(), eth0()), ("2001:db8::1".parse().unwrap(), eth0())],
        links: vec![("192.0.2.0/24".parse().unwrap(), eth0()), ("2001:db8::/64".parse().unwrap(), eth0())],
    };
    let tunnel = NodeTunnelIntent {
        node: "node1".to_owned(),
        vni: 7500,
        port: 7475,
        always: false,
        ends: vec![TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 }],
    };
    let (own, tunnel) = (Some(own), Some(tunnel));
    let inside = vec!["198.51.100.0/24".parse().unwrap()];
    let ways =
        NodeRoutesIntent { nodes, masquerade: true, inside, own, tunnel, ..NodeRoutesIntent::default() };
    let mut bridge = bridge("knit0", "10.1.1.0/24");
    if let IntentSpec::Bridge(bridge) = &mut bridge {
        bridge.ranges.clone_from(&network.ranges);
    }
    object(
        cluster::KIND,
        cluster::NAMESPACE,
        cluster::NAME,
        vec![IntentSpec::Network(network), bridge, IntentSpec::NodeRoutes(ways)],
    )
}

fn gateway(name: &str, namespaces: &[&str], addresses: &[&str], nodes: &[&str]) -> Event {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let want = IntentSpec::EgressGateway(EgressGatewayIntent {
        name: name.to_owned(),
        namespaces: owned(namespaces),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        nodes: owned(nodes),
    });
    Event::ObjectApplied(object(egress::KIND, "", name, vec![want]))
}

/// One for pods of `shop`, with both families.
fn shop(nodes: &[&str]) -> Event {
    gateway("shop", &["shop"], &["192.0.2.77", "2001:db8::77"], nodes)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: egress::KIND.to_owned(), namespace: String::new(), name: name.to_owned() }
}

fn well(nodes: &[&str]) -> Event {
    Event::Nodes(nodes.iter().map(|node| (*node).to_owned()).collect())
}

fn elsewhere(namespace: &str, addresses: &[&str]) -> Event {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Event::Elsewhere { namespace: namespace.to_owned(), addresses }
}

impl Node {
    fn new() -> Self {
        let (state, kernel) = (State::default(), Kernel::holding(host()));
        let mut node = Self { state, kernel, journal: Vec::new(), filter: Forwarding::default() };
        node.hear(Event::ObjectApplied(network(vec![peer(2, true), peer(3, false)])));
        node
    }

    fn hear(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in step(&mut self.state, event, Time(1)) {
                match effect {
                    Effect::Journal(record) => {
                        let text = serde_json::to_string(&record).unwrap();
                        self.journal.push(serde_json::from_str(&text).unwrap());
                    }
                    Effect::Forward(asked) => {
                        self.filter = asked;
                        events.push_back(Event::Forwarded(Ok(())));
                    }
                    Effect::Changed(_) | Effect::Answer { .. } => {}
                    task => events.push_back(carry_out(&mut self.kernel, task, false).unwrap()),
                }
            }
        }
    }

    /// A pod of a namespace comes; its addresses.
    fn attach(&mut self, namespace: &str, id: &str) {
        let asked = Asked { default_route: true, ..Asked::default() };
        let namespace = namespace.to_owned();
        self.hear(Event::AttachRequested(Box::new(Attach {
            call: CallId(id.to_owned()),
            dialect: Dialect::Kni,
            sandbox: Wished { id: id.to_owned(), netns: format!("/{id}"), namespace, ..Wished::default() },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), asked)],
            notes: Notes::default(),
            fail_if_present: false,
            ticket: 7,
            began: 0,
        })));
    }

    /// What the host has because of gateways, in words.
    fn has(&self) -> Vec<String> {
        let seen = self.kernel.observe();
        let host = &seen.scopes[&Scope::Host];
        let addresses = host.addresses.values().filter(|one| one.owned && one.link.as_str() == "eth0");
        let ways = |table: u32| table > marks::EGRESS_TABLES;
        let mut all: Vec<String> = addresses.map(ToString::to_string).collect();
        all.extend(host.routes.values().filter(|route| ways(route.table)).map(|route| {
            let hop = &route.via[0];
            format!("{} via {} dev {}", route.to, hop.gateway.unwrap(), hop.link)
        }));
        let rules = host.rules.iter().filter(|rule| ways(rule.table));
        all.extend(rules.map(|rule| {
            let (mark, mask) = rule.mark.unwrap();
            assert_eq!(mask, marks::EGRESS_MASK);
            assert_eq!(rule.table - marks::EGRESS_TABLES, mark >> marks::EGRESS_SHIFT);
            assert_eq!(rule.iif.as_ref().unwrap().as_str(), "knit0", "a tunnel's packets have the mark, too");
            format!("rule of {}", if rule.ipv6 { "IPv6" } else { "IPv4" })
        }));
        all
    }

    fn leaving(&self) -> Leaving {
        self.filter.egress.clone().unwrap_or_default()
    }

    fn told(&self, name: &str) -> Vec<String> {
        let report = self.state.report(&key(name)).unwrap();
        let problems = report.problems.iter().map(|problem| problem.message.clone());
        problems.chain(report.warnings.iter().cloned()).collect()
    }

    fn replayed(&self) -> State {
        let mut state = State::default();
        self.journal.iter().for_each(|record| state.record(record));
        state
    }
}

const HERE: [&str; 2] =
    ["192.0.2.77/32 dev eth0 noprefixroute deprecated", "2001:db8::77/128 dev eth0 noprefixroute deprecated"];
const THROUGH_2: [&str; 4] =
    ["0.0.0.0/0 via 192.0.2.2 dev eth0", "::/0 via 2001:db8::2 dev eth0", "rule of IPv4", "rule of IPv6"];

#[test]
fn the_first_node_that_is_well_has_the_address_and_it_comes_back_with_it() {
    let mut node = Node::new();
    let before = node.kernel.observe();
    node.hear(shop(&["node2", "node1"]));
    assert_eq!(node.has(), [""; 0], "nothing is known of its nodes");
    node.hear(well(&["node1", "node2", "node3"]));
    assert_eq!(node.has(), THROUGH_2);
    // Of the second, which is not well any more, this node takes over; then it goes back.
    node.hear(well(&["node1", "node3"]));
    assert_eq!(node.has(), HERE);
    let states = node.state.node_states();
    let told = states.iter().find(|one| one.object.name == "shop").unwrap();
    assert_eq!((told.ready, &told.items[0].what[..]), (true, "192.0.2.77 on eth0"));
    node.hear(well(&["node1", "node2"]));
    assert_eq!(node.has(), THROUGH_2);
    assert!(node.state.node_states().iter().all(|one| one.object.name != "shop"), "it is another node's");
    assert_eq!(node.told("shop"), [""; 0]);
    // A change of the list counts at once, and the object takes everything along.
    node.hear(shop(&["node1", "node2"]));
    assert_eq!(node.has(), HERE);
    node.hear(Event::ObjectDeleted(key("shop")));
    assert_eq!(node.kernel.observe(), before);
    assert_eq!(node.filter.egress, None, "there was no pod");
    assert_eq!(node.replayed().egress, Default::default(), "nothing is remembered");
}

#[test]
fn while_none_is_well_the_last_one_stays_also_after_a_restart() {
    let mut node = Node::new();
    node.hear(shop(&["node1", "node2"]));
    node.hear(well(&[]));
    assert_eq!(node.has(), [""; 0], "none ever was");
    assert!(
        node.told("shop")[0].contains("none of its nodes is Ready: node1, node2"),
        "{:?}",
        node.told("shop")
    );
    node.hear(well(&["node1", "node2"]));
    node.hear(well(&["node3"]));
    assert_eq!(node.has(), HERE);
    assert!(node.told("shop")[0].contains("the last one, node1, keeps"), "{:?}", node.told("shop"));
    // Without news an agent keeps what it has.
    node.state = node.replayed();
    node.hear(Event::Restarted);
    node.hear(Event::Resync);
    assert_eq!(node.has(), HERE);
    assert_eq!(node.told("shop"), [""; 0]);
    // But after a boot it may be another's by now: it waits for news.
    node.kernel = Kernel::holding(host());
    node.state = node.replayed();
    node.hear(Event::Restarted);
    node.hear(Event::Resync);
    assert_eq!((node.has(), node.told("shop")), (vec![], vec![]));
    node.hear(well(&["node1", "node2"]));
    assert_eq!(node.has(), HERE);
    // One that the list has not any more keeps nothing.
    node.hear(well(&["node3"]));
    node.hear(shop(&["node2"]));
    assert_eq!(node.has(), [""; 0]);
}

#[test]
fn a_node_behind_a_router_is_reached_by_its_tunnel() {
    let mut node = Node::new();
    node.hear(shop(&["node3"]));
    node.hear(well(&["node3"]));
    assert_eq!(
        node.has(),
        [
            "0.0.0.0/0 via 10.1.3.1 dev knitvx4",
            "::/0 via fd01:3::1 dev knitvx4",
            "rule of IPv4",
            "rule of IPv6"
        ]
    );
    // Someone removes it by hand, and it comes back.
    for number in 1..=255 {
        node.kernel.drop_routes(&Scope::Host, marks::EGRESS_TABLES + number);
    }
    assert_eq!(node.has().len(), 2);
    node.hear(Event::Resync);
    assert_eq!(node.has().len(), 4);
}

#[test]
fn where_ways_are_encrypted_nothing_leaves_by_another_node_in_clear() {
    let mut node = Node::new();
    node.hear(well(&["node1", "node2"]));
    node.hear(shop(&["node2"]));
    node.attach("shop", "a");
    assert_eq!(node.has(), THROUGH_2);
    let mut encrypted = network(vec![peer(2, true), peer(3, false)]);
    let IntentSpec::NodeRoutes(ways) = &mut encrypted.intents.last_mut().unwrap().spec else {
        panic!("no ways")
    };
    ways.encryption = Some(EncryptionIntent { port: 7476, ends: vec![] });
    node.hear(Event::ObjectApplied(encrypted));
    assert_eq!(node.has(), [""; 0]);
    assert_eq!((node.leaving().sent, node.leaving().barred.len()), (vec![], 2));
    let told = node.told("shop");
    assert!(told[0].ends_with("is not reached: it would be in clear on its way there"), "{told:?}");
}

#[test]
fn a_way_to_pods_stays_when_an_address_goes() {
    let mut node = Node::new();
    node.hear(shop(&["node1"]));
    node.hear(well(&["node1"]));
    let steps = |node: &Node| {
        let plans = node.journal.iter().filter_map(|record| match record {
            Record::Began(began) => Some(began.plan.steps.len()),
            _ => None,
        });
        plans.sum::<usize>()
    };
    let before = steps(&node);
    node.hear(Event::ObjectDeleted(key("shop")));
    assert_eq!(steps(&node) - before, 2, "two addresses, and no route");
}

#[test]
fn pods_of_its_namespaces_leave_by_it_and_others_do_not() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.attach("other", "b");
    node.hear(shop(&["node2", "node1"]));
    // Nobody knows yet who it is: they do not leave at all.
    let pods = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let barred: BTreeSet<_> = pods(&["10.1.1.2", "fd01:1::2"]).into_iter().collect();
    assert_eq!(node.leaving().barred, barred);
    node.hear(well(&["node1", "node2"]));
    let leaving = node.leaving();
    assert_eq!(leaving.barred, BTreeSet::new());
    let sent: Vec<_> = leaving.sent.iter().map(|sent| (sent.via.to_string(), sent.pods.clone())).collect();
    assert_eq!(
        sent,
        [("192.0.2.2".to_owned(), pods(&["10.1.1.2"])), ("2001:db8::2".to_owned(), pods(&["fd01:1::2"]))]
    );
    let marks: BTreeSet<u32> = leaving.sent.iter().map(|sent| sent.mark & !marks::EGRESS_MASK).collect();
    assert_eq!(marks, BTreeSet::from([0]));
    let outside = node.filter.outside.clone().unwrap();
    assert_eq!(outside.inside, leaving.inside, "what is inside is the same for both");
    // Pods of others are no business of this node while another one is the gateway.
    node.hear(elsewhere("shop", &["10.1.2.9", "fd01:2::9"]));
    node.hear(elsewhere("other", &["10.1.2.8"]));
    assert_eq!(node.leaving().barred, pods(&["10.1.2.9", "fd01:2::9"]).into_iter().collect());
    assert_eq!(node.leaving().translated.len(), 0);
    node.hear(well(&["node1"]));
    let leaving = node.leaving();
    let translated: Vec<String> =
        leaving.translated.iter().map(|(pod, outside)| format!("{pod} as {outside}")).collect();
    assert_eq!(
        translated,
        [
            "10.1.1.2 as 192.0.2.77",
            "10.1.2.9 as 192.0.2.77",
            "fd01:1::2 as 2001:db8::77",
            "fd01:2::9 as 2001:db8::77"
        ]
    );
    assert_eq!((leaving.sent, leaving.barred), (vec![], BTreeSet::new()));
    assert_eq!(leaving.moved, leaving.translated.keys().copied().collect(), "what they began goes on here");
    // What is known of others is remembered, and goes when nobody asks.
    assert_eq!(node.replayed().egress, node.state.remembered().egress);
    node.hear(elsewhere("shop", &["fd01:2::9"]));
    assert_eq!(node.leaving().translated.len(), 3);
    node.hear(shop(&["node2"]));
    assert_eq!(node.state.egress.elsewhere.len(), 0);
    // With the gateway goes what was begun by it.
    node.hear(Event::ObjectDeleted(key("shop")));
    let leaving = node.leaving();
    assert_eq!(leaving.moved, barred);
    assert_eq!((leaving.sent.len(), leaving.translated.len(), leaving.barred.len()), (0, 0, 0));
    assert_eq!(leaving.inside, outside.inside);
}

#[test]
fn an_address_is_its_own_also_where_the_kernel_keeps_no_mark_of_it() {
    let mut node = Node::new();
    let before = node.kernel.observe();
    node.hear(shop(&["node1"]));
    node.hear(well(&["node1"]));
    let mut unmarked = node.kernel.observe();
    let addresses = unmarked.scope(&Scope::Host).addresses.values_mut();
    addresses.filter(|one| one.deprecated).for_each(|one| one.owned = false);
    node.kernel = Kernel::holding(unmarked);
    node.state = node.replayed();
    node.hear(Event::Resync);
    assert_eq!(node.told("shop"), [""; 0]);
    node.hear(Event::ObjectDeleted(key("shop")));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn a_family_without_an_address_is_as_before() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.hear(well(&["node2"]));
    node.hear(gateway("shop", &["shop"], &["2001:db8::77"], &["node2"]));
    assert_eq!(node.has(), ["::/0 via 2001:db8::2 dev eth0", "rule of IPv6"]);
    let leaving = node.leaving();
    assert_eq!((leaving.sent.len(), leaving.barred.len()), (1, 0));
}

#[test]
fn the_first_by_name_has_a_namespace_and_an_address_that_two_want() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.hear(well(&["node1", "node2"]));
    node.hear(gateway("second", &["shop", "lab"], &["192.0.2.77"], &["node2"]));
    node.hear(gateway("first", &["shop"], &["192.0.2.77"], &["node1"]));
    assert_eq!(node.told("first"), [""; 0]);
    let told = node.told("second");
    assert!(told.iter().any(|one| one.contains("192.0.2.77 is not used: it is gateway first's")), "{told:?}");
    assert!(told.iter().any(|one| one.contains("namespace shop leave by gateway first")), "{told:?}");
    assert_eq!(node.leaving().translated.len(), 1);
    assert_eq!(node.has(), HERE[..1]);
}

#[test]
fn an_address_that_is_somebodys_is_refused_in_words() {
    let mut node = Node::new();
    node.hear(well(&["node1"]));
    for (address, why) in [
        ("192.0.2.1", "it is node node1's own"),
        ("192.0.2.2", "it is node node2's own"),
        ("10.1.1.9", "10.1.1.0/24 is for pods"),
        ("10.1.3.9", "10.1.3.0/24 is for pods"),
    ] {
        node.hear(gateway("bad", &["shop"], &[address], &["node1"]));
        let told = node.told("bad");
        assert!(told.iter().any(|one| one.contains(why)), "{address}: {told:?}");
        assert_eq!(node.has(), [""; 0]);
    }
    // Somebody else put it on the link.
    let address = Address::new("eth0".parse().unwrap(), "192.0.2.9/24".parse().unwrap());
    let mut held = host();
    held.scope(&Scope::Host).add_address(Address { owned: false, ..address });
    let mut node = Node { kernel: Kernel::holding(held), ..Node::new() };
    node.hear(Event::Resync);
    node.hear(well(&["node1"]));
    node.hear(gateway("bad", &["shop"], &["192.0.2.9"], &["node1"]));
    assert!(node.told("bad")[0].contains("is there already"), "{:?}", node.told("bad"));
    assert_eq!(node.has(), [""; 0]);
}
