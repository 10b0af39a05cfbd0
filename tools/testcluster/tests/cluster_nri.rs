//! Networks that are there before a pod's first container, on a real cluster: the container runtime tells the agent of each pod
//! (NRI) and waits. And the readiness gate, for pods that must not be ready before.
//!
//! Run by `cargo xtask test cluster`, which loads the image; by hand against a cluster that has it:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_nri`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use serde_json::{Value, json};
use support::beside::{IMAGE, eventually, installed};
use support::kubectl::{Namespace, kubectl, run, text};

const OBJECT: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: storage}
spec: {interfaceName: store0, master: storebr0, cidr: 192.168.130.0/24}
---
";
const LABEL: &str = "podnetwork.opdev.io/veth: storage";

/// A pod that never restarts, so that what its first container finds is all there is. Its init container runs this.
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

/// An object as the API server has it.
fn get(namespace: &Namespace, kind: &str, name: &str) -> Value {
    serde_json::from_str(&namespace.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

/// When each pod got what the object asks for, as the object says.
fn attached(namespace: &Namespace) -> Vec<(String, String)> {
    let status = get(namespace, "veth", "storage")["status"].clone();
    let pods = status["podConfigurations"].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    pods.iter().map(|pod| (word(&pod["podName"]), word(&pod["attached"]))).collect()
}

fn wait_ready(namespace: &Namespace, object: &str) {
    namespace.kubectl(&["wait", "--for=condition=Ready", object, "--timeout=60s"]);
}

/// The agents are plugins of their runtimes: they say so in their log.
fn agents_are_told() {
    let log =
        || kubectl(&["-n", "pod-network-operator", "logs", "-l", "app=knit-agent", "--tail=-1", "--prefix"]);
    eventually("both agents are told of pods", log, |log| {
        log.lines().filter(|line| line.contains("containers wait for their pod\'s networks")).count() >= 2
    });
}

fn gate(namespace: &Namespace, pod: &str) -> Value {
    let conditions = get(namespace, "pod", pod)["status"]["conditions"].clone();
    let all = conditions.as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["type"] == "knit.opdev.io/networks").unwrap_or(Value::Null)
}

#[test]
fn an_init_container_finds_the_networks_and_the_object_says_how_each_pod_got_them() {
    let _turn = installed();
    agents_are_told();
    let namespace = Namespace::new("nri-init");
    // This one runs before the object is there.
    namespace.apply(&pod("early", LABEL, "", "true"));
    wait_ready(&namespace, "pod/early");
    namespace.apply(OBJECT);
    wait_ready(&namespace, "veth/storage");
    // The first process of a pod fails unless the interface is there, up and with its address. It is not tried again.
    let find = "ip -o link show store0 | grep -q UP && ip -o addr show store0 | grep -q 192.168.130.";
    for name in ["one", "two", "three"] {
        namespace.apply(&pod(name, LABEL, "", find));
        wait_ready(&namespace, &format!("pod/{name}"));
    }
    let before = |name: &str| (name.to_owned(), "BeforeContainers".to_owned());
    let said =
        [("early".to_owned(), "WhileRunning".to_owned()), before("one"), before("three"), before("two")];
    eventually("the object says so", || attached(&namespace), |seen| seen[..] == said);
    let state = get(&namespace, "podnetworkstate", "one");
    assert_eq!(state["status"]["objects"][0]["attached"], json!("BeforeContainers"), "{state}");
    // Without the network the same pod fails: the test would notice.
    namespace.apply(&pod("none", "app: none", "", find));
    namespace.kubectl(&["wait", "--for=jsonpath={.status.phase}=Failed", "pod/none", "--timeout=60s"]);
    // A pod on the node's own network is left alone, and starts.
    let host = pod("host", LABEL, "", "true").replace("  nodeName:", "  hostNetwork: true\n  nodeName:");
    namespace.apply(&host);
    wait_ready(&namespace, "pod/host");
    let late = namespace.kubectl(&["get", "events", "--field-selector", "reason=NetworksLate", "-o", "name"]);
    assert_eq!(late, "", "nobody had to go on without its networks");
}

#[test]
fn a_pod_with_the_gate_is_ready_once_its_networks_are_there() {
    let _turn = installed();
    let namespace = Namespace::new("nri-gate");
    let ours = "{conditionType: knit.opdev.io/networks}";
    // Nobody asks for anything: the gate is open.
    namespace.apply(&pod("free", "app: free", ours, "true"));
    wait_ready(&namespace, "pod/free");
    assert_eq!(gate(&namespace, "free")["reason"], "NothingAsked");
    // What the object asks for cannot be there: nobody has said what the network is.
    namespace.apply(&OBJECT.replace("master: storebr0, cidr: 192.168.130.0/24", "network: blue"));
    namespace.apply(&pod("held", LABEL, ours, "true"));
    let said = eventually("the gate is shut", || gate(&namespace, "held"), |gate| gate["status"] == "False");
    eventually(
        "it says why",
        || gate(&namespace, "held"),
        |gate| !["NoSandbox", "Configuring"].contains(&gate["reason"].as_str().unwrap_or("NoSandbox")),
    );
    assert!(said["message"].is_string(), "{said}");
    let status = get(&namespace, "pod", "held")["status"].clone();
    let is_ready =
        status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap();
    assert_eq!(is_ready["status"], "False", "{status}");
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [10.60.0.0/24]}
",
    );
    wait_ready(&namespace, "pod/held");
    assert_eq!(gate(&namespace, "held")["reason"], "Configured");
}

#[test]
fn an_agent_may_write_the_gate_of_its_own_pods_and_nothing_else() {
    let _turn = installed();
    let namespace = Namespace::new("nri-own");
    namespace.apply(&pod("mine", "app: mine", "{conditionType: knit.opdev.io/networks}", "true"));
    wait_ready(&namespace, "pod/mine");
    let patch = |node: &str, patch: &str| {
        let agent = "--as=system:serviceaccount:pod-network-operator:knit-agent";
        let on = format!("--as-user-extra=authentication.kubernetes.io/node-name={node}");
        let words = ["-n", &namespace.name, "patch", "pod", "mine", "--subresource=status"];
        let said = run(&[&words[..], &["--type=strategic", "-p", patch, agent, &on]].concat());
        (said.status.success(), text(&said))
    };
    let ours =
        r#"{"status":{"conditions":[{"type":"knit.opdev.io/networks","status":"False","reason":"Test"}]}}"#;
    let other =
        r#"{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"x/y","status":"True"}]}}"#;
    let phase = r#"{"status":{"phase":"Failed"}}"#;
    let (done, said) = patch("node2", ours);
    assert!(!done && said.contains("of another node"), "{said}");
    for wrong in [other, phase] {
        let (done, said) = patch("node1", wrong);
        assert!(!done && said.contains("may change only"), "{said}");
    }
    let (done, said) = patch("node1", ours);
    assert!(done, "{said}");
    // The agent says what is so, whoever wrote there.
    eventually("it is put right", || gate(&namespace, "mine"), |gate| gate["status"] == "True");
}
