//! A node that reboots, with Knit as the cluster's network: it is ready again by itself, its pods are connected again, and
//! nothing of before is left.
//!
//! Run by `cargo xtask test cluster`; by hand against a cluster that is up (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_primary_reboot`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use support::beside::{cluster, eventually, on_node, testcluster};
use support::kubectl::{Namespace, kubectl};
use support::web::{addresses, ask, pod};

const NODE: &str = "node2";
const OPERATOR: &str = "pod-network-operator";

/// The node's boot id, and whether it is ready, as its kubelet says.
fn life() -> (String, bool) {
    let path = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=='Ready')].status}";
    let said = kubectl(&["get", "node", NODE, "-o", path]);
    let (boot, ready) = said.split_once(' ').unwrap_or_default();
    (boot.to_owned(), ready == "True")
}

/// The container of a pod, while it is ready.
fn container(namespace: &Namespace, pod: &str) -> Option<String> {
    let path = "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].containerID}";
    let said = namespace.kubectl(&["get", "pod", pod, "-o", path]);
    said.strip_prefix("true ").map(str::to_owned)
}

/// The addresses of all pods that have a network of their own and have not ended, with the node of each.
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

fn of_node() -> BTreeSet<IpAddr> {
    all_addresses().into_iter().filter(|(node, _)| node == NODE).map(|(_, address)| address).collect()
}

/// How many IPv4 addresses the agent has given away, as it says; of IPv6 there are more than JSON counts.
fn given() -> Option<u64> {
    let state = kubectl(&["get", "nodenetwork", NODE, "-o", "json"]);
    let state: Value = serde_json::from_str(&state).unwrap();
    let is_own = |network: &&Value| network["name"] == "cluster-network" && network["family"] == "IPv4";
    let own = state["status"]["networks"].as_array()?.iter().find(is_own)?;
    own["total"].as_u64()?.checked_sub(own["free"].as_u64()?)
}

/// The ports of the cluster's bridge.
fn ports() -> usize {
    on_node(NODE, &["ip", "-o", "link", "show", "master", "knit0"]).lines().count()
}

/// The pods' addresses in the table that keeps them from sending in the name of others.
fn guarded() -> BTreeSet<IpAddr> {
    let listed = on_node(NODE, &["nft", "list", "table", "bridge", "knit"]);
    let words = listed.split([' ', ',', '\n', '\t']).filter_map(|word| word.parse().ok());
    // Pods' link-local addresses are there, too.
    let is_given = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    };
    words.filter(is_given).collect()
}

#[test]
fn a_node_that_reboots_is_ready_again_with_its_pods_and_has_nothing_of_before() {
    let namespace = Namespace::new("reboot");
    let pods = [
        pod("far", "node1", 8080, false),
        pod("a", NODE, 8080, false),
        pod("b", NODE, 8080, false),
        pod("gone", NODE, 8080, false),
    ];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let (boot, _) = life();
    let before = ["a", "b"].map(|pod| container(&namespace, pod).unwrap());
    let far = addresses(&namespace, "far");
    on_node(NODE, &["ip", "link", "add", "oldlife", "type", "bridge"]);

    // One pod is on its way out when it happens.
    namespace.kubectl(&["delete", "pod", "gone", "--wait=false"]);
    testcluster(&["reboot", NODE, "--name", &cluster()]);
    assert!(!on_node(NODE, &["ip", "-o", "link"]).contains("oldlife"), "a new life begins without links");

    eventually("the node is ready again", life, |(now, ready)| *now != boot && *ready);
    for (pod, before) in ["a", "b"].iter().zip(&before) {
        let again = || container(&namespace, pod);
        eventually("the pod runs again", again, |now| now.as_ref().is_some_and(|now| now != before));
    }
    namespace.kubectl(&["wait", "--for=delete", "pod/gone", "--timeout=60s"]);
    kubectl(&["-n", OPERATOR, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    kubectl(&["-n", OPERATOR, "rollout", "status", "deployment/knit-controller", "--timeout=120s"]);

    // On the same node and on the other, in both families, both ways.
    let [a, b] = ["a", "b"].map(|pod| addresses(&namespace, pod));
    for (from, to, name) in [("a", &b, "b"), ("a", &far, "far"), ("far", &a, "a"), ("far", &b, "b")] {
        for address in to {
            let said = || ask(&namespace, from, *address, 8080, "hostname");
            eventually(&format!("{from} asks {name} at {address}"), said, |said| {
                said.as_deref() == Some(name)
            });
        }
    }

    // What the API server knows of pods on the node is of before until the kubelet has told of each again.
    eventually("no address is held twice", all_addresses, |all| {
        let once: BTreeSet<IpAddr> = all.iter().map(|(_, address)| *address).collect();
        once.len() == all.len()
    });
    let look = || (of_node(), guarded(), ports(), given());
    eventually("the node has its pods, and no more", look, |(own, guarded, ports, given)| {
        let pods = own.len() / 2;
        own == guarded && *ports == pods && *given == Some(pods as u64)
    });
    let ended = on_node(NODE, &["sh", "-c", "ls /run/knit/netns 2>/dev/null | wc -l"]);
    assert_eq!(ended.trim(), "0", "no file of a namespace of before");
}
