//! Services in place of kube-proxy on one node, with real packets. Needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::nodes::NodeEvent;
use knit_engine::services::ServiceEvent;
use knit_engine::{AttachRequest, CallId, CallResult, Event};
use knit_model::filter::field::IpFamily;
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use knit_service::{
    Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceKey, ServicePort, SliceKey, SlicePort,
};
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use crate::support::test_host::reopen;

const RANGES: [&str; 2] = ["10.75.0.0/24", "fd75:6b6e:6974::/64"];
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const EXTERNAL: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
/// The cluster IPs of the Service.
const CLUSTER: [&str; 2] = ["10.96.0.10", "fd96::10"];
/// The pods, in the order of their addresses.
const PODS: [&str; 3] = ["client", "web0", "web1"];
const PORT: u16 = 80;
const TARGET: u16 = 8080;
const NODE_PORT: u16 = 30080;
const TIMEOUT: Duration = Duration::from_secs(2);
/// Enough connections for each of two backends to be chosen: the chance that one is not is 2 in 2 to the 30.
const MANY: usize = 30;

/// A node with three pods. The pods `web0` and `web1` answer TCP connections and UDP packets with their name and the address of
/// their peer.
struct ServiceNode {
    external: Namespace,
    host: Namespace,
    pods: BTreeMap<&'static str, Pod>,
    agent: Option<Standalone>,
    folder: TempDir,
    _servers: Vec<Server>,
    _testbed: Testbed,
}

/// The threads of a pod's servers.
struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Server {
    /// Answers at all addresses of the pod.
    fn start(name: &'static str, namespace: &Namespace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tcp, udp) = namespace
            .run(|| (TcpListener::bind(("::", TARGET)).unwrap(), UdpSocket::bind(("::", TARGET)).unwrap()));
        tcp.set_nonblocking(true).unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let answer = move |peer: SocketAddr| format!("{name} {}", peer.ip().to_canonical());
        let (stopped, also_stopped) = (Arc::clone(&stop), Arc::clone(&stop));
        let accept = move || {
            while !stopped.load(Ordering::Relaxed) {
                match tcp.accept() {
                    Ok((mut stream, peer)) => drop(stream.write_all(answer(peer).as_bytes())),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        let receive = move || {
            while !also_stopped.load(Ordering::Relaxed) {
                if let Ok((_, peer)) = udp.recv_from(&mut [0; 64]) {
                    let _ = udp.send_to(answer(peer).as_bytes(), peer);
                }
            }
        };
        Self { stop, threads: vec![thread::spawn(accept), thread::spawn(receive)] }
    }
}

fn address(pod: &str, family: usize) -> IpAddr {
    let number = PODS.iter().position(|name| *name == pod).unwrap() as u8 + 2;
    match family {
        0 => IpAddr::from([10, 75, 0, number]),
        _ => IpAddr::from([0xfd75, 0x6b6e, 0x6974, 0, 0, 0, 0, u16::from(number)]),
    }
}

fn key() -> ServiceKey {
    ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() }
}

fn service() -> Service {
    let port = |protocol| ServicePort {
        name: format!("{protocol:?}"),
        protocol,
        port: PORT,
        node_port: Some(NODE_PORT),
    };
    Service {
        key: key(),
        created: 0,
        cluster_ips: CLUSTER.map(|text| text.parse().unwrap()).into(),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        announced: false,
        source_ranges: Vec::new(),
        ports: [Protocol::Tcp, Protocol::Udp].map(port).into(),
        affinity: None,
        internal_local: false,
        external_local: false,
        health_check_node_port: None,
    }
}

/// The EndpointSlice of a family with these pods, all of them on this node.
fn slice(family: usize, pods: &[&str]) -> EndpointSlice {
    let port = |protocol| SlicePort { name: format!("{protocol:?}"), protocol, port: TARGET };
    let endpoint = |pod: &&str| Endpoint {
        addresses: vec![address(pod, family)],
        ready: true,
        serving: true,
        terminating: false,
        node: Some("node".to_owned()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    };
    EndpointSlice {
        key: SliceKey { namespace: "shop".to_owned(), name: format!("web-{family}") },
        service: key(),
        family: if family == 0 { IpFamily::V4 } else { IpFamily::V6 },
        ports: [Protocol::Tcp, Protocol::Udp].map(port).into(),
        endpoints: pods.iter().map(endpoint).collect(),
    }
}

impl ServiceNode {
    /// The node, which knows no Service yet.
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, external) = (testbed.host(), testbed.namespace("external"));
        testbed.connect(&host, "eth0", &external, "eth0");
        for (at, length) in [24, 64].into_iter().enumerate() {
            host.address("eth0", &format!("{}/{length}", NODE[at]));
            external.address("eth0", &format!("{}/{length}", EXTERNAL[at]));
            for range in [CLUSTER[at], RANGES[at]] {
                external.ip(&["route", "add", range, "via", NODE[at], "dev", "eth0"]);
            }
            // As on a node with a default route: the first packet is routed before it is translated.
            host.ip(&["route", "add", "default", "via", EXTERNAL[at], "dev", "eth0"]);
        }
        host.set_sysctl("net.ipv4.ip_forward", "1");
        host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
        let pods = PODS.map(|name| (name, testbed.pod(name))).into();
        let folder = TempDir::new().unwrap();
        let agent = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        let mut node = Self {
            external,
            host,
            pods,
            agent: Some(agent),
            folder,
            _servers: Vec::new(),
            _testbed: testbed,
        };
        let ranges = RANGES.map(|text| text.parse().unwrap());
        let node_routes =
            NodeRoutesIntent { anti_spoofing: true, services: true, ..NodeRoutesIntent::default() };
        let bridge = "knit0".parse().unwrap();
        let cluster = ClusterNetworkObject::new(&ranges, &bridge, Some(1500), Some(&node_routes));
        node.handle(cluster.applied());
        // The bridge's own setting counts.
        node.host.set_sysctl("net.bridge.bridge-nf-call-iptables", "0");
        node.host.set_sysctl("net.bridge.bridge-nf-call-ip6tables", "0");
        node.attach_all();
        // Until then the node cannot resolve the addresses of pods.
        eventually("duplicate address detection has ended", Duration::from_secs(5), || {
            !node.host.ip(&["-6", "addr", "show", "dev", "knit0"]).contains("tentative")
        });
        node
    }

    /// The node with a Service and its backends.
    fn with(test: &str, service: Service, backends: &[&str]) -> Self {
        let mut node = Self::new(test);
        node.list(vec![service], backends);
        node
    }

    fn list(&mut self, services: Vec<Service>, backends: &[&str]) {
        self.handle(Event::Nodes(NodeEvent::Listed(Vec::new())));
        let slices = [0, 1].map(|family| slice(family, backends)).into();
        for event in [
            ServiceEvent::Node(NodeFacts { name: "node".to_owned(), ..NodeFacts::default() }),
            ServiceEvent::ServicesListed(services),
            ServiceEvent::SlicesListed(slices),
        ] {
            self.handle(Event::Services(event));
        }
    }

    fn set_backends(&mut self, backends: &[&str]) {
        for family in [0, 1] {
            self.handle(Event::Services(ServiceEvent::SliceApplied(Box::new(slice(family, backends)))));
        }
    }

    fn apply(&mut self, service: Service) {
        self.handle(Event::Services(ServiceEvent::ServiceApplied(Box::new(service))));
    }

    fn handle(&mut self, event: Event) -> Vec<(CallId, CallResult)> {
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.node().handle(event).unwrap().answers)
    }

    fn attach_all(&mut self) {
        for name in PODS {
            let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
            let id = name.to_owned();
            let netns = format!("/proc/{}/ns/net", self.pods[name].pid());
            let answers = self.handle(Event::AttachRequested(Box::new(AttachRequest {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: SandboxRequest {
                    id: id.clone(),
                    netns,
                    namespace: "shop".to_owned(),
                    pod: id.clone(),
                    uid: id,
                    ..SandboxRequest::default()
                },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
                metadata: AttachmentMetadata::default(),
                fail_if_present: false,
                ticket: 1,
                started_at: 0,
            })));
            assert!(matches!(&answers[..], [(_, CallResult::Attached { .. })]), "{answers:?}");
            if name != "client" {
                self._servers.push(Server::start(name, self.pods[name].namespace()));
            }
        }
    }

    fn namespace(&self, end: &str) -> &Namespace {
        match end {
            "node" => &self.host,
            "external" => &self.external,
            pod => self.pods[pod].namespace(),
        }
    }

    /// Who answers a TCP connection, and with which address of the client.
    fn get(&self, from: &str, to: &str, port: u16) -> io::Result<(String, IpAddr)> {
        let at = SocketAddr::new(to.parse().unwrap(), port);
        self.namespace(from).run(|| {
            let mut stream = TcpStream::connect_timeout(&at, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(parsed(&answer))
        })
    }

    /// The pods that answer many connections, and the addresses of the client that they see.
    #[track_caller]
    fn answers(&self, from: &str, to: &str, port: u16) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
        let answer = || {
            self.get(from, to, port).unwrap_or_else(|why| panic!("{from} to {to}: {why}\n{}", self.rules()))
        };
        (0..MANY).map(|_| answer()).unzip()
    }

    fn rules(&self) -> String {
        self.host.output("nft", &["list", "table", "inet", "knit"]).unwrap_or_else(|why| why.to_string())
    }

    /// The rules and elements, in an order that does not depend on when they were added.
    fn words(&self) -> Vec<String> {
        let listed = self.host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
        let mut words: Vec<String> = listed.split([' ', ',', '\n', '\t']).map(str::to_owned).collect();
        words.retain(|word| !word.is_empty());
        words.sort();
        words
    }

    fn restart(&mut self) {
        self.agent = None;
        let folder = self.folder.path();
        self.agent = Some(self.host.run_as_agent(|| reopen(folder)));
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }
}

fn parsed(answer: &str) -> (String, IpAddr) {
    let (pod, peer) = answer.split_once(' ').unwrap();
    (pod.to_owned(), peer.parse().unwrap())
}

fn names(pods: &[&str]) -> BTreeSet<String> {
    pods.iter().map(ToString::to_string).collect()
}

fn one(address: &str) -> BTreeSet<IpAddr> {
    [address.parse().unwrap()].into()
}

#[test]
fn pods_and_the_node_reach_every_backend_through_the_cluster_ip() {
    let node = ServiceNode::with("svc-cluster-ip", service(), &["web0", "web1"]);
    for family in [0, 1] {
        let (pods, sources) = node.answers("client", CLUSTER[family], PORT);
        assert_eq!(pods, names(&["web0", "web1"]), "{}", node.rules());
        assert_eq!(sources, BTreeSet::from([address("client", family)]), "a pod keeps its address");
        let (pods, sources) = node.answers("node", CLUSTER[family], PORT);
        assert_eq!(pods, names(&["web0", "web1"]));
        let gateway = RANGES[family].parse::<ipnet::IpNet>().unwrap().hosts().next().unwrap();
        assert!(
            sources.len() == 1 && !sources.contains(&CLUSTER[family].parse().unwrap()),
            "{sources:?} {gateway}"
        );
    }
}

#[test]
fn a_backend_reaches_itself_through_the_service() {
    let node = ServiceNode::with("svc-hairpin", service(), &["web0"]);
    for family in [0, 1] {
        let (pods, sources) = node.answers("web0", CLUSTER[family], PORT);
        assert_eq!(pods, names(&["web0"]));
        assert!(!sources.contains(&address("web0", family)), "masqueraded: {sources:?}");
    }
}

#[test]
fn a_service_without_endpoints_is_rejected_at_once() {
    let mut node = ServiceNode::with("svc-reject", service(), &[]);
    for from in ["client", "node", "external"] {
        for family in [0, 1] {
            let start = Instant::now();
            let refused = node.get(from, CLUSTER[family], PORT).unwrap_err();
            assert_eq!(
                refused.kind(),
                io::ErrorKind::ConnectionRefused,
                "{from}: {refused}\n{}",
                node.rules()
            );
            assert!(start.elapsed() < TIMEOUT);
            if from != "client" {
                let refused = node.get(from, NODE[family], NODE_PORT).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{from}, node port");
            }
        }
    }
    node.set_backends(&["web1"]);
    assert_eq!(node.answers("client", CLUSTER[0], PORT).0, names(&["web1"]));
}

#[test]
fn node_ports_answer_outside_clients_and_masquerade_them() {
    let mut node = ServiceNode::with("svc-node-port", service(), &["web0", "web1"]);
    for family in [0, 1] {
        let (pods, sources) = node.answers("external", NODE[family], NODE_PORT);
        assert_eq!(pods, names(&["web0", "web1"]));
        assert!(!sources.contains(&EXTERNAL[family].parse().unwrap()), "{sources:?}");
        assert_eq!(node.answers("client", NODE[family], NODE_PORT).0, names(&["web0", "web1"]), "from a pod");
        assert_eq!(
            node.answers("node", NODE[family], NODE_PORT).0,
            names(&["web0", "web1"]),
            "from the node"
        );
    }
    node.apply(Service { external_local: true, ..service() });
    for family in [0, 1] {
        let (pods, sources) = node.answers("external", NODE[family], NODE_PORT);
        assert_eq!(pods, names(&["web0", "web1"]));
        assert_eq!(sources, one(EXTERNAL[family]), "the policy Local keeps the client's address");
    }
}

#[test]
fn external_and_load_balancer_addresses_reach_the_backends() {
    let (external, balanced) = ("198.51.100.7", "198.51.100.8");
    let with_addresses = Service {
        external_ips: vec![external.parse().unwrap()],
        load_balancer_ips: vec![balanced.parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".parse().unwrap()],
        ..service()
    };
    let mut node = ServiceNode::with("svc-external", with_addresses.clone(), &["web0", "web1"]);
    for at in [external, balanced] {
        node.external.ip(&["route", "add", at, "via", NODE[0], "dev", "eth0"]);
    }
    assert_eq!(node.answers("external", external, PORT).0, names(&["web0", "web1"]));
    assert_eq!(node.answers("client", external, PORT).0, names(&["web0", "web1"]));
    let denied = node.get("external", balanced, PORT).unwrap_err();
    assert_eq!(denied.kind(), io::ErrorKind::TimedOut, "outside the source ranges: {denied}");
    node.apply(Service { source_ranges: vec!["192.0.2.0/28".parse().unwrap()], ..with_addresses });
    assert_eq!(node.answers("external", balanced, PORT).0, names(&["web0", "web1"]));
}

#[test]
fn a_client_with_affinity_keeps_its_backend_until_it_is_gone() {
    let mut node =
        ServiceNode::with("svc-affinity", Service { affinity: Some(60), ..service() }, &["web0", "web1"]);
    for family in [0, 1] {
        let (pods, _) = node.answers("client", CLUSTER[family], PORT);
        assert_eq!(pods.len(), 1, "{pods:?}\n{}", node.rules());
        assert_eq!(node.answers("client", NODE[family], NODE_PORT).0.len(), 1, "by the node port, too");
        let other = if pods.contains("web0") { "web1" } else { "web0" };
        node.set_backends(&[other]);
        assert_eq!(node.answers("client", CLUSTER[family], PORT).0, names(&[other]));
        node.set_backends(&["web0", "web1"]);
        assert_eq!(node.answers("client", CLUSTER[family], PORT).0, names(&[other]), "it has a new one");
    }
}

#[test]
fn the_search_for_strays_leaves_services_and_affinity_alone() {
    let mut node =
        ServiceNode::with("svc-strays", Service { affinity: Some(60), ..service() }, &["web0", "web1"]);
    let (pods, _) = node.answers("client", CLUSTER[0], PORT);
    let agent = node.agent.as_mut().unwrap();
    let strays = node.host.run_as_agent(|| agent.node().strays().unwrap());
    assert!(strays.is_empty(), "{strays}");
    node.handle(Event::Resync);
    assert_eq!(node.answers("client", CLUSTER[0], PORT).0, pods, "the client is still known");
}

#[test]
fn a_udp_client_that_keeps_its_port_follows_the_backends() {
    let mut node = ServiceNode::with("svc-udp", service(), &[]);
    for family in [0, 1] {
        let to = SocketAddr::new(CLUSTER[family].parse().unwrap(), PORT);
        let any = if family == 0 { "0.0.0.0:0" } else { "[::]:0" };
        let socket = node.namespace("client").run(|| UdpSocket::bind(any).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let ask = || {
            socket.send_to(b"who", to)?;
            let mut answer = [0; 64];
            let length = socket.recv(&mut answer)?;
            Ok::<_, io::Error>(parsed(std::str::from_utf8(&answer[..length]).unwrap()).0)
        };
        node.set_backends(&[]);
        assert!(ask().is_err(), "there is no backend");
        for backend in ["web0", "web1", "web0"] {
            node.set_backends(&[backend]);
            eventually(&format!("{backend} answers"), Duration::from_secs(5), || {
                ask().is_ok_and(|answer| answer == backend)
            });
        }
    }
}

#[test]
fn the_next_packet_follows_a_change_of_backends() {
    let mut node = ServiceNode::with("svc-change", service(), &["web0"]);
    for backends in [&["web1"][..], &["web0", "web1"], &["web0"], &["web1", "web0"], &["web1"]] {
        node.set_backends(backends);
        for at in CLUSTER {
            assert_eq!(node.answers("client", at, PORT).0, names(backends), "{}", node.rules());
        }
    }
    node.handle(Event::Services(ServiceEvent::ServiceDeleted(key())));
    assert!(node.get("client", CLUSTER[0], PORT).is_err(), "the Service is gone\n{}", node.rules());
    let elements = node.host.output("nft", &["list", "map", "inet", "knit", "service_backends4"]).unwrap();
    assert!(!elements.contains("elements"), "{elements}");
}

#[test]
fn services_stay_while_the_agent_is_away_and_until_everything_is_listed() {
    let mut node = ServiceNode::with("svc-restart", service(), &["web0", "web1"]);
    let before = node.words();
    node.restart();
    assert_eq!(node.answers("client", CLUSTER[0], PORT).0, names(&["web0", "web1"]), "nothing is listed yet");
    assert_eq!(before, node.words());
    node.list(vec![service()], &["web0", "web1"]);
    assert_eq!(before, node.words(), "nothing changed meanwhile");
    node.restart();
    node.list(vec![service()], &["web1"]);
    assert_eq!(node.answers("client", CLUSTER[0], PORT).0, names(&["web1"]), "an endpoint went meanwhile");
}

#[test]
fn services_that_another_program_removes_are_restored() {
    let mut node = ServiceNode::with("svc-repair", service(), &["web0", "web1"]);
    let before = node.words();
    for removal in [
        "delete table inet knit",
        "flush map inet knit service_backends4",
        "flush chain inet knit service_prerouting",
    ] {
        node.host.output("nft", &[removal]).unwrap();
        assert_ne!(
            before,
            if removal.starts_with("delete") { Vec::new() } else { node.words() },
            "{removal}"
        );
        node.handle(Event::PacketFilterChanged);
        assert_eq!(node.words(), before, "{removal}");
    }
    assert_eq!(node.answers("client", CLUSTER[0], PORT).0, names(&["web0", "web1"]));
}
