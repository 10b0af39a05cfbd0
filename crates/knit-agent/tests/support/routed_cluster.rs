//! Three nodes with a pod each: `a` and `b` on one link, `c` behind a router without routes to pods.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::{Event, Unit, cluster};
use knit_kernel::Netns;
use knit_kernel::connected_routes::connected_routes;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, NodeTunnelIntent, TunnelEndpoint};
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use super::packet_capture::PacketCapture;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const ALL: [usize; 3] = [A, B, C];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The WireGuard port.
pub const WIREGUARD: u16 = 7476;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Transport between nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Auto,
    Native,
    Vxlan,
    /// Encrypted, whatever the transport.
    WireGuard,
}

/// Address families of the nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NodeFamilies {
    Ipv4,
    Ipv6,
    DualStack,
}

struct Member {
    host: Namespace,
    pod: Pod,
    node: Standalone,
    folder: TempDir,
    before: Dump,
}

pub struct RoutedCluster {
    testbed: Testbed,
    router: Namespace,
    families: NodeFamilies,
    transport: Transport,
    /// The node that is expected to report problems.
    pub failing_node: Option<usize>,
    members: Vec<Member>,
}

impl RoutedCluster {
    pub fn new(test: &str, families: NodeFamilies) -> Self {
        let testbed = Testbed::new(test);
        let router = testbed.namespace("router");
        testbed.bridge(&router, "lan0");
        configure_forwarding(&router);
        let members = ALL.map(|at| {
            let host = if at == A { testbed.host() } else { testbed.namespace(NAMES[at]) };
            let cable = format!("cable-{}", NAMES[at]);
            testbed.connect(&host, "eth0", &router, &cable);
            configure_forwarding(&host);
            if at == C {
                routers(families, at).iter().for_each(|own| router.address(&cable, &with_prefix_length(own)));
            } else {
                router.enslave(&cable, "lan0");
            }
            addresses(families, at).iter().for_each(|own| host.address("eth0", &with_prefix_length(own)));
            (at, host)
        });
        routers(families, A).iter().for_each(|own| router.address("lan0", &with_prefix_length(own)));
        let members = members.into_iter().map(|(at, host)| {
            for router in routers(families, at) {
                host.ip(&["route", "add", "default", "via", router, "dev", "eth0"]);
            }
            let pod = testbed.pod(&format!("pod-{}", NAMES[at]));
            let folder = TempDir::new().unwrap();
            let node = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
            let before = Dump::settled(&host);
            Member { host, pod, node, folder, before }
        });
        let members = members.collect();
        Self { testbed, router, families, transport: Transport::Auto, failing_node: None, members }
    }

    /// Configures the transport on all nodes, and a pod on each.
    pub fn configure(&mut self, transport: Transport) {
        self.transport = transport;
        ALL.into_iter().for_each(|at| self.update_peers(at, &ALL, transport));
        if transport == Transport::WireGuard {
            // Each node now has a key for the others.
            ALL.into_iter().for_each(|at| self.update_peers(at, &ALL, transport));
        }
        ALL.into_iter().for_each(|at| self.connect_pod(at));
        for Member { host, node, .. } in &mut self.members {
            host.run_as_agent(|| node.node().clean_up().unwrap());
        }
    }

    /// Removes a node from the peers of the others.
    pub fn remove_node(&mut self, removed: usize, transport: Transport) {
        let rest: Vec<usize> = ALL.into_iter().filter(|at| *at != removed).collect();
        for at in &rest {
            self.update_peers(*at, &rest, transport);
        }
    }

    /// Publishes or withdraws the key of a node.
    pub fn publish_key(&mut self, of: usize, is_published: bool) {
        let without_key = (!is_published).then_some(of);
        for at in ALL.into_iter().filter(|at| *at != of) {
            self.update_peers_without_key(at, &ALL, self.transport, without_key);
        }
    }

    /// Restarts a node without its state folder.
    pub fn lose_state(&mut self, at: usize) {
        let member = &mut self.members[at];
        let folder = TempDir::new().unwrap();
        member.node = member.host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        member.folder = folder;
        self.update_peers(at, &ALL, self.transport);
    }

    /// The published key of a node.
    pub fn key_of(&self, at: usize) -> Option<String> {
        self.members[at].node.state().public_key().map(|key| key.to_string())
    }

    /// Whether the node stores a generated key on disk.
    pub fn has_key_on_disk(&self, at: usize) -> bool {
        let keys = std::fs::read_dir(self.members[at].folder.path().join("keys"));
        keys.is_ok_and(|keys| keys.count() > 0)
    }

    fn update_peers(&mut self, at: usize, all: &[usize], transport: Transport) {
        self.update_peers_without_key(at, all, transport, None);
    }

    /// Gives a node its peers. One of them may have no key.
    fn update_peers_without_key(
        &mut self,
        at: usize,
        all: &[usize],
        transport: Transport,
        without_key: Option<usize>,
    ) {
        let (families, mtu) = (self.families, self.mtu());
        let keys =
            ALL.map(|at| self.members[at].node.state().public_key().filter(|_| without_key != Some(at)));
        let member = &mut self.members[at];
        let (host, node) = (&member.host, &mut member.node);
        host.run_as_agent(|| {
            let connected = connected_routes(&Netns::current().unwrap()).unwrap();
            let info = |other: &usize| NodeInfo {
                name: NAMES[*other].to_owned(),
                is_local: *other == at,
                ranges: ranges(*other),
                addresses: addresses(families, *other),
                other_addresses: Vec::new(),
                is_ready: true,
                key: keys[*other],
            };
            let listed = NodeEvent::Listed(all.iter().map(info).collect());
            let ends: Vec<TunnelEndpoint> = addresses(families, at)
                .into_iter()
                .map(|address| TunnelEndpoint { address, mtu: 1500 })
                .collect();
            let tunnel = NodeTunnelIntent {
                node: NAMES[at].to_owned(),
                vni: 7500,
                port: 7475,
                always: transport == Transport::Vxlan,
                endpoints: ends.clone(),
            };
            let has_tunnels = matches!(transport, Transport::Auto | Transport::Vxlan);
            let encryption = EncryptionIntent { port: WIREGUARD, endpoints: ends };
            let node_routes = NodeRoutesIntent {
                tunnel: has_tunnels.then_some(tunnel),
                encryption: (transport == Transport::WireGuard).then_some(encryption),
                ..NodeRoutesIntent::default()
            };
            let network = ClusterNetworkObject::new(
                &ranges(at),
                &"knit0".parse().unwrap(),
                Some(mtu),
                Some(&node_routes),
            );
            for event in [NodeEvent::Connected(connected), listed] {
                node.node().handle(Event::Nodes(event)).unwrap();
            }
            node.node().handle(network.applied()).unwrap();
        });
        let problems = self.problems(at);
        assert_eq!(problems.is_empty(), self.failing_node != Some(at), "{problems:?}");
    }

    /// Problems that a node reports.
    pub fn problems(&self, at: usize) -> Vec<String> {
        let problems = self.members[at].node.state().problems.values().flatten();
        problems.map(|(_, problem)| problem.to_string()).collect()
    }

    /// Occupies the WireGuard port of a node.
    pub fn occupy_wireguard_port(&self, at: usize) -> UdpSocket {
        self.members[at].host.run(|| UdpSocket::bind(("0.0.0.0", WIREGUARD)).unwrap())
    }

    /// Connects the pod of a node to its bridge.
    pub fn connect_pod(&mut self, at: usize) {
        let Member { host, pod, .. } = &self.members[at];
        let (pod, port, mtu) = (pod.namespace(), format!("pod-{}", NAMES[at]), self.mtu());
        if host.output("ip", &["link", "show", &port]).is_err() {
            self.testbed.connect(pod, "eth0", host, &port);
            for range in ranges(at) {
                pod.address("eth0", &format!("{}/{}", nth(range, 2), range.prefix_len()));
                let gateway = nth(range, 1).to_string();
                pod.ip(&["route", "add", "default", "via", &gateway, "dev", "eth0"]);
            }
        }
        pod.ip(&["link", "set", "eth0", "mtu", &mtu.to_string()]);
        host.enslave(&port, "knit0");
    }

    /// Pings in both families. A new bridge resolves IPv6 neighbours only after duplicate address detection of its
    /// own address.
    pub fn ping(&self, from: usize, to: usize) {
        for to in ranges(to).into_iter().map(|range| nth(range, 2)) {
            let what = format!("the pod of {} reaches {to}", NAMES[from]);
            eventually(&what, TIMEOUT, || self.members[from].pod.ping(to).is_ok());
        }
    }

    pub fn assert_pods_reach_each_other(&self) {
        for from in ALL {
            ALL.into_iter().filter(|to| *to != from).for_each(|to| self.ping(from, to));
        }
    }

    /// RoutedCluster reach remote pods, and pods reach other nodes with their own address, with and without a tunnel.
    pub fn assert_nodes_and_pods_reach_each_other(&self) {
        for (from, to) in [(A, B), (A, C), (C, A), (C, B)] {
            for range in ranges(to) {
                self.members[from].host.ping(nth(range, 2)).unwrap();
            }
            for own in addresses(self.families, to) {
                self.members[from].pod.ping(own).unwrap();
                let echo = self.members[to].host.tcp_echo((own, 8080));
                self.members[from].pod.tcp_reaches(echo.address()).unwrap();
                echo.stop();
            }
        }
    }

    /// Packets of the pod's full MTU pass without fragmentation.
    pub fn assert_large_packets_fit(&self) {
        for (range, header) in ranges(C).into_iter().zip([28, 48]) {
            let (size, to) = ((self.mtu() - header).to_string(), nth(range, 2).to_string());
            let arguments = ["-n", "-c", "1", "-w", "2", "-M", "do", "-s", &size, &to];
            self.members[A].pod.output("ping", &arguments).unwrap();
        }
    }

    /// Packets that the tunnel of a node carries while `work` runs.
    pub fn tunnel_packets_during(&self, at: usize, work: impl FnOnce()) -> u64 {
        let before = self.packets(at);
        work();
        self.packets(at) - before
    }

    fn packets(&self, at: usize) -> u64 {
        let name = match (self.transport, self.families) {
            (Transport::WireGuard, _) => "knitwg0",
            (_, NodeFamilies::Ipv4 | NodeFamilies::DualStack) => "knitvx4",
            (_, NodeFamilies::Ipv6) => "knitvx6",
        };
        let link = self.members[at].host.ip_json(&["-s", "link", "show", name]);
        let of = |direction: &str| link[0]["stats64"][direction]["packets"].as_u64().unwrap();
        of("rx").min(of("tx"))
    }

    /// Captures all traffic between nodes.
    pub fn capture(&self) -> PacketCapture {
        let cables = NAMES.map(|name| format!("cable-{name}"));
        PacketCapture::new(&self.router, &cables)
    }

    /// Asserts that the pod of a node does not reach that of another.
    pub fn assert_unreachable(&self, from: usize, to: usize) {
        for to in ranges(to).into_iter().map(|range| nth(range, 2)) {
            let arguments = ["-n", "-c", "1", "-w", "1", &to.to_string()];
            assert!(self.members[from].pod.output("ping", &arguments).is_err(), "{to} is reached");
        }
    }

    /// The MTU inside a 1500 byte packet.
    fn mtu(&self) -> u32 {
        match (self.transport, self.families) {
            (Transport::WireGuard, NodeFamilies::Ipv4 | NodeFamilies::DualStack) => 1440,
            (Transport::WireGuard, NodeFamilies::Ipv6) => 1420,
            (_, NodeFamilies::Ipv4 | NodeFamilies::DualStack) => 1450,
            (_, NodeFamilies::Ipv6) => 1430,
        }
    }

    /// How a node reaches the pods of others.
    pub fn route_descriptions(&self, at: usize) -> Vec<String> {
        let made = &self.members[at].node.state().units[&Unit::NodeRoutes];
        made.items.iter().map(|(_, item)| item.description.clone()).collect()
    }

    pub fn warnings(&self, at: usize) -> Vec<String> {
        self.members[at].node.state().report(&cluster::key()).unwrap().warnings
    }

    /// The MAC of a node's tunnel link.
    pub fn mac_of(&self, at: usize) -> String {
        let link = self.members[at].host.ip_json(&["link", "show", "knitvx4"]);
        link[0]["address"].as_str().unwrap().to_owned()
    }

    pub fn run_command(&self, at: usize, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        self.members[at].host.output(words[0], &words[1..]).unwrap();
    }

    pub fn output_contains(&self, at: usize, command: &[&str], text: &str) -> bool {
        self.members[at].host.output(command[0], &command[1..]).unwrap().contains(text)
    }

    pub fn repair(&mut self, at: usize) -> Vec<String> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run_as_agent(|| node.repair().unwrap().iter().map(ToString::to_string).collect())
    }

    /// Asserts that a resync finds nothing to do.
    pub fn assert_no_drift(&mut self) {
        for at in ALL {
            assert_eq!(self.repair(at), [""; 0], "node {}", NAMES[at]);
        }
    }

    pub fn dumps(&self) -> Vec<Dump> {
        self.members.iter().map(|member| Dump::settled(&member.host)).collect()
    }

    pub fn assert_matches(&self, expected: &[Dump]) {
        for (member, expected) in self.members.iter().zip(expected) {
            let mut difference = String::new();
            let what = format!("node {} is unchanged", member.host.label());
            let mut is_same = || {
                difference = expected.difference(&Dump::take(&member.host));
                difference.is_empty()
            };
            let deadline = Instant::now() + TIMEOUT;
            while !is_same() {
                assert!(Instant::now() < deadline, "{what}: {difference}");
            }
        }
    }

    /// Removes everything and asserts that the nodes are as before.
    pub fn remove_all(mut self) {
        for Member { host, pod, node, .. } in &mut self.members {
            pod.namespace().ip(&["link", "del", "eth0"]);
            let deleted = Event::ObjectDeleted(cluster::key());
            host.run_as_agent(|| node.node().handle(deleted).unwrap());
            host.run_as_agent(|| node.node().clean_up().unwrap());
        }
        let before: Vec<Dump> = self.members.iter().map(|member| member.before.clone()).collect();
        self.assert_matches(&before);
    }
}

/// What Kubernetes requires of a node, and strict reverse path filtering.
fn configure_forwarding(host: &Namespace) {
    host.set_sysctl("net.ipv4.ip_forward", "1");
    host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
    host.set_sysctl("net.ipv4.conf.all.rp_filter", "1");
}

/// The node's addresses.
fn addresses(families: NodeFamilies, at: usize) -> Vec<IpAddr> {
    let ipv4 = ["192.0.2.1", "192.0.2.2", "203.0.113.3"][at];
    let ipv6 = ["2001:db8:2::1", "2001:db8:2::2", "2001:db8:3::3"][at];
    by_family(families, ipv4, ipv6).iter().map(|text| text.parse().unwrap()).collect()
}

/// The router's addresses on a node's link.
fn routers(families: NodeFamilies, at: usize) -> Vec<&'static str> {
    match at {
        C => by_family(families, "203.0.113.254", "2001:db8:3::fe"),
        _ => by_family(families, "192.0.2.254", "2001:db8:2::fe"),
    }
}

fn by_family<'a>(families: NodeFamilies, ipv4: &'a str, ipv6: &'a str) -> Vec<&'a str> {
    match families {
        NodeFamilies::Ipv4 => vec![ipv4],
        NodeFamilies::Ipv6 => vec![ipv6],
        NodeFamilies::DualStack => vec![ipv4, ipv6],
    }
}

fn with_prefix_length(address: impl ToString) -> String {
    let address = address.to_string();
    if address.contains(':') { format!("{address}/64") } else { format!("{address}/24") }
}

fn ranges(at: usize) -> Vec<IpNet> {
    let number = at + 1;
    vec![format!("10.1.{number}.0/24").parse().unwrap(), format!("fd01:{number}::/64").parse().unwrap()]
}

fn nth(range: IpNet, number: usize) -> IpAddr {
    match range.network() {
        IpAddr::V4(network) => IpAddr::from((u32::from(network) + number as u32).to_be_bytes()),
        IpAddr::V6(network) => IpAddr::from((u128::from(network) + number as u128).to_be_bytes()),
    }
}
