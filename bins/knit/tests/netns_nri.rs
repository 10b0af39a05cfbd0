//! Pods whose containers wait for their networks: a container runtime tells the agent of each pod (NRI) and starts no container
//! before it is answered. The runtime is a fake that stands for containerd; the kernel is real. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    pub mod nri;
}

use std::time::Duration;

use knit_testbed::{Pod, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::agent::{Agent, Machine};
use support::nri::{Runtime, Sandbox};

/// How long the runtime waits at most: it would end the connection after two seconds.
const BOUND: Duration = Duration::from_millis(1_500);
/// A pod that nobody means goes on at once.
const AT_ONCE: Duration = Duration::from_millis(200);

const OBJECT: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: one}
spec: {interfaceName: net1, master: nbr0, cidr: 192.168.100.0/24}
";
const LABEL: &str = "podnetwork.opdev.io/veth=one";

struct World {
    machine: Machine,
    runtime: Runtime,
    socket: String,
}

impl World {
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
        eventually("the folder was read", Duration::from_secs(20), objects);
        agent
    }

    fn knit(&self, words: &[&str]) -> String {
        let mut command = self.machine.host.command(env!("CARGO_BIN_EXE_knit"));
        let said =
            command.env("KNIT_KNI_SOCKET", self.machine.path("kni.sock")).args(words).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    }

    /// When the object says that each pod got its interface.
    fn attached(&self) -> Vec<(String, Option<String>)> {
        let shown: Value = serde_json::from_str(&self.knit(&["get", "veth", "one", "-o", "json"])).unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let pods = shown["items"][0]["status"]["podConfigurations"].as_array().cloned().unwrap_or_default();
        pods.iter().map(|pod| (text(&pod["podName"]).unwrap(), text(&pod["attached"]))).collect()
    }
}

fn has_net1(pod: &Pod) -> bool {
    pod.ip(&["-o", "addr"]).contains(": net1    inet 192.168.100.")
}

/// What the object says of a pod whose containers waited.
fn before(pod: &str) -> (String, Option<String>) {
    (pod.to_owned(), Some("BeforeContainers".to_owned()))
}

/// What the object says of a pod whose containers did not. Without an API server it is not said how it was known.
fn later(pod: &str) -> (String, Option<String>) {
    (pod.to_owned(), None)
}

#[test]
fn networks_are_there_when_the_runtime_is_answered_and_the_object_says_so() {
    let world = World::new("nri-before");
    let (pod, other) = (world.machine.testbed.pod("one"), world.machine.testbed.pod("other"));
    let agent = world.agent();
    let mut runtime = world.runtime.accept(Vec::new());
    let one = Sandbox::new("one", pod.pid(), LABEL);
    assert!(runtime.run(&one) < BOUND);
    assert!(has_net1(&pod), "{}", pod.ip(&["addr"]));
    eventually("it is said", Duration::from_secs(5), || world.attached() == [before("one")]);
    // A pod that nobody means, one on the node's own network, and one without a process are not waited for.
    for pod in [
        Sandbox::new("other", other.pid(), "app=x"),
        Sandbox::new("host", agent.pid(), LABEL),
        Sandbox::new("none", 0, LABEL),
    ] {
        assert!(runtime.run(&pod) < AT_ONCE);
    }
    assert_eq!(world.attached(), [before("one")]);
    // An agent that begins anew knows it still.
    agent.crash();
    let _agent = world.agent();
    let mut runtime = world.runtime.accept(vec![one.clone()]);
    assert_eq!(world.attached(), [before("one")]);
    runtime.remove(&one);
    eventually("it is forgotten", Duration::from_secs(5), || world.attached().is_empty());
}

#[test]
fn a_pod_that_ran_before_the_agent_came_gets_its_networks_while_it_runs() {
    let world = World::new("nri-while");
    let pod = world.machine.testbed.pod("one");
    let _agent = world.agent();
    let _runtime = world.runtime.accept(vec![Sandbox::new("one", pod.pid(), LABEL)]);
    eventually("the interface is there", Duration::from_secs(10), || has_net1(&pod));
    eventually("it is said", Duration::from_secs(5), || world.attached() == [later("one")]);
}

#[test]
fn a_slow_kernel_is_not_waited_for_too_long_and_the_miss_is_told() {
    let world = World::new("nri-slow");
    let pod = world.machine.testbed.pod("one");
    let environment = [("KNIT_FAULT_SLOW", "net1:3000"), ("KNIT_METRICS_ADDR", "127.0.0.1:9475")];
    let _agent = world.agent_with(&environment);
    let mut runtime = world.runtime.accept(Vec::new());
    let took = runtime.run(&Sandbox::new("one", pod.pid(), LABEL));
    assert!(took < BOUND && took > AT_ONCE, "{took:?}");
    assert!(!has_net1(&pod));
    eventually("the miss is told", Duration::from_secs(5), || {
        world.machine.log().contains("containers were started before")
    });
    let metrics = world.machine.get(9475, "/metrics");
    assert!(metrics.contains("knit_start_wait_seconds_count{result=\"late\"} 1"), "{metrics}");
    eventually("the interface follows", Duration::from_secs(20), || has_net1(&pod));
    eventually("it is said", Duration::from_secs(5), || world.attached() == [later("one")]);
    // The connection has held.
    let next = world.machine.testbed.pod("next");
    assert!(runtime.run(&Sandbox::new("next", next.pid(), "app=x")) < AT_ONCE);
}

#[test]
fn a_runtime_that_goes_babbles_or_hangs_up_in_the_middle_is_met_again() {
    let world = World::new("nri-again");
    let (one, two) = (world.machine.testbed.pod("one"), world.machine.testbed.pod("two"));
    let agent = world.agent_with(&[("KNIT_FAULT_SLOW", "net1:400")]);
    drop(world.runtime.accept(Vec::new()));
    world.runtime.accept(Vec::new()).babble();
    // Hangs up while a pod waits.
    let mut runtime = world.runtime.accept(Vec::new());
    runtime.begin(&Sandbox::new("one", one.pid(), LABEL));
    std::thread::sleep(Duration::from_millis(200));
    drop(runtime);
    eventually("the miss is told", Duration::from_secs(5), || {
        world.machine.log().contains("containers were started before")
    });
    eventually("the interface follows", Duration::from_secs(20), || has_net1(&one));
    let mut runtime = world.runtime.accept(vec![Sandbox::new("one", one.pid(), LABEL)]);
    assert!(runtime.run(&Sandbox::new("two", two.pid(), LABEL)) < BOUND);
    assert!(has_net1(&two));
    eventually("both are said", Duration::from_secs(5), || world.attached() == [later("one"), before("two")]);
    // An agent that is killed while a pod waits: the next one makes it good.
    let three = world.machine.testbed.pod("three");
    let third = Sandbox::new("three", three.pid(), LABEL);
    runtime.begin(&third);
    agent.signal(Signal::SIGKILL);
    drop(agent);
    let _agent = world.agent();
    let _runtime = world.runtime.accept(vec![third]);
    eventually("the interface follows", Duration::from_secs(20), || has_net1(&three));
}
