//! `knit uninstall` on a cluster that still has objects of tenants. A program of its own, because the runner orders the
//! cluster tests by program.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "shared by the cluster's tests")]
#[path = "../../../tools/testcluster/tests/support/kubectl.rs"]
mod kubectl;

use std::process::Command;
use std::time::{Duration, Instant};

use kubectl::{Namespace, kubectl, run, text};

const OPERATOR: &str = "pod-network-operator";

fn knit(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_knit")).args(arguments).output().unwrap();
    assert!(output.status.success(), "knit {}: {}", arguments.join(" "), text(&output));
    text(&output)
}

/// The labels of Knit on all nodes, one per line.
fn labels() -> String {
    let nodes = kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.labels}"]);
    let of_knit = nodes.split('"').filter(|part| part.contains("link.knit."));
    of_knit.collect::<Vec<_>>().join("\n")
}

#[test]
fn preflight_passes_and_uninstall_leaves_nothing_behind() {
    assert!(knit(&["preflight"]).contains("no check failed"));
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
    // Objects of earlier tests are deleted with their namespaces, asynchronously.
    let all = || kubectl(&["get", "bridges.podnetwork.opdev.io", "-A", "-o", "name"]);
    let end = Instant::now() + Duration::from_secs(120);
    while all().lines().count() != 1 {
        assert!(Instant::now() < end, "there are other bridges: {}", all());
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(labels().contains("link.knit.opdev.io/veth"), "{}", labels());
    let printed = knit(&["uninstall"]);
    assert!(
        printed.contains("1 bridges deleted") && printed.contains("nodes and pods are restored"),
        "{printed}"
    );
    kubectl(&["wait", "--for=delete", "crd", "-l", "app.kubernetes.io/part-of=knit", "--timeout=60s"]);
    kubectl(&["wait", "--for=delete", &format!("namespace/{OPERATOR}"), "--timeout=180s"]);
    for kind in ["clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "crds"] {
        let remaining = text(&run(&["get", kind, "-l", "app.kubernetes.io/part-of=knit", "-o", "name"]));
        assert_eq!(remaining, "", "{kind}");
    }
    assert_eq!(labels(), "", "labels of the nodes");
    // A second uninstall is not an error.
    knit(&["uninstall"]);
}
