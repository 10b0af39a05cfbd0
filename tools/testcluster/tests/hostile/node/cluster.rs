//! Objects of the cluster, of tenants and of the controller with the token of one node's agent.

use serde_json::{Value, json};

use crate::hostile::objects::{named, object, select};
use crate::hostile::stage::{assert_denied, stage};

const FORBIDDEN: &str = "forbidden";
const OPERATOR: &str = "pod-network-operator";

#[track_caller]
fn assert_request_denied(args: &[&str]) {
    assert_denied(stage().as_agent(args), FORBIDDEN);
}

#[track_caller]
fn assert_creation_denied(object: &Value) {
    let stage = stage();
    assert_denied(stage.try_create(&stage.agent(), object), FORBIDDEN);
}

#[test]
fn secrets_of_all_namespaces() {
    assert_request_denied(&["get", "secrets", "--all-namespaces"]);
}

#[test]
fn secrets_of_the_system() {
    assert_request_denied(&["-n", "kube-system", "get", "secrets"]);
}

#[test]
fn secrets_of_knits_namespace() {
    assert_request_denied(&["-n", OPERATOR, "get", "secrets"]);
}

#[test]
fn secret_of_a_tenant_by_name() {
    let namespace = stage().victim.name.clone();
    assert_request_denied(&["-n", &namespace, "get", "secret", "key"]);
}

#[test]
fn configuration_of_all_agents() {
    assert_request_denied(&["-n", OPERATOR, "patch", "configmap", "knit-agent", "--type=merge", "-p", "{}"]);
}

#[test]
fn daemonset_of_the_agents() {
    let patch = r#"{"spec":{"template":{"metadata":{"labels":{"x":"y"}}}}}"#;
    assert_request_denied(&[
        "-n",
        OPERATOR,
        "patch",
        "daemonset",
        "knit-agent",
        "--dry-run=server",
        "-p",
        patch,
    ]);
}

#[test]
fn lease_of_the_controller_read() {
    assert_request_denied(&["-n", OPERATOR, "get", "lease", "knit-controller"]);
}

#[test]
fn lease_of_the_controller_taken() {
    let patch = r#"{"spec":{"holderIdentity":"x"}}"#;
    assert_request_denied(&[
        "-n",
        OPERATOR,
        "patch",
        "lease",
        "knit-controller",
        "--dry-run=server",
        "--type=merge",
        "-p",
        patch,
    ]);
}

#[test]
fn token_of_the_controller() {
    assert_request_denied(&["-n", OPERATOR, "create", "token", "knit-controller"]);
}

#[test]
fn token_of_the_agent_without_its_node() {
    assert_request_denied(&["-n", OPERATOR, "create", "token", "knit-agent"]);
}

#[test]
fn impersonation_of_an_admin() {
    assert_request_denied(&["--as=admin", "--as-group=system:masters", "get", "secrets"]);
}

#[test]
fn impersonation_of_another_nodes_agent() {
    let agent = "--as=system:serviceaccount:pod-network-operator:knit-agent";
    let node = "--as-user-extra=authentication.kubernetes.io/node-name=node2";
    assert_request_denied(&[agent, node, "get", "nodes"]);
}

#[test]
fn role_for_everything() {
    let bind = ["create", "clusterrolebinding", "x", "--clusterrole=cluster-admin", "--dry-run=server"];
    assert_request_denied(&[&bind[..], &["--serviceaccount=pod-network-operator:knit-agent"]].concat());
}

#[test]
fn admission_policy_of_the_agents() {
    assert_request_denied(&[
        "delete",
        "validatingadmissionpolicy",
        "knit-agent-own-node",
        "--dry-run=server",
    ]);
}

#[test]
fn custom_resource_definition() {
    assert_request_denied(&["delete", "crd", "bridges.podnetwork.opdev.io", "--dry-run=server"]);
}

#[test]
fn certificate_request() {
    assert_request_denied(&["get", "certificatesigningrequests"]);
}

#[test]
fn kubelet_of_a_node() {
    assert_request_denied(&["get", "--raw", "/api/v1/nodes/node2/proxy/pods"]);
}

#[test]
fn uplink_created() {
    assert_creation_denied(&object("Uplink", &json!({"link": "eth0", "namespaces": ["*"]})));
}

#[test]
fn uplink_changed() {
    let uplink = stage().uplink.clone();
    let patch = r#"{"spec":{"namespaces":["*"]}}"#;
    assert_request_denied(&["patch", "uplink", &uplink, "--type=merge", "--dry-run=server", "-p", patch]);
}

#[test]
fn egressgateway_created() {
    let spec = json!({"namespaces": ["default"], "addresses": ["192.0.2.10"], "nodes": ["node1"]});
    assert_creation_denied(&object("EgressGateway", &spec));
}

#[test]
fn serviceaddresspool_created() {
    assert_creation_denied(&object("ServiceAddressPool", &json!({"cidrs": ["192.0.2.10/32"]})));
}

#[test]
fn podaddresspool_created() {
    assert_creation_denied(&object("PodAddressPool", &json!({"cidr": "10.66.0.0/16"})));
}

#[test]
fn clusterranges_created() {
    assert_creation_denied(&named("ClusterRanges", "cluster", &json!({"pods": ["10.66.0.0/16"]})));
}

#[test]
fn networkquota_created() {
    assert_creation_denied(&object("NetworkQuota", &json!({"interfaces": 1})));
}

#[test]
fn object_of_a_tenant_created() {
    let veth =
        object("Veth", &json!({"selector": select("far"), "interfaceName": "att0", "master": "attbr0"}));
    assert_creation_denied(&veth);
}

#[test]
fn object_of_a_tenant_changed() {
    let namespace = stage().victim.name.clone();
    let patch = r#"{"spec":{"isolation":"isolated"}}"#;
    let network = ["patch", "virtualnetwork", "blue", "--type=merge", "--dry-run=server", "-p", patch];
    assert_request_denied(&[&["-n", namespace.as_str()][..], &network].concat());
}

#[test]
fn object_of_a_tenant_deleted() {
    let namespace = stage().victim.name.clone();
    assert_request_denied(&["-n", &namespace, "delete", "virtualnetwork", "blue", "--dry-run=server"]);
}

#[test]
fn status_of_an_object_of_a_tenant() {
    let namespace = stage().victim.name.clone();
    let patch = r#"{"status":{"phase":"configured"}}"#;
    let network =
        ["patch", "virtualnetwork", "blue", "--subresource=status", "--type=merge", "--dry-run=server"];
    assert_request_denied(&[&["-n", namespace.as_str()][..], &network, &["-p", patch]].concat());
}

#[test]
fn networkpolicy_of_a_tenant() {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {"podSelector": {}},
    });
    assert_creation_denied(&policy);
}

#[test]
fn label_of_a_namespace() {
    let namespace = stage().attacker.name.clone();
    assert_request_denied(&[
        "label",
        "namespace",
        &namespace,
        "knit.opdev.io/anti-spoofing=off",
        "--dry-run=server",
    ]);
}

#[test]
fn service_created() {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "x"},
        "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.66"]},
    });
    assert_creation_denied(&service);
}
