//! Three nodes on one link with pods of two namespaces each, and an external host on the same link.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::{AttachRequest, CallId, CallResult, Event, ObjectKey, StoredObject, Unit, egress};
use knit_model::IfName;
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::intent::{
    EgressGatewayIntent, Intent, IntentSpec, LocalNode, NodeRoutesIntent, NodeTunnelIntent, TunnelEndpoint,
};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const ALL: [usize; 3] = [A, B, C];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The namespace that uses the gateway, and one that does not.
pub const SHOP: usize = 0;
pub const OTHER: usize = 1;
const NAMESPACES: [&str; 2] = ["shop", "other"];
/// The gateway's addresses.
pub const ADDRESSES: [&str; 2] = ["192.0.2.77", "2001:db8::77"];
/// The external host.
pub const EXTERNAL: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
const TIMEOUT: Duration = Duration::from_secs(10);

struct Member {
    host: Namespace,
    pods: Vec<Pod>,
    node: Standalone,
    folder: TempDir,
}

pub struct EgressCluster {
    pub external: Namespace,
    members: Vec<Member>,
    generation: i64,
    _testbed: Testbed,
}

impl EgressCluster {
    /// Nodes that reach each other through tunnels or directly, each with a pod of each namespace.
    pub fn new(test: &str, by_tunnels: bool) -> Self {
        let testbed = Testbed::new(test);
        let external = testbed.namespace("external");
        testbed.bridge(&external, "lan0");
        EXTERNAL
            .iter()
            .zip([24, 64])
            .for_each(|(own, length)| external.address("lan0", &format!("{own}/{length}")));
        let members = ALL.map(|at| {
            let host = if at == A { testbed.host() } else { testbed.namespace(NAMES[at]) };
            let cable = format!("cable-{}", NAMES[at]);
            testbed.connect(&host, "eth0", &external, &cable);
            external.enslave(&cable, "lan0");
            own(at)
                .iter()
                .zip([24, 64])
                .for_each(|(own, length)| host.address("eth0", &format!("{own}/{length}")));
            host.set_sysctl("net.ipv4.ip_forward", "1");
            host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
            // The strictest reverse path filter that a node may have.
            host.set_sysctl("net.ipv4.conf.all.rp_filter", "1");
            let pods = NAMESPACES.map(|namespace| testbed.pod(&format!("{namespace}-{}", NAMES[at])));
            let folder = TempDir::new().unwrap();
            let node = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
            Member { host, pods: pods.into(), node, folder }
        });
        let mut nodes = Self { external, members: members.into(), generation: 0, _testbed: testbed };
        for at in ALL {
            let cluster = ClusterNetworkObject::new(
                &ranges(at),
                &"knit0".parse().unwrap(),
                Some(1400),
                Some(&node_routes(at, by_tunnels)),
            );
            let on_link = |range: &str| (range.parse().unwrap(), 0, Some("eth0".parse().unwrap()));
            let connected = ConnectedRoutes::new(["192.0.2.0/24", "2001:db8::/64"].map(on_link));
            nodes.handle(at, Event::Nodes(NodeEvent::Connected(connected)));
            nodes.handle(at, Event::Nodes(listed(at, &[])));
            nodes.handle(at, cluster.applied());
            [SHOP, OTHER].into_iter().for_each(|which| nodes.attach(at, which));
        }
        nodes
    }

    fn handle(&mut self, at: usize, event: Event) -> Vec<(CallId, CallResult)> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.node().handle(event).unwrap().answers)
    }

    fn attach(&mut self, at: usize, which: usize) {
        let netns = format!("/proc/{}/ns/net", self.members[at].pods[which].pid());
        let (id, namespace) = (NAMESPACES[which].to_owned(), NAMESPACES[which].to_owned());
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let answers = self.handle(
            at,
            Event::AttachRequested(Box::new(AttachRequest {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: SandboxRequest { id, netns, namespace, ..SandboxRequest::default() },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
                metadata: AttachmentMetadata::default(),
                fail_if_present: false,
                ticket: 1,
                started_at: 0,
            })),
        );
        assert!(matches!(&answers[..], [(_, CallResult::Attached { .. })]), "{answers:?}");
    }

    pub fn apply_gateway(&mut self, nodes: &[&str]) {
        self.apply_gateway_with(&ADDRESSES, nodes);
    }

    /// Applies a gateway, and gives all nodes the addresses of remote pods.
    pub fn apply_gateway_with(&mut self, addresses: &[&str], nodes: &[&str]) {
        self.generation += 1;
        for at in ALL {
            self.handle(at, Event::ObjectApplied(gateway(self.generation, addresses, nodes)));
            let others = ALL.into_iter().filter(|other| *other != at);
            let addresses: BTreeSet<IpAddr> =
                others.flat_map(|other| self.pod(other, SHOP)).map(|text| text.parse().unwrap()).collect();
            self.handle(at, Event::RemotePods { namespace: NAMESPACES[SHOP].to_owned(), addresses });
        }
    }

    pub fn delete_gateway(&mut self) {
        let key =
            ObjectKey { kind: egress::KIND.to_owned(), namespace: String::new(), name: "shop".to_owned() };
        ALL.into_iter().for_each(|at| drop(self.handle(at, Event::ObjectDeleted(key.clone()))));
    }

    /// Gives all nodes the list of ready nodes.
    pub fn set_ready_nodes(&mut self, nodes: &[usize]) {
        // The node that gives up the address is first; the node that takes it does not wait for that.
        for at in [B, A, C] {
            self.handle(at, Event::Nodes(listed(at, nodes)));
        }
    }

    pub fn namespace(&self, at: usize, which: usize) -> &Namespace {
        self.members[at].pods[which].namespace()
    }

    /// The addresses of a pod.
    pub fn pod(&self, at: usize, which: usize) -> Vec<String> {
        let numbers = [format!("10.1.{}.{}", at + 1, which + 2), format!("fd01:{}::{}", at + 1, which + 2)];
        numbers.into()
    }

    /// The addresses of a node.
    pub fn node(&self, at: usize) -> Vec<String> {
        own(at).into()
    }

    /// The source addresses of a pod as the external host sees them.
    pub fn source_addresses(&self, at: usize, which: usize) -> Vec<String> {
        EXTERNAL
            .iter()
            .map(|to| source_address(&self.external, self.namespace(at, which), to, TIMEOUT).unwrap())
            .collect()
    }

    /// The same for another node.
    pub fn source_addresses_at_node(&self, at: usize, which: usize, by: usize) -> Vec<String> {
        let from = self.namespace(at, which);
        own(by).iter().map(|to| source_address(&self.members[by].host, from, to, TIMEOUT).unwrap()).collect()
    }

    /// Whether a packet of the pod reaches the external host.
    pub fn reaches_external(&self, at: usize, which: usize) -> bool {
        let from = self.namespace(at, which);
        source_address(&self.external, from, EXTERNAL[0], Duration::from_millis(900)).is_some()
    }

    /// Asserts that the external host's neighbour entries point to the node, without traffic.
    pub fn assert_neighbours_point_to(&self, at: usize) {
        let mut known = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(2);
        while known != self.macs(at) {
            assert!(Instant::now() < deadline, "{known:?}, not {:?}", self.macs(at));
            known = self.neighbours();
        }
    }

    /// The external host's neighbour entries for the gateway's addresses.
    fn neighbours(&self) -> Vec<String> {
        let known = self.external.ip_json(&["neigh", "show", "dev", "lan0"]);
        let known = known.as_array().unwrap();
        let mac = |address: &&str| {
            let entry = known.iter().find(|entry| entry["dst"] == **address);
            entry.and_then(|entry| entry["lladdr"].as_str()).unwrap_or("none").to_owned()
        };
        ADDRESSES.iter().map(mac).collect()
    }

    /// The MAC of a node, once per family.
    fn macs(&self, at: usize) -> Vec<String> {
        let link = self.members[at].host.ip_json(&["link", "show", "eth0"]);
        vec![link[0]["address"].as_str().unwrap().to_owned(); 2]
    }

    /// The node's status items of the gateway.
    pub fn gateway_status(&self, at: usize) -> Vec<String> {
        let items = &self.members[at].node.state().units[&Unit::NodeRoutes].items;
        items
            .iter()
            .filter(|(key, _)| key.kind == egress::KIND)
            .map(|(_, item)| item.description.clone())
            .collect()
    }

    /// Opens the node with an empty state folder; it finds its state in the kernel by marks.
    pub fn restart_without_state(&mut self, at: usize) {
        let Member { host, node, folder, .. } = &mut self.members[at];
        *folder = TempDir::new().unwrap();
        *node = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        host.run_as_agent(|| node.node().repair_strays().unwrap());
    }

    /// Whether the node's link has the gateway's first address.
    pub fn has_address(&self, at: usize) -> bool {
        self.members[at].host.ip(&["-o", "addr", "show", "dev", "eth0"]).contains(ADDRESSES[0])
    }

    pub fn run_command(&self, at: usize, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        self.members[at].host.output(words[0], &words[1..]).unwrap();
    }

    pub fn repair(&mut self, at: usize) -> Vec<String> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.repair().unwrap().iter().map(ToString::to_string).collect())
    }

    /// Asserts that a resync finds nothing to do.
    pub fn assert_no_drift(&mut self) {
        ALL.into_iter().for_each(|at| assert_eq!(self.repair(at), [""; 0], "node {}", NAMES[at]));
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

/// The source address that a listener sees. A new neighbour may take a moment to respond.
fn source_address(listening: &Namespace, from: &Namespace, to: &str, timeout: Duration) -> Option<String> {
    let listener = listening.run(|| UdpSocket::bind((to, 0)).unwrap());
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let at = listener.local_addr().unwrap();
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let tries = timeout.as_millis() / 300;
    (0..tries).find_map(|_| {
        let sent: io::Result<usize> = from.run(|| UdpSocket::bind(any)?.send_to(b"hello", at));
        let (_, source) = sent.and_then(|_| listener.recv_from(&mut [0; 16])).ok()?;
        Some(source.ip().to_string())
    })
}

fn own(at: usize) -> [String; 2] {
    [format!("192.0.2.{}", at + 1), format!("2001:db8::{}", at + 1)]
}

fn ranges(at: usize) -> Vec<IpNet> {
    let texts = [format!("10.1.{}.0/24", at + 1), format!("fd01:{}::/64", at + 1)];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn addresses(at: usize) -> Vec<(IpAddr, IfName)> {
    own(at).map(|text| (text.parse().unwrap(), "eth0".parse().unwrap())).to_vec()
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
    NodeEvent::Listed(ALL.map(info).into())
}

fn node_routes(at: usize, by_tunnels: bool) -> NodeRoutesIntent {
    let eth0 = || "eth0".parse().unwrap();
    let tunnel = NodeTunnelIntent {
        node: NAMES[at].to_owned(),
        vni: 7500,
        port: 7475,
        always: true,
        endpoints: vec![TunnelEndpoint { address: own(at)[0].parse().unwrap(), mtu: 1500 }],
    };
    let own = LocalNode {
        name: NAMES[at].to_owned(),
        addresses: addresses(at),
        links: vec![("192.0.2.0/24".parse().unwrap(), eth0()), ("2001:db8::/64".parse().unwrap(), eth0())],
    };
    NodeRoutesIntent {
        masquerade: true,
        anti_spoofing: true,
        tunnel: by_tunnels.then_some(tunnel),
        local_node: Some(own),
        ..NodeRoutesIntent::default()
    }
}

fn gateway(generation: i64, addresses: &[&str], nodes: &[&str]) -> StoredObject {
    let name = "shop".to_owned();
    let object = ObjectRef {
        kind: egress::KIND.to_owned(),
        namespace: String::new(),
        name: name.clone(),
        uid: name.clone(),
        generation,
    };
    let spec = IntentSpec::EgressGateway(EgressGatewayIntent {
        name,
        namespaces: vec![NAMESPACES[SHOP].to_owned()],
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
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
