//! Networks that are configured before a pod's first container starts: the container runtime notifies the agent of each pod
//! (NRI) and waits. And the readiness gate, for pods that must not be ready before.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_nri`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{IMAGE, eventually, installed};

const OBJECT: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: storage}
spec: {interfaceName: store0, master: storebr0, cidr: 192.168.101.0/24}
---
";
const LABEL: &str = "podnetwork.opdev.io/veth: storage";

/// A pod that never restarts, so that its first container runs once. Its init container runs this command.
fn pod(name: &str, labels: &str, gates: &str, init: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec:
  nodeName: node1
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  readinessGates: [{gates}]
  securityContext: {{runAsUser: 65532, runAsNonRoot: true}}
  initContainers:
  - name: first
    image: {IMAGE}
    imagePullPolicy: Never
    command: [sh, -c, \"{init}\"]
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
  containers:
  - name: main
    image: {IMAGE}
    imagePullPolicy: Never
    args: [pause]
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
---
"
    )
}

/// An object from the API server.
fn get(namespace: &Namespace, kind: &str, name: &str) -> Value {
    serde_json::from_str(&namespace.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

/// When each pod was attached, from the object's status.
fn attached(namespace: &Namespace) -> Vec<(String, String)> {
    let status = get(namespace, "veth", "storage")["status"].clone();
    let pods = status["podConfigurations"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    pods.iter().map(|pod| (text(&pod["podName"]), text(&pod["attached"]))).collect()
}

fn wait_ready(namespace: &Namespace, object: &str) {
    namespace.kubectl(&["wait", "--for=condition=Ready", object, "--timeout=60s"]);
}

/// Waits until the agents are NRI plugins of their runtimes, which they log.
fn wait_nri_registered() {
    let log =
        || kubectl(&["-n", "pod-network-operator", "logs", "-l", "app=knit-agent", "--tail=-1", "--prefix"]);
    eventually("both agents are registered", log, |log| {
        log.lines().filter(|line| line.contains("containers wait for their pod\'s networks")).count() >= 2
    });
}

fn gate(namespace: &Namespace, pod: &str) -> Value {
    let conditions = get(namespace, "pod", pod)["status"]["conditions"].clone();
    let all = conditions.as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["type"] == "knit.opdev.io/networks").unwrap_or(Value::Null)
}

#[test]
fn an_init_container_finds_the_networks_and_the_status_reports_when_each_pod_was_attached() {
    let _exclusive = installed();
    wait_nri_registered();
    let namespace = Namespace::new("nri-init");
    // This pod runs before the object exists.
    namespace.apply(&pod("early", LABEL, "", "true"));
    wait_ready(&namespace, "pod/early");
    namespace.apply(OBJECT);
    wait_ready(&namespace, "veth/storage");
    // The init container fails, without a retry, unless the interface exists, is up and has its address.
    let check = "ip -o link show store0 | grep -q UP && ip -o addr show store0 | grep -q 192.168.101.";
    for name in ["one", "two", "three"] {
        namespace.apply(&pod(name, LABEL, "", check));
        wait_ready(&namespace, &format!("pod/{name}"));
    }
    let before = |name: &str| (name.to_owned(), "BeforeContainers".to_owned());
    let expected =
        [("early".to_owned(), "WhileRunning".to_owned()), before("one"), before("three"), before("two")];
    eventually("the status reports it", || attached(&namespace), |seen| seen[..] == expected);
    let state = get(&namespace, "podnetworkstate", "one");
    assert_eq!(state["status"]["objects"][0]["attached"], json!("BeforeContainers"), "{state}");
    // Without the network the same pod fails, which proves the check.
    namespace.apply(&pod("none", "app: none", "", check));
    namespace.kubectl(&["wait", "--for=jsonpath={.status.phase}=Failed", "pod/none", "--timeout=60s"]);
    // A host network pod is left alone and starts.
    let host = pod("host", LABEL, "", "true").replace("  nodeName:", "  hostNetwork: true\n  nodeName:");
    namespace.apply(&host);
    wait_ready(&namespace, "pod/host");
    let late = namespace.kubectl(&["get", "events", "--field-selector", "reason=NetworksLate", "-o", "name"]);
    assert_eq!(late, "", "no pod started without its networks");
}

#[test]
fn a_pod_with_the_gate_is_ready_once_its_networks_are_there() {
    let _exclusive = installed();
    let namespace = Namespace::new("nri-gate");
    let gates = "{conditionType: knit.opdev.io/networks}";
    // Without a matching object the gate is open.
    namespace.apply(&pod("free", "app: free", gates, "true"));
    wait_ready(&namespace, "pod/free");
    assert_eq!(gate(&namespace, "free")["reason"], "NothingAsked");
    // The object cannot be realized: its network does not exist.
    namespace.apply(&OBJECT.replace("master: storebr0, cidr: 192.168.101.0/24", "network: blue"));
    namespace.apply(&pod("held", LABEL, gates, "true"));
    let output =
        eventually("the gate is closed", || gate(&namespace, "held"), |gate| gate["status"] == "False");
    eventually(
        "it has a reason",
        || gate(&namespace, "held"),
        |gate| !["NoSandbox", "Configuring"].contains(&gate["reason"].as_str().unwrap_or("NoSandbox")),
    );
    assert!(output["message"].is_string(), "{output}");
    let status = get(&namespace, "pod", "held")["status"].clone();
    let is_ready =
        status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap();
    assert_eq!(is_ready["status"], "False", "{status}");
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [192.168.106.0/24]}
",
    );
    wait_ready(&namespace, "pod/held");
    assert_eq!(gate(&namespace, "held")["reason"], "Configured");
}

#[test]
fn an_agent_may_write_only_the_readiness_gate_of_its_own_pods() {
    let _exclusive = installed();
    let namespace = Namespace::new("nri-own");
    namespace.apply(&pod("mine", "app: mine", "{conditionType: knit.opdev.io/networks}", "true"));
    wait_ready(&namespace, "pod/mine");
    let patch = |node: &str, patch: &str| {
        let agent = "--as=system:serviceaccount:pod-network-operator:knit-agent";
        let on = format!("--as-user-extra=authentication.kubernetes.io/node-name={node}");
        let args = ["-n", &namespace.name, "patch", "pod", "mine", "--subresource=status"];
        let output = run(&[&args[..], &["--type=strategic", "-p", patch, agent, &on]].concat());
        (output.status.success(), text(&output))
    };
    let own_gate =
        r#"{"status":{"conditions":[{"type":"knit.opdev.io/networks","status":"False","reason":"Test"}]}}"#;
    let other =
        r#"{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"x/y","status":"True"}]}}"#;
    let phase = r#"{"status":{"phase":"Failed"}}"#;
    let (done, output) = patch("node2", own_gate);
    assert!(!done && output.contains("of another node"), "{output}");
    for wrong in [other, phase] {
        let (done, output) = patch("node1", wrong);
        assert!(
            !done && output.contains("an agent may change only the condition knit.opdev.io/networks"),
            "{output}"
        );
    }
    let (done, output) = patch("node1", own_gate);
    assert!(done, "{output}");
    // The agent reconciles the gate.
    eventually("the gate is reconciled", || gate(&namespace, "mine"), |gate| gate["status"] == "True");
}
