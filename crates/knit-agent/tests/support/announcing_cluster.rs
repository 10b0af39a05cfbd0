//! Two nodes on one link that translate Services, each with a pod, and a client on the same link without routes to pods or
//! Services. The pods are endpoints of one Service with load balancer addresses, and answer with their name and the address of
//! their peer.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, PortMapping, SandboxRequest};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::service_announcements::KIND;
use knit_engine::services::ServiceEvent;
use knit_engine::{AttachRequest, CallId, CallResult, Event, ObjectKey, StoredObject};
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::filter::field::IpFamily;
use knit_model::intent::{Intent, IntentSpec, LocalNode, NodeRoutesIntent, ServiceAddressIntent};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_service::{
    Endpoint, EndpointSlice, NodeFacts, Protocol, Service, ServiceKey, ServicePort, SliceKey, SlicePort,
};
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use super::test_host::reopen;

pub const A: usize = 0;
pub const B: usize = 1;
const BOTH: [usize; 2] = [A, B];
const NAMES: [&str; 2] = ["a", "b"];
/// The load balancer addresses of the Service.
pub const ADDRESSES: [&str; 2] = ["192.0.2.77", "2001:db8::77"];
/// The client.
pub const CLIENT: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
pub const PORT: u16 = 80;
pub const NODE_PORT: u16 = 30080;
/// The host port of each pod.
pub const HOST_PORT: u16 = 8888;
const TARGET: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(5);
/// The deadline of one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

struct Member {
    host: Namespace,
    pod: Pod,
    node: Option<Standalone>,
    folder: TempDir,
}

pub struct AnnouncingCluster {
    pub client: Namespace,
    members: Vec<Member>,
    _servers: Vec<Server>,
    _testbed: Testbed,
}

/// A thread that answers connections to all addresses of a namespace.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(name: &'static str, namespace: &Namespace, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let listener = namespace.run(|| TcpListener::bind(("::", port)).unwrap());
        listener.set_nonblocking(true).unwrap();
        let stopped = Arc::clone(&stop);
        let accept = move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, peer)) => {
                        drop(stream.write_all(format!("{name} {}", peer.ip().to_canonical()).as_bytes()));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        };
        Self { stop, thread: Some(thread::spawn(accept)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl AnnouncingCluster {
    /// Nodes that know each other, and neither a pool nor a Service.
    pub fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let client = testbed.namespace("client");
        testbed.bridge(&client, "lan0");
        for (own, length) in CLIENT.iter().zip([24, 64]) {
            client.address("lan0", &format!("{own}/{length}"));
        }
        let members = BOTH.map(|at| {
            let host = if at == A { testbed.host() } else { testbed.namespace(NAMES[at]) };
            let cable = format!("cable-{}", NAMES[at]);
            testbed.connect(&host, "eth0", &client, &cable);
            client.enslave(&cable, "lan0");
            for (own, length) in own(at).iter().zip([24, 64]) {
                host.address("eth0", &format!("{own}/{length}"));
            }
            host.set_sysctl("net.ipv4.ip_forward", "1");
            host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
            // The strictest reverse path filter that a node may have.
            host.set_sysctl("net.ipv4.conf.all.rp_filter", "1");
            let pod = testbed.pod(&format!("web-{}", NAMES[at]));
            let folder = TempDir::new().unwrap();
            let node = host.run(|| Standalone::open(folder.path()).unwrap());
            Member { host, pod, node: Some(node), folder }
        });
        let mut cluster = Self { client, members: members.into(), _servers: Vec::new(), _testbed: testbed };
        for at in BOTH {
            let bridge = "knit0".parse().unwrap();
            let network = ClusterNetworkObject::new(&ranges(at), &bridge, Some(1500), Some(&node_routes(at)));
            let on_link = |range: &str| (range.parse().unwrap(), 0, Some("eth0".parse().unwrap()));
            let connected = ConnectedRoutes::new(["192.0.2.0/24", "2001:db8::/64"].map(on_link));
            cluster.handle(at, Event::Nodes(NodeEvent::Connected(connected)));
            cluster.handle(at, Event::Nodes(listed(at, &BOTH)));
            cluster.handle(at, network.applied());
            cluster.attach(at);
            let name = NAMES[at];
            cluster._servers.push(Server::start(name, cluster.members[at].pod.namespace(), TARGET));
        }
        for at in BOTH {
            eventually("duplicate address detection has ended", TIMEOUT, || {
                !cluster.host(at).ip(&["-6", "addr", "show"]).contains("tentative")
            });
        }
        cluster
    }

    fn handle(&mut self, at: usize, event: Event) -> Vec<(CallId, CallResult)> {
        let Member { host, node, .. } = &mut self.members[at];
        let node = node.as_mut().unwrap();
        host.run(|| node.node().handle(event).unwrap().answers)
    }

    fn attach(&mut self, at: usize) {
        let netns = format!("/proc/{}/ns/net", self.members[at].pod.pid());
        let (id, namespace) = ("web".to_owned(), "shop".to_owned());
        let (protocol, container_port) = ("tcp".to_owned(), TARGET);
        let ports = vec![PortMapping { protocol, host_ip: None, host_port: HOST_PORT, container_port }];
        let options = InterfaceRequest { default_route: true, ports, ..InterfaceRequest::default() };
        let request = AttachRequest {
            call: CallId(id.clone()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest { id, netns, namespace, ..SandboxRequest::default() },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 1,
            started_at: 0,
        };
        let answers = self.handle(at, Event::AttachRequested(Box::new(request)));
        assert!(matches!(&answers[..], [(_, CallResult::Attached { .. })]), "{answers:?}");
    }

    /// Applies the pool, and the Service with endpoints on these nodes.
    pub fn serve(&mut self, external_local: bool, endpoints: &[usize]) {
        for at in BOTH {
            self.handle(at, Event::ObjectApplied(pool()));
            self.list_services(at, external_local, endpoints);
        }
    }

    fn list_services(&mut self, at: usize, external_local: bool, endpoints: &[usize]) {
        let name = NAMES[at].to_owned();
        let addresses = own(at).iter().map(|text| text.parse().unwrap()).collect();
        for event in [
            ServiceEvent::Node(NodeFacts { name, zone: None, addresses }),
            ServiceEvent::ServicesListed(vec![service(external_local)]),
            ServiceEvent::SlicesListed(IpFamily::ALL.map(|family| slice(family, endpoints)).into()),
        ] {
            self.handle(at, Event::Services(event));
        }
    }

    /// Changes the endpoints.
    pub fn set_endpoints(&mut self, endpoints: &[usize]) {
        BOTH.into_iter().for_each(|at| self.set_endpoints_at(at, endpoints));
    }

    /// Changes the endpoints as one node knows them.
    pub fn set_endpoints_at(&mut self, at: usize, endpoints: &[usize]) {
        for family in IpFamily::ALL {
            let slice = Box::new(slice(family, endpoints));
            self.handle(at, Event::Services(ServiceEvent::SliceApplied(slice)));
        }
    }

    pub fn delete_service(&mut self) {
        let key = service(false).key;
        for at in BOTH {
            self.handle(at, Event::Services(ServiceEvent::ServiceDeleted(key.clone())));
        }
    }

    pub fn delete_pool(&mut self) {
        let key = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: "lan".to_owned() };
        BOTH.into_iter().for_each(|at| drop(self.handle(at, Event::ObjectDeleted(key.clone()))));
    }

    /// Gives one node the list of ready nodes.
    pub fn set_ready_nodes_at(&mut self, at: usize, ready: &[usize]) {
        self.handle(at, Event::Nodes(listed(at, ready)));
    }

    pub fn set_ready_nodes(&mut self, ready: &[usize]) {
        BOTH.into_iter().for_each(|at| self.set_ready_nodes_at(at, ready));
    }

    /// Disconnects a node from the link, or connects it again.
    pub fn set_cable(&self, at: usize, state: &str) {
        self.client.ip(&["link", "set", &format!("cable-{}", NAMES[at]), state]);
    }

    pub fn host(&self, at: usize) -> &Namespace {
        &self.members[at].host
    }

    pub fn pod(&self, at: usize) -> &Namespace {
        self.members[at].pod.namespace()
    }

    /// The node that has a load balancer address on its link. At most one has it.
    pub fn holder(&self, address: &str) -> Option<usize> {
        let has = |at: &usize| {
            let text = self.host(*at).ip(&["-o", "addr", "show", "dev", "eth0"]);
            text.split_whitespace().any(|word| word.split('/').next() == Some(address))
        };
        let holders: Vec<usize> = BOTH.into_iter().filter(has).collect();
        assert!(holders.len() <= 1, "{address}: {holders:?}");
        holders.first().copied()
    }

    /// Who answers a connection, and with which address of the client.
    pub fn get(&self, from: &Namespace, to: &str, port: u16) -> io::Result<(String, IpAddr)> {
        let at = SocketAddr::new(to.parse().unwrap(), port);
        from.run(|| {
            let mut stream = TcpStream::connect_timeout(&at, CONNECT_TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let (name, peer) = answer.split_once(' ').unwrap();
            Ok((name.to_owned(), peer.parse().unwrap()))
        })
    }

    /// The same until the first answer, and how long that took.
    pub fn get_soon(&self, from: &Namespace, to: &str, port: u16) -> (String, IpAddr, Duration) {
        let start = Instant::now();
        loop {
            match self.get(from, to, port) {
                Ok((name, peer)) => return (name, peer, start.elapsed()),
                Err(why) => assert!(start.elapsed() < TIMEOUT, "{to} does not answer: {why}"),
            }
        }
    }

    /// The pods that answer many connections, and the addresses of the client that they see.
    pub fn answers(&self, from: &Namespace, to: &str) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
        (0..30).map(|_| self.get_soon(from, to, PORT)).map(|(name, peer, _)| (name, peer)).unzip()
    }

    /// An agent that starts again: it knows the pool, and neither nodes nor Services yet.
    pub fn restart(&mut self, at: usize) {
        let Member { host, node, folder, .. } = &mut self.members[at];
        *node = None;
        *node = Some(host.run(|| reopen(folder.path())));
        self.handle(at, Event::Restarted);
        self.handle(at, Event::Resync);
    }

    /// Asserts that a resync finds nothing to do.
    pub fn assert_no_drift(&mut self) {
        for Member { host, node, .. } in &mut self.members {
            let node = node.as_mut().unwrap();
            let repaired: Vec<String> =
                host.run(|| node.repair().unwrap().iter().map(ToString::to_string).collect());
            assert_eq!(repaired, [""; 0]);
        }
    }

    pub fn dumps(&self) -> Vec<Dump> {
        self.members.iter().map(|member| Dump::settled(&member.host)).collect()
    }

    pub fn assert_matches(&self, expected: &[Dump]) {
        for (member, expected) in self.members.iter().zip(expected) {
            let mut difference = String::new();
            let what = format!("node {} is unchanged", member.host.label());
            eventually(&what, TIMEOUT, || {
                difference = expected.difference(&Dump::take(&member.host));
                difference.is_empty()
            });
        }
    }
}

fn own(at: usize) -> [String; 2] {
    [format!("192.0.2.{}", at + 1), format!("2001:db8::{}", at + 1)]
}

/// The addresses of a node.
pub fn node_addresses(at: usize) -> [String; 2] {
    own(at)
}

fn ranges(at: usize) -> Vec<IpNet> {
    let texts = [format!("10.1.{}.0/24", at + 1), format!("fd01:{}::/64", at + 1)];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The list of nodes that a node receives, of which these are Ready.
fn listed(at: usize, ready: &[usize]) -> NodeEvent {
    let info = |other: usize| NodeInfo {
        name: NAMES[other].to_owned(),
        is_local: other == at,
        ranges: ranges(other),
        addresses: own(other).iter().map(|text| text.parse().unwrap()).collect(),
        other_addresses: Vec::new(),
        is_ready: ready.contains(&other),
        key: None,
    };
    NodeEvent::Listed(BOTH.map(info).into())
}

fn node_routes(at: usize) -> NodeRoutesIntent {
    let eth0 = || "eth0".parse().unwrap();
    let local_node = LocalNode {
        name: NAMES[at].to_owned(),
        addresses: own(at).map(|text| (text.parse().unwrap(), eth0())).to_vec(),
        links: ["192.0.2.0/24", "2001:db8::/64"].map(|range| (range.parse().unwrap(), eth0())).to_vec(),
    };
    NodeRoutesIntent {
        masquerade: true,
        anti_spoofing: true,
        services: true,
        local_node: Some(local_node),
        ..NodeRoutesIntent::default()
    }
}

fn pool() -> StoredObject {
    let name = "lan".to_owned();
    let (kind, uid, namespace) = (KIND.to_owned(), name.clone(), String::new());
    let object = ObjectRef { kind, namespace, name: name.clone(), uid, generation: 1 };
    let spec = IntentSpec::ServiceAddresses(ServiceAddressIntent {
        name,
        ranges: ["192.0.2.64/26", "2001:db8::40/122"].map(|range| range.parse().unwrap()).to_vec(),
        namespaces: Vec::new(),
        services: None,
        without_class: false,
    });
    let (dialect, field) = (Dialect::Kubernetes, "spec".to_owned());
    let origin = Provenance { dialect, object: Some(object.clone()), field, call: None };
    StoredObject {
        object,
        intents: vec![Intent { origin, spec }],
        warnings: Vec::new(),
        manifest: serde_json::Value::Null,
        since: 0,
        file: None,
    }
}

fn service(external_local: bool) -> Service {
    Service {
        key: ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() },
        created: 0,
        cluster_ips: ["10.96.0.10", "fd96::10"].map(|text| text.parse().unwrap()).into(),
        external_ips: Vec::new(),
        load_balancer_ips: ADDRESSES.map(|text| text.parse().unwrap()).into(),
        announced: true,
        source_ranges: Vec::new(),
        ports: vec![ServicePort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: PORT,
            node_port: Some(NODE_PORT),
        }],
        affinity: None,
        internal_local: false,
        external_local,
        health_check_node_port: None,
    }
}

fn slice(family: IpFamily, nodes: &[usize]) -> EndpointSlice {
    let endpoint = |at: &usize| Endpoint {
        addresses: vec![match family {
            IpFamily::V4 => format!("10.1.{}.2", at + 1).parse().unwrap(),
            IpFamily::V6 => format!("fd01:{}::2", at + 1).parse().unwrap(),
        }],
        ready: true,
        serving: true,
        terminating: false,
        node: Some(NAMES[*at].to_owned()),
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
    };
    EndpointSlice {
        key: SliceKey { namespace: "shop".to_owned(), name: format!("web-{family:?}") },
        service: service(false).key,
        family,
        ports: vec![SlicePort { name: String::new(), protocol: Protocol::Tcp, port: TARGET }],
        endpoints: nodes.iter().map(endpoint).collect(),
    }
}
