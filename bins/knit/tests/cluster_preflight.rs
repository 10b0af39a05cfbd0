//! `knit preflight` against a real cluster: findings and exit codes. A program of its own, because the runner orders the
//! cluster tests by program.
//!
//! Run by `cargo xtask test cluster`, which brings the cluster up.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../../tools/testcluster/tests/support/kubectl.rs"]
#[allow(dead_code, reason = "shared by the cluster's tests")]
mod kubectl;

use std::path::Path;
use std::process::{Command, Output};

use kubectl::{Namespace, feed, kubectl, text};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn preflight(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_knit")).arg("preflight").args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

/// The check with this name.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}

fn install() {
    let folder = format!("{ROOT}/deploy/crds");
    kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &folder]);
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &folder]);
}

/// A kubeconfig for the same cluster with another token.
fn kubeconfig(folder: &Path, token: &str) -> String {
    let text = kubectl(&["config", "view", "--raw", "--flatten", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for user in config["users"].as_array_mut().unwrap() {
        user["user"] = serde_json::json!({ "token": token });
    }
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_cluster_passes_and_an_overlap_fails() {
    install();
    let response = preflight(&["-o", "json"]);
    let report = json(&response);
    assert_eq!(response.status.code(), Some(0), "{report:#}");
    assert_eq!(report["ready"], true);
    assert_eq!(check(&report, "api-server")["verdict"], "pass");
    assert!(check(&report, "runtime")["found"].as_str().unwrap().starts_with("containerd://"));
    assert_eq!(check(&report, "crds")["verdict"], "pass", "{report:#}");
    assert_eq!(check(&report, "permissions")["verdict"], "pass");
    let services = report["ranges"]["services"].as_array().unwrap();
    assert!(services.contains(&"10.96.0.0/16".into()), "{services:?}");
    assert!(!report["ranges"]["pods"].as_array().unwrap().is_empty());
    assert!(!report["ranges"]["nodes"].as_array().unwrap().is_empty());
    // The same as text and as YAML.
    let report = text(&preflight(&[]));
    assert!(report.contains("pass     api-server") && report.contains("no check failed"), "{report}");
    let yaml: Value = serde_saphyr::from_str(&text(&preflight(&["-o", "yaml"]))).unwrap();
    assert_eq!(yaml["ready"], true);

    let namespace = Namespace::new("preflight");
    namespace.apply(
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nmetadata: {name: b}\nspec: {name: br0, cidr: 10.96.7.0/24}\n",
    );
    let response = preflight(&["-o", "json"]);
    assert_eq!(response.status.code(), Some(2));
    let found = check(&json(&response), "overlap")["found"].as_str().unwrap().to_owned();
    assert_eq!(
        found,
        format!(
            "bridges {}/b: 10.96.7.0/24 overlaps 10.96.0.0/16, which is used by Services",
            namespace.name
        )
    );
    namespace.kubectl(&["delete", "bridges.podnetwork.opdev.io", "b"]);
}

#[test]
fn the_printed_cluster_ranges_can_be_applied() {
    let definition = format!("{ROOT}/deploy/admission/clusterranges.yaml");
    kubectl(&["apply", "-f", &definition]);
    kubectl(&[
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd/clusterranges.podnetwork.opdev.io",
    ]);
    let printed = preflight(&["--cluster-ranges"]);
    assert!(printed.status.success(), "{}", text(&printed));
    let (accepted, message) = feed(&["apply", "-f", "-"], &text(&printed));
    let compared = check(&json(&preflight(&["-o", "json"])), "cluster-ranges").clone();
    feed(&["delete", "-f", "-"], &text(&printed));
    assert!(accepted, "{message}\n{}", text(&printed));
    assert_eq!(compared["verdict"], "pass", "{compared}");
}

#[test]
fn missing_permissions_are_reported() {
    let namespace = Namespace::new("caller");
    namespace.kubectl(&["create", "serviceaccount", "nobody"]);
    let token = namespace.kubectl(&["create", "token", "nobody"]);
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path(), token.trim());
    let response = preflight(&["--kubeconfig", &config, "-o", "json"]);
    let report = json(&response);
    assert_eq!(response.status.code(), Some(2), "{report:#}");
    let denied = check(&report, "permissions")["found"].as_str().unwrap().to_owned();
    assert!(
        denied.contains("customresourcedefinitions.apiextensions.k8s.io")
            && denied.contains("daemonsets.apps"),
        "{denied}"
    );
    assert_eq!(check(&report, "nodes")["verdict"], "unknown");
}
