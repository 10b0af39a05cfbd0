//! Pods of all nodes with the token of one node's agent.

use serde_json::{Value, json};

use crate::hostile::stage::{Stage, assert_denied, stage};
use crate::support::operator::IMAGE;

const FORBIDDEN: &str = "forbidden";

/// The status of a pod of the other tenant, without storing it.
fn patch_status(stage: &Stage, pod: &str, patch: &Value) -> (bool, String) {
    let patch = patch.to_string();
    let args = ["-n", stage.victim.name.as_str(), "patch", "pod", pod, "--subresource=status"];
    stage.as_agent(&[&args[..], &["--type=strategic", "-p", &patch, "--dry-run=server"]].concat())
}

fn condition(kind: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "X"}]}})
}

#[test]
fn condition_of_a_pod_of_the_other_node() {
    let denied = patch_status(&stage(), "far", &condition("knit.opdev.io/networks"));
    assert_denied(denied, "may not change a pod of another node");
}

#[test]
fn address_of_a_pod_of_the_other_node() {
    let denied = patch_status(&stage(), "far", &json!({"status": {"podIP": "192.0.2.66"}}));
    assert_denied(denied, "may not change a pod of another node");
}

#[test]
fn phase_of_a_pod_of_the_other_node() {
    let denied = patch_status(&stage(), "far", &json!({"status": {"phase": "Failed"}}));
    assert_denied(denied, "may not change a pod of another node");
}

#[test]
fn another_condition_of_a_pod_of_the_own_node() {
    let denied = patch_status(&stage(), "near", &condition("example.org/x"));
    assert_denied(denied, "only the condition knit.opdev.io/networks");
}

#[test]
fn address_of_a_pod_of_the_own_node() {
    let denied = patch_status(&stage(), "near", &json!({"status": {"podIP": "192.0.2.66"}}));
    assert_denied(denied, "only the condition knit.opdev.io/networks");
}

#[track_caller]
fn assert_victim_denied(args: &[&str]) {
    let stage = stage();
    assert_denied(stage.as_agent(&[&["-n", stage.victim.name.as_str()][..], args].concat()), FORBIDDEN);
}

#[test]
fn labels_of_a_pod() {
    assert_victim_denied(&["label", "pod", "far", "x=y", "--dry-run=server"]);
}

#[test]
fn annotations_of_a_pod() {
    assert_victim_denied(&["annotate", "pod", "far", "x=y", "--dry-run=server"]);
}

#[test]
fn deletion_of_a_pod() {
    assert_victim_denied(&["delete", "pod", "far", "--dry-run=server"]);
}

#[test]
fn command_in_a_pod() {
    assert_victim_denied(&["exec", "far", "--", "true"]);
}

#[test]
fn log_of_a_pod() {
    assert_victim_denied(&["logs", "far"]);
}

#[test]
fn container_added_to_a_pod() {
    let patch = json!({"spec": {"ephemeralContainers": [{"name": "x", "image": IMAGE}]}}).to_string();
    assert_victim_denied(&[
        "patch",
        "pod",
        "far",
        "--subresource=ephemeralcontainers",
        "--type=strategic",
        "-p",
        &patch,
        "--dry-run=server",
    ]);
}

/// Asserts that the agent cannot create a workload, which would run anywhere with any ServiceAccount.
#[track_caller]
fn assert_workload_denied(version: &str, kind: &str) {
    let stage = stage();
    let spec = json!({"containers": [{"name": "main", "image": IMAGE}]});
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": spec});
    let selector = json!({"matchLabels": {"app": "x"}});
    let spec = match kind {
        "Pod" => spec,
        "Job" => json!({"template": {"spec": {"restartPolicy": "Never", "containers": spec["containers"]}}}),
        _ => json!({"selector": selector, "template": template}),
    };
    let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec});
    assert_denied(stage.try_create(&stage.agent(), &object), FORBIDDEN);
}

#[test]
fn creation_of_a_pod() {
    assert_workload_denied("v1", "Pod");
}

#[test]
fn creation_of_a_deployment() {
    assert_workload_denied("apps/v1", "Deployment");
}

#[test]
fn creation_of_a_daemonset() {
    assert_workload_denied("apps/v1", "DaemonSet");
}

#[test]
fn creation_of_a_job() {
    assert_workload_denied("batch/v1", "Job");
}
