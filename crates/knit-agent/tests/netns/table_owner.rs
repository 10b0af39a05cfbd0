//! Rules of policies that another program removes: pods stay closed, with packets that are sent all the time. Needs root.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use crate::support::agent_process::{AgentProcess, run_as_agent};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Between two packets of a flow.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long packets are watched after each change, and within which other programs' changes are repaired.
const WATCHED: Duration = Duration::from_secs(1);
const PORT: u16 = 80;
/// The addresses of the pod with the policy.
const TARGET: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 75, 0, 3)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd75, 0x6b6e, 0x6974, 0, 0, 0, 0, 3)),
];

/// The flows to the pod with the policy, by the byte that their packets consist of.
#[derive(Clone, Copy)]
enum Flow {
    /// From the pod that the policy allows.
    Allowed,
    /// From the other pod, on a connection that is open since before the policy.
    Open,
    /// From the other pod, each packet on a new connection.
    New,
}

/// Packets that have arrived, by flow.
type Arrived = Arc<[AtomicU64; 3]>;

/// A node with three pods, traffic between them, and `nft` on its host.
struct Node {
    name: &'static str,
    host: Namespace,
    pods: Vec<Pod>,
    directory: TempDir,
    arrived: Arrived,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _testbed: Testbed,
}

impl Node {
    fn new(name: &'static str, test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        host.set_sysctl("net.ipv4.ip_forward", "1");
        host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
        let pods = (0..3).map(|at| testbed.pod(&format!("pod{at}"))).collect();
        Self {
            name,
            host,
            pods,
            directory: TempDir::new().unwrap(),
            arrived: Arrived::default(),
            stop: Arc::default(),
            threads: Vec::new(),
            _testbed: testbed,
        }
    }

    fn start_agent(&self, has_owner: bool) -> AgentProcess {
        AgentProcess::start(self.name, &self.host, self.directory.path(), &self.pods, has_owner)
    }

    /// An agent with attached pods, and traffic that the policy denies from now on.
    fn closed(&mut self, has_owner: bool) -> AgentProcess {
        let mut agent = self.start_agent(has_owner);
        agent.attach();
        agent.list(false);
        self.start_traffic();
        for flow in [Flow::Allowed, Flow::Open, Flow::New] {
            eventually("packets arrive without a policy", TIMEOUT, || self.count(flow) > 20);
        }
        agent.list(true);
        eventually("the policy is enforced", TIMEOUT, || self.denied_within(Duration::from_millis(300)) == 0);
        agent
    }

    fn start_traffic(&mut self) {
        for at in TARGET {
            let (arrived, stop) = (Arc::clone(&self.arrived), Arc::clone(&self.stop));
            let socket = self.pods[1].namespace().run(|| UdpSocket::bind((at, PORT)).unwrap());
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            self.threads.push(thread::spawn(move || receive(&socket, &arrived, &stop)));
            for (flow, from) in [(Flow::Allowed, 0), (Flow::Open, 2), (Flow::New, 2)] {
                let (namespace, stop) = (self.pods[from].namespace().clone(), Arc::clone(&self.stop));
                let to = SocketAddr::from((at, PORT));
                self.threads.push(thread::spawn(move || namespace.run(|| send(flow, to, &stop))));
            }
        }
    }

    fn count(&self, flow: Flow) -> u64 {
        self.arrived[flow as usize].load(Ordering::Relaxed)
    }

    fn denied(&self) -> u64 {
        self.count(Flow::Open) + self.count(Flow::New)
    }

    /// How many denied packets arrive within this time.
    fn denied_within(&self, time: Duration) -> u64 {
        let before = self.denied();
        sleep(time);
        self.denied() - before
    }

    fn nft(&self, command: &str) -> bool {
        self.host.output("nft", &[command]).is_ok()
    }

    /// Commands that remove the rules: everything, the table, its content, and each chain and map of it.
    fn removals(&self) -> Vec<String> {
        let listed = self.host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
        let parts = listed.lines().filter_map(|line| line.strip_prefix('\t')?.strip_suffix(" {"));
        let parts = parts.filter_map(|part| part.split_once(' '));
        // `nft` cannot be given the name of the base chain, which is one of its keywords.
        let is_policy =
            |kind: &str, name: &str| matches!(kind, "chain" | "map") && name.starts_with("policy_");
        let parts = parts.filter(|(kind, name)| is_policy(kind, name));
        let parts: Vec<String> = parts.map(|(kind, name)| format!("flush {kind} inet knit {name}")).collect();
        assert!(parts.iter().any(|part| part.starts_with("flush chain")), "{listed}");
        assert!(parts.iter().any(|part| part.starts_with("flush map")), "{listed}");
        let all = ["flush ruleset", "flush table inet knit", "delete table inet knit"].map(str::to_owned);
        all.into_iter().chain(parts).collect()
    }

    /// Every way to remove the rules fails, or has no effect on them. No denied packet arrives, and allowed ones do.
    fn assert_cannot_be_opened(&self) {
        let denied = self.denied();
        for removal in self.removals() {
            let allowed = self.count(Flow::Allowed);
            let removed = self.host.output("nft", &[&removal]);
            match removed {
                Ok(_) => assert_eq!(removal, "flush ruleset", "succeeds for the tables of others"),
                Err(why) => assert!(format!("{why:?}").contains("Operation not permitted"), "{why}"),
            }
            sleep(Duration::from_millis(100));
            assert_eq!(self.denied() - denied, 0, "{removal} lets packets through");
            eventually("allowed packets arrive", WATCHED, || self.count(Flow::Allowed) > allowed + 20);
        }
        sleep(WATCHED);
        assert_eq!(self.denied() - denied, 0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Counts packets and answers them, so that connection tracking sees open connections.
fn receive(socket: &UdpSocket, arrived: &Arrived, stop: &AtomicBool) {
    let mut packet = [0; 1];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((1, from)) = socket.recv_from(&mut packet) {
            arrived[usize::from(packet[0])].fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&packet, from);
        }
    }
}

/// Sends packets until the end. An ICMP error is no reason to stop.
fn send(flow: Flow, to: SocketAddr, stop: &AtomicBool) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut socket = UdpSocket::bind(any).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let _ = socket.send_to(&[flow as u8], to);
        if matches!(flow, Flow::New) {
            socket = UdpSocket::bind(any).unwrap();
        }
        sleep(INTERVAL);
    }
}

#[test]
fn nobody_opens_a_pod_by_removing_rules_and_a_killed_agent_goes_on() {
    run_as_agent();
    let mut node = Node::new(
        "table_owner::nobody_opens_a_pod_by_removing_rules_and_a_killed_agent_goes_on",
        "owner-closed",
    );
    let agent = node.closed(true);
    let denied = node.denied();
    node.assert_cannot_be_opened();
    // Killed, and started again without the lists of an API server, and with them.
    agent.kill();
    sleep(WATCHED);
    let mut agent = node.start_agent(true);
    node.assert_cannot_be_opened();
    agent.list(true);
    node.assert_cannot_be_opened();
    assert_eq!(node.denied(), denied, "in all that time");
    // Without an agent the rules can be removed, which the packets show; the next agent restores them.
    agent.kill();
    assert!(node.nft("flush ruleset"));
    eventually("denied packets arrive without the rules", TIMEOUT, || node.denied() > denied + 20);
    let mut agent = node.start_agent(true);
    eventually("it is closed again", TIMEOUT, || node.denied_within(Duration::from_millis(300)) == 0);
    agent.list(true);
    let allowed = node.count(Flow::Allowed);
    eventually("allowed packets arrive", TIMEOUT, || node.count(Flow::Allowed) > allowed + 20);
    node.assert_cannot_be_opened();
}

#[test]
fn without_owners_of_tables_removed_rules_are_restored_within_a_second() {
    run_as_agent();
    let mut node = Node::new(
        "table_owner::without_owners_of_tables_removed_rules_are_restored_within_a_second",
        "owner-repair",
    );
    let _agent = node.closed(false);
    for removal in node.removals() {
        node.host.output("nft", &[&removal]).unwrap();
        sleep(WATCHED);
        let allowed = node.count(Flow::Allowed);
        assert_eq!(node.denied_within(Duration::from_millis(300)), 0, "{removal}");
        assert!(node.count(Flow::Allowed) > allowed, "{removal}");
    }
}

#[test]
fn tables_of_an_earlier_version_get_an_owner_without_a_moment_without_rules() {
    run_as_agent();
    let mut node = Node::new(
        "table_owner::tables_of_an_earlier_version_get_an_owner_without_a_moment_without_rules",
        "owner-upgrade",
    );
    let agent = node.closed(false);
    let denied = node.denied();
    agent.kill();
    let mut agent = node.start_agent(true);
    node.assert_cannot_be_opened();
    agent.list(true);
    node.assert_cannot_be_opened();
    assert_eq!(node.denied(), denied, "in all that time");
}
