//! The fast path for TCP between pods of one node.

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knit_kernel::Netns;
use knit_kernel::redirect::{DatapathMode, Redirect, RedirectPort, RedirectSpec};
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

/// A Service address, which the node translates to that of pod b.
const SERVICE: &str = "10.96.0.1:80";
const TARGET: &str = "10.75.0.3:8080";

/// A node with a bridge, two pods on it, and rules like those of kube-proxy.
struct Node {
    testbed: Testbed,
    host: Netns,
    pods: [Pod; 2],
}

impl Drop for Node {
    /// Removes the pins, also when a test fails: they outlive the process.
    fn drop(&mut self) {
        let _ = Redirect::new(None).apply(&self.host, &RedirectSpec::default());
    }
}

impl Node {
    fn new(name: &str) -> Self {
        let testbed = Testbed::new(name);
        let host = testbed.host();
        let pods = [testbed.pod("a"), testbed.pod("b")];
        testbed.bridge(&host, "knit0");
        host.address("knit0", "10.75.0.1/24");
        host.address("knit0", "fd75::1/64");
        for (pod, number) in pods.iter().zip(2..) {
            let port = format!("port{number}");
            testbed.connect(pod, "eth0", &host, &port);
            host.enslave(&port, "knit0");
            pod.address("eth0", &format!("10.75.0.{number}/24"));
            pod.address("eth0", &format!("fd75::{number}/64"));
            pod.ip(&["route", "add", "default", "via", "10.75.0.1"]);
        }
        host.set_sysctl("net.ipv4.ip_forward", "1");
        host.set_sysctl("net.bridge.bridge-nf-call-iptables", "1");
        let rules = format!(
            "table ip services {{
                chain first {{ type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 80 dnat to {TARGET}; }}
                chain last {{ type nat hook postrouting priority srcnat; }}
            }}"
        );
        host.output("nft", &[&rules]).unwrap();
        let netns = Netns::open(host.path()).unwrap();
        pods[1].tcp_echo(TARGET);
        pods[1].tcp_echo("[fd75::3]:8080");
        Self { testbed, host: netns, pods }
    }

    fn namespace(&self) -> Namespace {
        self.testbed.host()
    }

    fn ports(&self) -> Vec<RedirectPort> {
        self.pods
            .iter()
            .zip(2..)
            .map(|(pod, number)| RedirectPort {
                link: format!("port{number}").parse().unwrap(),
                mac: pod.ip_json(&["link", "show", "dev", "eth0"])[0]["address"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap(),
                addresses: [format!("10.75.0.{number}"), format!("fd75::{number}")]
                    .map(|text| text.parse().unwrap())
                    .into(),
            })
            .collect()
    }

    fn redirect(&self) -> Redirect {
        let redirect = Redirect::new(Some(knit_ebpf::OBJECT));
        redirect.apply(&self.host, &spec(self.ports())).unwrap();
        redirect
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf/knit").join(self.host.cookie().unwrap().to_string())
    }

    /// A connection from pod a, from a given source port.
    fn connect(&self, from: u16, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        let SocketAddr::V4(to) = to else { panic!("{to} is no IPv4 address") };
        self.pods[0].run(|| {
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
            setsockopt(&socket, sockopt::ReuseAddr, &true)?;
            // A SYN without a reply must not delay the test.
            setsockopt(&socket, sockopt::TcpUserTimeout, &2_000)?;
            let source = SockaddrIn::from(SocketAddrV4::new("10.75.0.2".parse().unwrap(), from));
            bind(socket.as_raw_fd(), &source)?;
            connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            Ok(stream)
        })
    }
}

fn spec(ports: Vec<RedirectPort>) -> RedirectSpec {
    RedirectSpec { ports, ..RedirectSpec::default() }
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
fn tcp_between_pods_is_redirected_in_both_families() {
    let node = Node::new("redirect");
    let redirect = node.redirect();
    // Other protocols use the bridge.
    node.pods[1].udp_echo("10.75.0.3:9");
    node.pods[0].udp_reaches("10.75.0.3:9").unwrap();
    node.pods[0].ping("10.75.0.3").unwrap();
    assert_eq!(packets(&redirect), 0);
    for address in [TARGET, "[fd75::3]:8080"] {
        let before = packets(&redirect);
        node.pods[0].tcp_reaches(address).unwrap();
        // At least three to open, one request and one reply.
        assert!(packets(&redirect) >= before + 5, "{address}: {before}, {:?}", redirect.mode());
    }
}

#[test]
fn a_closed_port_refuses_connections_although_the_node_drops_invalid_packets() {
    let node = Node::new("redirect");
    // Like kube-proxy.
    let rules = "table inet strict { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }";
    node.namespace().output("nft", &[rules]).unwrap();
    let redirect = node.redirect();
    let why = node.connect(40_003, "10.75.0.3:9999").unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused, "{why}");
    assert!(packets(&redirect) >= 2);
}

#[test]
fn translated_connections_use_the_bridge_in_both_directions() {
    let node = Node::new("redirect");
    let redirect = node.redirect();
    for _ in 0..3 {
        node.pods[0].tcp_reaches(SERVICE).unwrap();
    }
    assert_eq!(packets(&redirect), 0);
}

/// Connects as soon as the last packet of an earlier connection from this port was acknowledged.
fn connect_when_free(node: &Node, port: u16, target: &str) -> TcpStream {
    let mut connected = None;
    eventually("the port is free", Duration::from_secs(10), || {
        match node.connect(port, target) {
            Ok(stream) => connected = Some(stream),
            Err(why) => assert_eq!(why.kind(), std::io::ErrorKind::AddrNotAvailable, "{why}"),
        }
        connected.is_some()
    });
    connected.unwrap()
}

#[test]
fn a_source_port_of_a_direct_connection_can_be_reused_for_a_service() {
    let node = Node::new("redirect");
    // A closed port can be reused immediately, without TIME_WAIT.
    node.pods[0].set_sysctl("net.ipv4.tcp_max_tw_buckets", "0");
    let redirect = node.redirect();
    for round in 0..3 {
        let mut direct = connect_when_free(&node, 40_000, TARGET);
        talk(&mut direct, "direct");
        drop(direct);
        let redirected = packets(&redirect);
        assert!(round > 0 || redirected > 0);
        talk(&mut connect_when_free(&node, 40_000, SERVICE), "by the service");
    }
}

#[test]
fn a_service_connection_survives_a_direct_one_from_the_same_port() {
    let node = Node::new("redirect");
    // The program has not seen the start of this connection.
    let mut older = node.connect(40_001, SERVICE).unwrap();
    talk(&mut older, "before the program");
    let redirect = node.redirect();
    let mut service = node.connect(40_002, SERVICE).unwrap();
    talk(&mut service, "by the service");
    // NAT gives it another source port.
    let mut direct = node.connect(40_002, TARGET).unwrap();
    talk(&mut direct, "direct");
    talk(&mut service, "still by the service");
    // This one cannot be distinguished from the older one, and gets no reply.
    let _ = node.connect(40_001, TARGET);
    talk(&mut older, "still there");
    talk(&mut direct, "still direct");
    drop(redirect);
}

#[test]
fn packets_with_spoofed_addresses_are_left_to_the_bridge() {
    let node = Node::new("redirect");
    let redirect = node.redirect();
    let pod = &node.pods[0];
    pod.address("eth0", "10.75.0.77/24");
    pod.ip(&["route", "add", "10.75.0.3/32", "dev", "eth0", "src", "10.75.0.77"]);
    pod.tcp_reaches(TARGET).unwrap();
    assert_eq!(packets(&redirect), 0);
    pod.ip(&["route", "del", "10.75.0.3/32"]);
    pod.tcp_reaches(TARGET).unwrap();
    let genuine = packets(&redirect);
    assert!(genuine > 0);
    pod.ip(&["link", "set", "dev", "eth0", "address", "02:00:00:00:00:99"]);
    node.pods[0].tcp_reaches(TARGET).unwrap();
    // At most the four packets that close the previous connection were still in flight.
    assert!(packets(&redirect) < genuine + 5);
}

#[test]
fn a_connection_survives_a_restart_of_the_process() {
    let node = Node::new("redirect");
    let redirect = node.redirect();
    let mut stream = node.connect(40_003, TARGET).unwrap();
    talk(&mut stream, "before");
    let before = packets(&redirect);
    drop(redirect);
    talk(&mut stream, "in between");
    // The next process replaces the program and reads back the maps.
    let redirect = node.redirect();
    let between = packets(&redirect);
    assert!(between > before);
    talk(&mut stream, "after");
    assert!(packets(&redirect) > between);
}

#[test]
fn nothing_is_left_behind_by_deleted_pods() {
    let node = Node::new("redirect");
    let redirect = node.redirect();
    let links = node.pins().join("4/links");
    let count = || std::fs::read_dir(&links).unwrap().count();
    assert_eq!(count(), 2);
    // A recreated link has another index, and the record of the old one remains.
    node.pods[1].ip(&["link", "del", "eth0"]);
    redirect.forget_links(&[&"port3".parse().unwrap()].into());
    node.testbed.connect(&node.pods[1], "eth0", &node.namespace(), "port3");
    node.namespace().enslave("port3", "knit0");
    node.pods[1].address("eth0", "10.75.0.3/24");
    node.pods[0].tcp_reaches(TARGET).unwrap();
    let before = packets(&redirect);
    redirect.apply(&node.host, &spec(node.ports())).unwrap();
    node.pods[0].tcp_reaches(TARGET).unwrap();
    assert!(packets(&redirect) > before);
    assert_eq!(count(), 2);
    // The same with a new process that was not notified.
    drop(redirect);
    let ports = node.ports();
    node.pods[1].ip(&["link", "del", "eth0"]);
    let redirect = Redirect::new(Some(knit_ebpf::OBJECT));
    redirect.apply(&node.host, &spec(ports[..1].to_vec())).unwrap();
    assert_eq!(count(), 1);
    let filters = || node.namespace().output("tc", &["filter", "show", "dev", "port2", "ingress"]).unwrap();
    assert!(filters().contains("direct-action"), "{}", filters());
    redirect.apply(&node.host, &RedirectSpec::default()).unwrap();
    assert!(!node.pins().exists());
    assert_eq!(filters(), "", "the port remains, without a filter");
    assert_eq!(redirect.mode(), DatapathMode::Bridge);
}

#[test]
fn a_rejected_program_leaves_all_packets_to_the_bridge_and_reports_the_reason() {
    let node = Node::new("redirect");
    drop(node.redirect());
    let redirect = Arc::new(Redirect::new(Some(b"no object file")));
    let why = redirect.apply(&node.host, &spec(node.ports())).unwrap_err().to_string();
    assert!(why.contains("eBPF program") && why.contains("6.6"), "{why}");
    assert_eq!(redirect.mode(), DatapathMode::Unavailable { reason: why });
    assert!(!node.pins().exists());
    // The error is returned once.
    redirect.apply(&node.host, &spec(node.ports())).unwrap();
    node.pods[0].tcp_reaches(TARGET).unwrap();
}
