//! Knit out of a cluster by one command, with objects of tenants still there.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "shared by the cluster's tests")]
#[path = "../../../xtask/tests/support/kubectl.rs"]
mod kubectl;

use std::process::Command;
use std::time::{Duration, Instant};

use kubectl::{Namespace, kubectl, run, text};

const OPERATOR: &str = "pod-network-operator";

fn knit(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_knit")).args(words).output().unwrap();
    assert!(output.status.success(), "knit {}: {}", words.join(" "), text(&output));
    text(&output)
}

/// Knit's labels of all nodes, one on each line.
fn labels() -> String {
    let nodes = kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.labels}"]);
    let of_knit = nodes.split('"').filter(|word| word.contains("link.knit."));
    of_knit.collect::<Vec<_>>().join("\n")
}

#[test]
fn preflight_finds_nothing_wrong_and_uninstall_leaves_nothing_behind() {
    assert!(knit(&["preflight"]).contains("Knit would work here"));
    kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/beside")]);
    for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
        kubectl(&["-n", OPERATOR, "rollout", "status", what, "--timeout=120s"]);
    }
    let namespace = Namespace::new("leaving");
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: {name: leaving}
spec: {name: leavebr0, cidr: 192.168.130.0/24}
",
    );
    namespace.kubectl(&["wait", "--for=condition=Ready", "bridge/leaving", "--timeout=60s"]);
    // Those of tests before go with their namespaces, a moment later.
    let all = || kubectl(&["get", "bridges.podnetwork.opdev.io", "-A", "-o", "name"]);
    let end = Instant::now() + Duration::from_secs(120);
    while all().lines().count() != 1 {
        assert!(Instant::now() < end, "there are other bridges: {}", all());
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(labels().contains("link.knit.opdev.io/veth"), "{}", labels());
    let said = knit(&["uninstall"]);
    assert!(said.contains("1 bridges deleted") && said.contains("nodes and pods are as they were"), "{said}");
    kubectl(&["wait", "--for=delete", "crd", "-l", "app.kubernetes.io/part-of=knit", "--timeout=60s"]);
    kubectl(&["wait", "--for=delete", &format!("namespace/{OPERATOR}"), "--timeout=180s"]);
    for kind in ["clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "crds"] {
        let left = text(&run(&["get", kind, "-l", "app.kubernetes.io/part-of=knit", "-o", "name"]));
        assert_eq!(left, "", "{kind}");
    }
    assert_eq!(labels(), "", "labels of the nodes");
    // Once more, where there is nothing: that is no error.
    knit(&["uninstall"]);
}
