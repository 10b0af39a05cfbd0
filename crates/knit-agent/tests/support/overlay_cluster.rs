//! Three nodes on one link that share overlay networks, and an in-memory API server that sends them address
//! blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use knit_agent::Standalone;
use knit_crds::Object;
use knit_engine::blocks::{Block, BlockEvent, PoolKey};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::overlay::{OverlayTunnel, TunnelConfig};
use knit_engine::state::BridgeKey;
use knit_engine::{Event, ObjectKey, StoredObject, Unit};
use knit_ipam::BlockLayout;
use knit_model::intent::TunnelEndpoint;
use knit_model::provenance::Dialect;
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use super::packet_capture::PacketCapture;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
const TIMEOUT: Duration = Duration::from_secs(10);
/// The ranges of every network.
pub const RANGES: [&str; 2] = ["10.60.0.0/24", "fd00:60::/64"];
/// The first address of each range.
pub const GATEWAYS: [&str; 2] = ["10.60.0.1", "fd00:60::1"];
/// The link of a node to a namespace that is not Knit's.
const CONNECTED: &str = "other0";
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

struct Member {
    host: Namespace,
    node: Standalone,
    _folder: TempDir,
    before: Dump,
}

pub struct OverlayCluster {
    testbed: Testbed,
    switch: Namespace,
    over_ipv6: bool,
    members: Vec<Member>,
    pods: BTreeMap<String, Pod>,
    blocks: BTreeMap<String, Block>,
    /// Number of blocks and pods created so far.
    created: usize,
    objects: BTreeSet<ObjectKey>,
}

impl OverlayCluster {
    pub fn new(test: &str, over_ipv6: bool) -> Self {
        let testbed = Testbed::new(test);
        let switch = testbed.namespace("switch");
        testbed.bridge(&switch, "lan0");
        let hosts = NAMES.map(|name| {
            let host = if name == "a" { testbed.host() } else { testbed.namespace(name) };
            let cable = format!("cable-{name}");
            testbed.connect(&host, "eth0", &switch, &cable);
            switch.enslave(&cable, "lan0");
            host
        });
        let members = hosts.into_iter().enumerate().map(|(at, host)| {
            let length = if over_ipv6 { 64 } else { 24 };
            host.address("eth0", &format!("{}/{length}", address(over_ipv6, at)));
            let folder = TempDir::new().unwrap();
            let node = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
            let before = Dump::settled(&host);
            Member { host, node, _folder: folder, before }
        });
        let members = members.collect();
        let (pods, blocks, objects) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut all = Self { testbed, switch, over_ipv6, members, pods, blocks, created: 0, objects };
        all.broadcast(|_| Event::Blocks(BlockEvent::Listed(Vec::new())));
        all
    }

    pub fn handle(&mut self, at: usize, event: Event) {
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.node().handle(event).unwrap());
    }

    fn broadcast(&mut self, event: impl Fn(usize) -> Event) {
        (0..NAMES.len()).for_each(|at| self.handle(at, event(at)));
    }

    /// Applies objects on all nodes, as the API server does.
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
            self.broadcast(|_| Event::ObjectApplied(stored.clone()));
        }
    }

    /// An overlay network, and an interface on it for pods with the label of its name.
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

    /// A node claims the blocks of its number.
    pub fn claim_blocks(&mut self, at: usize, namespace: &str) {
        for range in RANGES {
            let pool = pool(namespace, range);
            let cidr = BlockLayout::default_for(pool.range).block(at as u128).unwrap();
            self.store_block(at, &pool, pool.block_name(at as u128), cidr);
        }
    }

    /// A node claims a single address.
    pub fn claim_address(&mut self, at: usize, namespace: &str, address: &str) {
        let address: IpAddr = address.parse().unwrap();
        let pool = pool(namespace, RANGES[usize::from(address.is_ipv6())]);
        self.store_block(at, &pool, pool.single_address_name(address).unwrap(), address.into());
    }

    fn store_block(&mut self, at: usize, pool: &PoolKey, name: String, cidr: ipnet::IpNet) {
        self.created += 1;
        let uid = format!("uid-{}", self.created);
        let node = NAMES[at].to_owned();
        let block = Block { name: name.clone(), uid, pool: pool.title(), cidr, node, is_local: false };
        self.blocks.insert(name, block.clone());
        self.broadcast(|receiver| {
            Event::Blocks(BlockEvent::Applied(Block { is_local: receiver == at, ..block.clone() }))
        });
        self.update_underlays();
    }

    /// Deletes all blocks of a node.
    pub fn release_blocks(&mut self, at: usize) {
        let released = self.blocks.extract_if(.., |_, block| block.node == NAMES[at]);
        for (name, block) in released.collect::<Vec<_>>() {
            self.broadcast(|_| {
                Event::Blocks(BlockEvent::Deleted { name: name.clone(), uid: block.uid.clone() })
            });
        }
        self.update_underlays();
    }

    fn update_underlays(&mut self) {
        for at in 0..NAMES.len() {
            let over_ipv6 = self.over_ipv6;
            let info = |other: usize| NodeInfo {
                name: NAMES[other].to_owned(),
                is_local: other == at,
                addresses: vec![address(over_ipv6, other)],
                ..NodeInfo::default()
            };
            let listed = NodeEvent::Listed((0..NAMES.len()).map(info).collect());
            self.handle(at, Event::Nodes(listed));
            let endpoints = vec![TunnelEndpoint { address: address(over_ipv6, at), mtu: 1_500 }];
            let tunnels = TunnelConfig { reserved_vni: 7_500, port: 7_475, endpoints };
            self.handle(at, Event::TunnelEndpoints(tunnels));
        }
    }

    /// Adds a pod with the label of an object; it is configured at once.
    pub fn add_pod(&mut self, at: usize, namespace: &str, name: &str, label: &str) {
        self.add_waiting_pod(at, namespace, name, label);
        assert_eq!(self.problems(at), [""; 0]);
    }

    /// Adds a pod with the label of an object.
    pub fn add_waiting_pod(&mut self, at: usize, namespace: &str, name: &str, label: &str) {
        let id = format!("{namespace}/{name}");
        self.created += 1;
        let pod = self.testbed.pod(&format!("{namespace}-{name}-{}", self.created));
        let labels = BTreeMap::from([("podnetwork.opdev.io/veth".to_owned(), label.to_owned())]);
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.add_sandbox(namespace, name, labels, pod.pid()).unwrap());
        self.pods.insert(id, pod);
    }

    pub fn remove_pod(&mut self, at: usize, namespace: &str, name: &str) {
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.delete_sandbox(namespace, name).unwrap());
        host.run_as_agent(|| node.node().clean_up().unwrap());
        self.pods.remove(&format!("{namespace}/{name}"));
    }

    pub fn pod(&self, id: &str) -> &Pod {
        &self.pods[id]
    }

    pub fn ping(&self, from: &str, to: &str) {
        let what = format!("{from} reaches {to}");
        eventually(&what, TIMEOUT, || self.pods[from].ping(to).is_ok());
    }

    pub fn assert_no_ping(&self, from: &str, to: &str) {
        let arguments = ["-n", "-c", "1", "-w", "1", to];
        assert!(self.pods[from].output("ping", &arguments).is_err(), "{from} reaches {to}");
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

    pub fn tunnel(&self, at: usize, namespace: &str) -> Option<OverlayTunnel> {
        let key = BridgeKey { namespace: namespace.to_owned(), name: "vn-blue".parse().unwrap() };
        self.members[at].node.state().units.get(&Unit::Bridge(key))?.tunnel.clone()
    }

    /// The FDB entries of a node's tunnel.
    pub fn fdb_entries(&self, at: usize, namespace: &str) -> String {
        let link = self.tunnel(at, namespace).unwrap().link;
        self.run_command(at, &["bridge", "fdb", "show", "dev", link.as_str()])
    }

    pub fn run_command(&self, at: usize, command: &[&str]) -> String {
        self.members[at].host.output(command[0], &command[1..]).unwrap()
    }

    pub fn ip_json(&self, at: usize, arguments: &[&str]) -> serde_json::Value {
        self.members[at].host.ip_json(arguments)
    }

    pub fn mtu(&self, at: usize, link: &str) -> u64 {
        self.ip_json(at, &["link", "show", link])[0]["mtu"].as_u64().unwrap()
    }

    /// Asserts that a resync finds nothing to do.
    pub fn assert_no_drift(&mut self) {
        for Member { host, node, .. } in &mut self.members {
            let repairs: Vec<String> =
                host.run_as_agent(|| node.repair().unwrap().iter().map(ToString::to_string).collect());
            assert_eq!(repairs, [""; 0], "{}", host.label());
        }
    }

    /// A host on the link of the nodes that is no node.
    pub fn stranger(&self, address: &str) -> Namespace {
        let host = self.testbed.namespace("stranger");
        self.testbed.connect(&host, "eth0", &self.switch, "cable-stranger");
        self.switch.enslave("cable-stranger", "lan0");
        host.address("eth0", address);
        host
    }

    /// A namespace behind a node, with a link that is not Knit's.
    pub fn connected_pod(&self, at: usize, address: &str, gateway: &str) -> Namespace {
        let pod = self.testbed.namespace("connected");
        let host = &self.members[at].host;
        self.testbed.connect(host, CONNECTED, &pod, "eth0");
        host.address(CONNECTED, gateway);
        pod.address("eth0", address);
        pod
    }

    pub fn disconnect_pod(&self, at: usize) {
        self.members[at].host.ip(&["link", "del", CONNECTED]);
    }

    pub fn capture(&self) -> PacketCapture {
        PacketCapture::new(&self.switch, &NAMES.map(|name| format!("cable-{name}")))
    }

    /// Removes everything and asserts that the nodes are as before.
    pub fn remove_all(mut self) {
        for object in std::mem::take(&mut self.objects) {
            self.broadcast(|_| Event::ObjectDeleted(object.clone()));
        }
        for Member { host, node, before, .. } in &mut self.members {
            host.run_as_agent(|| node.node().clean_up().unwrap());
            let deadline = Instant::now() + TIMEOUT;
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

/// The addresses in ARP and neighbour discovery messages inside tunnels.
pub fn resolved_addresses(capture: &PacketCapture) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for packet in capture.packets() {
        let Some(frame) = packet.vxlan_payload() else { continue };
        let kind = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        let packet = frame.get(14..).unwrap_or_default();
        match kind {
            Some(ARP) => {
                let ends = [14, 24].into_iter().filter_map(|at| packet.get(at..at + 4));
                addresses
                    .extend(ends.map(|end| IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(end).unwrap()))));
            }
            Some(IPV6) if packet.get(6) == Some(&58) && matches!(packet.get(40), Some(135 | 136)) => {
                let target = packet.get(48..64).unwrap();
                addresses.insert(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(target).unwrap())));
            }
            _ => {}
        }
    }
    addresses
}

fn address(over_ipv6: bool, at: usize) -> IpAddr {
    let text = if over_ipv6 { format!("2001:db8::{}", at + 1) } else { format!("192.0.2.{}", at + 1) };
    text.parse().unwrap()
}

fn pool(namespace: &str, range: &str) -> PoolKey {
    PoolKey { network: format!("{namespace}/network/blue"), range: range.parse().unwrap() }
}
