//! A network that spans all nodes, on a real cluster: a VXLAN overlay, and a pod that moves and keeps its address.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_overlay`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::collections::BTreeSet;

use serde_json::Value;
use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{IMAGE, eventually, installed, on_node};

const FIXED: [&str; 2] = ["192.168.107.200", "fd74:6b6e:6974:77:c000::7"];

/// A network, pods with any address on it, and one with fixed addresses.
const OBJECTS: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [192.168.107.0/24, 'fd74:6b6e:6974:77::/64'], transport: vxlan}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: blue}
spec: {interfaceName: blue0, network: blue}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: vip}
spec: {interfaceName: blue0, network: blue, addresses: [192.168.107.200/24, 'fd74:6b6e:6974:77:c000::7/64']}
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

fn get(args: &[&str]) -> Value {
    serde_json::from_str(&kubectl(&[args, &["-o", "json"]].concat())).unwrap()
}

/// How many pods of an object are ready.
fn ready(namespace: &Namespace, veth: &str) -> u64 {
    let object = get(&["-n", &namespace.name, "get", "veth", veth]);
    object["status"]["readyPods"].as_u64().unwrap_or_default()
}

/// A pod's addresses on the network without prefix lengths; empty before its PodNetworkState exists.
fn addresses(namespace: &Namespace, pod: &str) -> Vec<String> {
    let output = run(&["-n", &namespace.name, "get", "podnetworkstate", pod, "-o", "json"]);
    let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let addresses = state["status"]["objects"][0]["interfaces"][0]["addresses"].as_array().cloned();
    let addresses = addresses.unwrap_or_default();
    let texts = addresses.iter().map(|address| address.as_str().unwrap());
    texts.map(|text| text.split('/').next().unwrap().to_owned()).collect()
}

/// Whether a pod reaches an address within a second.
fn reaches(namespace: &Namespace, from: &str, to: &str) -> (bool, String) {
    let output = run(&["-n", &namespace.name, "exec", from, "--", "ping", "-n", "-c", "1", "-W", "1", to]);
    (output.status.success(), text(&output))
}

fn ping(namespace: &Namespace, from: &str, to: &str) {
    eventually(&format!("{from} reaches {to}"), || reaches(namespace, from, to), |(reached, _)| *reached);
}

/// The state of the overlay on each node: node and description.
fn nodes(namespace: &Namespace) -> Vec<(String, String)> {
    let network = get(&["-n", &namespace.name, "get", "virtualnetwork", "blue"]);
    let nodes = network["status"]["nodes"].as_array().cloned().unwrap_or_default();
    let text = |node: &Value, field: &str| node[field].as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (text(node, "node"), text(node, "transport"))).collect()
}

/// Node and address of the single address claims.
fn single_address_claims(namespace: &Namespace) -> BTreeSet<(String, String)> {
    let all = get(&["get", "podaddressblocks"]);
    let text = |block: &Value, field: &str| block["spec"][field].as_str().unwrap().to_owned();
    let own = all["items"].as_array().unwrap().iter();
    let own = own.filter(|block| text(block, "pool").starts_with(&format!("{}/", namespace.name)));
    let single = own.filter(|block| {
        let cidr = text(block, "cidr");
        cidr.ends_with("/32") || cidr.ends_with("/128")
    });
    single.map(|block| (text(block, "node"), text(block, "cidr"))).collect()
}

fn claimed(node: &str) -> BTreeSet<(String, String)> {
    [(node, "192.168.107.200/32"), (node, "fd74:6b6e:6974:77:c000::7/128")]
        .map(|(node, cidr)| (node.to_owned(), cidr.to_owned()))
        .into()
}

/// The tunnel links of a node.
fn tunnels(node: &str) -> Vec<String> {
    let links: Value = serde_json::from_str(&on_node(node, &["ip", "-j", "link"])).unwrap();
    let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("knvx")).collect()
}

#[test]
fn pods_of_two_nodes_share_one_network_and_one_moves_and_keeps_its_address() {
    let _exclusive = installed();
    let namespace = Namespace::new("overlay");
    namespace.apply(&format!("{OBJECTS}{}{}", pod("web", "node1", "blue"), pod("db", "node2", "blue")));
    eventually("pods on both nodes", || ready(&namespace, "blue"), |ready| *ready == 2);
    for (from, to) in [("web", "db"), ("db", "web")] {
        let to = addresses(&namespace, to);
        assert_eq!(to.len(), 2, "{to:?}");
        to.iter().for_each(|to| ping(&namespace, from, to));
    }
    let state = eventually(
        "both nodes report the tunnel to the other",
        || nodes(&namespace),
        |state| state.len() == 2 && state.iter().all(|(_, transport)| transport.contains(" to node")),
    );
    assert!(state.iter().all(|(_, transport)| transport.starts_with("vxlan, VNI ")), "{state:?}");
    // Both nodes have the same gateway address.
    for from in ["web", "db"] {
        ping(&namespace, from, "192.168.107.1");
    }

    namespace.apply(&pod("vip", "node1", "vip"));
    eventually("the fixed address", || ready(&namespace, "vip"), |ready| *ready == 1);
    assert_eq!(single_address_claims(&namespace), claimed("node1"));
    for from in ["web", "db"] {
        FIXED.iter().for_each(|to| ping(&namespace, from, to));
    }
    namespace.kubectl(&["delete", "pod", "vip", "--wait=true", "--timeout=60s"]);
    namespace.apply(&pod("vip", "node2", "vip"));
    eventually(
        "the other node has claimed the address",
        || single_address_claims(&namespace),
        |claims| *claims == claimed("node2"),
    );
    eventually(
        "the pod has it there",
        || addresses(&namespace, "vip"),
        |addresses| FIXED.iter().all(|fixed| addresses.iter().any(|address| address == fixed)),
    );
    // No neighbour entry has to expire first.
    for from in ["web", "db"] {
        for to in FIXED {
            let (reached, output) = reaches(&namespace, from, to);
            assert!(reached, "{from} reaches {to}: {output}");
        }
    }

    for pod in ["web", "db", "vip"] {
        namespace.kubectl(&["delete", "pod", pod, "--wait=true", "--timeout=60s"]);
    }
    for node in ["node1", "node2"] {
        eventually("tunnels are removed with the last pod", || tunnels(node), Vec::is_empty);
    }
    eventually("claims are released", || single_address_claims(&namespace), BTreeSet::is_empty);
}

#[test]
fn a_pod_waits_for_an_address_of_another_nodes_pod_and_reports_it() {
    let _exclusive = installed();
    let namespace = Namespace::new("overlaywait");
    namespace.apply(&format!("{OBJECTS}{}", pod("first", "node1", "vip")));
    eventually("the fixed address", || ready(&namespace, "vip"), |ready| *ready == 1);
    namespace.apply(&pod("second", "node2", "vip"));
    let message = || {
        let object = get(&["-n", &namespace.name, "get", "veth", "vip"]);
        object["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the second reports what it waits for", message, |output| {
        output.contains("192.168.107.200 waits for podaddressblock/")
            && output.contains("which node node1 holds")
    });
    namespace.kubectl(&["delete", "pod", "first", "--wait=true", "--timeout=60s"]);
    eventually(
        "then it has the address",
        || single_address_claims(&namespace),
        |claims| *claims == claimed("node2"),
    );
    eventually("and the status reports it", || ready(&namespace, "vip"), |ready| *ready == 1);
}

#[test]
fn a_local_network_cannot_become_an_overlay() {
    let _exclusive = installed();
    let namespace = Namespace::new("overlaylocal");
    let local = OBJECTS.replace(", transport: vxlan", "");
    namespace.apply(&local);
    let (accepted, output) = namespace.try_apply(OBJECTS);
    assert!(!accepted && output.contains("transport must not change from local to vxlan"), "{output}");
    let (accepted, output) =
        namespace.try_apply(&local.replace("'fd74:6b6e:6974:77::/64']", "'fd74:6b6e:6974:77::/64'], vni: 7"));
    assert!(!accepted && output.contains("unless transport is vxlan"), "{output}");
}
