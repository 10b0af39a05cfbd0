//! Knit as the cluster's network: a node that has no address left says so, and no pod comes or leaves because of it.
//!
//! Run by `cargo xtask test cluster`; by hand against a cluster that is up (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_primary_room`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::collections::BTreeMap;

use support::beside::{IMAGE, eventually, on_node};
use support::kubectl::{Namespace, kubectl, run, text};

const NODE: &str = "node2";
const TAINT: &str = "knit.opdev.io/no-addresses";
const KEY: &str = "knit.opdev.io/wireguard-public-key";
const OPERATOR: &str = "pod-network-operator";

/// Adds networks through the CNI shim until there is no address left for one more, and says how many and why.
const FILL: &str = r#"
i=0; why=none
while [ $i -lt 300 ]; do
  i=$((i+1)); name=fill-$i
  ip netns add $name
  why=$(echo '{"cniVersion":"1.0.0","name":"fill","type":"knit-cni"}' | CNI_COMMAND=ADD CNI_CONTAINERID=$name \
    CNI_NETNS=/var/run/netns/$name CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/knit-cni) || { ip netns del $name; break; }
done
echo "$i $why"
"#;
/// Takes them away again.
const EMPTY: &str = r#"
for name in $(ip netns list | grep -o '^fill-[0-9]*'); do
  echo '{"cniVersion":"1.0.0","name":"fill","type":"knit-cni"}' | CNI_COMMAND=DEL CNI_CONTAINERID=$name \
    CNI_NETNS=/var/run/netns/$name CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/knit-cni >/dev/null
  ip netns del $name
done
"#;

/// A node without an address left; it has them all again when this goes.
struct Full;

impl Full {
    fn new() -> Self {
        let full = Self;
        let said = on_node(NODE, &["sh", "-c", FILL]);
        let (number, why) = said.trim().split_once(' ').unwrap();
        assert!(number.parse::<u32>().unwrap() > 200 && why.contains("AddressesExhausted"), "{said}");
        full
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        on_node(NODE, &["sh", "-c", EMPTY]);
    }
}

/// A pod for the node that the scheduler has to send there.
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

/// Whether the node has the taint, and what its condition is.
fn said() -> (bool, String) {
    let taints = kubectl(&["get", "node", NODE, "-o", "jsonpath={.spec.taints[*].key}"]);
    let path = "jsonpath={.status.conditions[?(@.type=='KnitAddressesAvailable')]['status','reason']}";
    (taints.split_whitespace().any(|key| key == TAINT), kubectl(&["get", "node", NODE, "-o", path]))
}

fn is_full(said: &(bool, String)) -> bool {
    *said == (true, "False AddressesExhausted".to_owned())
}

fn has_room(said: &(bool, String)) -> bool {
    *said == (false, "True AddressesFree".to_owned())
}

#[test]
fn a_node_without_addresses_says_so_until_it_has_some_again() {
    let namespace = Namespace::new("room");
    eventually("there is room", said, has_room);
    namespace.apply(&pod("before"));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/before", "--timeout=120s"]);
    let full = Full::new();
    eventually("the node is full", said, is_full);

    namespace.apply(&pod("after"));
    let why = || {
        let path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
        namespace.kubectl(&["get", "pod", "after", "-o", path])
    };
    eventually("no pod comes", why, |why| why.contains("untolerated taint"));

    // What someone else takes away comes back, also from an agent that has just begun.
    let field = format!("--field-selector=spec.nodeName={NODE}");
    kubectl(&["-n", OPERATOR, "delete", "pod", "-l", "app=knit-agent", &field, "--wait=false"]);
    kubectl(&["taint", "node", NODE, &format!("{TAINT}-")]);
    eventually("the taint is back", said, is_full);
    kubectl(&["-n", OPERATOR, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    assert!(is_full(&said()));
    // Pods of a node that is not ready are evicted. While the agent was away it was not.
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
    assert_eq!(namespace.kubectl(&before), "Running 0", "no pod leaves");

    drop(full);
    eventually("there is room again", said, has_room);
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/after", "--timeout=120s"]);
}

#[test]
fn an_agent_changes_nothing_of_nodes_but_its_own_taint_condition_and_annotation() {
    let bound = ["--bound-object-kind=Node", "--bound-object-name=node1"];
    let token = kubectl(&[&["-n", OPERATOR, "create", "token", "knit-agent"][..], &bound].concat());
    let token = format!("--token={}", token.trim());
    let patch = |node: &str, patch: &str| {
        let output = run(&[&token, "patch", "node", node, "--dry-run=server", "-p", patch]);
        (output.status.success(), text(&output))
    };
    let taint = |key: &str| format!(r#"{{"spec":{{"taints":[{{"key":"{key}","effect":"NoSchedule"}}]}}}}"#);
    // A patch of taints names all of them, and a node that was not ready a moment ago has one of others.
    let patched = || patch("node1", &taint(TAINT));
    eventually("its own taint", patched, |(good, _)| *good);
    let annotation = |key: &str| format!(r#"{{"metadata":{{"annotations":{{"{key}":"x"}}}}}}"#);
    // To write its own, and to take it away.
    for value in [annotation(KEY), annotation(KEY).replace("\"x\"", "null")] {
        let (good, said) = patch("node1", &value);
        assert!(good, "{value}: {said}");
    }
    let all = kubectl(&["get", "node", "node1", "-o", "jsonpath={.metadata.annotations}"]);
    let all: BTreeMap<String, String> = serde_json::from_str(&all).unwrap();
    let others = all.keys().find(|key| *key != KEY).expect("the kubelet and controllers annotate a node");
    for (node, change, words) in [
        ("node2", taint(TAINT), "may not change node node2"),
        ("node2", annotation(KEY), "may not change node node2"),
        ("node1", annotation("example.org/other"), "nothing else"),
        ("node1", annotation(others), "nothing else"),
        ("node1", annotation(others).replace("\"x\"", "null"), "nothing else"),
        ("node1", taint("example.org/other"), "nothing else"),
        ("node1", r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned(), "nothing else"),
        ("node1", r#"{"spec":{"unschedulable":true}}"#.to_owned(), "nothing else"),
    ] {
        let (good, said) = patch(node, &change);
        assert!(!good && said.contains(words), "{node} {change}: {said}");
    }
}
