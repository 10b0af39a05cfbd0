//! Egress gateways: which node holds the address, how other nodes reach it, and the resulting packet filter.

mod addresses;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_engine::call::{AttachmentMetadata, DetachRequest, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::packet_filter::Rerouted;
use knit_engine::{
    AttachRequest, CallId, Effect, Event, ObjectKey, Record, State, StoredObject, Unit, cluster, egress, step,
};
use knit_ipam::Time;
use knit_model::filter::field::Value;
use knit_model::filter::rule::Expression;
use knit_model::filter::{ElementData, Filter, KeyPart, TableFamily};
use knit_model::intent::{
    EgressGatewayIntent, EncryptionIntent, IntentSpec, LocalNode, NetworkIntent, NodeRoutesIntent,
    NodeTunnelIntent, PeerNode, TunnelEndpoint,
};
use knit_model::link::{Attrs, Link, Veth};
use knit_model::provenance::Dialect;
use knit_model::{Address, Kind, NetState, SandboxId, Scope, kernel_ids};

use crate::support::executor::{execute, new_sandboxes};
use crate::support::kernel::FakeKernel;
use crate::support::node::{bridge, object};
use crate::support::with_settings;

struct Node {
    state: State,
    kernel: FakeKernel,
    journal: Vec<Record>,
    /// Connections that were rerouted since the last look.
    rerouted: Vec<Rerouted>,
}

/// What the packet filter does with the egress of pods.
#[derive(Default)]
struct EgressRules {
    /// The pods by mark and allowed next hop.
    marks: BTreeMap<(u32, IpAddr), Vec<IpAddr>>,
    /// The gateway address of each pod whose gateway is this node.
    snat: BTreeMap<IpAddr, IpAddr>,
    blocked: BTreeSet<IpAddr>,
    no_masquerade_ranges: Vec<String>,
}

impl EgressRules {
    fn of(filter: &Filter) -> Self {
        let mut rules = Self::default();
        let next_hops = next_hops(filter);
        let mut translated = BTreeSet::new();
        for (key, data) in &filter.elements {
            let set = key.set.as_str();
            let pod = || key.address().unwrap();
            match data {
                ElementData::Values(values) if set.starts_with("egress_snat") => {
                    let [Value::Address(to)] = values[..] else { panic!("{key}{data}") };
                    rules.snat.insert(pod(), to);
                }
                _ if set.starts_with("egress_snat_pods") => drop(translated.insert(pod())),
                _ if set.starts_with("egress_pods") => {
                    rules.marks.entry(next_hops[set]).or_default().push(pod())
                }
                _ if set.starts_with("egress_blocked") => drop(rules.blocked.insert(pod())),
                _ if set.starts_with("no_masquerade") => {
                    rules.no_masquerade_ranges.push(key.key[0].to_string())
                }
                _ => {}
            }
        }
        assert!(rules.snat.keys().eq(&translated), "SNAT is enforced");
        rules
    }
}

/// The mark and the only allowed next hop of the pods of each set.
fn next_hops(filter: &Filter) -> BTreeMap<String, (u32, IpAddr)> {
    let Some(table) = filter.tables.get(&TableFamily::Inet.table()) else { return BTreeMap::new() };
    let Some(chain) = table.chains.get("egress_enforce") else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for rule in &chain.rules {
        let (mut set, mut mark, mut via) = (None, None, None);
        for expression in &rule.expressions {
            match expression {
                Expression::Lookup { set: name, .. } if name.starts_with("egress_pods") => set = Some(name),
                Expression::Compare { value: Value::Number(number), .. } => mark = Some(*number),
                Expression::Compare { value: Value::Address(address), .. } => via = Some(*address),
                _ => {}
            }
        }
        all.extend(set.map(|set| (set.clone(), (mark.unwrap(), via.unwrap()))));
    }
    all
}

/// Two pods, and a NIC with an address.
/// The link to other nodes. Its name is one that a tenant can give a bridge.
const NIC: &str = "lan7";

fn host() -> NetState {
    let mut state = new_sandboxes(&["a", "b"]);
    let mut nic = Link::new(NIC.parse().unwrap(), Kind::Veth(Veth::default()));
    nic.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let scope = state.scope(&Scope::Host);
    scope.add_link(nic);
    for address in ["192.0.2.1/24", "2001:db8::1/64"] {
        let address = Address::new(NIC.parse().unwrap(), address.parse().unwrap());
        scope.add_address(Address { owned: false, ..address });
    }
    state
}

/// The other nodes, each on the NIC or behind a router.
const PEERS: [(u8, bool); 2] = [(2, true), (3, false)];

/// Another node, with pods in 10.1.<number>.0/24 and fd01:<number>::/64, on the NIC or behind a router.
fn peer(number: u8, is_near: bool) -> PeerNode {
    let own = [format!("192.0.2.{number}").parse().unwrap(), format!("2001:db8::{number}").parse().unwrap()];
    let ranges = [format!("10.1.{number}.0/24"), format!("fd01:{number}::/64")];
    let near = own.iter().map(|address| (*address, NIC.parse().unwrap()));
    PeerNode {
        name: format!("node{number}"),
        ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        addresses: if is_near { near.collect() } else { vec![] },
        off_link_addresses: if is_near { vec![] } else { own.to_vec() },
        key: None,
    }
}

/// The cluster network of node 1.
fn network() -> StoredObject {
    let ranges: Vec<_> = ["10.1.1.0/24", "fd01:1::/64"].iter().map(|range| range.parse().unwrap()).collect();
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    let nic = || NIC.parse().unwrap();
    let own = LocalNode {
        name: "node1".to_owned(),
        addresses: vec![("192.0.2.1".parse().unwrap(), nic()), ("2001:db8::1".parse().unwrap(), nic())],
        links: vec![("192.0.2.0/24".parse().unwrap(), nic()), ("2001:db8::/64".parse().unwrap(), nic())],
    };
    let tunnel = NodeTunnelIntent {
        node: "node1".to_owned(),
        vni: 7500,
        port: 7475,
        always: false,
        endpoints: vec![TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 }],
    };
    let (own, tunnel) = (Some(own), Some(tunnel));
    let inside = vec!["198.51.100.0/24".parse().unwrap()];
    let node_routes = NodeRoutesIntent {
        masquerade: true,
        no_masquerade_ranges: inside,
        local_node: own,
        tunnel,
        ..NodeRoutesIntent::default()
    };
    let mut bridge = bridge("knit0", "10.1.1.0/24");
    if let IntentSpec::Bridge(bridge) = &mut bridge {
        bridge.ranges.clone_from(&network.ranges);
    }
    let specs = vec![IntentSpec::Network(network), bridge, IntentSpec::NodeRoutes(node_routes)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs)
}

fn gateway(name: &str, namespaces: &[&str], addresses: &[&str], nodes: &[&str]) -> Event {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let intent = IntentSpec::EgressGateway(EgressGatewayIntent {
        name: name.to_owned(),
        namespaces: owned(namespaces),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        nodes: owned(nodes),
    });
    Event::ObjectApplied(object(egress::KIND, "", name, vec![intent]))
}

/// A gateway for pods of `shop`, in both families.
fn shop(nodes: &[&str]) -> Event {
    gateway("shop", &["shop"], &["192.0.2.77", "2001:db8::77"], nodes)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: egress::KIND.to_owned(), namespace: String::new(), name: name.to_owned() }
}

/// The list of all nodes, of which these are Ready.
fn ready_nodes(nodes: &[&str]) -> Event {
    let node = |name: &str, is_local| NodeInfo {
        name: name.to_owned(),
        is_local,
        is_ready: nodes.contains(&name),
        ..NodeInfo::default()
    };
    let peers = PEERS.map(|(number, _)| node(&format!("node{number}"), false));
    Event::Nodes(NodeEvent::Listed([node("node1", true)].into_iter().chain(peers).collect()))
}

fn remote_pods(namespace: &str, addresses: &[&str]) -> Event {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Event::RemotePods { namespace: namespace.to_owned(), addresses }
}

impl Node {
    fn new() -> Self {
        let (state, kernel) = (with_settings(State::default()), FakeKernel::with_state(host()));
        let mut node = Self { state, kernel, journal: Vec::new(), rerouted: Vec::new() };
        // As after a restart: the nodes are not listed yet.
        let peers = Record::Peers {
            applied: PEERS.map(|(number, is_near)| peer(number, is_near)).into(),
            removed: vec![],
        };
        node.state.record(&peers);
        node.journal.push(peers);
        node.handle(Event::ObjectApplied(network()));
        node
    }

    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in step(&mut self.state, event, Time(1)) {
                match effect {
                    Effect::Journal(record) => {
                        let text = serde_json::to_string(&record).unwrap();
                        self.journal.push(serde_json::from_str(&text).unwrap());
                    }
                    Effect::RerouteConnections(rerouted) => self.rerouted.push(rerouted),
                    Effect::ObjectsChanged(_) | Effect::Respond { .. } | Effect::UpdateFastPath(_) => {}
                    effect => events.push_back(execute(&mut self.kernel, effect, false).unwrap()),
                }
            }
        }
    }

    /// Attaches a pod of a namespace.
    fn attach(&mut self, namespace: &str, id: &str) {
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let namespace = namespace.to_owned();
        self.handle(Event::AttachRequested(Box::new(AttachRequest {
            call: CallId(id.to_owned()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest {
                id: id.to_owned(),
                netns: format!("/{id}"),
                namespace,
                ..SandboxRequest::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 7,
            started_at: 0,
        })));
    }

    /// Addresses, routes and rules that the host has because of gateways.
    fn gateway_state(&self) -> Vec<String> {
        let seen = self.kernel.observe();
        let host = &seen.scopes[&Scope::Host];
        let addresses = host.addresses.values().filter(|one| one.owned && one.link.as_str() == NIC);
        let is_egress = |table: u32| table > kernel_ids::EGRESS_TABLE_BASE;
        let mut all: Vec<String> = addresses.map(ToString::to_string).collect();
        all.extend(host.routes.values().filter(|route| is_egress(route.table)).map(|route| {
            let hop = &route.via[0];
            format!("{} via {} dev {}", route.to, hop.gateway.unwrap(), hop.link)
        }));
        let rules = host.rules.iter().filter(|rule| is_egress(rule.table));
        all.extend(rules.map(|rule| {
            let (mark, mask) = rule.mark.unwrap();
            assert_eq!(mask, kernel_ids::EGRESS_MARK_MASK);
            assert_eq!(rule.table - kernel_ids::EGRESS_TABLE_BASE, mark >> kernel_ids::EGRESS_MARK_SHIFT);
            assert_eq!(
                rule.iif.as_ref().unwrap().as_str(),
                "knit0",
                "packets of tunnels carry the mark, too"
            );
            format!("rule of {}", if rule.ipv6 { "IPv6" } else { "IPv4" })
        }));
        all
    }

    fn egress_rules(&self) -> EgressRules {
        EgressRules::of(self.kernel.filter(&Scope::Host))
    }

    /// The pods whose connections were rerouted since the last look.
    fn take_rerouted(&mut self) -> BTreeSet<IpAddr> {
        let kept = self.egress_rules().no_masquerade_ranges;
        let rerouted: Vec<Rerouted> = self.rerouted.drain(..).collect();
        for one in &rerouted {
            let ranges = elements_of(&one.kept);
            assert_eq!(ranges, kept.iter().cloned().collect(), "connections within the cluster stay");
        }
        rerouted.into_iter().flat_map(|one| one.pods).collect()
    }

    /// Sends requests to detach a pod.
    fn detach(&mut self, id: &str) {
        self.handle(Event::DetachRequested(DetachRequest {
            call: CallId(format!("detach {id}")),
            sandbox: SandboxId(id.to_owned()),
            netns: String::new(),
            scope: DetachScope::All,
            forget_sandbox: false,
            started_at: 0,
        }));
    }

    fn messages(&self, name: &str) -> Vec<String> {
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

/// Ranges as elements of a set.
fn elements_of(ranges: &[IpNet]) -> BTreeSet<String> {
    ranges.iter().map(|range| KeyPart::range(*range).to_string()).collect()
}

const LOCAL: [&str; 2] =
    ["192.0.2.77/32 dev lan7 noprefixroute deprecated", "2001:db8::77/128 dev lan7 noprefixroute deprecated"];
const VIA_NODE2: [&str; 4] =
    ["0.0.0.0/0 via 192.0.2.2 dev lan7", "::/0 via 2001:db8::2 dev lan7", "rule of IPv4", "rule of IPv6"];

#[test]
fn first_ready_node_holds_the_address_and_fails_back() {
    let mut node = Node::new();
    let before = node.kernel.observe();
    node.handle(shop(&["node2", "node1"]));
    assert_eq!(node.gateway_state(), [""; 0], "node readiness is not known yet");
    node.handle(ready_nodes(&["node1", "node2", "node3"]));
    assert_eq!(node.gateway_state(), VIA_NODE2);
    // The preferred node is not ready: this node takes over, then fails back.
    node.handle(ready_nodes(&["node1", "node3"]));
    assert_eq!(node.gateway_state(), LOCAL);
    let states = node.state.node_states();
    let report = states.iter().find(|one| one.object.name == "shop").unwrap();
    assert_eq!((report.ready, &report.items[0].description[..]), (true, "192.0.2.77 on lan7"));
    node.handle(ready_nodes(&["node1", "node2"]));
    assert_eq!(node.gateway_state(), VIA_NODE2);
    assert!(node.state.node_states().iter().all(|one| one.object.name != "shop"), "another node is active");
    assert_eq!(node.messages("shop"), [""; 0]);
    // A changed node list takes effect at once; deleting the object removes everything.
    node.handle(shop(&["node1", "node2"]));
    assert_eq!(node.gateway_state(), LOCAL);
    node.handle(Event::ObjectDeleted(key("shop")));
    assert_eq!(node.kernel.observe(), before);
    assert_eq!(node.replayed().egress, Default::default(), "nothing is journalled");
}

#[test]
fn without_a_ready_node_the_last_active_node_stays_also_after_a_restart() {
    let mut node = Node::new();
    node.handle(shop(&["node1", "node2"]));
    node.handle(ready_nodes(&[]));
    assert_eq!(node.gateway_state(), [""; 0], "no node was ever active");
    assert!(
        node.messages("shop")[0].contains("none of its nodes is Ready: node1, node2"),
        "{:?}",
        node.messages("shop")
    );
    node.handle(ready_nodes(&["node1", "node2"]));
    node.handle(ready_nodes(&["node3"]));
    assert_eq!(node.gateway_state(), LOCAL);
    assert!(node.messages("shop")[0].contains("the last one, node1, keeps"), "{:?}", node.messages("shop"));
    // An agent without node events keeps the last applied state.
    node.state = node.replayed();
    node.handle(Event::Restarted);
    node.handle(Event::Resync);
    assert_eq!(node.gateway_state(), LOCAL);
    assert_eq!(node.messages("shop"), [""; 0]);
    // After a boot another node may be active: the agent waits for node events.
    node.kernel = FakeKernel::with_state(host());
    node.state = node.replayed();
    node.handle(Event::Restarted);
    node.handle(Event::Resync);
    assert_eq!((node.gateway_state(), node.messages("shop")), (vec![], vec![]));
    node.handle(ready_nodes(&["node1", "node2"]));
    assert_eq!(node.gateway_state(), LOCAL);
    // A node that was removed from the list keeps nothing.
    node.handle(ready_nodes(&["node3"]));
    node.handle(shop(&["node2"]));
    assert_eq!(node.gateway_state(), [""; 0]);
}

#[test]
fn gateway_node_behind_a_router_is_reached_through_its_tunnel() {
    let mut node = Node::new();
    node.handle(shop(&["node3"]));
    node.handle(ready_nodes(&["node3"]));
    assert_eq!(
        node.gateway_state(),
        [
            "0.0.0.0/0 via 10.1.3.1 dev knitvx4",
            "::/0 via fd01:3::1 dev knitvx4",
            "rule of IPv4",
            "rule of IPv6"
        ]
    );
    // Routes deleted by hand are restored.
    for number in 1..=255 {
        node.kernel.flush_table(&Scope::Host, kernel_ids::EGRESS_TABLE_BASE + number);
    }
    assert_eq!(node.gateway_state().len(), 2);
    node.handle(Event::Resync);
    assert_eq!(node.gateway_state().len(), 4);
}

#[test]
fn with_encryption_nothing_leaves_through_another_node_unencrypted() {
    let mut node = Node::new();
    node.handle(ready_nodes(&["node1", "node2"]));
    node.handle(shop(&["node2"]));
    node.attach("shop", "a");
    assert_eq!(node.gateway_state(), VIA_NODE2);
    let mut encrypted = network();
    let IntentSpec::NodeRoutes(node_routes) = &mut encrypted.intents.last_mut().unwrap().spec else {
        panic!("no node routes")
    };
    node_routes.encryption = Some(EncryptionIntent { port: 7476, endpoints: vec![] });
    node.handle(Event::ObjectApplied(encrypted));
    assert_eq!(node.gateway_state(), [""; 0]);
    assert_eq!((node.egress_rules().marks.len(), node.egress_rules().blocked.len()), (0, 2));
    let messages = node.messages("shop");
    assert!(messages[0].ends_with("is not reached: the traffic would be unencrypted"), "{messages:?}");
}

#[test]
fn removing_an_egress_address_keeps_node_routes() {
    let mut node = Node::new();
    node.handle(shop(&["node1"]));
    node.handle(ready_nodes(&["node1"]));
    let steps = |node: &Node| {
        let plans = node.journal.iter().filter_map(|record| match record {
            Record::ChangeStarted(began) if began.unit == Unit::NodeRoutes => Some(began.plan.steps.len()),
            _ => None,
        });
        plans.sum::<usize>()
    };
    let before = steps(&node);
    node.handle(Event::ObjectDeleted(key("shop")));
    assert_eq!(steps(&node) - before, 2, "two addresses and no route");
}

#[test]
fn a_tenant_bridge_with_the_name_of_the_nic_does_not_affect_egress_addresses() {
    let mut node = Node::new();
    node.handle(shop(&["node1"]));
    node.handle(ready_nodes(&["node1"]));
    let before = node.gateway_state();
    assert_eq!(before, LOCAL);
    let stored = object("Bridge", "shop", NIC, vec![bridge(NIC, "10.9.0.0/24")]);
    let key = ObjectKey::of(&stored.object);
    node.handle(Event::ObjectApplied(stored));
    assert_eq!(node.state.report(&key).unwrap().problems.len(), 1);
    assert_eq!(node.gateway_state(), before);
    node.handle(Event::ObjectDeleted(key));
    assert_eq!(node.gateway_state(), before);
}

#[test]
fn only_pods_of_selected_namespaces_use_the_gateway() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.attach("other", "b");
    node.handle(shop(&["node2", "node1"]));
    // The active node is not known yet: egress is blocked.
    let pods = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let barred: BTreeSet<_> = pods(&["10.1.1.2", "fd01:1::2"]).into_iter().collect();
    assert_eq!(node.egress_rules().blocked, barred);
    node.handle(ready_nodes(&["node1", "node2"]));
    let egress_rules = node.egress_rules();
    assert_eq!(egress_rules.blocked, BTreeSet::new());
    let sent: Vec<_> =
        egress_rules.marks.iter().map(|((_, via), pods)| (via.to_string(), pods.clone())).collect();
    assert_eq!(
        sent,
        [("192.0.2.2".to_owned(), pods(&["10.1.1.2"])), ("2001:db8::2".to_owned(), pods(&["fd01:1::2"]))]
    );
    let marks: BTreeSet<u32> =
        egress_rules.marks.keys().map(|(mark, _)| mark & !kernel_ids::EGRESS_MARK_MASK).collect();
    assert_eq!(marks, BTreeSet::from([0]));
    let outside = [
        "10.1.1.0/24",
        "10.1.2.0/23",
        "192.0.2.2/31",
        "198.51.100.0/24",
        "2001:db8::2/127",
        "fd01:1::/64",
        "fd01:2::/64",
        "fd01:3::/64",
    ];
    assert_eq!(
        egress_rules.no_masquerade_ranges, outside,
        "masquerade and egress have the same exempt ranges"
    );
    assert_eq!(node.take_rerouted(), BTreeSet::new(), "no pod was translated by another node");
    // Pods of other nodes do not matter while another node is active.
    node.handle(remote_pods("shop", &["10.1.2.9", "fd01:2::9"]));
    node.handle(remote_pods("other", &["10.1.2.8"]));
    assert_eq!(node.egress_rules().blocked, pods(&["10.1.2.9", "fd01:2::9"]).into_iter().collect());
    assert_eq!(node.egress_rules().snat.len(), 0);
    node.handle(ready_nodes(&["node1"]));
    let egress_rules = node.egress_rules();
    let translated: Vec<String> =
        egress_rules.snat.iter().map(|(pod, outside)| format!("{pod} as {outside}")).collect();
    assert_eq!(
        translated,
        [
            "10.1.1.2 as 192.0.2.77",
            "10.1.2.9 as 192.0.2.77",
            "fd01:1::2 as 2001:db8::77",
            "fd01:2::9 as 2001:db8::77"
        ]
    );
    assert_eq!((egress_rules.marks.len(), egress_rules.blocked), (0, BTreeSet::new()));
    assert_eq!(
        node.take_rerouted(),
        egress_rules.snat.keys().copied().collect(),
        "established connections continue on this node"
    );
    // Remote pods are journalled, and dropped when no gateway needs them.
    assert_eq!(node.replayed().egress, node.state.persistent().egress);
    node.handle(remote_pods("shop", &["fd01:2::9"]));
    assert_eq!(node.egress_rules().snat.len(), 3);
    assert_eq!(node.take_rerouted(), BTreeSet::new(), "the pod is gone");
    node.handle(shop(&["node2"]));
    assert_eq!(node.state.egress.remote_pods.len(), 0);
    assert_eq!(node.take_rerouted().len(), 3);
    // Deleting the gateway ends the connections that used it.
    node.handle(Event::ObjectDeleted(key("shop")));
    let egress_rules = node.egress_rules();
    assert_eq!(node.take_rerouted(), barred);
    assert_eq!((egress_rules.marks.len(), egress_rules.snat.len(), egress_rules.blocked.len()), (0, 0, 0));
    assert_eq!(egress_rules.no_masquerade_ranges, outside);
}

#[test]
fn pods_that_start_or_end_behind_a_gateway_reroute_nothing() {
    let mut node = Node::new();
    node.handle(ready_nodes(&["node1"]));
    node.handle(shop(&["node1"]));
    node.attach("shop", "a");
    assert_eq!(node.egress_rules().snat.len(), 2);
    node.detach("a");
    assert_eq!(node.egress_rules().snat.len(), 0);
    assert_eq!(node.take_rerouted(), BTreeSet::new());
}

#[test]
fn flushed_egress_rules_are_restored_after_a_restart() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.handle(ready_nodes(&["node1", "node2"]));
    node.handle(shop(&["node2"]));
    node.handle(remote_pods("shop", &["10.1.2.9"]));
    let before = node.kernel.filter(&Scope::Host).clone();
    node.kernel.flush_ruleset(&Scope::Host);
    node.state = node.replayed();
    node.handle(Event::Restarted);
    node.handle(Event::Resync);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    assert_eq!(node.take_rerouted(), BTreeSet::new(), "no path changed");
}
