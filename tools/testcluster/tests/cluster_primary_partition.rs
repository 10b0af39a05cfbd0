//! A node that cannot reach the API server, with Knit as the cluster's network: its pods stay connected, and pods can be
//! attached and detached while it has addresses.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_partition`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::net::IpAddr;

use serde_json::Value;
use support::kubectl::{Namespace, kubectl};
use support::operator::{eventually, on_node};
use support::web::{addresses, pod, request};

const NODE: &str = "node2";
/// The name of a network namespace without a pod.
const NETNS: &str = "knit-partition";

/// Cuts a node off from the API server until dropped.
struct Partition;

impl Partition {
    fn new() -> Self {
        let path = "jsonpath={.subsets[0].addresses[0].ip} {.subsets[0].ports[0].port}";
        let server = kubectl(&["-n", "default", "get", "endpoints", "kubernetes", "-o", path]);
        let (address, port) = server.split_once(' ').unwrap();
        // After the translation of Service addresses, so that it matches every address of the server.
        let table = format!(
            "table inet partition {{ chain out {{ type filter hook output priority 0; tcp dport {port} drop; }}; }}"
        );
        on_node(NODE, &["nft", &table]);
        let partition = Self;
        on_node(NODE, &["ip", "netns", "add", NETNS]);
        let line = format!("timeout 1 bash -c 'exec 3<>/dev/tcp/{address}/{port}' || echo cut");
        assert_eq!(on_node(NODE, &["bash", "-c", &line]).trim(), "cut");
        partition
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        on_node(
            NODE,
            &["bash", "-c", &format!("nft delete table inet partition; ip netns delete {NETNS}; true")],
        );
    }
}

/// The response of a pod's server to a request from a network namespace of the node, which needs no API server.
fn request_from(netns: &str, to: IpAddr) -> String {
    let line = format!(
        "exec 3<>/dev/tcp/{to}/8080 && printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' >&3 && timeout 5 cat <&3 | tail -n 1"
    );
    let net = format!("--net=/run/netns/{netns}");
    on_node(NODE, &["nsenter", &net, "timeout", "5", "bash", "-c", &line]).trim().to_owned()
}

/// The network namespace of the pod with this address.
fn netns_of(address: IpAddr) -> String {
    let line = format!(
        "for name in $(ls /run/netns); do ip -n $name -o addr show 2>/dev/null | grep -q ' {address}/' && echo $name; done; true"
    );
    let found = on_node(NODE, &["bash", "-c", &line]);
    found.lines().next().unwrap_or_else(|| panic!("no namespace has {address}")).to_owned()
}

/// Calls the CNI shim on the node like a container runtime.
fn cni(command: &str) -> String {
    let list = on_node(NODE, &["bash", "-c", "cat /etc/cni/net.d/*knit*.conflist"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let mut config = list["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        config[key] = list[key].clone();
    }
    let shim = format!("/opt/cni/bin/{}", config["type"].as_str().unwrap());
    let line = format!(
        "export CNI_COMMAND={command} CNI_CONTAINERID={NETNS} CNI_NETNS=/var/run/netns/{NETNS} CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin
         printf %s '{config}' | {shim}"
    );
    on_node(NODE, &["bash", "-c", &line])
}

fn is_ready() -> bool {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    kubectl(&["get", "node", NODE, "-o", path]) == "True"
}

#[test]
fn a_node_without_the_api_server_keeps_its_pods_connected_and_attaches_more() {
    let namespace = Namespace::new("partition");
    let pods =
        [pod("far", "node1", 8080, false), pod("near", NODE, 8080, false), pod("own", NODE, 8080, false)];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let [far, near, own] = ["far", "near", "own"].map(|pod| addresses(&namespace, pod));
    let netns = netns_of(own[0]);
    let partition = Partition::new();
    let assert_connected = |netns: &str| {
        for (to, name) in far.iter().map(|to| (to, "far")).chain(near.iter().map(|to| (to, "near"))) {
            assert_eq!(request_from(netns, *to), name, "{to}");
        }
    };
    assert_connected(&netns);
    for to in &own {
        assert_eq!(request(&namespace, "far", *to, 8080, "hostname").as_deref(), Some("own"), "{to}");
    }
    let result: Value = serde_json::from_str(&cni("ADD")).unwrap();
    let assigned: Vec<&str> =
        result["ips"].as_array().unwrap().iter().filter_map(|ip| ip["address"].as_str()).collect();
    assert_eq!(assigned.len(), 2, "both families: {result}");
    assert_connected(NETNS);
    cni("DEL");
    let left = on_node(NODE, &["ip", "-n", NETNS, "-o", "link", "show"]);
    assert!(!left.contains("eth0"), "{left}");
    assert_connected(&netns);
    drop(partition);

    eventually("the node is Ready", is_ready, |ready| *ready);
    namespace.apply(&pod("late", NODE, 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/late", "--timeout=120s"]);
}
