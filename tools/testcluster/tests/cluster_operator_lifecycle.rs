//! Knit next to the reference network through the life cycle of pods, nodes and runtimes: runtime restarts, node reboots, pods
//! that are killed during configuration, objects that change rapidly or conflict.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;
use support::kubectl::{Namespace, kubectl, run};
use support::operator::{IMAGE, cluster, eventually, folder, installed, on_node, testcluster};

const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// A Veth object with a cidr and MTU on a bridge, for pods with the label `net`.
fn veth(name: &str, interface: &str, bridge: &str, mtu: u32) -> String {
    format!(
        "---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{net: 'yes'}}}}
  interfaceName: {interface}
  master: {bridge}
  cidr: 192.168.105.0/24
  mtu: {mtu}
"
    )
}

fn pod(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{net: 'yes'}}}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: \"{IMAGE}\", imagePullPolicy: Never, args: [pause]}}
"
    )
}

fn get(namespace: &Namespace, what: &str) -> Value {
    serde_json::from_str(&namespace.kubectl(&["get", what, "-o", "json"])).unwrap()
}

/// The MTU of a pod's interface, if it exists.
fn mtu(namespace: &Namespace, pod: &str, interface: &str) -> Option<u64> {
    let args = ["-n", &namespace.name, "exec", pod, "--", "ip", "-j", "link", "show", "dev", interface];
    let output = run(&args);
    let links: Value = serde_json::from_slice(&output.stdout).ok()?;
    links[0]["mtu"].as_u64()
}

fn ready_pods(namespace: &Namespace, object: &str) -> u64 {
    get(namespace, object)["status"]["readyPods"].as_u64().unwrap_or(0)
}

/// Waits until the containers of all pods run. An object is ready as soon as the pod's network namespace is configured, but
/// commands need a running container.
fn wait_started(namespace: &Namespace) {
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
}

/// Waits until the PodNetworkStates are deleted, a moment after what they describe.
fn wait_no_states(namespace: &Namespace) {
    let states = || namespace.kubectl(&["get", "podnetworkstates", "-o", "name"]);
    eventually("no state is left", states, |states| states.is_empty());
}

fn reaches(namespace: &Namespace, pod: &str, to: &str) -> bool {
    run(&["-n", &namespace.name, "exec", pod, "--", "ping", "-c", "1", "-W", "2", to]).status.success()
}

/// The links of a node that belong to a test's bridge: the bridge and its ports.
fn links(node: &str, bridge: &str) -> Vec<String> {
    let text = on_node(node, &["ip", "-o", "link"]);
    text.lines().filter(|line| line.contains(bridge)).map(str::to_owned).collect()
}

#[test]
fn pods_keep_their_interfaces_while_the_container_runtime_restarts_and_new_pods_get_theirs() {
    let _exclusive = installed();
    let namespace = Namespace::new("runtime");
    namespace.apply(&format!("{}{}", veth("net", "net0", "rtbr0", 1400), pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 1);
    wait_started(&namespace);
    let number = namespace.kubectl(&["exec", "a", "--", "cat", "/sys/class/net/net0/ifindex"]);
    testcluster(&["restart", "containerd-node1", "--name", &cluster()]);
    namespace.apply(&pod("b"));
    eventually("the new pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 2);
    wait_started(&namespace);
    let now = namespace.kubectl(&["exec", "a", "--", "cat", "/sys/class/net/net0/ifindex"]);
    assert_eq!(now, number, "it is the same link");
    for pod in ["a", "b"] {
        eventually(pod, || reaches(&namespace, pod, "192.168.105.1"), |works| *works);
    }
    // The deletion of a pod after the restart is noticed too.
    namespace.kubectl(&["delete", "pod", "a"]);
    eventually(
        "one pod is left",
        || get(&namespace, "veth/net")["status"]["pods"].clone(),
        |pods| *pods == 1,
    );
    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "rtbr0"), Vec::is_empty);
}

#[test]
fn an_object_that_is_edited_ten_times_a_second_ends_in_its_last_state() {
    let _exclusive = installed();
    let namespace = Namespace::new("edits");
    namespace.apply(&format!("{}{}", veth("net", "net0", "edbr0", 1400), pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 1);
    std::thread::scope(|scope| {
        for edit in 0..40 {
            let namespace = &namespace;
            scope.spawn(move || {
                let patch = format!(r#"{{"spec":{{"mtu":{}}}}}"#, 1300 + edit);
                namespace.kubectl(&["patch", "veth", "net", "--type=merge", "-p", &patch]);
            });
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let patch = r#"{"spec":{"mtu":1234}}"#;
    namespace.kubectl(&["patch", "veth", "net", "--type=merge", "-p", patch]);
    eventually("the last MTU", || mtu(&namespace, "a", "net0"), |mtu| *mtu == Some(1234));
    let object = eventually(
        "its status is about the last generation",
        || get(&namespace, "veth/net"),
        |object| {
            let status = &object["status"];
            status["observedGeneration"] == object["metadata"]["generation"]
                && status["phase"] == "configured"
                && status["readyPods"] == 1
        },
    );
    assert!(object["metadata"]["generation"].as_u64().unwrap() > 40, "{object:#}");
    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "edbr0"), Vec::is_empty);
}

#[test]
fn of_two_objects_with_the_same_interface_the_first_keeps_it_and_the_second_reports_a_conflict() {
    let _exclusive = installed();
    let namespace = Namespace::new("conflict");
    namespace.apply(&format!("{}{}", veth("first", "net0", "cobr0", 1400), pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/first"), |ready| *ready == 1);
    wait_started(&namespace);
    namespace.apply(&veth("second", "net0", "cobr1", 1300));
    let message = || get(&namespace, "veth/second")["status"]["conditions"][0]["message"].clone();
    eventually("the second reports the conflict and names the first", message, |message| {
        message.as_str().is_some_and(|text| text.contains("net0") && text.contains("first"))
    });
    assert_eq!(mtu(&namespace, "a", "net0"), Some(1400));
    eventually("the first works", || reaches(&namespace, "a", "192.168.105.1"), |works| *works);
    let phase = || get(&namespace, "veth/first")["status"]["phase"].clone();
    eventually("the first has it", phase, |phase| phase == "configured");
    namespace.kubectl(&["delete", "veth", "first", "--timeout=60s"]);
    eventually("the second gets it", || mtu(&namespace, "a", "net0"), |mtu| *mtu == Some(1300));
    eventually("and reports it", || ready_pods(&namespace, "veth/second"), |ready| *ready == 1);
    namespace.kubectl(&["delete", "veth", "second", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "cobr"), Vec::is_empty);
}

#[test]
fn a_pod_that_is_killed_during_configuration_leaves_nothing() {
    let _exclusive = installed();
    let namespace = Namespace::new("dying");
    namespace.apply(&pod("stays"));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/stays", "--timeout=60s"]);
    // kubectl alone takes a tenth of a second: from before the object exists until the pod is configured.
    for delay in [0, 50, 100, 150, 200, 300, 500] {
        namespace.apply(&pod("dies"));
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/dies", "--timeout=60s"]);
        std::thread::scope(|scope| {
            scope.spawn(|| namespace.apply(&veth("net", "net0", "dybr0", 1400)));
            std::thread::sleep(Duration::from_millis(delay));
            namespace.kubectl(&["delete", "pod", "dies", "--grace-period=0", "--force"]);
        });
        eventually(
            "only the other pod is configured",
            || get(&namespace, "veth/net")["status"].clone(),
            |status| status["pods"] == 1 && status["readyPods"] == 1,
        );
        // The bridge and one port.
        eventually("nothing of the dead pod", || links("node1", "dybr0"), |links| links.len() == 2);
        namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
        eventually("it is gone", || links("node1", "dybr0"), Vec::is_empty);
    }
    wait_no_states(&namespace);
}

#[test]
fn a_bridge_that_is_deleted_manually_is_repaired_and_an_event_is_recorded() {
    let _exclusive = installed();
    let namespace = Namespace::new("byhand");
    namespace.apply(&format!("{}{}", veth("net", "net0", "habr0", 1400), pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 1);
    on_node("node1", &["ip", "link", "delete", "habr0"]);
    eventually("bridge and port are back", || links("node1", "habr0").len(), |links| *links == 2);
    eventually("it works", || reaches(&namespace, "a", "192.168.105.1"), |works| *works);
    let output = || namespace.kubectl(&["get", "events", "--field-selector=involvedObject.name=a"]);
    eventually("an Event for the pod", output, |output| output.contains("NetworkRepaired"));
    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "habr0"), Vec::is_empty);
}

#[test]
fn an_exhausted_range_is_reported_and_does_not_affect_configured_pods() {
    let _exclusive = installed();
    let namespace = Namespace::new("narrow");
    let narrow = veth("net", "net0", "nabr0", 1400).replace("192.168.105.0/24", "192.168.105.0/30");
    namespace.apply(&format!("{narrow}{}", pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 1);
    namespace.apply(&pod("b"));
    let status = || get(&namespace, "veth/net")["status"].clone();
    eventually("the exhausted range is reported", status, |status| {
        let message = status["conditions"][0]["message"].as_str().unwrap_or_default();
        status["pods"] == 2 && status["readyPods"] == 1 && message.contains("192.168.105.0/30")
    });
    eventually("the first works", || reaches(&namespace, "a", "192.168.105.1"), |works| *works);
    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "nabr0"), Vec::is_empty);
}

#[test]
fn an_agent_with_lost_state_recovers_and_can_clean_up() {
    let _exclusive = installed();
    let namespace = Namespace::new("lost");
    namespace.apply(&format!("{}{}", veth("net", "net0", "lobr0", 1400), pod("a")));
    eventually("the pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 1);
    // The agent may write there at the same time.
    let state = folder().join("nodes/node1/var/lib/knit/beside");
    let remove = || std::fs::remove_dir_all(&state).err().filter(|error| error.kind() != ErrorKind::NotFound);
    eventually("its state is gone", remove, Option::is_none);
    let selector = ["-l", "app=knit-agent", "--field-selector=spec.nodeName=node1"];
    let find = [&["-n", OPERATOR_NAMESPACE, "get", "pods", "-o", "name"], &selector[..]].concat();
    let agent = kubectl(&find);
    kubectl(&["-n", OPERATOR_NAMESPACE, "delete", agent.trim(), "--grace-period=0", "--force"]);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    namespace.apply(&pod("b"));
    eventually("the new pod", || ready_pods(&namespace, "veth/net"), |ready| *ready == 2);
    wait_started(&namespace);
    for pod in ["a", "b"] {
        eventually(pod, || reaches(&namespace, pod, "192.168.105.1"), |works| *works);
    }
    namespace.kubectl(&["delete", "veth", "net", "--timeout=90s"]);
    eventually("it is gone", || links("node1", "lobr0"), Vec::is_empty);
    eventually("the pod's interface is removed", || mtu(&namespace, "a", "net0"), Option::is_none);
}

#[test]
fn a_node_that_reboots_reconfigures_its_pods_and_has_no_stale_state() {
    let _exclusive = installed();
    let namespace = Namespace::new("reboot");
    namespace.apply(&format!("{}{}{}", veth("net", "net0", "rebr0", 1400), pod("a"), pod("b")));
    eventually("both pods", || ready_pods(&namespace, "veth/net"), |ready| *ready == 2);
    namespace.kubectl(&["delete", "pod", "b", "--wait=false"]);
    on_node("node1", &["ip", "link", "add", "preboot", "type", "bridge"]);
    testcluster(&["reboot", "node1", "--name", &cluster()]);
    assert!(links("node1", "preboot").is_empty(), "links do not survive a reboot");
    eventually("the pod runs again", || reaches(&namespace, "a", "192.168.105.1"), |works| *works);
    eventually(
        "one pod is left",
        || get(&namespace, "veth/net")["status"].clone(),
        |status| status["pods"] == 1 && status["readyPods"] == 1,
    );
    eventually("the bridge and one port", || links("node1", "rebr0"), |links| links.len() == 2);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/knit-controller", "--timeout=120s"]);
    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("it is gone", || links("node1", "rebr0"), Vec::is_empty);
    wait_no_states(&namespace);
}
