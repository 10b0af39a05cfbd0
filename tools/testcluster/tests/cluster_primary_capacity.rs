//! Knit as the cluster's network: a node without free addresses reports it, and neither schedules nor evicts pods because of it.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_capacity`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::collections::BTreeMap;

use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{IMAGE, eventually, on_node};

const NODE: &str = "node2";
const TAINT: &str = "knit.opdev.io/no-addresses";
const KEY: &str = "knit.opdev.io/wireguard-public-key";
const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// Attaches network namespaces through the CNI shim until no address is free; prints how many and the last error.
const FILL: &str = r#"
i=0; error=none
while [ $i -lt 300 ]; do
  i=$((i+1)); name=fill-$i
  ip netns add $name
  error=$(echo '{"cniVersion":"1.0.0","name":"fill","type":"knit-cni"}' | CNI_COMMAND=ADD CNI_CONTAINERID=$name \
    CNI_NETNS=/var/run/netns/$name CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/knit-cni) || { ip netns del $name; break; }
done
echo "$i $error"
"#;
/// Detaches them.
const RELEASE: &str = r#"
for name in $(ip netns list | grep -o '^fill-[0-9]*'); do
  echo '{"cniVersion":"1.0.0","name":"fill","type":"knit-cni"}' | CNI_COMMAND=DEL CNI_CONTAINERID=$name \
    CNI_NETNS=/var/run/netns/$name CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/knit-cni >/dev/null
  ip netns del $name
done
"#;

/// A node without free addresses, until dropped.
struct FullNode;

impl FullNode {
    fn new() -> Self {
        let full = Self;
        let output = on_node(NODE, &["sh", "-c", FILL]);
        let (number, error) = output.trim().split_once(' ').unwrap();
        assert!(number.parse::<u32>().unwrap() > 200 && error.contains("AddressesExhausted"), "{output}");
        full
    }
}

impl Drop for FullNode {
    fn drop(&mut self) {
        on_node(NODE, &["sh", "-c", RELEASE]);
    }
}

/// A pod for the node that needs the scheduler.
fn pod(name: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {NODE}}}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: "{IMAGE}", imagePullPolicy: Never, args: [pause]}}
"#
    )
}

/// Whether the node has the taint, and the status and reason of its condition.
fn address_state() -> (bool, String) {
    let taints = kubectl(&["get", "node", NODE, "-o", "jsonpath={.spec.taints[*].key}"]);
    let path = "jsonpath={.status.conditions[?(@.type=='KnitAddressesAvailable')]['status','reason']}";
    (taints.split_whitespace().any(|key| key == TAINT), kubectl(&["get", "node", NODE, "-o", path]))
}

fn is_full(state: &(bool, String)) -> bool {
    *state == (true, "False AddressesExhausted".to_owned())
}

fn has_free_addresses(state: &(bool, String)) -> bool {
    *state == (false, "True AddressesFree".to_owned())
}

#[test]
fn a_node_without_free_addresses_is_tainted_until_it_has_some() {
    let namespace = Namespace::new("capacity");
    eventually("addresses are free", address_state, has_free_addresses);
    namespace.apply(&pod("before"));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/before", "--timeout=120s"]);
    let full = FullNode::new();
    eventually("the node is full", address_state, is_full);

    namespace.apply(&pod("after"));
    let message = || {
        let path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
        namespace.kubectl(&["get", "pod", "after", "-o", path])
    };
    eventually("no pod is scheduled", message, |message| message.contains("untolerated taint"));

    // A taint that is removed by someone else is restored, also by an agent that has just started.
    let field = format!("--field-selector=spec.nodeName={NODE}");
    kubectl(&["-n", OPERATOR_NAMESPACE, "delete", "pod", "-l", "app=knit-agent", &field, "--wait=false"]);
    kubectl(&["taint", "node", NODE, &format!("{TAINT}-")]);
    eventually("the taint is restored", address_state, is_full);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    assert!(is_full(&address_state()));
    // Pods of a node that is not ready are evicted; a node is not ready while its agent is unavailable.
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    eventually(
        "a full node is ready",
        || kubectl(&["get", "node", NODE, "-o", ready]),
        |status| status == "True",
    );
    let before = [
        "get",
        "pod",
        "before",
        "-o",
        "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}",
    ];
    assert_eq!(namespace.kubectl(&before), "Running 0", "no pod is evicted");

    drop(full);
    eventually("addresses are free again", address_state, has_free_addresses);
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/after", "--timeout=120s"]);
}

#[test]
fn an_agent_may_change_only_its_own_nodes_taint_condition_and_annotation() {
    let bound = ["--bound-object-kind=Node", "--bound-object-name=node1"];
    let token = kubectl(&[&["-n", OPERATOR_NAMESPACE, "create", "token", "knit-agent"][..], &bound].concat());
    let token = format!("--token={}", token.trim());
    let patch = |node: &str, patch: &str| {
        let output = run(&[&token, "patch", "node", node, "--dry-run=server", "-p", patch]);
        (output.status.success(), text(&output))
    };
    let taint = |key: &str| format!(r#"{{"spec":{{"taints":[{{"key":"{key}","effect":"NoSchedule"}}]}}}}"#);
    // A patch of taints lists all of them, and a node that was just not ready has another one.
    let patched = || patch("node1", &taint(TAINT));
    eventually("its own taint", patched, |(good, _)| *good);
    let annotation = |key: &str| format!(r#"{{"metadata":{{"annotations":{{"{key}":"x"}}}}}}"#);
    // It may set and remove its own annotation.
    for value in [annotation(KEY), annotation(KEY).replace("\"x\"", "null")] {
        let (good, output) = patch("node1", &value);
        assert!(good, "{value}: {output}");
    }
    let all = kubectl(&["get", "node", "node1", "-o", "jsonpath={.metadata.annotations}"]);
    let all: BTreeMap<String, String> = serde_json::from_str(&all).unwrap();
    let others = all.keys().find(|key| *key != KEY).expect("the kubelet and controllers annotate a node");
    for (node, change, expected) in [
        ("node2", taint(TAINT), "may not change node node2"),
        ("node2", annotation(KEY), "may not change node node2"),
        ("node1", annotation("example.org/other"), "may change only Knit's own taint"),
        ("node1", annotation(others), "may change only Knit's own taint"),
        ("node1", annotation(others).replace("\"x\"", "null"), "may change only Knit's own taint"),
        ("node1", taint("example.org/other"), "may change only Knit's own taint"),
        ("node1", r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned(), "may change only Knit's own taint"),
        ("node1", r#"{"spec":{"unschedulable":true}}"#.to_owned(), "may change only Knit's own taint"),
    ] {
        let (good, output) = patch(node, &change);
        assert!(!good && output.contains(expected), "{node} {change}: {output}");
    }
}
