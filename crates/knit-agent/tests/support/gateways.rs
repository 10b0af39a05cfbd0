//! Three nodes on one link with pods of two namespaces on each, and a host outside of the cluster on the same link.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use knit_agent::Standalone;
use knit_agent::daemon::Cluster;
use knit_engine::call::{Asked, Notes, Wished};
use knit_engine::{Answer, Attach, CallId, Event, ObjectKey, StoredObject, Unit, egress};
use knit_model::intent::{
    EgressGatewayIntent, Intent, IntentSpec, LocalNode, NodeRoutesIntent, NodeTunnelIntent, PeerNode,
    TunnelEndpoint,
};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const ALL: [usize; 3] = [A, B, C];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The namespace that leaves by the gateway, and one that does not.
pub const SHOP: usize = 0;
pub const OTHER: usize = 1;
const NAMESPACES: [&str; 2] = ["shop", "other"];
/// The gateway's addresses.
pub const ADDRESSES: [&str; 2] = ["192.0.2.77", "2001:db8::77"];
/// The host outside.
pub const WORLD: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
const PATIENCE: Duration = Duration::from_secs(10);

struct Member {
    host: Namespace,
    pods: Vec<Pod>,
    node: Standalone,
    folder: TempDir,
}

pub struct Gateways {
    pub world: Namespace,
    members: Vec<Member>,
    generation: i64,
    _testbed: Testbed,
}

impl Gateways {
    /// Nodes that reach each other by tunnels or by the link, each with a pod of each namespace.
    pub fn new(test: &str, by_tunnels: bool) -> Self {
        let testbed = Testbed::new(test);
        let world = testbed.namespace("world");
        testbed.bridge(&world, "lan0");
        WORLD
            .iter()
            .zip([24, 64])
            .for_each(|(own, length)| world.address("lan0", &format!("{own}/{length}")));
        let members = ALL.map(|at| {
            let host = if at == A { testbed.host() } else { testbed.namespace(NAMES[at]) };
            let cable = format!("cable-{}", NAMES[at]);
            testbed.connect(&host, "eth0", &world, &cable);
            world.enslave(&cable, "lan0");
            own(at)
                .iter()
                .zip([24, 64])
                .for_each(|(own, length)| host.address("eth0", &format!("{own}/{length}")));
            host.set_sysctl("net.ipv4.ip_forward", "1");
            host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
            // As strict as a node may be.
            host.set_sysctl("net.ipv4.conf.all.rp_filter", "1");
            let pods = NAMESPACES.map(|namespace| testbed.pod(&format!("{namespace}-{}", NAMES[at])));
            let folder = TempDir::new().unwrap();
            let node = host.run(|| Standalone::open(folder.path()).unwrap());
            Member { host, pods: pods.into(), node, folder }
        });
        let mut nodes = Self { world, members: members.into(), generation: 0, _testbed: testbed };
        for at in ALL {
            let cluster =
                Cluster::new(&ranges(at), &"knit0".parse().unwrap(), Some(1400), &ways(at, by_tunnels));
            nodes.hear(at, cluster.applied());
            [SHOP, OTHER].into_iter().for_each(|which| nodes.attach(at, which));
        }
        nodes
    }

    fn hear(&mut self, at: usize, event: Event) -> Vec<(CallId, Answer)> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.node().hear(event).unwrap().answers)
    }

    fn attach(&mut self, at: usize, which: usize) {
        let netns = format!("/proc/{}/ns/net", self.members[at].pods[which].pid());
        let (id, namespace) = (NAMESPACES[which].to_owned(), NAMESPACES[which].to_owned());
        let asked = Asked { default_route: true, ..Asked::default() };
        let answers = self.hear(
            at,
            Event::AttachRequested(Box::new(Attach {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: Wished { id, netns, namespace, ..Wished::default() },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), asked)],
                notes: Notes::default(),
                fail_if_present: false,
                ticket: 1,
                began: 0,
            })),
        );
        assert!(matches!(&answers[..], [(_, Answer::Attached { .. })]), "{answers:?}");
    }

    pub fn have_gateway(&mut self, nodes: &[&str]) {
        self.have_gateway_with(&ADDRESSES, nodes);
    }

    /// A gateway, and all that its nodes are told about pods of others.
    pub fn have_gateway_with(&mut self, addresses: &[&str], nodes: &[&str]) {
        self.generation += 1;
        for at in ALL {
            self.hear(at, Event::ObjectApplied(gateway(self.generation, addresses, nodes)));
            let others = ALL.into_iter().filter(|other| *other != at);
            let addresses: BTreeSet<IpAddr> =
                others.flat_map(|other| self.pod(other, SHOP)).map(|text| text.parse().unwrap()).collect();
            self.hear(at, Event::Elsewhere { namespace: NAMESPACES[SHOP].to_owned(), addresses });
        }
    }

    pub fn drop_gateway(&mut self) {
        let key =
            ObjectKey { kind: egress::KIND.to_owned(), namespace: String::new(), name: "shop".to_owned() };
        ALL.into_iter().for_each(|at| drop(self.hear(at, Event::ObjectDeleted(key.clone()))));
    }

    /// Everyone hears which nodes are well.
    pub fn are_well(&mut self, nodes: &[usize]) {
        let names: BTreeSet<String> = nodes.iter().map(|at| NAMES[*at].to_owned()).collect();
        // The one that gives an address up does so first; who takes it does not wait for that.
        for at in [B, A, C] {
            self.hear(at, Event::Nodes(names.clone()));
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

    /// What the host outside sees as a pod's addresses.
    pub fn seen(&self, at: usize, which: usize) -> Vec<String> {
        WORLD.iter().map(|to| seen(&self.world, self.namespace(at, which), to, PATIENCE).unwrap()).collect()
    }

    /// The same for another node.
    pub fn seen_by_node(&self, at: usize, which: usize, by: usize) -> Vec<String> {
        let from = self.namespace(at, which);
        own(by).iter().map(|to| seen(&self.members[by].host, from, to, PATIENCE).unwrap()).collect()
    }

    /// Whether anything of a pod arrives outside.
    pub fn leaves(&self, at: usize, which: usize) -> bool {
        let from = self.namespace(at, which);
        seen(&self.world, from, WORLD[0], Duration::from_millis(900)).is_some()
    }

    /// The host outside knows that a node has the gateway's addresses, with nobody saying anything to anybody.
    pub fn assert_known_at(&self, at: usize) {
        let mut known = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(2);
        while known != self.macs(at) {
            assert!(Instant::now() < deadline, "{known:?}, not {:?}", self.macs(at));
            known = self.neighbours();
        }
    }

    /// The hardware addresses that the host outside knows for the gateway's addresses.
    fn neighbours(&self) -> Vec<String> {
        let known = self.world.ip_json(&["neigh", "show", "dev", "lan0"]);
        let known = known.as_array().unwrap();
        let mac = |address: &&str| {
            let entry = known.iter().find(|entry| entry["dst"] == **address);
            entry.and_then(|entry| entry["lladdr"].as_str()).unwrap_or("none").to_owned()
        };
        ADDRESSES.iter().map(mac).collect()
    }

    /// The hardware address of a node, for each family.
    fn macs(&self, at: usize) -> Vec<String> {
        let link = self.members[at].host.ip_json(&["link", "show", "eth0"]);
        vec![link[0]["address"].as_str().unwrap().to_owned(); 2]
    }

    /// What a node has of the gateway.
    pub fn state(&self, at: usize) -> Vec<String> {
        let items = &self.members[at].node.state().made[&Unit::NodeRoutes].items;
        items.iter().filter(|(key, _)| key.kind == egress::KIND).map(|(_, item)| item.what.clone()).collect()
    }

    /// A node forgets everything that it knew, and looks for what has its mark.
    pub fn lose_memory(&mut self, at: usize) {
        let Member { host, node, folder, .. } = &mut self.members[at];
        *folder = TempDir::new().unwrap();
        *node = host.run(|| Standalone::open(folder.path()).unwrap());
        host.run(|| node.node().repair_strays().unwrap());
    }

    /// Whether the node's link has the gateway's first address.
    pub fn has_address(&self, at: usize) -> bool {
        self.members[at].host.ip(&["-o", "addr", "show", "dev", "eth0"]).contains(ADDRESSES[0])
    }

    pub fn by_hand(&self, at: usize, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.members[at].host.output(words[0], &words[1..]).unwrap();
    }

    pub fn repair(&mut self, at: usize) -> Vec<String> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.repair().unwrap().iter().map(ToString::to_string).collect())
    }

    /// Comparing everything finds nothing to do.
    pub fn assert_at_rest(&mut self) {
        ALL.into_iter().for_each(|at| assert_eq!(self.repair(at), [""; 0], "node {}", NAMES[at]));
    }

    pub fn dumps(&self) -> Vec<Dump> {
        self.members.iter().map(|member| Dump::settled(&member.host)).collect()
    }

    pub fn assert_like(&self, expected: &[Dump]) {
        for (member, expected) in self.members.iter().zip(expected) {
            let mut difference = String::new();
            let what = format!("the node {} looks as it did", member.host.label());
            eventually(&what, PATIENCE, || {
                difference = expected.difference(&Dump::take(&member.host));
                difference.is_empty()
            });
        }
    }
}

/// The address that one who listens there sees. A neighbour that is new may take a moment to answer.
fn seen(listens: &Namespace, from: &Namespace, to: &str, patience: Duration) -> Option<String> {
    let listener = listens.run(|| UdpSocket::bind((to, 0)).unwrap());
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let at = listener.local_addr().unwrap();
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let tries = patience.as_millis() / 300;
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

fn ways(at: usize, by_tunnels: bool) -> NodeRoutesIntent {
    let eth0 = || "eth0".parse().unwrap();
    let addresses = |at: usize| own(at).map(|text| (text.parse().unwrap(), eth0())).to_vec();
    let others = ALL.into_iter().filter(|other| *other != at);
    let peers = others.map(|other| PeerNode {
        name: NAMES[other].to_owned(),
        ranges: ranges(other),
        addresses: addresses(other),
        far: vec![],
        key: None,
    });
    let tunnel = NodeTunnelIntent {
        node: NAMES[at].to_owned(),
        vni: 7500,
        port: 7475,
        always: true,
        ends: vec![TunnelEndpoint { address: own(at)[0].parse().unwrap(), mtu: 1500 }],
    };
    let own = LocalNode {
        name: NAMES[at].to_owned(),
        addresses: addresses(at),
        links: vec![("192.0.2.0/24".parse().unwrap(), eth0()), ("2001:db8::/64".parse().unwrap(), eth0())],
    };
    NodeRoutesIntent {
        nodes: peers.collect(),
        masquerade: true,
        anti_spoofing: true,
        tunnel: by_tunnels.then_some(tunnel),
        own: Some(own),
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
    let want = IntentSpec::EgressGateway(EgressGatewayIntent {
        name,
        namespaces: vec![NAMESPACES[SHOP].to_owned()],
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    });
    let (dialect, field) = (Dialect::Kubernetes, "spec".to_owned());
    let origin = Provenance { dialect, object: Some(object.clone()), field, call: None };
    StoredObject {
        object,
        intents: vec![Intent { origin, spec: want }],
        warnings: Vec::new(),
        manifest: serde_json::Value::Null,
        since: 0,
        file: None,
    }
}
