//! The eBPF fast path: TCP between pods of the cluster network bypasses the bridge.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::agent::{Machine, attach, folder, netns};
use crate::support::frames::{Wire, mac, packet};
use knit_kernel::Netns;
use knit_kernel::redirect::{Redirect, RedirectSpec};
use knit_kni::v1;
use knit_testbed::{Pod, eventually};

const TARGET: &str = "10.75.0.3:8080";
const METRICS: u16 = 9475;
const TIMEOUT: Duration = Duration::from_secs(10);
const AGENT_FLAGS: [&str; 5] =
    ["--cluster-anti-spoofing", "--cluster-data-path", "ebpf", "--resync-seconds", "1"];

/// A host whose BPF pins are removed on drop, also if a test fails: pins outlive processes.
struct Host {
    machine: Machine,
    netns: Netns,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Redirect::new(None).apply(&self.netns, &RedirectSpec::default());
    }
}

impl Host {
    fn new(test: &str) -> Self {
        let machine = Machine::new(test);
        let netns = Netns::open(machine.host.path()).unwrap();
        Self { machine, netns }
    }

    fn agent(&self) -> crate::support::agent::Agent<'_> {
        self.machine.agent_with(&AGENT_FLAGS, &[("KNIT_METRICS_ADDR", &format!("127.0.0.1:{METRICS}"))])
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.machine.get(METRICS, "/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    }

    fn packets(&self) -> u64 {
        self.metric("knit_redirect_packets_total")
    }

    #[track_caller]
    fn wait_for_ports(&self, number: u64) {
        eventually(&format!("{number} ports"), TIMEOUT, || self.metric("knit_redirect_ports") == number);
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf/knit").join(self.netns.cookie().unwrap().to_string())
    }
}

fn connect(from: &Pod) -> TcpStream {
    let stream = from.run(|| TcpStream::connect(TARGET)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

#[track_caller]
fn assert_echo(stream: &mut TcpStream, message: &str) {
    stream.write_all(message.as_bytes()).unwrap();
    let mut back = vec![0; message.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, message.as_bytes());
}

fn limited(id: &str, pod: &Pod) -> v1::AttachRequest {
    let mut request = attach(id, &netns(pod));
    let annotations = &mut request.sandbox.as_mut().unwrap().annotations;
    annotations.insert("kubernetes.io/ingress-bandwidth".to_owned(), "20M".to_owned());
    request
}

#[test]
fn a_connection_bypasses_the_bridge_and_survives_the_agent() {
    let host = Host::new("agent-redirect");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    host.wait_for_ports(2);
    two.tcp_echo(TARGET);
    let mut stream = connect(&one);
    assert_echo(&mut stream, "hello");
    let before = host.packets();
    assert!(before >= 5, "{before}");
    agent.crash();
    assert_echo(&mut stream, "while no agent runs");
    let agent = host.agent();
    host.wait_for_ports(2);
    let after = host.packets();
    assert!(after > before);
    assert_echo(&mut stream, "with the next one");
    assert!(host.packets() > after);

    // Entries are removed with their pod, and everything with the last pod.
    agent.delete("sb2");
    host.wait_for_ports(1);
    agent.delete("sb1");
    host.wait_for_ports(0);
    assert!(!host.pins().exists());
}

#[test]
fn a_recreated_port_gets_redirected_packets() {
    let host = Host::new("agent-redirect-again");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    two.tcp_echo("0.0.0.0:8080");
    assert_echo(&mut connect(&one), "hello");
    two.ip(&["link", "del", "dev", "eth0"]);
    eventually("the pod is reached", TIMEOUT, || one.tcp_reaches(TARGET).is_ok());
    eventually("the bridge is bypassed", TIMEOUT, || {
        let before = host.packets();
        one.tcp_reaches(TARGET).unwrap();
        host.packets() >= before + 5
    });
    agent.stop();
}

#[test]
fn a_spoofed_packet_is_not_redirected() {
    let host = Host::new("agent-redirect-forged");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    host.wait_for_ports(2);
    let (me, you) = (mac(one.namespace(), "eth0"), mac(two.namespace(), "eth0"));
    let (from, to) = (Wire::open(one.namespace(), "eth0"), Wire::open(two.namespace(), "eth0"));
    let opening = |message: &str| {
        // A SYN from port 9 to 8080 with a 20-byte header.
        let header = [0, 9, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0, 0, 0, 0];
        [&header[..], message.as_bytes()].concat()
    };
    let other = [0x02, 0, 0, 0, 0, 0x99];
    from.send(&packet((me, you), "10.75.0.77", "10.75.0.3", 6, &opening("forged-address")));
    from.send(&packet((other, you), "10.75.0.2", "10.75.0.3", 6, &opening("forged-mac")));
    from.send(&packet((me, you), "10.75.0.2", "10.75.0.3", 6, &opening("honest-opening")));
    let mut received = Vec::new();
    let has = |received: &[Vec<u8>], message: &str| {
        received.iter().any(|frame| frame.ends_with(message.as_bytes()))
    };
    eventually("the valid frame arrives", TIMEOUT, || {
        received.extend(to.received());
        has(&received, "honest-opening")
    });
    assert!(!has(&received, "forged-address") && !has(&received, "forged-mac"));
    assert!(host.packets() > 0);
    agent.stop();
}

#[test]
fn a_pod_with_a_bandwidth_limit_uses_the_bridge() {
    let host = Host::new("agent-redirect-limit");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.try_attach(limited("sb2", &two)).unwrap();
    host.wait_for_ports(1);
    two.tcp_echo(TARGET);
    one.tcp_reaches(TARGET).unwrap();
    assert_eq!(host.packets(), 0);
    agent.stop();
}

#[test]
fn without_bpffs_the_bridge_is_used_and_this_is_reported() {
    let host = Host::new("agent-redirect-lacks");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let directory = folder(&host.machine.path("no-bpffs"));
    let confinement = host.machine.confinement().bind(directory, "/sys/fs/bpf");
    let agent = host.machine.confined_agent(&confinement, &AGENT_FLAGS, &[]);
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    two.tcp_echo(TARGET);
    one.tcp_reaches(TARGET).unwrap();
    let log = host.machine.log();
    let printed = log
        .lines()
        .filter(|line| line.contains("all packets between pods take the bridge"))
        .collect::<Vec<_>>();
    assert_eq!(printed.len(), 1, "{log}");
    assert!(printed[0].contains("mount -t bpf bpf /sys/fs/bpf"), "{log}");
    agent.stop();
}
