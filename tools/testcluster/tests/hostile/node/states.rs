//! State of the other node: its Node, its NodeNetwork, its blocks, its claims, and the states of its pods.

use serde_json::json;

use crate::hostile::objects::named;
use crate::hostile::stage::{Stage, assert_denied, stage};
use crate::support::kubectl::{kubectl, run};

const OTHER_NODE: &str = "may not change node node2";

/// kubectl as the agent of node1, without storing anything.
fn dry_run(stage: &Stage, args: &[&str]) -> (bool, String) {
    stage.as_agent(&[args, &["--dry-run=server"]].concat())
}

#[track_caller]
fn assert_node_denied(args: &[&str]) {
    assert_denied(dry_run(&stage(), args), OTHER_NODE);
}

#[test]
fn annotation_of_the_other_node() {
    // Its key for encryption.
    assert_node_denied(&["annotate", "--overwrite", "node", "node2", "knit.opdev.io/wireguard-public-key=x"]);
}

#[test]
fn label_of_the_other_node() {
    assert_node_denied(&["label", "--overwrite", "node", "node2", "uplink.knit.opdev.io/x=true"]);
}

#[test]
fn taint_of_the_other_node() {
    let patch = r#"{"spec":{"taints":[{"key":"knit.opdev.io/no-addresses","effect":"NoSchedule"}]}}"#;
    assert_node_denied(&["patch", "node", "node2", "--type=merge", "-p", patch]);
}

#[test]
fn scheduling_of_the_other_node() {
    let patch = r#"{"spec":{"unschedulable":true}}"#;
    assert_node_denied(&["patch", "node", "node2", "--type=merge", "-p", patch]);
}

#[test]
fn condition_of_the_other_node() {
    let patch = r#"{"status":{"conditions":[{"type":"KnitAddressesAvailable","status":"False","reason":"X","message":"x"}]}}"#;
    assert_denied(stage().patch_status_as_agent("node2", patch), OTHER_NODE);
}

#[test]
fn address_of_the_other_node() {
    let patch = r#"{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.66"}]}}"#;
    assert_denied(stage().patch_status_as_agent("node2", patch), OTHER_NODE);
}

#[test]
fn nodenetwork_of_the_other_node_changed() {
    let patch = r#"{"status":{"agent":"false"}}"#;
    let args = ["patch", "nodenetwork", "node2", "--type=merge", "-p", patch];
    assert_denied(dry_run(&stage(), &args), "may not write the state of node node2");
}

#[test]
fn nodenetwork_of_a_node_that_does_not_exist() {
    let stage = stage();
    let created = stage.try_create(&stage.agent(), &named("NodeNetwork", "node3", &json!({})));
    assert_denied(created, "may not write the state of node node3");
}

#[test]
fn nodenetwork_of_the_other_node_deleted() {
    assert_denied(dry_run(&stage(), &["delete", "nodenetwork", "node2"]), "forbidden");
}

#[test]
fn address_block_claimed_for_the_other_node() {
    let stage = stage();
    let spec = json!({"pool": "x/y/10.66.0.0/24", "cidr": "10.66.0.0/28", "node": "node2"});
    let created = stage.try_create(&stage.agent(), &named("PodAddressBlock", "x.y.10.66.0.0-24-0", &spec));
    assert_denied(created, "may not claim or release a block of another node");
}

#[test]
fn address_block_of_the_other_node_released() {
    let stage = stage();
    let path = "jsonpath={.items[?(@.spec.node=='node2')].metadata.name}";
    let blocks = kubectl(&["get", "podaddressblocks", "-o", path]);
    let block = blocks.split_whitespace().next().expect("the network over both nodes has a block on node2");
    let deleted = dry_run(&stage, &["delete", "podaddressblock", block]);
    assert_denied(deleted, "may not claim or release a block of another node");
}

#[test]
fn podnetworkstate_on_the_other_node_changed() {
    let stage = stage();
    let patch = r#"{"status":{"ready":false}}"#;
    let args =
        ["-n", stage.victim.name.as_str(), "patch", "podnetworkstate", "far", "--type=merge", "-p", patch];
    assert_denied(dry_run(&stage, &args), "may not write the state of a pod on another node");
}

#[test]
fn podnetworkstate_on_the_other_node_taken_over() {
    let stage = stage();
    let patch = r#"{"status":{"node":"node1"}}"#;
    let args =
        ["-n", stage.victim.name.as_str(), "patch", "podnetworkstate", "far", "--type=merge", "-p", patch];
    assert_denied(dry_run(&stage, &args), "may not write the state of a pod on another node");
}

#[test]
fn podnetworkstate_on_the_other_node_deleted() {
    let stage = stage();
    let args = ["-n", stage.victim.name.as_str(), "delete", "podnetworkstate", "far"];
    assert_denied(dry_run(&stage, &args), "may not write the state of a pod on another node");
}

#[test]
fn podnetworkstate_for_the_other_node_created() {
    let stage = stage();
    let mut state = named("PodNetworkState", "plain", &json!({}));
    state["status"] = json!({"node": "node2", "podUID": "x", "sandbox": "x", "ready": true, "interfaces": 0});
    let created = stage.try_create(&stage.agent(), &state);
    assert_denied(created, "may not write the state of a pod on another node");
}

#[test]
fn claim_of_the_other_node_on_a_quota() {
    let stage = stage();
    stage.attacker.apply(&named("NetworkQuota", "claimed", &json!({"interfaces": 9})).to_string());
    let claim = r#"{"interfaces":9,"addresses":9,"bridges":9}"#;
    let patch = format!(r#"{{"status":{{"claims":{{"node2":{claim}}}}}}}"#);
    let args = ["patch", "networkquota", "claimed", "--subresource=status", "--type=merge", "-p", &patch];
    let changed = dry_run(&stage, &args);
    run(&["-n", &stage.attacker.name, "delete", "networkquota", "claimed", "--timeout=60s"]);
    assert_denied(changed, "may not change what another node has claimed");
}

/// An Event that this component on this node has reported, without storing it.
fn create_event(stage: &Stage, controller: &str, instance: &str) -> (bool, String) {
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "attack"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Warning",
        "reason": "Attack",
        "action": "Attack",
        "note": "an attack",
        "reportingController": controller,
        "reportingInstance": instance,
        "regarding": {"kind": "Pod", "namespace": stage.attacker.name, "name": "plain"},
    });
    stage.try_create(&stage.agent(), &event)
}

#[test]
fn event_of_the_other_nodes_agent() {
    assert_denied(create_event(&stage(), "knit-agent", "node2"), "may not write Events of others");
}

#[test]
fn event_of_another_component() {
    let stage = stage();
    assert_denied(create_event(&stage, "kubelet", "node1"), "may not write Events of others");
    let (accepted, output) = create_event(&stage, "knit-agent", "node1");
    assert!(accepted, "its own Events: {output}");
}
