//! What an agent may write for its own node: only what it needs to.

use crate::hostile::stage::{Stage, assert_denied, stage};

const OWN_FIELDS: &str = "only Knit's own taint, condition and annotation";

#[track_caller]
fn assert_node_denied(args: &[&str]) {
    assert_denied(dry_run(&stage(), args), OWN_FIELDS);
}

fn dry_run(stage: &Stage, args: &[&str]) -> (bool, String) {
    stage.as_agent(&[args, &["--dry-run=server"]].concat())
}

#[test]
fn the_token_is_that_of_the_nodes_agent() {
    // Without this, a token that is not valid at all would pass every check.
    let stage = stage();
    let annotate = ["annotate", "--overwrite", "node", "node1", "knit.opdev.io/wireguard-public-key=x"];
    let (accepted, output) = dry_run(&stage, &annotate);
    assert!(accepted, "{output}");
}

#[test]
fn label_of_the_own_node() {
    assert_node_denied(&["label", "--overwrite", "node", "node1", "node-role.kubernetes.io/control-plane=x"]);
}

#[test]
fn another_annotation_of_the_own_node() {
    assert_node_denied(&["annotate", "--overwrite", "node", "node1", "example.org/x=x"]);
}

#[test]
fn another_taint_of_the_own_node() {
    let patch = r#"{"spec":{"taints":[{"key":"example.org/x","effect":"NoExecute"}]}}"#;
    assert_node_denied(&["patch", "node", "node1", "--type=merge", "-p", patch]);
}

#[test]
fn another_condition_of_the_own_node() {
    let patch = r#"{"status":{"conditions":[{"type":"Ready","status":"True","reason":"X","message":"x"}]}}"#;
    assert_denied(stage().patch_status_as_agent("node1", patch), OWN_FIELDS);
}

#[test]
fn address_of_the_own_node() {
    let patch = r#"{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.66"}]}}"#;
    assert_denied(stage().patch_status_as_agent("node1", patch), OWN_FIELDS);
}

#[test]
fn capacity_of_the_own_node() {
    let patch = r#"{"status":{"capacity":{"example.org/device":"9"}}}"#;
    assert_denied(stage().patch_status_as_agent("node1", patch), OWN_FIELDS);
}
