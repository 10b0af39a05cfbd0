//! The fast path for TCP between pods of two nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knit_kernel::Netns;
use knit_kernel::redirect::{DatapathMode, Redirect, RedirectPort, RedirectSpec};
use knit_model::route::GatewayRoute;
use knit_testbed::{Namespace, Pod, Testbed};

/// A Service address, which node 1 translates to the pod of node 2.
const SERVICE: &str = "10.96.0.1:80";
const TARGET: &str = "10.75.2.2:8080";
const TARGET6: &str = "[fd75:2::2]:8080";

/// A node with one pod on its bridge.
struct Node {
    namespace: Namespace,
    netns: Netns,
    pod: Pod,
    number: u8,
}

/// Two nodes on one link, with routes to each other's pods.
struct Nodes {
    _testbed: Testbed,
    nodes: [Node; 2],
}

impl Drop for Node {
    /// Removes the pins, also when a test fails: they outlive the process.
    fn drop(&mut self) {
        let _ = Redirect::new(None).apply(&self.netns, &RedirectSpec::default());
    }
}

impl Nodes {
    fn new() -> Self {
        let testbed = Testbed::new("redirect-nodes");
        let nodes = [1, 2].map(|number| Node::new(&testbed, number));
        testbed.connect(&nodes[0].namespace, "eth0", &nodes[1].namespace, "eth0");
        for node in &nodes {
            node.connect();
        }
        let rules = format!(
            "table ip services {{
                chain first {{ type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 80 dnat to {TARGET}; }}
                chain last {{ type nat hook postrouting priority srcnat; }}
            }}"
        );
        nodes[0].namespace.output("nft", &[&rules]).unwrap();
        nodes[1].pod.tcp_echo(TARGET);
        nodes[1].pod.tcp_echo(TARGET6);
        // Waits until neighbours are resolved and addresses are usable.
        for target in [TARGET, TARGET6] {
            nodes[0].pod.tcp_reaches(target).unwrap();
        }
        Self { _testbed: testbed, nodes }
    }

    fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        self.nodes[0].pod.run(|| {
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            Ok(stream)
        })
    }
}

impl Node {
    fn new(testbed: &Testbed, number: u8) -> Self {
        let namespace = testbed.namespace(&format!("node{number}"));
        let pod = testbed.pod(&format!("pod{number}"));
        testbed.bridge(&namespace, "knit0");
        namespace.address("knit0", &format!("10.75.{number}.1/24"));
        namespace.address("knit0", &format!("fd75:{number}::1/64"));
        testbed.connect(&pod, "eth0", &namespace, "port");
        namespace.enslave("port", "knit0");
        pod.address("eth0", &format!("10.75.{number}.2/24"));
        pod.address("eth0", &format!("fd75:{number}::2/64"));
        pod.ip(&["route", "add", "default", "via", &format!("10.75.{number}.1")]);
        pod.ip(&["route", "add", "default", "via", &format!("fd75:{number}::1")]);
        namespace.set_sysctl("net.ipv4.ip_forward", "1");
        namespace.set_sysctl("net.ipv6.conf.all.forwarding", "1");
        // Like kube-proxy, with a counter of forwarded TCP packets.
        let rules = "table inet strict { chain forward { type filter hook forward priority 0; ct state invalid drop; \
                     meta l4proto tcp counter; }; }";
        namespace.output("nft", &[rules]).unwrap();
        let netns = Netns::open(namespace.path()).unwrap();
        Self { namespace, netns, pod, number }
    }

    /// Adds its routes to the other node.
    fn connect(&self) {
        let own = self.number;
        self.namespace.address("eth0", &format!("192.0.2.{own}/24"));
        self.namespace.address("eth0", &format!("2001:db8::{own}/64"));
        for range in self.ranges() {
            let (to, hop) = (range.to.to_string(), range.gateway.to_string());
            self.namespace.ip(&["route", "add", &to, "via", &hop]);
        }
    }

    fn ranges(&self) -> Vec<GatewayRoute> {
        let other = 3 - self.number;
        [
            (format!("10.75.{other}.0/24"), format!("192.0.2.{other}")),
            (format!("fd75:{other}::/64"), format!("2001:db8::{other}")),
        ]
        .map(|(range, gateway)| GatewayRoute {
            to: range.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            link: "eth0".parse().unwrap(),
        })
        .into()
    }

    fn spec(&self) -> RedirectSpec {
        let shown = self.pod.ip_json(&["link", "show", "dev", "eth0"]);
        let addresses = [format!("10.75.{}.2", self.number), format!("fd75:{}::2", self.number)];
        let port = RedirectPort {
            link: "port".parse().unwrap(),
            mac: shown[0]["address"].as_str().unwrap().parse().unwrap(),
            addresses: addresses.map(|text| text.parse().unwrap()).into(),
        };
        RedirectSpec {
            ports: vec![port],
            bridge: Some("knit0".parse().unwrap()),
            ranges: self.ranges().into(),
        }
    }

    fn redirect(&self) -> Redirect {
        let redirect = Redirect::new(Some(knit_ebpf::OBJECT));
        redirect.apply(&self.netns, &self.spec()).unwrap();
        redirect
    }

    /// The number of TCP packets that the forward chain has seen.
    fn filtered(&self) -> u64 {
        let shown = self.namespace.output("nft", &["list", "chain", "inet", "strict", "forward"]).unwrap();
        let words: Vec<&str> = shown.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "packets").unwrap();
        words[at + 1].parse().unwrap()
    }

    fn uplinks(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf/knit").join(self.netns.cookie().unwrap().to_string()).join("4/uplinks")
    }
}

fn packets(redirect: &Redirect) -> u64 {
    match redirect.mode() {
        DatapathMode::Redirect { packets, .. } => packets,
        other => panic!("{other:?}"),
    }
}

fn talk(stream: &mut TcpStream, word: &str) {
    stream.write_all(word.as_bytes()).unwrap();
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back).unwrap_or_else(|why| panic!("{word}: {why}"));
    assert_eq!(back, word.as_bytes());
}

#[test]
fn tcp_between_pods_of_two_nodes_is_redirected_in_both_families() {
    let all = Nodes::new();
    let redirects = all.nodes.each_ref().map(Node::redirect);
    for target in [TARGET, TARGET6] {
        let (before, observed) =
            (redirects.each_ref().map(packets), all.nodes.each_ref().map(Node::filtered));
        let mut stream = all.connect(target).unwrap();
        talk(&mut stream, "there and back");
        for ((redirect, node), (before, observed)) in
            redirects.iter().zip(&all.nodes).zip(before.into_iter().zip(observed))
        {
            // At least three to open, one request and one reply.
            assert!(packets(redirect) >= before + 5, "{target}: {before}, {:?}", redirect.mode());
            assert_eq!(
                node.filtered(),
                observed,
                "{target}: the packet filter of node {} saw it",
                node.number
            );
        }
    }
    // Large packets too, which segmentation offload merges and splits.
    let mut stream = all.connect(TARGET).unwrap();
    let word = "x".repeat(300_000);
    let mut other = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| other.write_all(word.as_bytes()).unwrap());
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == word.as_bytes());
    });
}

#[test]
fn the_fast_path_works_with_only_one_node_using_it() {
    for which in [0, 1] {
        let all = Nodes::new();
        let redirect = all.nodes[which].redirect();
        for target in [TARGET, TARGET6] {
            let before = packets(&redirect);
            talk(&mut all.connect(target).unwrap(), "there and back");
            assert!(packets(&redirect) >= before + 5, "{which}: {target}");
        }
    }
}

#[test]
fn translated_connections_are_routed_in_both_directions() {
    let all = Nodes::new();
    let redirects = all.nodes.each_ref().map(Node::redirect);
    for _ in 0..3 {
        talk(&mut all.connect(SERVICE).unwrap(), "by the service");
    }
    assert_eq!(packets(&redirects[0]), 0, "translated on this node");
    assert!(packets(&redirects[1]) > 0, "addressed to the pod on that node");
}

#[test]
fn a_closed_port_refuses_connections() {
    let all = Nodes::new();
    let redirects = all.nodes.each_ref().map(Node::redirect);
    let why = all.connect("10.75.2.2:9999").unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused, "{why}");
    assert!(redirects.iter().all(|redirect| packets(redirect) >= 2));
}

#[test]
fn connections_survive_the_removal_of_ranges_and_nothing_is_left_behind() {
    let all = Nodes::new();
    let redirects = all.nodes.each_ref().map(Node::redirect);
    let mut stream = all.connect(TARGET).unwrap();
    talk(&mut stream, "past the routes");
    let count = |node: &Node| std::fs::read_dir(node.uplinks()).unwrap().count();
    assert_eq!(count(&all.nodes[0]), 1);
    for (redirect, node) in redirects.iter().zip(&all.nodes) {
        redirect.apply(&node.netns, &RedirectSpec { ranges: Arc::default(), ..node.spec() }).unwrap();
    }
    let before = redirects.each_ref().map(packets);
    talk(&mut stream, "by the routes");
    assert_eq!(redirects.each_ref().map(packets), before);
    assert_eq!(count(&all.nodes[0]), 0);
    // A new process takes over what an earlier one left.
    drop(all.nodes[0].redirect());
    let redirect = Redirect::new(Some(knit_ebpf::OBJECT));
    redirect
        .apply(&all.nodes[0].netns, &RedirectSpec { ranges: Arc::default(), ..all.nodes[0].spec() })
        .unwrap();
    let before = packets(&redirect);
    talk(&mut all.connect(TARGET).unwrap(), "by the routes still");
    assert_eq!(packets(&redirect), before);
    assert_eq!(count(&all.nodes[0]), 0);
}

#[test]
fn packets_from_an_unexpected_link_are_left_to_routing() {
    let all = Nodes::new();
    let redirect = all.nodes[1].redirect();
    // The ranges of node 1's pods are configured on another link.
    let ranges =
        all.nodes[1].ranges().into_iter().map(|range| GatewayRoute { link: "lo".parse().unwrap(), ..range });
    redirect
        .apply(&all.nodes[1].netns, &RedirectSpec { ranges: ranges.collect(), ..all.nodes[1].spec() })
        .unwrap();
    talk(&mut all.connect(TARGET).unwrap(), "by the routes");
    assert_eq!(packets(&redirect), 0);
}
