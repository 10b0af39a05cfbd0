//! Migration from the reference network to Knit, on a cluster with running pods: docs/migrate-primary.md, step by step.
//!
//! Run by `cargo xtask test cluster` as the last test on the cluster with the reference network, which it replaces; manually
//! against such a cluster with the image loaded:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_migrate`.

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
use support::kubectl::{Namespace, feed, install_kinds, kubectl, run};
use support::operator::{eventually, on_node};
use support::web::{addresses, pod, request};

const NODES: [&str; 2] = ["node1", "node2"];
const OPERATOR_NAMESPACE: &str = "pod-network-operator";
const POOLS: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodAddressPool
metadata: {name: pods}
spec: {cidr: 10.240.0.0/16}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodAddressPool
metadata: {name: pods-v6}
spec: {cidr: 'fd24:6b6e:6974::/64', blockSize: 112}
";

fn is_in_pools(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..2] == [10, 240],
        IpAddr::V6(address) => address.segments()[..2] == [0xfd24, 0x6b6e],
    }
}

/// Waits until all pods reach each other, in both families.
fn wait_full_mesh(namespace: &Namespace, pods: &[&str]) {
    for from in pods {
        for to in pods.iter().filter(|to| *to != from) {
            for address in addresses(namespace, to) {
                let answer = || request(namespace, from, address, 8080, "hostname");
                eventually(&format!("{from} reaches {to} at {address}"), answer, |answer| {
                    answer.as_deref() == Some(to)
                });
            }
        }
    }
}

/// The addresses of all pods of the cluster, except host network pods.
fn all_addresses() -> Vec<IpAddr> {
    let found: Value = serde_json::from_str(&kubectl(&["get", "pods", "-A", "-o", "json"])).unwrap();
    let pods = found["items"].as_array().unwrap().iter().filter(|pod| pod["spec"]["hostNetwork"] != true);
    let all = pods.flat_map(|pod| pod["status"]["podIPs"].as_array().cloned().unwrap_or_default());
    all.map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect()
}

/// Waits until a rollout is complete.
fn wait_rollout(namespace: &str, what: &str) {
    kubectl(&["-n", namespace, "rollout", "status", what, "--timeout=180s"]);
}

#[test]
fn a_cluster_migrates_to_knit_while_its_pods_run() {
    let namespace = Namespace::new("moving");
    namespace.apply(&[pod("old1", "node1", 8080, false), pod("old2", "node2", 8080, false)].concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let before = [addresses(&namespace, "old1"), addresses(&namespace, "old2")];
    assert!(!before.iter().flatten().any(is_in_pools));

    // 1. Unused address pools, then Knit. It replaces an earlier installation next to the reference network.
    install_kinds();
    let (applied, output) = feed(&["apply", "-f", "-"], POOLS);
    assert!(applied, "{output}");
    let primary = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/primary");
    kubectl(&["apply", "--server-side", "--force-conflicts", "-k", primary]);
    wait_rollout(OPERATOR_NAMESPACE, "daemonset/knit-agent");
    for node in NODES {
        let listed = || on_node(node, &["ls", "/etc/cni/net.d"]);
        eventually("Knit's configuration", listed, |files| files.contains("10-knit.conflist"));
    }

    // 2. Knit connects new pods. Old ones are unchanged, and all of them reach each other.
    namespace.apply(&[pod("new1", "node1", 8080, false), pod("new2", "node2", 8080, false)].concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    for new in ["new1", "new2"] {
        let all = addresses(&namespace, new);
        assert!(all.iter().all(is_in_pools), "{new}: {all:?}");
    }
    assert_eq!([addresses(&namespace, "old1"), addresses(&namespace, "old2")], before);
    wait_full_mesh(&namespace, &["old1", "old2", "new1", "new2"]);
    let blocks = kubectl(&["get", "podaddressblocks", "-o", "jsonpath={.items[*].spec.node}"]);
    for node in NODES {
        assert_eq!(blocks.split_whitespace().filter(|holder| *holder == node).count(), 2, "{blocks}");
    }

    // 3. Pods that are still on the old network are recreated.
    namespace.kubectl(&["delete", "pod", "old1", "old2", "--wait=true", "--timeout=60s"]);
    for (namespace, what) in
        [("kube-system", "deployment/coredns"), (OPERATOR_NAMESPACE, "deployment/knit-controller")]
    {
        kubectl(&["-n", namespace, "rollout", "restart", what]);
        wait_rollout(namespace, what);
    }
    eventually("no pod is on the old network", all_addresses, |all| {
        all.len() >= 8 && all.iter().all(is_in_pools)
    });
    let answer = || {
        let args = ["exec", "new1", "--", "nslookup", "kubernetes.default.svc.cluster.local"];
        run(&[&["-n", &namespace.name][..], &args].concat()).status.success()
    };
    eventually("DNS works", answer, |found| *found);

    // 4. What the old network created is removed.
    for node in NODES {
        on_node(
            node,
            &["rm", "-r", "/etc/cni/net.d/10-reference.conflist", "/var/lib/cni/networks/reference"],
        );
        on_node(node, &["ip", "link", "delete", "cni0"]);
        let shown = on_node(node, &["ip", "-o", "link"]);
        assert!(!shown.contains("cni0"), "{shown}");
        let routes = on_node(node, &["ip", "route"]);
        for route in routes.lines().filter(|route| route.starts_with("10.224.")) {
            on_node(
                node,
                &[&["ip", "route", "delete"][..], &route.split_whitespace().collect::<Vec<_>>()].concat(),
            );
        }
    }
    wait_full_mesh(&namespace, &["new1", "new2"]);
    namespace.apply(&pod("last", "node2", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    wait_full_mesh(&namespace, &["new1", "last"]);
}
