//! An API server that is away, slow, or reports what is old: traffic and detach go on, then everything converges. The API server is a
//! fake; kernel, journal and agent are real. Needs root.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use knit_testbed::{Pod, Testbed, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::api_server::{ApiServer, KNIT};
use crate::support::cluster_agent::{ClusterAgent, PODS, TIMEOUT, api_pod, mtu, veth, wait_for_mtu};

/// The gateway of the pods' interface `net0`.
const GATEWAY: &str = "192.168.100.1";
const RANGE: &str = "192.168.100.0/24";

/// A node with a Veth object and a configured pod `a`, which pings its gateway until this is dropped.
struct Cluster {
    testbed: Testbed,
    api: ApiServer,
    agent: ClusterAgent,
    pod: Pod,
    ping: Child,
}

impl Cluster {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        let api = ApiServer::start(&host);
        api.put("/api/v1/nodes", json!({"metadata": {"name": "node1"}}));
        api.put(&veths(), veth("net", "net0", "apibr0", RANGE, 1400));
        let agent = ClusterAgent::start(&host, &api);
        let pod = testbed.pod("a");
        let uid = uid(&api.put(PODS, api_pod("a")));
        agent.start_sandbox("sandbox-a", &uid, &pod);
        wait_for_mtu(&pod, "net0", Some(1400));
        let cluster_is_ready =
            || api.get(&states(), "default", "a").is_some_and(|state| state["status"]["ready"] == true);
        eventually("the status is published", TIMEOUT, cluster_is_ready);
        let mut command = pod.namespace().command("ping");
        command.args(["-n", "-i", "0.05", "-c", "6000", "-W", "1", GATEWAY]).stdout(Stdio::piped());
        let ping = command.spawn().unwrap();
        Self { testbed, api, agent, pod, ping }
    }

    /// Adds a configured pod. Returns it and its uid.
    fn add_pod(&self, name: &str) -> (Pod, String) {
        let pod = self.testbed.pod(name);
        let uid = uid(&self.api.put(PODS, api_pod(name)));
        self.agent.start_sandbox(&format!("sandbox-{name}"), &uid, &pod);
        wait_for_mtu(&pod, "net0", Some(1400));
        (pod, uid)
    }

    /// Asserts that no packet was lost so far.
    fn assert_no_packet_lost(mut self) {
        assert!(self.ping.try_wait().unwrap().is_none(), "the traffic ended too early");
        kill(Pid::from_raw(i32::try_from(self.ping.id()).unwrap()), Signal::SIGINT).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(self.ping.stdout.as_mut().unwrap(), &mut text).unwrap();
        assert!(text.contains(" 0% packet loss"), "{text}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.ping.kill();
        let _ = self.ping.wait();
        if std::thread::panicking() {
            let requests = self.api.requests();
            let last = requests.len().saturating_sub(60);
            eprintln!("the last requests: {:#?}", &requests[last..]);
        }
    }
}

fn veths() -> String {
    format!("{KNIT}/veths")
}

fn states() -> String {
    format!("{KNIT}/podnetworkstates")
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[test]
fn pods_attach_and_detach_while_the_api_server_is_away_and_everything_converges_when_it_returns() {
    let mut cluster = Cluster::new("api-away");
    let (gone, _) = cluster.add_pod("gone");
    let (_, renewed) = cluster.add_pod("renewed");
    cluster.api.put(&veths(), veth("old", "net1", "apibr1", "192.168.101.0/24", 1400));
    wait_for_mtu(&cluster.pod, "net1", Some(1400));
    let leases = cluster.agent.leases();
    assert_eq!(leases, 6, "three pods with two interfaces");

    cluster.api.stop();
    let began = Instant::now();
    // Detach goes on, and so does the attach of a known pod's new sandbox.
    cluster.agent.stop_sandbox("sandbox-gone");
    cluster.agent.stop_sandbox("sandbox-renewed");
    wait_for_mtu(&gone, "net0", None);
    eventually("the leases are free", TIMEOUT, || cluster.agent.leases() == 2);
    let again = cluster.testbed.pod("again");
    cluster.agent.start_sandbox("sandbox-again", &renewed, &again);
    wait_for_mtu(&again, "net0", Some(1400));
    // The link is there before its address.
    eventually("the gateway is reached", TIMEOUT, || again.ping(GATEWAY).is_ok());
    // What the agent cannot know yet.
    cluster.api.delete(PODS, "default", "gone");
    cluster.api.delete(&veths(), "default", "old");
    cluster.api.put(&veths(), veth("net", "net0", "apibr0", RANGE, 1300));
    cluster.api.put(&veths(), veth("late", "net2", "apibr2", "192.168.102.0/24", 1400));
    std::thread::sleep(Duration::from_secs(6).saturating_sub(began.elapsed()));
    assert_eq!((mtu(&cluster.pod, "net0"), mtu(&cluster.pod, "net1")), (Some(1400), Some(1400)));
    // Longer than the API server keeps its history.
    cluster.api.expire();
    cluster.api.resume();

    for pod in [&cluster.pod, &again] {
        wait_for_mtu(pod, "net0", Some(1300));
        wait_for_mtu(pod, "net1", None);
        wait_for_mtu(pod, "net2", Some(1400));
    }
    eventually("the leases are those of two pods", TIMEOUT, || cluster.agent.leases() == 4);
    let state = |pod: &str| cluster.api.get(&states(), "default", pod);
    eventually("the status of the deleted pod is deleted", TIMEOUT, || state("gone").is_none());
    eventually("the new sandbox is published", TIMEOUT, || {
        state("renewed").is_some_and(|state| {
            state["status"]["sandbox"] == "sandbox-again" && state["status"]["ready"] == true
        })
    });
    cluster.assert_no_packet_lost();
}

#[test]
fn a_slow_api_server_delays_neither_attach_nor_detach_of_known_pods() {
    let cluster = Cluster::new("api-slow");
    let (_, renewed) = cluster.add_pod("renewed");
    let delay = Duration::from_secs(4);
    cluster.api.set_delay(delay);
    let began = Instant::now();
    cluster.agent.stop_sandbox("sandbox-renewed");
    eventually("the lease is free", TIMEOUT, || cluster.agent.leases() == 1);
    let again = cluster.testbed.pod("again");
    cluster.agent.start_sandbox("sandbox-again", &renewed, &again);
    wait_for_mtu(&again, "net0", Some(1400));
    assert!(began.elapsed() < delay, "{:?}", began.elapsed());
    // An agent that starts then needs more than one response, and gets there.
    cluster.api.put(&veths(), veth("more", "net1", "apibr1", "192.168.101.0/24", 1400));
    wait_for_mtu(&again, "net1", Some(1400));
    let is_published = || {
        let state = cluster.api.get(&states(), "default", "renewed");
        state.is_some_and(|state| state["status"]["interfaces"] == 2 && state["status"]["ready"] == true)
    };
    eventually("the status is published", TIMEOUT, is_published);
    cluster.assert_no_packet_lost();
}

#[test]
fn a_watch_that_ends_with_410_lists_again_and_notices_what_was_deleted() {
    let cluster = Cluster::new("api-410");
    let (other, _) = cluster.add_pod("other");
    cluster.api.put(&veths(), veth("old", "net1", "apibr1", "192.168.101.0/24", 1400));
    wait_for_mtu(&other, "net1", Some(1400));
    for round in 0..3 {
        // Watches get no event of these changes.
        cluster.api.expire_with(|objects| {
            objects.delete(&veths(), "default", "old");
            objects.put(&veths(), veth("net", "net0", "apibr0", RANGE, 1390 - round));
        });
        wait_for_mtu(&other, "net1", None);
        wait_for_mtu(&other, "net0", Some(u64::from(1390 - round)));
        cluster.api.put(&veths(), veth("old", "net1", "apibr1", "192.168.101.0/24", 1400));
        wait_for_mtu(&other, "net1", Some(1400));
    }
    cluster.assert_no_packet_lost();
}

#[test]
fn replayed_events_of_what_is_gone_or_older_change_nothing() {
    let cluster = Cluster::new("api-replay");
    let first = cluster.api.get(&veths(), "default", "net").unwrap();
    let index = || cluster.pod.ip(&["-o", "link", "show", "dev", "net0"]);
    cluster.api.put(&veths(), veth("net", "net0", "apibr0", RANGE, 1350));
    wait_for_mtu(&cluster.pod, "net0", Some(1350));
    let link = index();
    // An earlier object and an earlier pod with the same names, which were deleted long ago.
    let earlier = |object: &Value| {
        let mut earlier = object.clone();
        earlier["metadata"]["uid"] = "uid-earlier".into();
        earlier["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z".into();
        earlier
    };
    let mut wrong = earlier(&first);
    wrong["spec"]["mtu"] = 1200.into();
    let pod = cluster.api.get(PODS, "default", "a").unwrap();
    for _ in 0..3 {
        let events = [
            ("ADDED", wrong.clone()),
            ("MODIFIED", wrong.clone()),
            ("DELETED", wrong.clone()),
            ("MODIFIED", first.clone()),
        ];
        cluster.api.replay(&veths(), &events);
        cluster.api.replay(PODS, &[("ADDED", earlier(&pod)), ("DELETED", earlier(&pod))]);
        // A change after them shows that they were handled.
        let marker = veth("marker", "net9", "apibr9", "192.168.109.0/24", 1400);
        cluster.api.put(&veths(), marker);
        wait_for_mtu(&cluster.pod, "net9", Some(1400));
        cluster.api.delete(&veths(), "default", "marker");
        wait_for_mtu(&cluster.pod, "net9", None);
        assert_eq!(index(), link);
    }
    cluster.assert_no_packet_lost();
}
