//! A range that nodes share, on a real cluster: each node allocates addresses from its own blocks.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_blocks`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::kubectl::{Namespace, feed, kubectl, run};
use support::operator::{IMAGE, eventually, folder, installed, on_node};

fn object(bridge: &str, range: &str) -> String {
    format!(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {{name: net}}
spec: {{interfaceName: net0, master: {bridge}, cidr: {range}}}
"
    )
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{podnetwork.opdev.io/veth: net}}}}
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

/// How many pods are ready.
fn ready(namespace: &Namespace) -> u64 {
    let object = get(&["-n", &namespace.name, "get", "veth", "net"]);
    object["status"]["readyPods"].as_u64().unwrap_or_default()
}

/// The addresses of a pod; empty before its PodNetworkState exists.
fn addresses(namespace: &Namespace, pod: &str) -> Vec<String> {
    let output = run(&["-n", &namespace.name, "get", "podnetworkstate", pod, "-o", "json"]);
    let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let addresses = state["status"]["objects"][0]["interfaces"][0]["addresses"].as_array().cloned();
    addresses.unwrap_or_default().iter().map(|address| address.as_str().unwrap().to_owned()).collect()
}

/// Node and range of the blocks of a namespace's networks.
fn blocks(namespace: &Namespace) -> BTreeSet<(String, String)> {
    let all = get(&["get", "podaddressblocks"]);
    let text = |block: &Value, field: &str| block["spec"][field].as_str().unwrap().to_owned();
    let own = all["items"].as_array().unwrap().iter();
    let own = own.filter(|block| text(block, "pool").starts_with(&format!("{}/", namespace.name)));
    own.map(|block| (text(block, "node"), text(block, "cidr"))).collect()
}

fn held(pairs: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    pairs.iter().map(|(node, cidr)| ((*node).to_owned(), (*cidr).to_owned())).collect()
}

#[test]
fn pods_of_one_object_on_two_nodes_have_different_addresses_and_blocks_are_released_with_the_object() {
    let _exclusive = installed();
    let namespace = Namespace::new("blocks");
    let both = object("blkbr0", "'192.168.98.0/24,fd74:6b6e:6974:140::/64'");
    namespace.apply(&format!("{both}{}{}", pod("a", "node1"), pod("b", "node1")));
    eventually("the first node's pods", || ready(&namespace), |ready| *ready == 2);
    let first: BTreeSet<Vec<String>> = ["a", "b"].iter().map(|pod| addresses(&namespace, pod)).collect();
    let expected =
        [["192.168.98.2/24", "fd74:6b6e:6974:140::2/64"], ["192.168.98.3/24", "fd74:6b6e:6974:140::3/64"]];
    assert_eq!(first, expected.map(|pair| pair.map(str::to_owned).to_vec()).into());
    namespace.apply(&format!("{}{}", pod("c", "node2"), pod("d", "node2")));
    eventually("the second node's pods", || ready(&namespace), |ready| *ready == 4);
    let second: BTreeSet<Vec<String>> = ["c", "d"].iter().map(|pod| addresses(&namespace, pod)).collect();
    let expected = [
        ["192.168.98.16/24", "fd74:6b6e:6974:140:1000::/64"],
        ["192.168.98.17/24", "fd74:6b6e:6974:140:1000::1/64"],
    ];
    assert_eq!(second, expected.map(|pair| pair.map(str::to_owned).to_vec()).into());
    assert_eq!(
        blocks(&namespace),
        held(&[
            ("node1", "192.168.98.0/28"),
            ("node2", "192.168.98.16/28"),
            ("node1", "fd74:6b6e:6974:140::/68"),
            ("node2", "fd74:6b6e:6974:140:1000::/68"),
        ])
    );
    let listed = kubectl(&["get", "podaddressblocks"]);
    let row = format!("{}/blkbr0/192.168.98.0/24", namespace.name);
    assert!(listed.contains("NODE") && listed.contains("BLOCK") && listed.contains(&row), "{listed}");

    // A block is immutable.
    let name = format!("{}.blkbr0.192.168.98.0-24-1", namespace.name);
    let patch = r#"{"spec":{"node":"node1"}}"#;
    let (accepted, output) = feed(&["patch", "podaddressblock", &name, "--type=merge", "-p", patch], "");
    assert!(!accepted && output.contains("spec is immutable"), "{output}");

    namespace.kubectl(&["delete", "veth", "net", "--timeout=60s"]);
    eventually("blocks are released", || blocks(&namespace), BTreeSet::is_empty);
}

#[test]
fn a_range_that_the_other_node_holds_is_reported_and_allocated_when_it_is_free() {
    let _exclusive = installed();
    let namespace = Namespace::new("blockfull");
    namespace.apply(&format!("{}{}", object("blfbr0", "192.168.121.0/30"), pod("a", "node1")));
    eventually("the only address", || ready(&namespace), |ready| *ready == 1);
    namespace.apply(&pod("b", "node2"));
    let message = || {
        let object = get(&["-n", &namespace.name, "get", "veth", "net"]);
        object["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the other node reports why not", message, |output| {
        output.contains("192.168.121.0/30 is exhausted: other nodes hold all of its 1 blocks")
    });
    namespace.kubectl(&["delete", "pod", "a"]);
    eventually(
        "the block moves",
        || blocks(&namespace),
        |blocks| *blocks == held(&[("node2", "192.168.121.2/32")]),
    );
    eventually(
        "the pod has the address",
        || addresses(&namespace, "b"),
        |addresses| *addresses == ["192.168.121.2/30"],
    );
    eventually("and the status reports it", || ready(&namespace), |ready| *ready == 1);
}

#[test]
fn a_block_that_is_deleted_manually_is_reclaimed() {
    let _exclusive = installed();
    let namespace = Namespace::new("blocklost");
    namespace.apply(&format!("{}{}", object("bllbr0", "192.168.122.0/24"), pod("a", "node1")));
    eventually("the pod", || ready(&namespace), |ready| *ready == 1);
    let name = format!("{}.bllbr0.192.168.122.0-24-0", namespace.name);
    let uid = || {
        get(&["get", "podaddressblocks"])["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|block| block["metadata"]["name"] == name.as_str())
            .map(|block| block["metadata"]["uid"].clone())
    };
    let before = uid().unwrap();
    kubectl(&["delete", "podaddressblock", &name]);
    eventually("the node has claimed it again", uid, |uid| uid.as_ref().is_some_and(|uid| *uid != before));
    assert_eq!(addresses(&namespace, "a"), ["192.168.122.2/24"]);
    assert_eq!(blocks(&namespace), held(&[("node1", "192.168.122.0/28")]));
}

/// A stopped process, continued when dropped.
struct StoppedProcess(Pid);

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// The ports of a bridge; empty without the bridge.
fn ports(bridge: &str) -> BTreeSet<String> {
    let links: Value = serde_json::from_str(&on_node("node1", &["ip", "-j", "link"])).unwrap();
    let ports = links.as_array().unwrap().iter().filter(|link| link["master"] == bridge);
    ports.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pod_gets_an_address_while_the_api_server_hangs_if_its_node_has_a_block() {
    let _exclusive = installed();
    let namespace = Namespace::new("blockaway");
    namespace.apply(&format!("{}{}", object("blabr0", "192.168.123.0/24"), pod("a", "node1")));
    eventually("the pod", || ready(&namespace), |ready| *ready == 1);
    let before = ports("blabr0");
    assert_eq!(before.len(), 1);
    let uid = namespace.kubectl(&["get", "pod", "a", "-o", "jsonpath={.metadata.uid}"]);
    let sandbox = get(&["-n", &namespace.name, "get", "podnetworkstate", "a"]);
    let sandbox = sandbox["status"]["sandbox"].as_str().unwrap().to_owned();
    // The process that holds the pod's namespaces, from the runtime.
    let task = format!("cat /run/containerd/io.containerd.runtime.v2.task/k8s.io/{sandbox}/init.pid");
    let pause: i32 = on_node("node1", &["sh", "-c", &task]).trim().parse().unwrap();

    let api = std::fs::read_to_string(folder().join("run/apiserver.pid")).unwrap();
    let api = Pid::from_raw(api.split_whitespace().next().unwrap().parse().unwrap());
    kill(api, Signal::SIGSTOP).unwrap();
    let stopped = StoppedProcess(api);
    kill(Pid::from_raw(pause), Signal::SIGKILL).unwrap();
    eventually(
        "the pod's new sandbox is attached",
        || ports("blabr0"),
        |ports| ports.len() == 1 && *ports != before,
    );
    drop(stopped);
    eventually(
        "the new address is reported",
        || addresses(&namespace, "a"),
        |addresses| addresses == &["192.168.123.3/24"],
    );
    assert_eq!(blocks(&namespace), held(&[("node1", "192.168.123.0/28")]));
    assert_eq!(namespace.kubectl(&["get", "pod", "a", "-o", "jsonpath={.metadata.uid}"]), uid);
}
