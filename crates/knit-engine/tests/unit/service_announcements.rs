//! Load balancer addresses: which node announces them, and what happens when nodes, endpoints and pools change.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::service_announcements::KIND;
use knit_engine::services::ServiceEvent;
use knit_engine::{Effect, Event, ObjectKey, Record, State, StoredObject, cluster, step};
use knit_ipam::Time;
use knit_model::filter::field::IpFamily;
use knit_model::intent::{IntentSpec, LocalNode, NetworkIntent, NodeRoutesIntent, ServiceAddressIntent};
use knit_model::link::{Attrs, Link, Veth};
use knit_model::{Address, Kind, NetState, Scope};
use knit_service::{
    Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceKey, ServicePort, SliceKey, SlicePort,
};

use crate::support::executor::execute;
use crate::support::kernel::FakeKernel;
use crate::support::node::{bridge, object};
use crate::support::with_settings;

const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// Enough for every node to announce some.
const COUNT: u8 = 30;

/// The agent of a node.
struct Agent {
    state: State,
    kernel: FakeKernel,
    journal: Vec<Record>,
    number: usize,
}

fn host(number: usize) -> NetState {
    let mut state = NetState::default();
    let mut nic = Link::new("lan7".parse().unwrap(), Kind::Veth(Veth::default()));
    nic.attrs = Attrs { mtu: Some(1500), up: Some(true), group: Some(0), ..Attrs::default() };
    let scope = state.scope(&Scope::Host);
    scope.add_link(nic);
    let address = Address::new("lan7".parse().unwrap(), format!("192.0.2.{number}/24").parse().unwrap());
    scope.add_address(Address { owned: false, ..address });
    state
}

fn network(number: usize, services: bool) -> StoredObject {
    let range = format!("10.1.{number}.0/24");
    let ranges = vec![range.parse().unwrap()];
    let network =
        NetworkIntent { name: cluster::NAME.to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    let nic = || "lan7".parse().unwrap();
    let local_node = LocalNode {
        name: NODES[number - 1].to_owned(),
        addresses: vec![(format!("192.0.2.{number}").parse().unwrap(), nic())],
        links: vec![("192.0.2.0/24".parse().unwrap(), nic())],
    };
    let node_routes =
        NodeRoutesIntent { services, local_node: Some(local_node), ..NodeRoutesIntent::default() };
    let specs =
        vec![IntentSpec::Network(network), bridge("knit0", &range), IntentSpec::NodeRoutes(node_routes)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs)
}

fn pool(ranges: &[&str]) -> Event {
    let spec = ServiceAddressIntent {
        name: "lan".to_owned(),
        ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        namespaces: Vec::new(),
        services: None,
        without_class: false,
    };
    Event::ObjectApplied(object(KIND, "", "lan", vec![IntentSpec::ServiceAddresses(spec)]))
}

fn pool_key() -> ObjectKey {
    ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: "lan".to_owned() }
}

/// The list of nodes, of which these are Ready.
fn ready_nodes(ready: &[&str]) -> Event {
    let node = |(number, name): (usize, &&str)| NodeInfo {
        name: (*name).to_owned(),
        addresses: vec![format!("192.0.2.{}", number + 1).parse().unwrap()],
        is_ready: ready.contains(name),
        ..NodeInfo::default()
    };
    Event::Nodes(NodeEvent::Listed(NODES.iter().enumerate().map(node).collect()))
}

fn service(number: u8) -> Service {
    let port = ServicePort { name: String::new(), protocol: Protocol::Tcp, port: 80, node_port: None };
    Service {
        key: ServiceKey { namespace: "shop".to_owned(), name: format!("s{number}") },
        created: 0,
        cluster_ips: vec![format!("10.96.0.{number}").parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: vec![address(number)],
        announced: true,
        source_ranges: Vec::new(),
        ports: vec![port],
        affinity: None,
        internal_local: false,
        external_local: false,
        health_check_node_port: None,
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, 100 + number])
}

fn slice(number: u8, nodes: &[&str], ready: bool) -> Event {
    let endpoint = |(at, node): (usize, &&str)| Endpoint {
        addresses: vec![IpAddr::from([10, 1, at as u8 + 1, number])],
        ready,
        serving: true,
        terminating: !ready,
        node: Some((*node).to_owned()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    };
    let key = service(number).key;
    let slice = EndpointSlice {
        key: SliceKey { namespace: key.namespace.clone(), name: key.name.clone() },
        service: key,
        family: IpFamily::V4,
        ports: vec![SlicePort { name: String::new(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: nodes.iter().enumerate().map(endpoint).collect(),
    };
    Event::Services(ServiceEvent::SliceApplied(Box::new(slice)))
}

fn listed(services: Vec<Service>) -> Event {
    Event::Services(ServiceEvent::ServicesListed(services))
}

fn all_services() -> Vec<Service> {
    (1..=COUNT).map(service).collect()
}

impl Agent {
    /// The agent of a node, which knows the pool, and neither nodes nor Services.
    fn started(number: usize) -> Self {
        let (state, kernel) = (with_settings(State::default()), FakeKernel::with_state(host(number)));
        let mut agent = Self { state, kernel, journal: Vec::new(), number };
        agent.handle(Event::ObjectApplied(network(number, true)));
        agent.handle(pool(&["192.0.2.96/27", "192.0.2.127/32", "192.0.2.128/31", "192.0.2.130/32"]));
        agent
    }

    fn sync(&mut self, services: Vec<Service>) {
        let name = NODES[self.number - 1].to_owned();
        self.handle(ready_nodes(&NODES));
        self.handle(Event::Services(ServiceEvent::Node(NodeFacts { name, ..NodeFacts::default() })));
        self.handle(listed(services));
        self.handle(Event::Services(ServiceEvent::SlicesListed(Vec::new())));
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
                    Effect::ObjectsChanged(_)
                    | Effect::Respond { .. }
                    | Effect::RerouteConnections(_)
                    | Effect::EndConnections(_)
                    | Effect::UpdateFastPath(_) => {}
                    effect => events.push_back(execute(&mut self.kernel, effect, false).unwrap()),
                }
            }
        }
    }

    /// The agent starts again, with or without the kernel's state.
    fn restart(&mut self, is_boot: bool) {
        let mut state = State::default();
        self.journal.iter().for_each(|record| state.record(record));
        self.state = state;
        if is_boot {
            self.kernel = FakeKernel::with_state(host(self.number));
        }
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }

    /// The addresses that the node has because it announces them.
    fn announced(&self) -> BTreeSet<IpAddr> {
        let seen = self.kernel.observe();
        let addresses = seen.scopes[&Scope::Host].addresses.values();
        let own = addresses.filter(|one| one.owned && one.link.as_str() == "lan7");
        own.inspect(|one| assert!(one.deprecated && one.noprefixroute))
            .map(|one| one.address.addr())
            .collect()
    }

    fn problems(&self) -> Vec<String> {
        let report = self.state.report(&pool_key()).unwrap();
        report.problems.iter().map(|problem| problem.message.clone()).collect()
    }
}

fn cluster() -> [Agent; 3] {
    [1, 2, 3].map(|number| {
        let mut agent = Agent::started(number);
        agent.sync(all_services());
        agent
    })
}

/// The node of each address: none has two.
fn holders(agents: &[Agent]) -> BTreeMap<IpAddr, usize> {
    let mut holders = BTreeMap::new();
    for agent in agents {
        for address in agent.announced() {
            assert_eq!(holders.insert(address, agent.number), None, "{address} has two nodes");
        }
    }
    holders
}

#[test]
fn each_address_is_announced_by_one_node_and_they_spread() {
    let mut agents = cluster();
    let before = holders(&agents);
    assert_eq!(before.len(), usize::from(COUNT));
    for number in 1..=3 {
        let count = before.values().filter(|holder| **holder == number).count();
        assert!((3..=20).contains(&count), "node{number}: {count}");
    }
    // A node that is not Ready: only its addresses move.
    agents.iter_mut().for_each(|agent| agent.handle(ready_nodes(&["node1", "node3"])));
    let after = holders(&agents);
    assert_eq!(after.len(), usize::from(COUNT));
    for (address, holder) in &before {
        match holder {
            2 => assert_ne!(after[address], 2),
            _ => assert_eq!(after[address], *holder),
        }
    }
    // It returns.
    agents.iter_mut().for_each(|agent| agent.handle(ready_nodes(&NODES)));
    assert_eq!(holders(&agents), before);
    // A deleted node.
    agents.iter_mut().for_each(|agent| agent.handle(Event::Nodes(NodeEvent::Deleted("node2".to_owned()))));
    assert_eq!(holders(&agents), after);
}

#[test]
fn without_a_ready_node_the_last_one_keeps_the_address() {
    let mut agents = cluster();
    let before = holders(&agents);
    agents.iter_mut().for_each(|agent| agent.handle(ready_nodes(&[])));
    assert_eq!(holders(&agents), before);
}

#[test]
fn with_the_local_policy_only_nodes_with_an_endpoint_announce() {
    let mut agents = cluster();
    let holder_of = |agents: &[Agent]| holders(agents).get(&address(1)).copied();
    let each = |agents: &mut [Agent], event: &Event| {
        agents.iter_mut().for_each(|agent| agent.handle(event.clone()));
    };
    let local = Service { external_local: true, ..service(1) };
    each(&mut agents, &slice(1, &["node2"], true));
    each(&mut agents, &Event::Services(ServiceEvent::ServiceApplied(Box::new(local))));
    assert_eq!(holder_of(&agents), Some(2));
    each(&mut agents, &slice(1, &["node3"], true));
    assert_eq!(holder_of(&agents), Some(3));
    // The last endpoint terminates and still serves.
    each(&mut agents, &slice(1, &["node1"], false));
    assert_eq!(holder_of(&agents), Some(1));
    // Neither its node nor any other can serve it: it stays.
    each(&mut agents, &ready_nodes(&["node2", "node3"]));
    assert_eq!(holder_of(&agents), Some(1));
    each(&mut agents, &slice(1, &["node1", "node2"], true));
    assert_eq!(holder_of(&agents), Some(2));
}

#[test]
fn only_addresses_of_pools_that_the_controller_assigned_are_announced() {
    let mut agents = cluster();
    let unassigned = Service { announced: false, ..service(1) };
    let mut foreign = service(2);
    foreign.load_balancer_ips = vec!["198.51.100.7".parse().unwrap()];
    for agent in &mut agents {
        for service in [&unassigned, &foreign] {
            agent.handle(Event::Services(ServiceEvent::ServiceApplied(Box::new(service.clone()))));
        }
        agent.handle(Event::Services(ServiceEvent::ServiceDeleted(service(3).key)));
    }
    let announced = holders(&agents);
    assert_eq!(announced.len(), usize::from(COUNT) - 3);
    // A smaller pool, then none.
    agents.iter_mut().for_each(|agent| agent.handle(pool(&["192.0.2.128/29"])));
    assert_eq!(holders(&agents).len(), 2, "129 and 130");
    agents.iter_mut().for_each(|agent| agent.handle(Event::ObjectDeleted(pool_key())));
    assert_eq!(holders(&agents), BTreeMap::new());
    for agent in &agents {
        assert!(agent.state.announcements.active.is_empty());
    }
}

#[test]
fn a_restart_keeps_addresses_and_a_boot_waits_for_services() {
    let mut agents = cluster();
    let before = holders(&agents);
    agents[0].restart(false);
    assert_eq!(holders(&agents), before, "nothing is known yet");
    agents[0].sync(all_services());
    assert_eq!(holders(&agents), before);
    // Another node may announce them by now.
    agents[0].restart(true);
    agents[0].handle(ready_nodes(&NODES));
    assert_eq!(agents[0].announced(), BTreeSet::new());
    agents[0].sync(all_services());
    assert_eq!(holders(&agents), before);
    // While it was away a Service was deleted.
    agents[0].restart(false);
    let mine = *before.iter().find(|(_, holder)| **holder == 1).unwrap().0;
    agents[0].sync(all_services().into_iter().filter(|one| one.load_balancer_ips != [mine]).collect());
    assert!(!agents[0].announced().contains(&mine));
}

#[test]
fn addresses_in_use_by_others_are_not_announced_and_reported() {
    let mut agent = Agent::started(1);
    agent.sync(vec![]);
    agent.handle(ready_nodes(&["node1"]));
    agent.handle(pool(&["192.0.2.0/24", "10.1.0.0/16"]));
    for (other, why) in [("192.0.2.2", "an address of a node"), ("10.1.1.9", "of pods or Services")] {
        let one = Service { load_balancer_ips: vec![other.parse().unwrap()], ..service(1) };
        agent.handle(listed(vec![one]));
        assert_eq!(agent.announced(), BTreeSet::new());
        let problems = agent.problems();
        assert!(
            problems.len() == 1 && problems[0].contains(why) && problems[0].contains(other),
            "{problems:?}"
        );
    }
    // Another program has it on the link: the other address is announced all the same.
    let mut held = agent.kernel.observe();
    let taken = Address::new("lan7".parse().unwrap(), "192.0.2.101/32".parse().unwrap());
    held.scope(&Scope::Host).add_address(Address { owned: false, ..taken });
    agent.kernel = FakeKernel::with_state(held);
    agent.handle(listed(vec![service(1), service(2)]));
    assert_eq!(agent.announced(), BTreeSet::from([address(2)]));
    assert!(
        agent.problems()[0].contains("already exists and is not owned by Knit"),
        "{:?}",
        agent.problems()
    );
    let states = agent.state.node_states();
    let report = states.iter().find(|one| one.object.name == "lan").unwrap();
    let items: Vec<&str> = report.items.iter().map(|item| item.description.as_str()).collect();
    assert_eq!(items, ["192.0.2.102 on lan7"]);
}

#[test]
fn without_translation_of_services_nothing_is_announced() {
    let mut agents = cluster();
    for agent in &mut agents {
        agent.handle(Event::ObjectApplied(network(agent.number, false)));
    }
    assert_eq!(holders(&agents), BTreeMap::new());
    for agent in &mut agents {
        agent.handle(Event::ObjectApplied(network(agent.number, true)));
    }
    assert_eq!(holders(&agents).len(), usize::from(COUNT));
}
