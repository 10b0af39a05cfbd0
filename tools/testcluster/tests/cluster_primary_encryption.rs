//! Knit as the cluster's network, told to encrypt: pods of other nodes are reached by WireGuard, or where the kernel has none not
//! at all and in words; and as before when it is told to stop.
//!
//! Run by `cargo xtask test cluster`; by hand against a cluster that is up (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_primary_encryption`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use serde_json::{Value, json};
use support::beside::{eventually, on_node};
use support::kubectl::{Namespace, kubectl, run};
use support::web::{addresses, ask, pod};

const NODES: [&str; 2] = ["node1", "node2"];
const OPERATOR: &str = "pod-network-operator";

/// Agents that encrypt; they are as before when this goes.
struct Encrypting {
    before: String,
}

impl Encrypting {
    fn new() -> Self {
        let path = r"jsonpath={.data.agent\.yaml}";
        let before = kubectl(&["-n", OPERATOR, "get", "configmap", "knit-agent", "-o", path]);
        let line = "  masquerade: true\n";
        assert!(before.contains(line), "{before}");
        let encrypting = Self { before };
        configure(&encrypting.before.replace(line, &format!("{line}  encryption: wireguard\n")));
        encrypting
    }
}

impl Drop for Encrypting {
    fn drop(&mut self) {
        configure(&self.before);
    }
}

/// All agents begin anew with this configuration, at once.
fn configure(text: &str) {
    let patch = json!({"data": {"agent.yaml": text}}).to_string();
    for words in [
        &["patch", "configmap", "knit-agent", "--type=merge", "-p", &patch][..],
        &["delete", "pod", "-l", "app=knit-agent"],
        &["rollout", "status", "daemonset/knit-agent", "--timeout=120s"],
    ] {
        // Also while a test fails: what does not work shows in what follows.
        run(&[&["-n", OPERATOR], words].concat());
    }
}

fn state(node: &str) -> Value {
    serde_json::from_str(&kubectl(&["get", "nodenetwork", node, "-o", "json"])).unwrap()
}

/// What a node's agent warns about.
fn warnings(node: &str) -> String {
    kubectl(&["get", "nodenetwork", node, "-o", "jsonpath={.status.objects[*].warnings}"])
}

/// The key that a node tells the others.
fn key(node: &str) -> String {
    let path = r"jsonpath={.metadata.annotations.knit\.opdev\.io/wireguard-public-key}";
    kubectl(&["get", "node", node, "-o", path])
}

/// What a node has of encrypted ways.
fn left(node: &str) -> Vec<String> {
    let routes =
        on_node(node, &["sh", "-c", "ip route show table 7500; ip -6 route show table 7500; ip -o link"]);
    routes
        .lines()
        .filter(|line| line.contains("unreachable") || line.contains("knitwg0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn nothing_goes_to_other_nodes_in_clear_once_agents_encrypt() {
    let namespace = Namespace::new("encryption");
    let pods = [
        pod("far", "node1", 8080, false),
        pod("near", "node2", 8080, false),
        pod("own", "node2", 8080, false),
    ];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let [far, near] = ["far", "near"].map(|pod| addresses(&namespace, pod));
    let reached = || far.iter().map(|to| ask(&namespace, "own", *to, 8080, "hostname")).collect::<Vec<_>>();
    let is_reached = |said: &Vec<Option<String>>| said.iter().all(|said| said.as_deref() == Some("far"));
    eventually("the other node's pod answers", reached, is_reached);

    let encrypting = Encrypting::new();
    let lacks = |node: &str| {
        let state = state(node);
        let lacks = state["status"]["kernel"]["lacks"].as_array().cloned().unwrap_or_default();
        lacks.iter().any(|kind| kind == "wireguard")
    };
    if lacks("node1") {
        for node in NODES {
            let told = || warnings(node);
            eventually("the node says why", told, |told| {
                told.contains("it is to be encrypted, and this kernel has no")
            });
            assert_eq!(key(node), "", "it has no key to tell");
            assert!(left(node).iter().any(|line| line.contains("unreachable")), "{:?}", left(node));
        }
        eventually("the other node's pod is not reached", reached, |said| said.iter().all(Option::is_none));
    } else {
        let keys = || NODES.map(key);
        eventually("each tells a key of its own", keys, |[a, b]| !a.is_empty() && !b.is_empty() && a != b);
        eventually("the other node's pod answers", reached, is_reached);
        assert!(left("node2").iter().any(|line| line.contains("knitwg0")), "{:?}", left("node2"));
    }
    for to in &near {
        let said = || ask(&namespace, "own", *to, 8080, "hostname");
        eventually("pods of the same node are reached", said, |said| said.as_deref() == Some("near"));
    }

    drop(encrypting);
    eventually("the other node's pod answers again", reached, is_reached);
    for node in NODES {
        eventually("nothing is left on the node", || left(node), Vec::is_empty);
        eventually("and it tells no key", || key(node), String::is_empty);
        eventually("and warns of nothing", || warnings(node), |told| !told.contains("encrypted"));
    }
}
