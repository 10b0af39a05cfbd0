//! Requests to the API server beyond the tenant's roles: kinds of admins, what only Knit writes, and namespaces of others.

use serde_json::{Value, json};

use crate::hostile::objects::{named, object, select};
use crate::hostile::stage::{NODES, assert_denied, stage};
use crate::support::kubectl::kubectl;
use crate::support::operator::{eventually, on_node};

const FORBIDDEN: &str = "forbidden";
const OPERATOR: &str = "pod-network-operator";

#[track_caller]
fn assert_kind_denied(kind: &str, name: &str, spec: Value) {
    let stage = stage();
    assert_denied(stage.try_create(&stage.tenant, &named(kind, name, &spec)), FORBIDDEN);
}

#[test]
fn egressgateway_of_a_tenant() {
    let spec = json!({"namespaces": ["default"], "addresses": ["192.0.2.10"], "nodes": ["node1"]});
    assert_kind_denied("EgressGateway", "mine", spec);
}

#[test]
fn serviceaddresspool_of_a_tenant() {
    assert_kind_denied("ServiceAddressPool", "mine", json!({"cidrs": ["192.0.2.10/32"]}));
}

#[test]
fn uplink_of_a_tenant() {
    assert_kind_denied("Uplink", "mine", json!({"link": "eth0", "namespaces": ["*"]}));
}

#[test]
fn podaddresspool_of_a_tenant() {
    assert_kind_denied("PodAddressPool", "mine", json!({"cidr": "10.66.0.0/16"}));
}

#[test]
fn clusterranges_of_a_tenant() {
    assert_kind_denied("ClusterRanges", "cluster", json!({"pods": ["10.66.0.0/16"]}));
}

#[test]
fn networkquota_of_a_tenant() {
    assert_kind_denied("NetworkQuota", "mine", json!({"interfaces": 1000}));
}

#[test]
fn podaddressblock_of_a_tenant() {
    let spec = json!({"pool": "x/y/10.66.0.0/24", "cidr": "10.66.0.0/28", "node": "node1"});
    assert_kind_denied("PodAddressBlock", "mine", spec);
}

#[test]
fn podnetworkstate_of_a_tenant() {
    assert_kind_denied("PodNetworkState", "plain", json!({}));
}

#[test]
fn nodenetwork_of_a_tenant() {
    assert_kind_denied("NodeNetwork", "node3", json!({}));
}

/// What agents isolate, as only the controller of Knit states it.
fn segment() -> Value {
    let segment = json!({"scope": "app", "app": "web"});
    named("VirtualNetwork", "app.web", &json!({"segment": segment, "isolation": "isolated"}))
}

#[test]
fn segment_of_a_tenant() {
    let stage = stage();
    assert_denied(stage.try_create(&stage.tenant, &segment()), "only Knit's controller creates segments");
}

#[test]
fn segment_of_a_tenants_serviceaccount_with_the_name_of_the_controllers() {
    let stage = stage();
    let namespace = &stage.attacker;
    namespace.kubectl(&["create", "serviceaccount", "knit-controller"]);
    let account = format!("--serviceaccount={}:knit-controller", namespace.name);
    let role = "--clusterrole=knit-virtualnetwork-editor";
    namespace.kubectl(&["create", "rolebinding", "segments", role, &account]);
    let token = format!("--token={}", namespace.kubectl(&["create", "token", "knit-controller"]).trim());
    // A new role binding takes effect a moment later.
    let attempt = || stage.try_create(&token, &segment());
    let expected = "only Knit's controller creates segments";
    eventually("it is denied", attempt, |(accepted, output)| !accepted && output.contains(expected));
}

#[track_caller]
fn assert_request_denied(args: &[&str]) {
    assert_denied(stage().as_tenant(args), FORBIDDEN);
}

#[test]
fn role_for_quotas_that_a_tenant_gives_itself() {
    let stage = stage();
    let account = format!("--serviceaccount={}:tenant", stage.attacker.name);
    let bind = ["create", "rolebinding", "mine", "--clusterrole=knit-networkquota-editor", &account];
    assert_denied(stage.as_tenant(&bind), FORBIDDEN);
    let role = ["create", "role", "mine", "--verb=create", "--resource=networkquotas.podnetwork.opdev.io"];
    assert_denied(stage.as_tenant(&role), FORBIDDEN);
}

#[test]
fn status_written_by_a_tenant() {
    let stage = stage();
    let bridge = object("Bridge", &json!({"name": "attbr8", "cidr": "192.168.112.0/24"}));
    let _bridge = stage.create(&bridge);
    let name = bridge["metadata"]["name"].as_str().unwrap();
    let patch = r#"{"status":{"phase":"configured","bridges":[{"name":"knit0"}]}}"#;
    let args =
        ["patch", "bridge.podnetwork.opdev.io", name, "--subresource=status", "--type=merge", "-p", patch];
    assert_denied(stage.as_tenant(&args), FORBIDDEN);
    // A write of the object itself does not change the status.
    let args = ["patch", "bridge.podnetwork.opdev.io", name, "--type=merge", "-p", patch];
    stage.as_tenant(&args);
    let path = "jsonpath={.status}";
    let status = stage.attacker.kubectl(&["get", "bridge.podnetwork.opdev.io", name, "-o", path]);
    assert!(!status.contains("knit0"), "{status}");
}

#[test]
fn finalizer_removed_by_a_tenant_leaves_nothing_on_nodes() {
    let stage = stage();
    let bridge = object("Bridge", &json!({"name": "attbr9", "cidr": "192.168.113.0/24"}));
    let stored = stage.create(&bridge);
    stored.assert_message("\"phase\":\"configured\"");
    let name = bridge["metadata"]["name"].as_str().unwrap();
    stage.as_tenant(&["delete", "bridge.podnetwork.opdev.io", name, "--wait=false"]);
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    stage.as_tenant(&["patch", "bridge.podnetwork.opdev.io", name, "--type=merge", "-p", patch]);
    for node in NODES {
        let links = || on_node(node, &["ip", "-o", "link"]);
        eventually("the bridge is gone", links, |links| !links.contains("attbr9"));
        // A link is renamed before it is deleted.
        let addresses = || on_node(node, &["ip", "-o", "addr"]);
        eventually("its address is gone", addresses, |addresses| !addresses.contains("192.168.113."));
    }
}

#[test]
fn owner_reference_of_a_tenant_to_an_object_of_an_admin() {
    // The garbage collector deletes an object whose owner does not exist, never the owner; a finalizer of the owner would be
    // waited for only with the right to set finalizers of the owner.
    let stage = stage();
    let uid = kubectl(&["get", "uplink", &stage.uplink, "-o", "jsonpath={.metadata.uid}"]);
    let mut bridge = object("Bridge", &json!({"name": "attbr10"}));
    bridge["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "Uplink",
        "name": stage.uplink,
        "uid": uid,
        "controller": true,
    }]);
    let _bridge = stage.create(&bridge);
    stage.attacker.kubectl(&["delete", "bridge.podnetwork.opdev.io", "--all", "--timeout=60s"]);
    kubectl(&["get", "uplink", &stage.uplink]);
}

#[test]
fn objects_of_another_namespace_read() {
    let stage = stage();
    for resource in ["bridges", "virtualnetworks", "veths", "podnetworkstates", "podsockets"] {
        let resource = format!("{resource}.podnetwork.opdev.io");
        assert_denied(stage.as_tenant(&["-n", &stage.victim.name, "get", &resource]), FORBIDDEN);
    }
}

#[test]
fn objects_of_all_namespaces_read() {
    assert_request_denied(&["get", "veths.podnetwork.opdev.io", "--all-namespaces"]);
}

#[test]
fn states_of_nodes_read() {
    // They name the networks and bridges of all namespaces.
    assert_request_denied(&["get", "nodenetworks.podnetwork.opdev.io"]);
}

#[test]
fn address_blocks_read() {
    assert_request_denied(&["get", "podaddressblocks.podnetwork.opdev.io"]);
}

#[test]
fn object_of_another_namespace_created() {
    let stage = stage();
    let args = ["-n", stage.victim.name.as_str(), &stage.tenant, "create", "--dry-run=server", "-f", "-"];
    let veth =
        object("Veth", &json!({"selector": select("near"), "interfaceName": "att0", "master": "attbr0"}));
    assert_denied(crate::support::kubectl::feed(&args, &veth.to_string()), FORBIDDEN);
}

#[test]
fn object_of_another_namespace_changed() {
    let stage = stage();
    let patch = r#"{"spec":{"isolation":"isolated"}}"#;
    let network = ["patch", "virtualnetwork.podnetwork.opdev.io", "blue", "--type=merge", "-p", patch];
    assert_denied(stage.as_tenant(&[&["-n", stage.victim.name.as_str()][..], &network].concat()), FORBIDDEN);
}

#[test]
fn object_of_another_namespace_deleted() {
    let stage = stage();
    let network = ["-n", stage.victim.name.as_str(), "delete", "virtualnetwork.podnetwork.opdev.io", "blue"];
    assert_denied(stage.as_tenant(&network), FORBIDDEN);
}

#[test]
fn label_that_selects_a_pod_of_another_namespace() {
    let stage = stage();
    let label = ["-n", stage.victim.name.as_str(), "label", "pod", "near", "podnetwork.opdev.io/veth=mine"];
    assert_denied(stage.as_tenant(&label), FORBIDDEN);
}

#[test]
fn key_of_a_node_published_by_a_tenant() {
    assert_request_denied(&[
        "annotate",
        "node",
        "node2",
        "knit.opdev.io/wireguard-public-key=x",
        "--overwrite",
    ]);
}

#[test]
fn token_of_the_agent_requested_by_a_tenant() {
    assert_request_denied(&["-n", OPERATOR, "create", "token", "knit-agent"]);
}

#[test]
fn command_in_the_agents_pod_run_by_a_tenant() {
    assert_request_denied(&["-n", OPERATOR, "exec", "ds/knit-agent", "--", "/knit", "status"]);
}

#[test]
fn configuration_of_the_agents_changed_by_a_tenant() {
    let patch = r#"{"data":{"agent.yaml":""}}"#;
    assert_request_denied(&["-n", OPERATOR, "patch", "configmap", "knit-agent", "--type=merge", "-p", patch]);
}

#[test]
fn admission_policy_deleted_by_a_tenant() {
    assert_request_denied(&["delete", "validatingadmissionpolicy", "knit-raw-sockets"]);
}
