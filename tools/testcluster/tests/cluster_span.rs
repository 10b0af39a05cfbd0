//! A network that is one on all nodes, on a real cluster: by VXLAN, with a pod that moves and keeps its address.
//!
//! Run by `cargo xtask test cluster`, which loads the image; by hand against a cluster that has it:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_span`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::collections::BTreeSet;

use serde_json::Value;
use support::beside::{IMAGE, eventually, installed, on_node};
use support::kubectl::{Namespace, kubectl, run, text};

const FIXED: [&str; 2] = ["10.77.0.200", "fd00:77::c000:0:0:7"];

/// A network, pods with any address on it, and one with an address of its own.
const OBJECTS: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [10.77.0.0/24, 'fd00:77::/64'], transport: vxlan}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: blue}
spec: {interfaceName: blue0, network: blue}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: vip}
spec: {interfaceName: blue0, network: blue, addresses: [10.77.0.200/24, 'fd00:77::c000:0:0:7/64']}
";

fn pod(name: &str, node: &str, label: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{podnetwork.opdev.io/veth: {label}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: \"{IMAGE}\", imagePullPolicy: Never, args: [pause]}}
"
    )
}

fn get(words: &[&str]) -> Value {
    serde_json::from_str(&kubectl(&[words, &["-o", "json"]].concat())).unwrap()
}

/// How many pods have all of an object.
fn ready(namespace: &Namespace, veth: &str) -> u64 {
    let object = get(&["-n", &namespace.name, "get", "veth", veth]);
    object["status"]["readyPods"].as_u64().unwrap_or_default()
}

/// The addresses that a pod has on the network, without their lengths; none while nothing is said about it.
fn addresses(namespace: &Namespace, pod: &str) -> Vec<String> {
    let said = run(&["-n", &namespace.name, "get", "podnetworkstate", pod, "-o", "json"]);
    let state: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    let addresses = state["status"]["objects"][0]["interfaces"][0]["addresses"].as_array().cloned();
    let addresses = addresses.unwrap_or_default();
    let texts = addresses.iter().map(|address| address.as_str().unwrap());
    texts.map(|text| text.split('/').next().unwrap().to_owned()).collect()
}

/// Whether a pod reaches an address within a second.
fn reaches(namespace: &Namespace, from: &str, to: &str) -> (bool, String) {
    let said = run(&["-n", &namespace.name, "exec", from, "--", "ping", "-n", "-c", "1", "-W", "1", to]);
    (said.status.success(), text(&said))
}

fn ping(namespace: &Namespace, from: &str, to: &str) {
    eventually(&format!("{from} reaches {to}"), || reaches(namespace, from, to), |(reached, _)| *reached);
}

/// What each node says of the network: node and words.
fn nodes(namespace: &Namespace) -> Vec<(String, String)> {
    let network = get(&["-n", &namespace.name, "get", "virtualnetwork", "blue"]);
    let nodes = network["status"]["nodes"].as_array().cloned().unwrap_or_default();
    let word = |node: &Value, field: &str| node[field].as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (word(node, "node"), word(node, "transport"))).collect()
}

/// Names and nodes of the addresses that are claimed alone.
fn alone(namespace: &Namespace) -> BTreeSet<(String, String)> {
    let all = get(&["get", "podaddressblocks"]);
    let word = |block: &Value, field: &str| block["spec"][field].as_str().unwrap().to_owned();
    let of_it = all["items"].as_array().unwrap().iter();
    let of_it = of_it.filter(|block| word(block, "pool").starts_with(&format!("{}/", namespace.name)));
    let alone = of_it.filter(|block| {
        let cidr = word(block, "cidr");
        cidr.ends_with("/32") || cidr.ends_with("/128")
    });
    alone.map(|block| (word(block, "node"), word(block, "cidr"))).collect()
}

fn claimed(node: &str) -> BTreeSet<(String, String)> {
    [(node, "10.77.0.200/32"), (node, "fd00:77::c000:0:0:7/128")]
        .map(|(node, cidr)| (node.to_owned(), cidr.to_owned()))
        .into()
}

/// Links of tunnels of networks on a node.
fn tunnels(node: &str) -> Vec<String> {
    let links: Value = serde_json::from_str(&on_node(node, &["ip", "-j", "link"])).unwrap();
    let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("knvx")).collect()
}

#[test]
fn pods_of_two_nodes_are_on_one_network_and_one_moves_and_keeps_its_address() {
    let _turn = installed();
    let namespace = Namespace::new("span");
    namespace.apply(&format!("{OBJECTS}{}{}", pod("web", "node1", "blue"), pod("db", "node2", "blue")));
    eventually("pods on both nodes", || ready(&namespace, "blue"), |ready| *ready == 2);
    for (from, to) in [("web", "db"), ("db", "web")] {
        let to = addresses(&namespace, to);
        assert_eq!(to.len(), 2, "{to:?}");
        to.iter().for_each(|to| ping(&namespace, from, to));
    }
    let said = eventually(
        "both nodes say how they reach the other",
        || nodes(&namespace),
        |said| said.len() == 2 && said.iter().all(|(_, words)| words.contains(" to node")),
    );
    assert!(said.iter().all(|(_, words)| words.starts_with("vxlan, VNI ")), "{said:?}");
    // Both have the same gateway, each its own.
    for from in ["web", "db"] {
        ping(&namespace, from, "10.77.0.1");
    }

    namespace.apply(&pod("vip", "node1", "vip"));
    eventually("the fixed address", || ready(&namespace, "vip"), |ready| *ready == 1);
    assert_eq!(alone(&namespace), claimed("node1"));
    for from in ["web", "db"] {
        FIXED.iter().for_each(|to| ping(&namespace, from, to));
    }
    namespace.kubectl(&["delete", "pod", "vip", "--wait=true", "--timeout=60s"]);
    namespace.apply(&pod("vip", "node2", "vip"));
    eventually("the address is the other node's", || alone(&namespace), |alone| *alone == claimed("node2"));
    eventually(
        "the pod has it there",
        || addresses(&namespace, "vip"),
        |addresses| FIXED.iter().all(|fixed| addresses.iter().any(|address| address == fixed)),
    );
    // Nobody waits for anything to be forgotten.
    for from in ["web", "db"] {
        for to in FIXED {
            let (reached, said) = reaches(&namespace, from, to);
            assert!(reached, "{from} reaches {to}: {said}");
        }
    }

    for pod in ["web", "db", "vip"] {
        namespace.kubectl(&["delete", "pod", pod, "--wait=true", "--timeout=60s"]);
    }
    for node in ["node1", "node2"] {
        eventually("tunnels go with the last pod", || tunnels(node), Vec::is_empty);
    }
    eventually("claims go back", || alone(&namespace), BTreeSet::is_empty);
}

#[test]
fn an_address_that_another_node_s_pod_has_is_waited_for_in_words() {
    let _turn = installed();
    let namespace = Namespace::new("spanwait");
    namespace.apply(&format!("{OBJECTS}{}", pod("first", "node1", "vip")));
    eventually("the fixed address", || ready(&namespace, "vip"), |ready| *ready == 1);
    namespace.apply(&pod("second", "node2", "vip"));
    let message = || {
        let object = get(&["-n", &namespace.name, "get", "veth", "vip"]);
        object["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the second says what it waits for", message, |said| {
        said.contains("10.77.0.200 waits for podaddressblock/") && said.contains("which node node1 holds")
    });
    namespace.kubectl(&["delete", "pod", "first", "--wait=true", "--timeout=60s"]);
    eventually("then it has it", || alone(&namespace), |alone| *alone == claimed("node2"));
    eventually("and that is said", || ready(&namespace, "vip"), |ready| *ready == 1);
}

#[test]
fn a_local_network_does_not_get_tunnels_later() {
    let _turn = installed();
    let namespace = Namespace::new("spanlocal");
    let local = OBJECTS.replace(", transport: vxlan", "");
    namespace.apply(&local);
    let (accepted, said) = namespace.try_apply(OBJECTS);
    assert!(!accepted && said.contains("transport must not change from local to vxlan"), "{said}");
    let (accepted, said) = namespace.try_apply(&local.replace("'fd00:77::/64']", "'fd00:77::/64'], vni: 7"));
    assert!(!accepted && said.contains("unless transport is vxlan"), "{said}");
}
