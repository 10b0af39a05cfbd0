//! TCP between pods of the cluster's network goes past the bridge, with a real agent on a real kernel. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod frames;
}

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use knit_kernel::Netns;
use knit_kernel::redirect::{Redirect, Wanted};
use knit_kni::v1;
use knit_testbed::{Pod, eventually};
use support::agent::{Machine, attach, netns};
use support::frames::{Wire, mac, packet};

const TARGET: &str = "10.75.0.3:8080";
const METRICS: u16 = 9475;
const SOON: Duration = Duration::from_secs(10);
const ASKED: [&str; 5] = ["--cluster-anti-spoofing", "--cluster-data-path", "ebpf", "--resync-seconds", "1"];

/// A host whose pins go with it, also when a test fails: they belong to no process.
struct Host {
    machine: Machine,
    netns: Netns,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Redirect::new(None).apply(&self.netns, &Wanted::default());
    }
}

impl Host {
    fn new(test: &str) -> Self {
        let machine = Machine::new(test);
        let netns = Netns::open(machine.host.path()).unwrap();
        Self { machine, netns }
    }

    fn agent(&self) -> support::agent::Agent<'_> {
        self.machine.agent_with(&ASKED, &[("KNIT_METRICS_ADDR", &format!("127.0.0.1:{METRICS}"))])
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
    fn has_ports(&self, number: u64) {
        eventually(&format!("{number} ports"), SOON, || self.metric("knit_redirect_ports") == number);
    }

    fn pins(&self) -> PathBuf {
        PathBuf::from("/sys/fs/bpf/knit").join(self.netns.cookie().unwrap().to_string())
    }
}

fn connect(from: &Pod) -> TcpStream {
    let stream = from.run(|| TcpStream::connect(TARGET)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

#[track_caller]
fn talk(stream: &mut TcpStream, word: &str) {
    stream.write_all(word.as_bytes()).unwrap();
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, word.as_bytes());
}

fn limited(id: &str, pod: &Pod) -> v1::AttachRequest {
    let mut request = attach(id, &netns(pod));
    let annotations = &mut request.sandbox.as_mut().unwrap().annotations;
    annotations.insert("kubernetes.io/ingress-bandwidth".to_owned(), "20M".to_owned());
    request
}

#[test]
fn a_connection_goes_past_the_bridge_and_outlives_the_agent() {
    let host = Host::new("agent-redirect");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    host.has_ports(2);
    two.tcp_echo(TARGET);
    let mut stream = connect(&one);
    talk(&mut stream, "hello");
    let before = host.packets();
    assert!(before >= 5, "{before}");
    agent.crash();
    talk(&mut stream, "while no agent runs");
    let agent = host.agent();
    host.has_ports(2);
    let after = host.packets();
    assert!(after > before);
    talk(&mut stream, "with the next one");
    assert!(host.packets() > after);

    // What is of the pod that goes goes with it, and with the last one everything.
    agent.delete("sb2");
    host.has_ports(1);
    agent.delete("sb1");
    host.has_ports(0);
    assert!(!host.pins().exists());
}

#[test]
fn a_port_that_comes_back_with_another_number_is_handed_packets_again() {
    let host = Host::new("agent-redirect-again");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    two.tcp_echo("0.0.0.0:8080");
    talk(&mut connect(&one), "hello");
    two.ip(&["link", "del", "dev", "eth0"]);
    eventually("the pod is reached", SOON, || one.tcp_reaches(TARGET).is_ok());
    eventually("past the bridge", SOON, || {
        let before = host.packets();
        one.tcp_reaches(TARGET).unwrap();
        host.packets() >= before + 5
    });
    agent.stop();
}

#[test]
fn a_forged_packet_is_not_handed_on() {
    let host = Host::new("agent-redirect-forged");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    host.has_ports(2);
    let (me, you) = (mac(one.namespace(), "eth0"), mac(two.namespace(), "eth0"));
    let (from, to) = (Wire::open(one.namespace(), "eth0"), Wire::open(two.namespace(), "eth0"));
    let opening = |word: &str| {
        // From port 9 to 8080: a SYN with five words of header.
        let header = [0, 9, 0x1f, 0x90, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0, 0, 0, 0];
        [&header[..], word.as_bytes()].concat()
    };
    let other = [0x02, 0, 0, 0, 0, 0x99];
    from.send(&packet((me, you), "10.75.0.77", "10.75.0.3", 6, &opening("forged-address")));
    from.send(&packet((other, you), "10.75.0.2", "10.75.0.3", 6, &opening("forged-mac")));
    from.send(&packet((me, you), "10.75.0.2", "10.75.0.3", 6, &opening("honest-opening")));
    let mut heard = Vec::new();
    let has = |heard: &[Vec<u8>], word: &str| heard.iter().any(|frame| frame.ends_with(word.as_bytes()));
    eventually("the honest one arrives", SOON, || {
        heard.extend(to.heard());
        has(&heard, "honest-opening")
    });
    assert!(!has(&heard, "forged-address") && !has(&heard, "forged-mac"));
    assert!(host.packets() > 0);
    agent.stop();
}

#[test]
fn a_pod_with_a_limit_keeps_to_the_bridge() {
    let host = Host::new("agent-redirect-limit");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.agent();
    agent.attach("sb1", &one);
    agent.try_attach(limited("sb2", &two)).unwrap();
    host.has_ports(1);
    two.tcp_echo(TARGET);
    one.tcp_reaches(TARGET).unwrap();
    assert_eq!(host.packets(), 0);
    agent.stop();
}

#[test]
fn without_the_ebpf_file_system_all_takes_the_bridge_and_it_is_said() {
    let host = Host::new("agent-redirect-lacks");
    let (one, two) = (host.machine.testbed.pod("one"), host.machine.testbed.pod("two"));
    let agent = host.machine.agent_among("mount -t tmpfs tmpfs /sys/fs/bpf", &ASKED);
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    two.tcp_echo(TARGET);
    one.tcp_reaches(TARGET).unwrap();
    let log = host.machine.log();
    let said = log.lines().filter(|line| line.contains("all take the bridge")).collect::<Vec<_>>();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains("mount -t bpf bpf /sys/fs/bpf"), "{log}");
    agent.stop();
}
