//! Three nodes on one link that share networks, and an API server made of plain data that tells them of blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use knit_agent::Standalone;
use knit_crds::Object;
use knit_engine::blocks::{Block, News, PoolKey};
use knit_engine::spans::{Tunnel, Underlay};
use knit_engine::state::BridgeKey;
use knit_engine::{Event, ObjectKey, StoredObject, Unit};
use knit_ipam::Split;
use knit_model::intent::TunnelEndpoint;
use knit_model::provenance::Dialect;
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use super::wiretap::Wiretap;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
const PATIENCE: Duration = Duration::from_secs(10);
/// The ranges of every network here.
pub const RANGES: [&str; 2] = ["10.60.0.0/24", "fd00:60::/64"];
/// The first address of each.
pub const GATEWAYS: [&str; 2] = ["10.60.0.1", "fd00:60::1"];
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

struct Member {
    host: Namespace,
    node: Standalone,
    _folder: TempDir,
    before: Dump,
}

pub struct Spanned {
    testbed: Testbed,
    wire: Namespace,
    over_ipv6: bool,
    members: Vec<Member>,
    pods: BTreeMap<String, Pod>,
    blocks: BTreeMap<String, Block>,
    /// How many blocks and pods there ever were.
    made: usize,
    objects: BTreeSet<ObjectKey>,
}

impl Spanned {
    pub fn new(test: &str, over_ipv6: bool) -> Self {
        let testbed = Testbed::new(test);
        let wire = testbed.namespace("wire");
        testbed.bridge(&wire, "lan0");
        let hosts = NAMES.map(|name| {
            let host = if name == "a" { testbed.host() } else { testbed.namespace(name) };
            let cable = format!("cable-{name}");
            testbed.connect(&host, "eth0", &wire, &cable);
            wire.enslave(&cable, "lan0");
            host
        });
        let members = hosts.into_iter().enumerate().map(|(at, host)| {
            let length = if over_ipv6 { 64 } else { 24 };
            host.address("eth0", &format!("{}/{length}", address(over_ipv6, at)));
            let folder = TempDir::new().unwrap();
            let node = host.run(|| Standalone::open(folder.path()).unwrap());
            let before = Dump::settled(&host);
            Member { host, node, _folder: folder, before }
        });
        let members = members.collect();
        let (pods, blocks, objects) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut all = Self { testbed, wire, over_ipv6, members, pods, blocks, made: 0, objects };
        all.tell_all(|_| Event::Blocks(News::Listed(Vec::new())));
        all
    }

    pub fn hear(&mut self, at: usize, event: Event) {
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.node().hear(event).unwrap());
    }

    fn tell_all(&mut self, event: impl Fn(usize) -> Event) {
        (0..NAMES.len()).for_each(|at| self.hear(at, event(at)));
    }

    /// Has objects on all nodes, as an API server does.
    pub fn apply(&mut self, namespace: &str, yaml: &str) {
        for mut object in Object::parse_all(yaml).unwrap() {
            object.metadata_mut().namespace = Some(namespace.to_owned());
            object.metadata_mut().uid = Some(format!("{namespace}-{}", object.kind()));
            let translation = object.intents(Dialect::Kubernetes).unwrap();
            let stored = StoredObject {
                object: object.object_ref(),
                intents: translation.intents,
                warnings: translation.warnings,
                manifest: object.to_value(),
                since: 0,
                file: None,
            };
            self.objects.insert(stored.key());
            self.tell_all(|_| Event::ObjectApplied(stored.clone()));
        }
    }

    /// A network that is one on all nodes, and an interface on it for pods with the label of its name.
    pub fn network(&mut self, namespace: &str, more: &str) {
        let yaml = format!(
            "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {{name: blue}}
spec: {{subnets: [10.60.0.0/24, 'fd00:60::/64'], transport: vxlan{more}}}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {{name: blue}}
spec: {{interfaceName: blue0, network: blue}}
"
        );
        self.apply(namespace, &yaml);
    }

    /// A node claims the blocks of its number, and all hear of it.
    pub fn join(&mut self, at: usize, namespace: &str) {
        for range in RANGES {
            let pool = pool(namespace, range);
            let cidr = Split::of(pool.range).block(at as u128).unwrap();
            self.hold(at, &pool, pool.block_name(at as u128), cidr);
        }
    }

    /// A node claims an address alone, and all hear of it.
    pub fn claim(&mut self, at: usize, namespace: &str, claimed: &str) {
        let claimed: IpAddr = claimed.parse().unwrap();
        let pool = pool(namespace, RANGES[usize::from(claimed.is_ipv6())]);
        self.hold(at, &pool, pool.alone_name(claimed).unwrap(), claimed.into());
    }

    fn hold(&mut self, at: usize, pool: &PoolKey, name: String, cidr: ipnet::IpNet) {
        self.made += 1;
        let uid = format!("uid-{}", self.made);
        let node = NAMES[at].to_owned();
        let block = Block { name: name.clone(), uid, pool: pool.title(), cidr, node, mine: false };
        self.blocks.insert(name, block.clone());
        self.tell_all(|hears| Event::Blocks(News::Applied(Block { mine: hears == at, ..block.clone() })));
        self.tell_addresses();
    }

    /// What a node held is gone, and all hear of it.
    pub fn leave(&mut self, at: usize) {
        let gone = self.blocks.extract_if(.., |_, block| block.node == NAMES[at]);
        for (name, block) in gone.collect::<Vec<_>>() {
            self.tell_all(|_| Event::Blocks(News::Deleted { name: name.clone(), uid: block.uid.clone() }));
        }
        self.tell_addresses();
    }

    fn tell_addresses(&mut self) {
        for at in 0..NAMES.len() {
            let others = (0..NAMES.len()).filter(|other| *other != at);
            let underlay = Underlay {
                taken: 7_500,
                port: 7_475,
                ends: vec![TunnelEndpoint { address: address(self.over_ipv6, at), mtu: 1_500 }],
                nodes: others
                    .map(|other| (NAMES[other].to_owned(), vec![address(self.over_ipv6, other)]))
                    .collect(),
            };
            if let Some(event) = self.members[at].node.state().underlay_news(underlay) {
                self.hear(at, event);
            }
        }
    }

    /// A pod on a node, with the label of an object, which stands at once.
    pub fn add(&mut self, at: usize, namespace: &str, name: &str, label: &str) {
        self.begin(at, namespace, name, label);
        assert_eq!(self.problems(at), [""; 0]);
    }

    /// A pod on a node, with the label of an object.
    pub fn begin(&mut self, at: usize, namespace: &str, name: &str, label: &str) {
        let id = format!("{namespace}/{name}");
        self.made += 1;
        let pod = self.testbed.pod(&format!("{namespace}-{name}-{}", self.made));
        let labels = BTreeMap::from([("podnetwork.opdev.io/veth".to_owned(), label.to_owned())]);
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.add_sandbox(namespace, name, labels, pod.pid()).unwrap());
        self.pods.insert(id, pod);
    }

    pub fn remove(&mut self, at: usize, namespace: &str, name: &str) {
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.delete_sandbox(namespace, name).unwrap());
        host.run(|| node.node().tidy().unwrap());
        self.pods.remove(&format!("{namespace}/{name}"));
    }

    pub fn pod(&self, id: &str) -> &Pod {
        &self.pods[id]
    }

    pub fn ping(&self, from: &str, to: &str) {
        let what = format!("{from} reaches {to}");
        eventually(&what, PATIENCE, || self.pods[from].ping(to).is_ok());
    }

    pub fn cannot_ping(&self, from: &str, to: &str) {
        let words = ["-n", "-c", "1", "-w", "1", to];
        assert!(self.pods[from].output("ping", &words).is_err(), "{from} reaches {to}");
    }

    pub fn problems(&self, at: usize) -> Vec<String> {
        let problems = self.members[at].node.state().problems.values().flatten();
        problems.map(|(_, problem)| problem.to_string()).collect()
    }

    pub fn warnings(&self, at: usize, namespace: &str, kind: &str) -> Vec<String> {
        let (kind, name) = (kind.to_owned(), "blue".to_owned());
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name };
        self.members[at].node.state().report(&key).unwrap().warnings
    }

    pub fn tunnel(&self, at: usize, namespace: &str) -> Option<Tunnel> {
        let key = BridgeKey { namespace: namespace.to_owned(), name: "vn-blue".parse().unwrap() };
        self.members[at].node.state().made.get(&Unit::Bridge(key))?.tunnel.clone()
    }

    /// The entries of a node's tunnel, as the kernel tells them.
    pub fn entries(&self, at: usize, namespace: &str) -> String {
        let link = self.tunnel(at, namespace).unwrap().link;
        self.on(at, &["bridge", "fdb", "show", "dev", link.as_str()])
    }

    pub fn on(&self, at: usize, words: &[&str]) -> String {
        self.members[at].host.output(words[0], &words[1..]).unwrap()
    }

    pub fn mtu(&self, at: usize, link: &str) -> u64 {
        self.members[at].host.ip_json(&["link", "show", link])[0]["mtu"].as_u64().unwrap()
    }

    /// Comparing everything finds nothing to do.
    pub fn assert_at_rest(&mut self) {
        for Member { host, node, .. } in &mut self.members {
            let done: Vec<String> =
                host.run(|| node.repair().unwrap().iter().map(ToString::to_string).collect());
            assert_eq!(done, [""; 0], "{}", host.label());
        }
    }

    pub fn listen(&self) -> Wiretap {
        Wiretap::new(&self.wire, &NAMES.map(|name| format!("cable-{name}")))
    }

    /// Everything goes, and nodes look as they did before.
    pub fn remove_all(mut self) {
        for object in std::mem::take(&mut self.objects) {
            self.tell_all(|_| Event::ObjectDeleted(object.clone()));
        }
        for Member { host, node, before, .. } in &mut self.members {
            host.run(|| node.node().tidy().unwrap());
            let deadline = Instant::now() + PATIENCE;
            loop {
                let difference = before.difference(&Dump::take(host));
                if difference.is_empty() {
                    break;
                }
                assert!(Instant::now() < deadline, "{}: {difference}", host.label());
            }
        }
    }
}

/// Who asks or tells whose an address is, in frames that tunnels carry: the addresses that each is about.
pub fn neighbours(wire: &Wiretap) -> BTreeSet<IpAddr> {
    let mut about = BTreeSet::new();
    for packet in wire.heard() {
        let Some(frame) = packet.inside() else { continue };
        let kind = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        let packet = frame.get(14..).unwrap_or_default();
        match kind {
            Some(ARP) => {
                let ends = [14, 24].into_iter().filter_map(|at| packet.get(at..at + 4));
                about.extend(ends.map(|end| IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(end).unwrap()))));
            }
            Some(IPV6) if packet.get(6) == Some(&58) && matches!(packet.get(40), Some(135 | 136)) => {
                let target = packet.get(48..64).unwrap();
                about.insert(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(target).unwrap())));
            }
            _ => {}
        }
    }
    about
}

fn address(over_ipv6: bool, at: usize) -> IpAddr {
    let text = if over_ipv6 { format!("2001:db8::{}", at + 1) } else { format!("192.0.2.{}", at + 1) };
    text.parse().unwrap()
}

fn pool(namespace: &str, range: &str) -> PoolKey {
    PoolKey { network: format!("{namespace}/network/blue"), range: range.parse().unwrap() }
}
