//! The rules of Services in the kernel: applied, read back, and with traffic.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_kernel::fault::NoFaults;
use knit_kernel::nft::FilterQuery;
use knit_kernel::{DeleteMode, Kernel, Netns, SandboxNamespaces, ScopeQuery, StateQuery};
use knit_model::filter::field::IpFamily;
use knit_model::filter::{ElementData, Filter, FilterTable, KeyPart, TableFamily};
use knit_model::plan::{Desired, diff};
use knit_model::{NetState, Scope};
use knit_service::{
    Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceIndex, ServiceKey, ServicePort, SliceKey,
    SlicePort, chain_elements, dispatch, pod_set,
};
use knit_testbed::{Namespace, Testbed};

const CLUSTER_IPS: [&str; 2] = ["10.96.0.1", "fd96::1"];
const NODE_PORT: u16 = 30080;
const AFFINITY: u32 = 600;

/// A node with two pods and a client outside. Packets pass through the node on all of their routes.
struct Node {
    host: Namespace,
    pods: [Namespace; 2],
    outside: Namespace,
    index: ServiceIndex,
    _testbed: Testbed,
}

impl Node {
    fn new(test: &str) -> Self {
        crate::prepare_kernel();
        let testbed = Testbed::new(test);
        let host = testbed.host();
        for family in ["ipv4", "ipv6"] {
            host.set_sysctl(&format!("net/{family}/conf/all/forwarding"), "1");
        }
        let [one, two, outside] = ["one", "two", "out"].map(|label| testbed.namespace(label));
        for (number, (namespace, v4)) in
            [(&one, "10.75.1"), (&two, "10.75.2"), (&outside, "198.51.100")].into_iter().enumerate()
        {
            let (link, v6) = (format!("v{number}"), format!("fd75:{number}:"));
            testbed.connect(&host, &link, namespace, "eth0");
            for (namespace, link, last) in [(&host, &link[..], 1), (namespace, "eth0", 2)] {
                namespace.address(link, &format!("{v4}.{last}/24"));
                namespace.address(link, &format!("{v6}:{last}/64"));
            }
            namespace.ip(&["route", "add", "default", "via", &format!("{v4}.1")]);
            namespace.ip(&["-6", "route", "add", "default", "via", &format!("{v6}:1")]);
        }
        // Packets to the IPs of Services need a route, whichever.
        let upstream = testbed.namespace("up");
        testbed.connect(&host, "uplink", &upstream, "eth0");
        host.ip(&["route", "add", "default", "dev", "uplink"]);
        host.ip(&["-6", "route", "add", "default", "dev", "uplink"]);
        let mut index = ServiceIndex::default();
        index.set_node(NodeFacts { name: "node".to_owned(), zone: None, addresses: Vec::new() });
        Self { host, pods: [one, two], outside, index, _testbed: testbed }
    }

    /// A Service for TCP and UDP at port 80, with these pods as endpoints at port 8080.
    fn serve(&mut self, pods: &[usize], change: impl Fn(&mut Service)) {
        let port = |protocol: Protocol| ServicePort {
            name: protocol.to_string(),
            protocol,
            port: 80,
            node_port: Some(NODE_PORT),
        };
        let key = ServiceKey { namespace: "blue".to_owned(), name: "web".to_owned() };
        let mut service = Service {
            key: key.clone(),
            cluster_ips: CLUSTER_IPS.iter().map(|address| address.parse().unwrap()).collect(),
            external_ips: vec!["203.0.113.1".parse().unwrap()],
            load_balancer_ips: vec!["203.0.113.2".parse().unwrap(), "203.0.113.3".parse().unwrap()],
            announced: false,
            source_ranges: Vec::new(),
            ports: [Protocol::Tcp, Protocol::Udp].map(port).to_vec(),
            affinity: None,
            internal_local: false,
            external_local: false,
            health_check_node_port: None,
            created: 0,
        };
        change(&mut service);
        self.index.apply_service(service);
        for family in IpFamily::ALL {
            let endpoint = |pod: &usize| Endpoint {
                addresses: vec![address(*pod, family)],
                ready: true,
                serving: true,
                terminating: false,
                node: Some("node".to_owned()),
                zone_hints: Vec::new(),
                node_hints: Vec::new(),
            };
            let port = |protocol: Protocol| SlicePort { name: protocol.to_string(), protocol, port: 8080 };
            self.index.apply_slice(EndpointSlice {
                key: SliceKey { namespace: "blue".to_owned(), name: family.suffixed("web") },
                service: key.clone(),
                family,
                ports: [Protocol::Tcp, Protocol::Udp].map(port).to_vec(),
                endpoints: pods.iter().map(endpoint).collect(),
            });
        }
        self.converge();
    }

    fn filter(&self) -> Filter {
        let (chains, inet) = (self.index.chains(), TableFamily::Inet.table());
        let mut table = FilterTable::default();
        dispatch(&mut table, &chains);
        let mut filter = Filter { tables: [(inet.clone(), table)].into(), ..Filter::default() };
        filter.elements.extend(chain_elements(&chains));
        let services = self.index.services().map(|service| self.index.elements_of(&service.key));
        filter.elements.extend(services.flatten());
        for range in ["10.75.0.0/16", "fd75:0::/32", "fd75:1::/32"] {
            let range: ipnet::IpNet = range.parse().unwrap();
            let key = inet.element(pod_set(IpFamily::of(range.addr())), vec![KeyPart::range(range)]);
            filter.add(key, ElementData::Key);
        }
        filter
    }

    /// Applies the rules and elements, after which nothing is left to do.
    fn converge(&self) {
        let mut state = NetState::default();
        state.scope(&Scope::Host).filter = self.filter();
        let desired = Desired { state, ..Desired::default() };
        let mut kernel = Kernel::open(Netns::open(self.host.path()).unwrap()).unwrap();
        let plan = diff(&desired, &self.observe());
        kernel.apply(&plan, DeleteMode::Immediate, &mut SandboxNamespaces::new(), &mut NoFaults).unwrap();
        let rest = diff(&desired, &self.observe());
        assert!(rest.is_empty(), "still to do\n{rest}");
    }

    fn observe(&self) -> NetState {
        let mut scope = ScopeQuery::nothing();
        let tables = [TableFamily::Inet.table()].into();
        scope.filter = FilterQuery { tables, with_elements: true, ..FilterQuery::default() };
        let query = StateQuery::default().with_scope(Scope::Host, scope);
        let mut kernel = Kernel::open(Netns::open(self.host.path()).unwrap()).unwrap();
        kernel.observe(&query, &mut SandboxNamespaces::new()).unwrap()
    }

    /// Echo servers in these pods.
    fn listen(&self, pods: &[usize]) -> Vec<knit_testbed::EchoServer> {
        let servers = pods.iter().flat_map(|pod| {
            let pod = &self.pods[*pod];
            [pod.tcp_echo("[::]:8080"), pod.udp_echo("0.0.0.0:8080")]
        });
        servers.collect()
    }

    /// What is known about clients, without the time that is left.
    fn affinity(&self) -> BTreeSet<String> {
        let map = |family: IpFamily| family.suffixed("service_affinity");
        let list = |map: String| self.host.output("nft", &["list", "map", "inet", "knit", &map]).unwrap();
        let listed = IpFamily::ALL.map(map).map(list).concat();
        let entries = listed.lines().filter(|line| line.contains(" expires "));
        let entry = |line: &str| {
            let (client, backend) = line.split_once(" expires ").unwrap();
            let client = client.trim().trim_start_matches("elements = { ");
            let (_, backend) = backend.split_once(" : ").unwrap();
            format!("{client} : {}", backend.trim_end_matches([' ', '}', ',']))
        };
        entries.map(entry).collect()
    }
}

fn address(pod: usize, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => format!("10.75.{}.2", pod + 1),
        IpFamily::V6 => format!("fd75:{pod}::2"),
    }
    .parse()
    .unwrap()
}

#[test]
fn the_rules_of_services_are_applied_and_read_back() {
    let mut node = Node::new("svc-rules");
    for affinity in [None, Some(AFFINITY)] {
        node.serve(&[0, 1], |service| {
            (service.affinity, service.external_local) = (affinity, true);
            service.source_ranges =
                ["10.0.0.0/8", "198.51.100.7/32"].map(|one| one.parse().unwrap()).to_vec();
        });
        let observed = node.observe().scope(&Scope::Host).filter.clone();
        assert_eq!(observed, node.filter());
    }
    // `nft` shows what a person needs.
    let listed = node.host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
    for text in [
        "10.96.0.1 . tcp . 80 : 0x00000002",
        "203.0.113.1 . tcp . 80 : 0x80000002",
        "0x80000002 : jump service_choose_local_2",
        "meta priority set numgen random mod 2 offset 2147483648",
        "size 262144",
    ] {
        assert!(listed.contains(text), "{text} is not in\n{listed}");
    }
}

#[test]
fn clients_reach_services_at_every_frontend() {
    let mut node = Node::new("svc-reach");
    let _servers = node.listen(&[0, 1]);
    for (affinity, external_local) in [(None, false), (Some(AFFINITY), true)] {
        node.serve(&[0, 1], |service| {
            (service.affinity, service.external_local) = (affinity, external_local);
        });
        for client in [&node.pods[0], &node.outside, &node.host] {
            // More often than there are backends, of which one may be the client itself.
            for _ in 0..6 {
                for frontend in
                    ["10.96.0.1:80", "[fd96::1]:80", "203.0.113.1:80", "203.0.113.2:80", "198.51.100.1:30080"]
                {
                    client.tcp_reaches(frontend).unwrap();
                }
                client.udp_reaches("10.96.0.1:80").unwrap();
            }
        }
        for loopback in ["127.0.0.1:30080", "[::1]:30080"] {
            let error = node.host.tcp_reaches(loopback).unwrap_err().to_string();
            assert!(error.contains("refused"), "{loopback} is the node's own: {error}");
        }
    }
}

#[test]
fn a_service_without_endpoints_refuses_connections_at_once() {
    let mut node = Node::new("svc-refuse");
    node.serve(&[], |_| {});
    for client in [&node.pods[0], &node.outside, &node.host] {
        for frontend in
            ["10.96.0.1:80", "[fd96::1]:80", "10.96.0.1:81", "203.0.113.1:80", "198.51.100.1:30080"]
        {
            let error = client.tcp_reaches(frontend).unwrap_err().to_string();
            assert!(error.contains("refused"), "{frontend}: {error}");
        }
    }
}

#[test]
fn a_client_stays_with_its_backend_until_that_is_gone() {
    let mut node = Node::new("svc-affinity");
    let servers = node.listen(&[0, 1]);
    let with_affinity = |service: &mut Service| service.affinity = Some(AFFINITY);
    node.serve(&[0, 1], with_affinity);
    let frontends = ["10.96.0.1:80", "[fd96::1]:80", "203.0.113.1:80", "198.51.100.1:30080"];
    let reach_all = || frontends.map(|frontend| node.outside.tcp_reaches(frontend).unwrap());
    reach_all();
    // Each frontend that is an address has its client.
    let first = node.affinity();
    assert_eq!(first.len(), 3, "{first:?}");
    assert!(first.iter().all(|entry| entry.contains(" timeout 10m ")), "{first:?}");
    for _ in 0..4 {
        reach_all();
        assert_eq!(node.affinity(), first);
    }
    // What was learned is no drift, and is replaced when it is wrong.
    node.serve(&[1], with_affinity);
    servers[..2].iter().for_each(knit_testbed::EchoServer::stop);
    let reach_all = || frontends.map(|frontend| node.outside.tcp_reaches(frontend).unwrap());
    reach_all();
    let second = node.affinity();
    let backends = |all: &BTreeSet<String>| -> BTreeSet<String> {
        all.iter().filter_map(|entry| Some(entry.split_once(" : ")?.1.to_owned())).collect()
    };
    assert_eq!((second.len(), backends(&second).len()), (3, 2), "{second:?}");
    reach_all();
    assert_eq!(node.affinity(), second);
}

#[test]
fn a_load_balancer_accepts_only_its_source_ranges() {
    let mut node = Node::new("svc-sources");
    let _servers = node.listen(&[0]);
    node.serve(&[0], |service| service.source_ranges = vec!["10.75.2.0/24".parse().unwrap()]);
    node.pods[1].tcp_reaches("203.0.113.2:80").unwrap();
    node.pods[1].tcp_reaches("203.0.113.3:80").unwrap();
    node.outside.tcp_reaches("203.0.113.1:80").unwrap();
    node.outside.tcp_reaches("203.0.113.2:80").unwrap_err();
}
