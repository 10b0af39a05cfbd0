//! Services: which units change, what is compared with the kernel, and what a restart keeps.

mod chains;
mod connections;
mod failures;

use knit_engine::Settings;
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::services::ServiceEvent;
use knit_model::filter::field::IpFamily;
use knit_service::{
    Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceKey, ServicePort, SliceKey, SlicePort,
};

use super::*;
use crate::support::settings;

/// The cluster network with Services.
fn network_with_services() -> StoredObject {
    let mut object = network(true);
    let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
        panic!("{object:?}")
    };
    node_routes.services = true;
    object
}

fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

/// A Service with the port 53 of UDP.
fn service(name: &str, cluster_ip: &str) -> Service {
    Service {
        key: key(name),
        created: 0,
        cluster_ips: vec![cluster_ip.parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        announced: false,
        source_ranges: Vec::new(),
        ports: vec![ServicePort { name: String::new(), protocol: Protocol::Udp, port: 53, node_port: None }],
        affinity: None,
        internal_local: false,
        external_local: false,
        health_check_node_port: None,
    }
}

fn slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
    let endpoint = |address: &&str| Endpoint {
        addresses: vec![address.parse().unwrap()],
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    };
    EndpointSlice {
        key: SliceKey { namespace: "shop".to_owned(), name: name.to_owned() },
        service: key(name),
        family: IpFamily::V4,
        ports: vec![SlicePort { name: String::new(), protocol: Protocol::Udp, port: 5353 }],
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

impl Node {
    fn with_services() -> Self {
        let mut node = Self::empty();
        node.handle(Event::ObjectApplied(network_with_services()));
        node.list_nodes();
        node
    }

    /// This node, and no other.
    fn list_nodes(&mut self) {
        self.handle(Event::Nodes(NodeEvent::Listed(Vec::new())));
        self.send(ServiceEvent::Node(NodeFacts { name: "node".to_owned(), ..NodeFacts::default() }));
    }

    fn send(&mut self, event: ServiceEvent) {
        self.handle(Event::Services(event));
    }

    /// Two Services, each with one endpoint.
    fn list_two(&mut self) {
        let services = vec![service("dns", "10.96.0.10"), service("web", "10.96.0.11")];
        self.send(ServiceEvent::ServicesListed(services));
        self.send(ServiceEvent::SlicesListed(vec![
            slice("dns", &["10.80.0.2"]),
            slice("web", &["10.80.0.3"]),
        ]));
    }

    fn backends(&self) -> Vec<String> {
        self.elements("service_backends4")
    }

    fn units_of_plans(&mut self) -> Vec<Unit> {
        self.take_plans().into_iter().map(|(unit, _)| unit).collect()
    }
}

const TWO: [&str; 2] =
    ["10.96.0.10 . 17 . 53 . 0x0 : 10.80.0.2 . 5353", "10.96.0.11 . 17 . 53 . 0x0 : 10.80.0.3 . 5353"];

#[test]
fn nothing_is_translated_before_everything_is_listed() {
    let mut node = Node::with_services();
    node.send(ServiceEvent::ServicesListed(vec![service("dns", "10.96.0.10")]));
    assert_eq!(node.backends(), [""; 0]);
    node.list_two();
    assert_eq!(node.backends(), TWO);
}

#[test]
fn a_change_touches_only_the_elements_of_its_service() {
    let mut node = Node::with_services();
    node.list_two();
    node.take_plans();
    node.send(ServiceEvent::SliceApplied(Box::new(slice("web", &["10.80.0.4"]))));
    let plans = node.take_plans();
    let [(Unit::Services, plan)] = &plans[..] else { panic!("{plans:?}") };
    let texts: Vec<String> = plan.steps.iter().map(|planned| planned.step.to_string()).collect();
    assert!(texts.iter().all(|text| text.contains("10.96.0.11")), "{texts:?}");
    assert_eq!(node.backends()[1], "10.96.0.11 . 17 . 53 . 0x0 : 10.80.0.4 . 5353");
    node.send(ServiceEvent::SliceApplied(Box::new(slice("web", &["10.80.0.4"]))));
    assert_eq!(node.take_plans().len(), 0, "nothing changed");
}

#[test]
fn services_are_not_recorded() {
    let mut node = Node::with_services();
    let before = node.journal.len();
    node.list_two();
    let is_of_services = |record: &Record| match record {
        Record::ChangeStarted(started) => started.unit == Unit::Services,
        Record::ChangeEnded(ended) => ended.unit == Unit::Services,
        _ => false,
    };
    assert!(!node.journal[before..].iter().any(is_of_services));
}

#[test]
fn a_restart_keeps_everything_until_the_lists_arrive_and_then_removes_what_is_gone() {
    let mut node = Node::with_services();
    node.list_two();
    let before = node.kernel.filter(&Scope::Host).clone();
    node.take_plans();
    node.restart();
    node.list_nodes();
    assert_eq!(*node.kernel.filter(&Scope::Host), before, "nothing is listed yet");
    node.list_two();
    assert_eq!(*node.kernel.filter(&Scope::Host), before, "everything is as it was");
    assert_eq!(node.take_plans().len(), 0, "and nothing was written");
    node.restart();
    node.list_nodes();
    node.send(ServiceEvent::ServicesListed(vec![service("dns", "10.96.0.10")]));
    node.send(ServiceEvent::SlicesListed(vec![slice("dns", &["10.80.0.2", "10.80.0.7"])]));
    let backends = node.backends();
    assert_eq!(backends.len(), 2, "{backends:?}");
    assert!(backends.iter().all(|backend| backend.starts_with("10.96.0.10 ")), "{backends:?}");
}

#[test]
fn a_node_whose_pods_do_not_reach_each_other_through_services_is_reported() {
    let mut node = Node::with_services();
    let warnings = |node: &Node| {
        let warnings = node.state.report(&cluster::key()).unwrap().warnings;
        warnings.into_iter().filter(|warning| warning.contains("Services")).collect::<Vec<_>>()
    };
    assert_eq!(warnings(&node), [""; 0]);
    node.handle(Event::SettingsChanged(Settings { lacks_bridge_filter: true, ..settings() }));
    assert!(warnings(&node)[0].contains("br_netfilter"), "{:?}", warnings(&node));
}

#[test]
fn services_that_exceed_the_limits_are_reported() {
    let mut node = Node::with_services();
    node.list_two();
    let warnings = |node: &Node| node.state.report(&cluster::key()).unwrap().warnings;
    assert_eq!(warnings(&node), [""; 0]);
    let external_ips = (1..=65).map(|number| std::net::IpAddr::from([192, 0, 2, number])).collect();
    let with_external_ips = Service { external_ips, ..service("web", "10.96.0.11") };
    node.send(ServiceEvent::ServiceApplied(Box::new(with_external_ips)));
    assert!(warnings(&node)[0].contains("shop/web"), "{:?}", warnings(&node));
    node.send(ServiceEvent::ServiceApplied(Box::new(service("web", "10.96.0.11"))));
    assert_eq!(warnings(&node), [""; 0]);
}

#[test]
fn elements_that_another_program_changed_are_restored() {
    let mut node = Node::with_services();
    node.list_two();
    let before = node.kernel.filter(&Scope::Host).clone();
    let mut changed = node.kernel.observe();
    changed.scope(&Scope::Host).filter.elements.retain(|key, _| key.set != "service_backends4");
    node.kernel = FakeKernel::with_state(changed);
    node.handle(Event::PacketFilterChanged);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    for event in [Event::PacketFilterChanged, Event::Resync] {
        node.kernel.flush_ruleset(&Scope::Host);
        node.handle(event);
        assert_eq!(*node.kernel.filter(&Scope::Host), before);
    }
}

#[test]
fn without_services_nothing_of_them_is_left() {
    let mut node = Node::with_services();
    node.list_two();
    node.handle(Event::ObjectApplied(network(true)));
    let filter = node.kernel.filter(&Scope::Host);
    let tables: Vec<&String> = filter.tables.values().flat_map(|table| table.sets.keys()).collect();
    assert!(!tables.iter().any(|name| name.starts_with("service_")), "{tables:?}");
    assert!(!filter.elements.keys().any(|key| key.set.starts_with("service_")));
    node.handle(Event::ObjectApplied(network_with_services()));
    assert_eq!(node.backends(), TWO, "and back");
}

#[test]
fn a_failed_change_is_repeated_with_the_next_one() {
    let mut node = Node::with_services();
    node.list_two();
    node.hold_endpoints(&["10.80.0.4"]);
    node.reject_held(false);
    node.send(ServiceEvent::SliceApplied(Box::new(slice("dns", &["10.80.0.9"]))));
    let expected =
        ["10.96.0.10 . 17 . 53 . 0x0 : 10.80.0.9 . 5353", "10.96.0.11 . 17 . 53 . 0x0 : 10.80.0.4 . 5353"];
    assert_eq!(node.backends(), expected);
}

#[test]
fn external_ips_of_nodes_pods_and_services_are_not_taken_over() {
    let mut node = Node::with_services();
    node.handle(Event::ServiceRanges(vec!["10.96.0.0/16".parse().unwrap()]));
    let external = ["192.0.2.7", "192.0.2.9", "10.75.0.3", "10.96.0.99", "169.254.169.254", "127.0.0.1"];
    let external_ips = external.map(|text| text.parse().unwrap()).into();
    let with_external_ips = Service { external_ips, ..service("web", "10.96.0.11") };
    node.send(ServiceEvent::ServicesListed(vec![with_external_ips]));
    node.send(ServiceEvent::SlicesListed(vec![slice("web", &["10.80.0.3"])]));
    let frontends = |node: &Node| {
        let all = frontends(node).into_iter();
        all.map(|text| text.trim_end_matches(":53").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(frontends(&node), ["10.96.0.11", "192.0.2.7", "192.0.2.9"]);
    let other = NodeInfo {
        name: "other".to_owned(),
        addresses: vec!["192.0.2.9".parse().unwrap()],
        ..NodeInfo::default()
    };
    node.handle(Event::Nodes(NodeEvent::Listed(vec![other.clone()])));
    assert_eq!(frontends(&node), ["10.96.0.11", "192.0.2.7"], "it is the address of a node from now on");
    node.handle(Event::Nodes(NodeEvent::Listed(Vec::new())));
    assert_eq!(frontends(&node), ["10.96.0.11", "192.0.2.7", "192.0.2.9"]);
    let other_address = NodeInfo { other_addresses: other.addresses, addresses: Vec::new(), ..other };
    node.handle(Event::Nodes(NodeEvent::Listed(vec![other_address])));
    assert_eq!(frontends(&node), ["10.96.0.11", "192.0.2.7"], "also if it is no InternalIP");
    let addresses = ["192.0.2.7".parse().unwrap()].into();
    node.handle(Event::SettingsChanged(Settings { addresses, ..settings() }));
    assert_eq!(frontends(&node), ["10.96.0.11"], "nor that of a link of the host");
}

/// The frontends of IPv4, as address and port.
fn frontends(node: &Node) -> Vec<String> {
    let all = node.elements("service_ips4").into_iter();
    let parts = all.map(|text| text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    parts.map(|parts| format!("{}:{}", parts[0], parts[4])).collect()
}

#[test]
fn connections_to_the_api_server_are_not_taken_over() {
    let mut node = Node::with_services();
    let mut taken = Service {
        external_ips: vec!["192.0.2.7".parse().unwrap()],
        load_balancer_ips: vec!["192.0.2.8".parse().unwrap(), "10.75.0.3".parse().unwrap()],
        ..service("web", "10.96.0.11")
    };
    taken.ports[0].port = 6443;
    let mut other =
        Service { load_balancer_ips: taken.load_balancer_ips.clone(), ..service("dns", "10.96.0.10") };
    other.load_balancer_ips.truncate(1);
    node.send(ServiceEvent::ServicesListed(vec![taken, other]));
    let both = vec![slice("web", &["10.80.0.3"]), slice("dns", &["10.80.0.2"])];
    node.send(ServiceEvent::SlicesListed(both.clone()));
    let cluster_ips = ["10.96.0.10:53", "10.96.0.11:6443"].map(str::to_owned);
    let with = |more: &[&str]| -> Vec<String> {
        cluster_ips.iter().cloned().chain(more.iter().map(|one| (*one).to_owned())).collect()
    };
    assert_eq!(frontends(&node), with(&["192.0.2.7:6443", "192.0.2.8:53", "192.0.2.8:6443"]), "no pod");
    // An agent reaches it at one address, and it has endpoints at others.
    node.send(ServiceEvent::ApiServer(["192.0.2.7:6443".parse().unwrap()].into()));
    assert_eq!(frontends(&node), with(&["192.0.2.8:53", "192.0.2.8:6443"]));
    let mut endpoints = slice("kubernetes", &["192.0.2.8"]);
    endpoints.service.namespace = "default".to_owned();
    endpoints.ports[0].port = 6443;
    node.send(ServiceEvent::SliceApplied(Box::new(endpoints.clone())));
    assert_eq!(frontends(&node), with(&["192.0.2.8:53"]), "the load balancer has it at other ports");
    node.send(ServiceEvent::SliceDeleted(endpoints.key));
    node.send(ServiceEvent::ApiServer(["192.0.2.9:6443".parse().unwrap()].into()));
    assert_eq!(frontends(&node), with(&["192.0.2.7:6443", "192.0.2.8:53", "192.0.2.8:6443"]));
}
