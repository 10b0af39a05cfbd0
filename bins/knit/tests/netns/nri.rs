//! NRI: the container runtime notifies the agent of each pod and starts no container before the response. The runtime is a
//! fake of containerd; the kernel is real.

use std::time::Duration;

use crate::support::agent::{Agent, Machine};
use crate::support::nri::{Runtime, Sandbox};
use knit_testbed::{Pod, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The longest wait of the runtime, which closes the connection after two seconds.
const BOUND: Duration = Duration::from_millis(1_500);
/// The longest wait for a pod without networks.
const AT_ONCE: Duration = Duration::from_millis(200);

const OBJECT: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: one}
spec: {interfaceName: net1, master: nbr0, cidr: 192.168.100.0/24}
";
const LABEL: &str = "podnetwork.opdev.io/veth=one";

struct NriNode {
    machine: Machine,
    runtime: Runtime,
    socket: String,
}

impl NriNode {
    fn new(test: &str) -> Self {
        let machine = Machine::new(test);
        std::fs::create_dir_all(machine.path("objects")).unwrap();
        std::fs::write(machine.path("objects").join("one.yaml"), OBJECT).unwrap();
        let socket = machine.path("nri.sock");
        let runtime = Runtime::listen(&socket);
        Self { socket: socket.display().to_string(), machine, runtime }
    }

    fn agent(&self) -> Agent<'_> {
        self.agent_with(&[])
    }

    fn agent_with(&self, environment: &[(&str, &str)]) -> Agent<'_> {
        let agent = self.machine.agent_with(&["--nri-socket", &self.socket], environment);
        let objects = || self.knit(&["get", "veths", "-o", "json"]).contains("net1");
        eventually("the directory is read", Duration::from_secs(20), objects);
        agent
    }

    fn knit(&self, arguments: &[&str]) -> String {
        let mut command = self.machine.host.command(env!("CARGO_BIN_EXE_knit"));
        let printed =
            command.env("KNIT_KNI_SOCKET", self.machine.path("kni.sock")).args(arguments).output().unwrap();
        String::from_utf8(printed.stdout).unwrap()
    }

    /// The attach times of the pods in the status of the object.
    fn attach_times(&self) -> Vec<(String, Option<String>)> {
        let shown: Value = serde_json::from_str(&self.knit(&["get", "veth", "one", "-o", "json"])).unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let pods = shown["items"][0]["status"]["podConfigurations"].as_array().cloned().unwrap_or_default();
        pods.iter().map(|pod| (text(&pod["podName"]).unwrap(), text(&pod["attached"]))).collect()
    }
}

fn has_net1(pod: &Pod) -> bool {
    pod.ip(&["-o", "addr"]).contains(": net1    inet 192.168.100.")
}

/// The status of a pod whose containers waited.
fn ready_before_containers(pod: &str) -> (String, Option<String>) {
    (pod.to_owned(), Some("BeforeContainers".to_owned()))
}

/// The status of a pod whose containers did not wait.
fn ready_after_containers(pod: &str) -> (String, Option<String>) {
    (pod.to_owned(), None)
}

#[test]
fn networks_are_ready_before_the_runtime_starts_containers() {
    let node = NriNode::new("nri-before");
    let (pod, other) = (node.machine.testbed.pod("one"), node.machine.testbed.pod("other"));
    let agent = node.agent();
    let mut runtime = node.runtime.accept(Vec::new());
    let one = Sandbox::new("one", pod.pid(), LABEL);
    assert!(runtime.run(&one) < BOUND);
    assert!(has_net1(&pod), "{}", pod.ip(&["addr"]));
    eventually("it is reported", Duration::from_secs(5), || {
        node.attach_times() == [ready_before_containers("one")]
    });
    // Pods without networks, with host networking and without a process do not wait.
    for pod in [
        Sandbox::new("other", other.pid(), "app=x"),
        Sandbox::new("host", agent.pid(), LABEL),
        Sandbox::new("none", 0, LABEL),
    ] {
        assert!(runtime.run(&pod) < AT_ONCE);
    }
    assert_eq!(node.attach_times(), [ready_before_containers("one")]);
    // The status survives an agent restart.
    agent.crash();
    let _agent = node.agent();
    let mut runtime = node.runtime.accept(vec![one.clone()]);
    assert_eq!(node.attach_times(), [ready_before_containers("one")]);
    runtime.remove(&one);
    eventually("it is removed", Duration::from_secs(5), || node.attach_times().is_empty());
}

#[test]
fn a_pod_that_runs_before_the_agent_gets_its_networks() {
    let node = NriNode::new("nri-while");
    let pod = node.machine.testbed.pod("one");
    let _agent = node.agent();
    let _runtime = node.runtime.accept(vec![Sandbox::new("one", pod.pid(), LABEL)]);
    eventually("the interface is there", Duration::from_secs(10), || has_net1(&pod));
    eventually("it is reported", Duration::from_secs(5), || {
        node.attach_times() == [ready_after_containers("one")]
    });
}

#[test]
fn a_slow_kernel_delays_the_runtime_only_until_the_timeout() {
    let node = NriNode::new("nri-slow");
    let pod = node.machine.testbed.pod("one");
    let environment = [("KNIT_FAULT_SLOW", "net1:3000"), ("KNIT_METRICS_ADDR", "127.0.0.1:9475")];
    let _agent = node.agent_with(&environment);
    let mut runtime = node.runtime.accept(Vec::new());
    let took = runtime.run(&Sandbox::new("one", pod.pid(), LABEL));
    assert!(took < BOUND && took > AT_ONCE, "{took:?}");
    assert!(!has_net1(&pod));
    eventually("the timeout is reported", Duration::from_secs(5), || {
        node.machine.log().contains("containers started before")
    });
    let metrics = node.machine.get(9475, "/metrics");
    assert!(metrics.contains("knit_start_wait_seconds_count{result=\"late\"} 1"), "{metrics}");
    eventually("the interface is updated", Duration::from_secs(20), || has_net1(&pod));
    eventually("it is reported", Duration::from_secs(5), || {
        node.attach_times() == [ready_after_containers("one")]
    });
    // The connection is still open.
    let next = node.machine.testbed.pod("next");
    assert!(runtime.run(&Sandbox::new("next", next.pid(), "app=x")) < AT_ONCE);
}

#[test]
fn the_agent_reconnects_after_runtime_failures() {
    let node = NriNode::new("nri-again");
    let (one, two) = (node.machine.testbed.pod("one"), node.machine.testbed.pod("two"));
    let agent = node.agent_with(&[("KNIT_FAULT_SLOW", "net1:400")]);
    drop(node.runtime.accept(Vec::new()));
    node.runtime.accept(Vec::new()).send_garbage();
    // The runtime disconnects while a pod waits.
    let mut runtime = node.runtime.accept(Vec::new());
    runtime.start_without_waiting(&Sandbox::new("one", one.pid(), LABEL));
    std::thread::sleep(Duration::from_millis(200));
    drop(runtime);
    eventually("the timeout is reported", Duration::from_secs(5), || {
        node.machine.log().contains("containers started before")
    });
    eventually("the interface is updated", Duration::from_secs(20), || has_net1(&one));
    let mut runtime = node.runtime.accept(vec![Sandbox::new("one", one.pid(), LABEL)]);
    assert!(runtime.run(&Sandbox::new("two", two.pid(), LABEL)) < BOUND);
    assert!(has_net1(&two));
    eventually("both are reported", Duration::from_secs(5), || {
        node.attach_times() == [ready_after_containers("one"), ready_before_containers("two")]
    });
    // The agent is killed while a pod waits: after its restart the pod gets its networks.
    let three = node.machine.testbed.pod("three");
    let third = Sandbox::new("three", three.pid(), LABEL);
    runtime.start_without_waiting(&third);
    agent.signal(Signal::SIGKILL);
    drop(agent);
    let _agent = node.agent();
    let _runtime = node.runtime.accept(vec![third]);
    eventually("the interface is updated", Duration::from_secs(20), || has_net1(&three));
}
