//! Three nodes with a pod each: `a` and `b` on one link, `c` behind a router that knows nothing of pods.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use knit_agent::Standalone;
use knit_agent::daemon::Cluster;
use knit_engine::{Event, Unit, cluster};
use knit_kernel::Netns;
use knit_kernel::ways::Links;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint};
use knit_testbed::{Dump, Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use super::wiretap::Wiretap;

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const ALL: [usize; 3] = [A, B, C];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The port that encrypted packets go to.
pub const WIREGUARD: u16 = 7476;
const PATIENCE: Duration = Duration::from_secs(10);

/// As the configuration says it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Auto,
    Native,
    Vxlan,
    /// Encrypted, whatever the transport.
    WireGuard,
}

/// Which addresses nodes have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Ipv4,
    Ipv6,
    Both,
}

struct Member {
    host: Namespace,
    pod: Pod,
    node: Standalone,
    folder: TempDir,
    before: Dump,
}

pub struct Nodes {
    testbed: Testbed,
    router: Namespace,
    over: Over,
    transport: Transport,
    /// The node that is expected to have problems.
    pub troubled: Option<usize>,
    members: Vec<Member>,
}

impl Nodes {
    pub fn new(test: &str, over: Over) -> Self {
        let testbed = Testbed::new(test);
        let router = testbed.namespace("router");
        testbed.bridge(&router, "lan0");
        forward(&router);
        let members = ALL.map(|at| {
            let host = if at == A { testbed.host() } else { testbed.namespace(NAMES[at]) };
            let cable = format!("cable-{}", NAMES[at]);
            testbed.connect(&host, "eth0", &router, &cable);
            forward(&host);
            if at == C {
                routers(over, at).iter().for_each(|own| router.address(&cable, &with_length(own)));
            } else {
                router.enslave(&cable, "lan0");
            }
            addresses(over, at).iter().for_each(|own| host.address("eth0", &with_length(own)));
            (at, host)
        });
        routers(over, A).iter().for_each(|own| router.address("lan0", &with_length(own)));
        let members = members.into_iter().map(|(at, host)| {
            for router in routers(over, at) {
                host.ip(&["route", "add", "default", "via", router, "dev", "eth0"]);
            }
            let pod = testbed.pod(&format!("pod-{}", NAMES[at]));
            let folder = TempDir::new().unwrap();
            let node = host.run(|| Standalone::open(folder.path()).unwrap());
            let before = Dump::settled(&host);
            Member { host, pod, node, folder, before }
        });
        let members = members.collect();
        Self { testbed, router, over, transport: Transport::Auto, troubled: None, members }
    }

    /// Has every node reach the others so, and a pod on each.
    pub fn have(&mut self, transport: Transport) {
        self.transport = transport;
        ALL.into_iter().for_each(|at| self.tell(at, &ALL, transport));
        if transport == Transport::WireGuard {
            // Now each has a key to tell the others.
            ALL.into_iter().for_each(|at| self.tell(at, &ALL, transport));
        }
        ALL.into_iter().for_each(|at| self.plug(at));
        for Member { host, node, .. } in &mut self.members {
            host.run(|| node.node().tidy().unwrap());
        }
    }

    /// A node leaves the cluster: the others do not know it any more.
    pub fn leave(&mut self, gone: usize, transport: Transport) {
        let rest: Vec<usize> = ALL.into_iter().filter(|at| *at != gone).collect();
        for at in &rest {
            self.tell(*at, &rest, transport);
        }
    }

    /// A node does not tell its key, or tells it again.
    pub fn tell_key(&mut self, of: usize, is_told: bool) {
        let silent = (!is_told).then_some(of);
        for at in ALL.into_iter().filter(|at| *at != of) {
            self.tell_all_but(at, &ALL, self.transport, silent);
        }
    }

    /// A node loses all that it knew, and begins anew.
    pub fn lose_state(&mut self, at: usize) {
        let member = &mut self.members[at];
        let folder = TempDir::new().unwrap();
        member.node = member.host.run(|| Standalone::open(folder.path()).unwrap());
        member.folder = folder;
        self.tell(at, &ALL, self.transport);
    }

    /// The key that a node has told.
    pub fn key_of(&self, at: usize) -> Option<String> {
        self.members[at].node.state().public_key().map(|key| key.to_string())
    }

    /// Whether a key that a node made is on its disk.
    pub fn has_key_on_disk(&self, at: usize) -> bool {
        let keys = std::fs::read_dir(self.members[at].folder.path().join("keys"));
        keys.is_ok_and(|keys| keys.count() > 0)
    }

    fn tell(&mut self, at: usize, all: &[usize], transport: Transport) {
        self.tell_all_but(at, all, transport, None);
    }

    /// Tells a node of others. One of them may have told no key.
    fn tell_all_but(&mut self, at: usize, all: &[usize], transport: Transport, silent: Option<usize>) {
        let (over, mtu) = (self.over, self.mtu());
        let keys = ALL.map(|at| self.members[at].node.state().public_key().filter(|_| silent != Some(at)));
        let member = &mut self.members[at];
        let (host, node) = (&member.host, &mut member.node);
        host.run(|| {
            let links = Links::read(&Netns::current().unwrap()).unwrap();
            let peers = all.iter().filter(|other| **other != at).map(|other| {
                let mut peer = PeerNode {
                    name: NAMES[*other].to_owned(),
                    ranges: ranges(*other),
                    addresses: vec![],
                    far: vec![],
                    key: keys[*other],
                };
                for own in addresses(over, *other) {
                    match links.with(own) {
                        Some(link) => peer.addresses.push((own, link.clone())),
                        None => peer.far.push(own),
                    }
                }
                peer
            });
            let ends: Vec<TunnelEndpoint> = addresses(over, at)
                .into_iter()
                .map(|address| TunnelEndpoint { address, mtu: 1500 })
                .collect();
            let tunnel = NodeTunnelIntent {
                node: NAMES[at].to_owned(),
                vni: 7500,
                port: 7475,
                always: transport == Transport::Vxlan,
                ends: ends.clone(),
            };
            let has_tunnels = matches!(transport, Transport::Auto | Transport::Vxlan);
            let encryption = EncryptionIntent { port: WIREGUARD, ends };
            let ways = NodeRoutesIntent {
                nodes: peers.collect(),
                tunnel: has_tunnels.then_some(tunnel),
                encryption: (transport == Transport::WireGuard).then_some(encryption),
                ..NodeRoutesIntent::default()
            };
            let network = Cluster::new(&ranges(at), &"knit0".parse().unwrap(), Some(mtu), &ways);
            node.node().hear(network.applied()).unwrap();
        });
        let problems = self.problems(at);
        assert_eq!(problems.is_empty(), self.troubled != Some(at), "{problems:?}");
    }

    /// What stands in the way on a node.
    pub fn problems(&self, at: usize) -> Vec<String> {
        let problems = self.members[at].node.state().problems.values().flatten();
        problems.map(|(_, problem)| problem.to_string()).collect()
    }

    /// Someone else has the port of a node that encrypted packets come to.
    pub fn take_port(&self, at: usize) -> UdpSocket {
        self.members[at].host.run(|| UdpSocket::bind(("0.0.0.0", WIREGUARD)).unwrap())
    }

    /// Has the pod of a node on its bridge.
    pub fn plug(&mut self, at: usize) {
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

    /// Pings in both families. A bridge that is new cannot ask for a pod's IPv6 address yet: the kernel looks first
    /// whether anyone else has the bridge's own.
    pub fn ping(&self, from: usize, to: usize) {
        for to in ranges(to).into_iter().map(|range| nth(range, 2)) {
            let what = format!("the pod of {} reaches {to}", NAMES[from]);
            eventually(&what, PATIENCE, || self.members[from].pod.ping(to).is_ok());
        }
    }

    pub fn assert_pods_reach_each_other(&self) {
        for from in ALL {
            ALL.into_iter().filter(|to| *to != from).for_each(|to| self.ping(from, to));
        }
    }

    /// A node reaches pods of others, and pods reach other nodes with their own address, also beyond the tunnel.
    pub fn assert_nodes_and_pods_reach_each_other(&self) {
        for (from, to) in [(A, B), (A, C), (C, A), (C, B)] {
            for range in ranges(to) {
                self.members[from].host.ping(nth(range, 2)).unwrap();
            }
            for own in addresses(self.over, to) {
                self.members[from].pod.ping(own).unwrap();
                let echo = self.members[to].host.tcp_echo((own, 8080));
                self.members[from].pod.tcp_reaches(echo.address()).unwrap();
                echo.stop();
            }
        }
    }

    /// What fills a pod's MTU gets through in one piece.
    pub fn assert_large_packets_fit(&self) {
        for (range, header) in ranges(C).into_iter().zip([28, 48]) {
            let (size, to) = ((self.mtu() - header).to_string(), nth(range, 2).to_string());
            let words = ["-n", "-c", "1", "-w", "2", "-M", "do", "-s", &size, &to];
            self.members[A].pod.output("ping", &words).unwrap();
        }
    }

    /// How many packets the tunnel of a node carried while something was done.
    pub fn counted(&self, at: usize, work: impl FnOnce()) -> u64 {
        let before = self.packets(at);
        work();
        self.packets(at) - before
    }

    fn packets(&self, at: usize) -> u64 {
        let link = match (self.transport, self.over) {
            (Transport::WireGuard, _) => "knitwg0",
            (_, Over::Ipv4 | Over::Both) => "knitvx4",
            (_, Over::Ipv6) => "knitvx6",
        };
        let seen = self.members[at].host.ip_json(&["-s", "link", "show", link]);
        let of = |way: &str| seen[0]["stats64"][way]["packets"].as_u64().unwrap();
        of("rx").min(of("tx"))
    }

    /// Listens to all that goes from one node to another.
    pub fn listen(&self) -> Wiretap {
        let cables = NAMES.map(|name| format!("cable-{name}"));
        Wiretap::new(&self.router, &cables)
    }

    /// The pod of a node does not reach that of another.
    pub fn assert_cut_off(&self, from: usize, to: usize) {
        for to in ranges(to).into_iter().map(|range| nth(range, 2)) {
            let words = ["-n", "-c", "1", "-w", "1", &to.to_string()];
            assert!(self.members[from].pod.output("ping", &words).is_err(), "{to} is reached");
        }
    }

    /// What fits into a packet of 1500 bytes.
    fn mtu(&self) -> u32 {
        match (self.transport, self.over) {
            (Transport::WireGuard, Over::Ipv4 | Over::Both) => 1440,
            (Transport::WireGuard, Over::Ipv6) => 1420,
            (_, Over::Ipv4 | Over::Both) => 1450,
            (_, Over::Ipv6) => 1430,
        }
    }

    /// How pods of others are reached, in words.
    pub fn told(&self, at: usize) -> Vec<String> {
        let made = &self.members[at].node.state().made[&Unit::NodeRoutes];
        made.items.iter().map(|(_, item)| item.what.clone()).collect()
    }

    pub fn warned(&self, at: usize) -> Vec<String> {
        self.members[at].node.state().report(&cluster::key()).unwrap().warnings
    }

    /// The hardware address of a node in tunnels.
    pub fn mac_of(&self, at: usize) -> String {
        let seen = self.members[at].host.ip_json(&["link", "show", "knitvx4"]);
        seen[0]["address"].as_str().unwrap().to_owned()
    }

    pub fn do_by_hand(&self, at: usize, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.members[at].host.output(words[0], &words[1..]).unwrap();
    }

    pub fn has(&self, at: usize, words: &[&str], what: &str) -> bool {
        self.members[at].host.output(words[0], &words[1..]).unwrap().contains(what)
    }

    pub fn repair(&mut self, at: usize) -> Vec<String> {
        let Member { host, node, .. } = &mut self.members[at];
        host.run(|| node.repair().unwrap().iter().map(ToString::to_string).collect())
    }

    /// Comparing everything finds nothing to do.
    pub fn assert_at_rest(&mut self) {
        for at in ALL {
            assert_eq!(self.repair(at), [""; 0], "node {}", NAMES[at]);
        }
    }

    pub fn dumps(&self) -> Vec<Dump> {
        self.members.iter().map(|member| Dump::settled(&member.host)).collect()
    }

    pub fn assert_like(&self, expected: &[Dump]) {
        for (member, expected) in self.members.iter().zip(expected) {
            let mut difference = String::new();
            let what = format!("the node {} looks as it did", member.host.label());
            let mut is_same = || {
                difference = expected.difference(&Dump::take(&member.host));
                difference.is_empty()
            };
            let deadline = Instant::now() + PATIENCE;
            while !is_same() {
                assert!(Instant::now() < deadline, "{what}: {difference}");
            }
        }
    }

    /// Takes everything away again: nodes look as they did before.
    pub fn remove_all(mut self) {
        for Member { host, pod, node, .. } in &mut self.members {
            pod.namespace().ip(&["link", "del", "eth0"]);
            let gone = Event::ObjectDeleted(cluster::key());
            host.run(|| node.node().hear(gone).unwrap());
            host.run(|| node.node().tidy().unwrap());
        }
        let before: Vec<Dump> = self.members.iter().map(|member| member.before.clone()).collect();
        self.assert_like(&before);
    }
}

/// What Kubernetes asks of a node anyway; and it is strict about where packets come from.
fn forward(host: &Namespace) {
    host.set_sysctl("net.ipv4.ip_forward", "1");
    host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
    host.set_sysctl("net.ipv4.conf.all.rp_filter", "1");
}

/// The node's addresses.
fn addresses(over: Over, at: usize) -> Vec<IpAddr> {
    let ipv4 = ["192.0.2.1", "192.0.2.2", "203.0.113.3"][at];
    let ipv6 = ["2001:db8:2::1", "2001:db8:2::2", "2001:db8:3::3"][at];
    of(over, ipv4, ipv6).iter().map(|text| text.parse().unwrap()).collect()
}

/// The router's addresses on a node's link.
fn routers(over: Over, at: usize) -> Vec<&'static str> {
    match at {
        C => of(over, "203.0.113.254", "2001:db8:3::fe"),
        _ => of(over, "192.0.2.254", "2001:db8:2::fe"),
    }
}

fn of<'a>(over: Over, ipv4: &'a str, ipv6: &'a str) -> Vec<&'a str> {
    match over {
        Over::Ipv4 => vec![ipv4],
        Over::Ipv6 => vec![ipv6],
        Over::Both => vec![ipv4, ipv6],
    }
}

fn with_length(address: impl ToString) -> String {
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
