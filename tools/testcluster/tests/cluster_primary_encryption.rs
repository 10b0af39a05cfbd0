//! Knit as the cluster's network with encryption: pods of other nodes are reached through WireGuard or, if the kernel does not
//! support it, not at all and with a warning; and in clear again when encryption is turned off.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_encryption`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, kubectl, run};
use support::operator::{eventually, on_node};
use support::web::{addresses, pod, request};

const NODES: [&str; 2] = ["node1", "node2"];
const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// Agents with encryption; their configuration is restored when dropped.
struct Encryption {
    before: String,
}

impl Encryption {
    fn new() -> Self {
        let path = r"jsonpath={.data.agent\.yaml}";
        let before = kubectl(&["-n", OPERATOR_NAMESPACE, "get", "configmap", "knit-agent", "-o", path]);
        let line = "  masquerade: true\n";
        assert!(before.contains(line), "{before}");
        let encryption = Self { before };
        configure(&encryption.before.replace(line, &format!("{line}  encryption: wireguard\n")));
        encryption
    }
}

impl Drop for Encryption {
    fn drop(&mut self) {
        configure(&self.before);
    }
}

/// Restarts all agents at once with this configuration.
fn configure(text: &str) {
    let patch = json!({"data": {"agent.yaml": text}}).to_string();
    for args in [
        &["patch", "configmap", "knit-agent", "--type=merge", "-p", &patch][..],
        &["delete", "pod", "-l", "app=knit-agent"],
        &["rollout", "status", "daemonset/knit-agent", "--timeout=120s"],
    ] {
        // Errors are ignored, because this also runs while a test fails: they show in what follows.
        run(&[&["-n", OPERATOR_NAMESPACE], args].concat());
    }
}

fn state(node: &str) -> Value {
    serde_json::from_str(&kubectl(&["get", "nodenetwork", node, "-o", "json"])).unwrap()
}

/// The warnings of a node's agent.
fn warnings(node: &str) -> String {
    kubectl(&["get", "nodenetwork", node, "-o", "jsonpath={.status.objects[*].warnings}"])
}

/// The WireGuard public key that a node has published.
fn public_key(node: &str) -> String {
    let path = r"jsonpath={.metadata.annotations.knit\.opdev\.io/wireguard-public-key}";
    kubectl(&["get", "node", node, "-o", path])
}

/// Routes and links of encrypted overlay traffic on a node.
fn encrypted_routes(node: &str) -> Vec<String> {
    let routes =
        on_node(node, &["sh", "-c", "ip route show table 7500; ip -6 route show table 7500; ip -o link"]);
    routes
        .lines()
        .filter(|line| line.contains("unreachable") || line.contains("knitwg0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn with_encryption_nothing_is_sent_to_other_nodes_in_clear() {
    let namespace = Namespace::new("encryption");
    let pods = [
        pod("far", "node1", 8080, false),
        pod("near", "node2", 8080, false),
        pod("own", "node2", 8080, false),
    ];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let [far, near] = ["far", "near"].map(|pod| addresses(&namespace, pod));
    let reached =
        || far.iter().map(|to| request(&namespace, "own", *to, 8080, "hostname")).collect::<Vec<_>>();
    let is_reached =
        |output: &Vec<Option<String>>| output.iter().all(|output| output.as_deref() == Some("far"));
    eventually("the other node's pod answers", reached, is_reached);

    let encryption = Encryption::new();
    let lacks = |node: &str| {
        let state = state(node);
        let lacks = state["status"]["kernel"]["lacks"].as_array().cloned().unwrap_or_default();
        lacks.iter().any(|kind| kind == "wireguard")
    };
    if lacks("node1") {
        for node in NODES {
            let warned = || warnings(node);
            eventually("the node warns", warned, |warnings| {
                warnings.contains("encryption is required, and this kernel has no")
            });
            assert_eq!(public_key(node), "", "without WireGuard there is no key");
            let routes = encrypted_routes(node);
            assert!(routes.iter().any(|line| line.contains("unreachable")), "{routes:?}");
        }
        eventually("the other node's pod is not reached", reached, |output| {
            output.iter().all(Option::is_none)
        });
    } else {
        let keys = || NODES.map(public_key);
        eventually("each node publishes its own key", keys, |[a, b]| {
            !a.is_empty() && !b.is_empty() && a != b
        });
        eventually("the other node's pod answers", reached, is_reached);
        let routes = encrypted_routes("node2");
        assert!(routes.iter().any(|line| line.contains("knitwg0")), "{routes:?}");
    }
    for to in &near {
        let output = || request(&namespace, "own", *to, 8080, "hostname");
        eventually("pods of the same node are reached", output, |output| output.as_deref() == Some("near"));
    }

    drop(encryption);
    eventually("the other node's pod answers again", reached, is_reached);
    for node in NODES {
        eventually("nothing is left on the node", || encrypted_routes(node), Vec::is_empty);
        eventually("no key is published", || public_key(node), String::is_empty);
        eventually("nothing is warned about", || warnings(node), |warnings| !warnings.contains("encryption"));
    }
}
