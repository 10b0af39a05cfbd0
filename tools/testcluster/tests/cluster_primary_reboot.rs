//! A node that reboots, with Knit as the cluster's network: it becomes Ready by itself, its pods are connected again, and no
//! state of the previous boot is left.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_reboot`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use support::kubectl::{Namespace, kubectl};
use support::operator::{cluster, eventually, on_node, testcluster};
use support::web::{addresses, pod, request};

const NODE: &str = "node2";
const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// The node's boot id and whether it is Ready, from its status.
fn boot_state() -> (String, bool) {
    let path = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=='Ready')].status}";
    let output = kubectl(&["get", "node", NODE, "-o", path]);
    let (boot, ready) = output.split_once(' ').unwrap_or_default();
    (boot.to_owned(), ready == "True")
}

/// The container of a pod that is ready.
fn container(namespace: &Namespace, pod: &str) -> Option<String> {
    let path = "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].containerID}";
    let output = namespace.kubectl(&["get", "pod", pod, "-o", path]);
    output.strip_prefix("true ").map(str::to_owned)
}

/// The addresses of all pods that have not ended, except host network pods, with the node of each.
fn all_addresses() -> Vec<(String, IpAddr)> {
    let pods: Value = serde_json::from_str(&kubectl(&["get", "pods", "-A", "-o", "json"])).unwrap();
    let own = pods["items"].as_array().unwrap().iter().filter(|pod| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        pod["spec"]["hostNetwork"] != true && !["Succeeded", "Failed"].contains(&phase)
    });
    own.flat_map(|pod| {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let addresses = pod["status"]["podIPs"].as_array().cloned().unwrap_or_default();
        addresses.into_iter().map(move |one| (node.clone(), one["ip"].as_str().unwrap().parse().unwrap()))
    })
    .collect()
}

fn node_addresses() -> BTreeSet<IpAddr> {
    all_addresses().into_iter().filter(|(node, _)| node == NODE).map(|(_, address)| address).collect()
}

/// How many IPv4 addresses the agent has allocated, from its status; IPv6 counts do not fit into JSON numbers.
fn allocated() -> Option<u64> {
    let state = kubectl(&["get", "nodenetwork", NODE, "-o", "json"]);
    let state: Value = serde_json::from_str(&state).unwrap();
    let is_own = |network: &&Value| network["name"] == "cluster-network" && network["family"] == "IPv4";
    let own = state["status"]["networks"].as_array()?.iter().find(is_own)?;
    own["total"].as_u64()?.checked_sub(own["free"].as_u64()?)
}

/// The number of ports of the cluster network's bridge.
fn ports() -> usize {
    on_node(NODE, &["ip", "-o", "link", "show", "master", "knit0"]).lines().count()
}

/// The pods' addresses in the anti-spoofing table.
fn anti_spoofing_addresses() -> BTreeSet<IpAddr> {
    let listed = on_node(NODE, &["nft", "list", "table", "bridge", "knit"]);
    let addresses = listed.split([' ', ',', '\n', '\t']).filter_map(|word| word.parse().ok());
    // Link-local addresses of pods are in it too.
    let is_pod_address = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    };
    addresses.filter(is_pod_address).collect()
}

#[test]
fn a_node_that_reboots_becomes_ready_with_its_pods_and_without_stale_state() {
    let namespace = Namespace::new("reboot");
    let pods = [
        pod("far", "node1", 8080, false),
        pod("a", NODE, 8080, false),
        pod("b", NODE, 8080, false),
        pod("gone", NODE, 8080, false),
    ];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let (boot, _) = boot_state();
    let before = ["a", "b"].map(|pod| container(&namespace, pod).unwrap());
    let far = addresses(&namespace, "far");
    on_node(NODE, &["ip", "link", "add", "preboot", "type", "bridge"]);

    // One pod is being deleted during the reboot.
    namespace.kubectl(&["delete", "pod", "gone", "--wait=false"]);
    testcluster(&["reboot", NODE, "--name", &cluster()]);
    assert!(!on_node(NODE, &["ip", "-o", "link"]).contains("preboot"), "links do not survive a reboot");

    eventually("the node is ready again", boot_state, |(now, ready)| *now != boot && *ready);
    for (pod, before) in ["a", "b"].iter().zip(&before) {
        let restarted = || container(&namespace, pod);
        eventually("the pod runs restarted", restarted, |now| now.as_ref().is_some_and(|now| now != before));
    }
    namespace.kubectl(&["wait", "--for=delete", "pod/gone", "--timeout=60s"]);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/knit-controller", "--timeout=120s"]);

    // To the same node and to the other, in both families and directions.
    let [a, b] = ["a", "b"].map(|pod| addresses(&namespace, pod));
    for (from, to, name) in [("a", &b, "b"), ("a", &far, "far"), ("far", &a, "a"), ("far", &b, "b")] {
        for address in to {
            let output = || request(&namespace, from, *address, 8080, "hostname");
            eventually(&format!("{from} reaches {name} at {address}"), output, |output| {
                output.as_deref() == Some(name)
            });
        }
    }

    // The API server has the pods' old addresses until the kubelet has updated each status.
    eventually("no address is used twice", all_addresses, |all| {
        let once: BTreeSet<IpAddr> = all.iter().map(|(_, address)| *address).collect();
        once.len() == all.len()
    });
    let state = || (node_addresses(), anti_spoofing_addresses(), ports(), allocated());
    eventually("the node has the state of its pods only", state, |(own, guarded, ports, allocated)| {
        let pods = own.len() / 2;
        own == guarded && *ports == pods && *allocated == Some(pods as u64)
    });
    let stale = on_node(NODE, &["sh", "-c", "ls /run/knit/netns 2>/dev/null | wc -l"]);
    assert_eq!(stale.trim(), "0", "no network namespace file of the previous boot");
}
