//! A stolen token of the controller: it may create Deployments for PodConfigs, and writes status and finalizers of all kinds,
//! and addresses of Services.

use serde_json::{Value, json};

use super::objects::{named, object};
use super::stage::{Stage, assert_denied, stage};
use crate::support::kubectl::{feed, kubectl, run, text};
use crate::support::operator::IMAGE;

const FORBIDDEN: &str = "forbidden";
const OPERATOR: &str = "pod-network-operator";
const SAMPLES_ONLY: &str = "only Deployments of a PodConfig";
const SEGMENTS_ONLY: &str = "only segments of the cluster network";
const NO_RIGHTS: &str = "must have no ServiceAccount, volume or privilege";

/// kubectl's option with a token of the controller.
fn token() -> String {
    let account = ["-n", OPERATOR, "create", "token", "knit-controller"];
    format!("--token={}", kubectl(&account).trim())
}

fn as_controller(args: &[&str]) -> (bool, String) {
    let output = run(&[&[token().as_str()], args].concat());
    (output.status.success(), text(&output))
}

/// A Deployment as the controller creates it.
fn sample() -> Value {
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let labels = json!({"app": "x", "podconfig.opdev.io/sample-of": "sample"});
    let owner = json!({
        "apiVersion": "podconfig.opdev.io/v1alpha1",
        "kind": "PodConfig",
        "name": "sample",
        "uid": "11111111-2222-3333-4444-555555555555",
        "controller": true,
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sample", "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532},
                    "containers": [{"name": "sample", "image": IMAGE, "securityContext": security}],
                },
            },
        },
    })
}

fn create(stage: &Stage, deployment: &Value) -> (bool, String) {
    let namespace = stage.attacker.name.as_str();
    let args = ["-n", namespace, &token(), "create", "--dry-run=server", "-f", "-"];
    feed(&args, &deployment.to_string())
}

/// Asserts that a Deployment with this field is refused.
#[track_caller]
fn assert_deployment_denied(pointer: &str, value: Value, expected: &str) {
    let stage = stage();
    let mut deployment = sample();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    deployment.pointer_mut(parent).unwrap()[field] = value;
    assert_denied(create(&stage, &deployment), expected);
}

#[test]
fn the_deployment_of_a_podconfig_is_accepted() {
    // Without this, a token that is not valid at all would pass every check.
    let (accepted, output) = create(&stage(), &sample());
    assert!(accepted, "{output}");
}

#[test]
fn deployment_without_a_podconfig() {
    assert_deployment_denied("/metadata/ownerReferences", json!([]), SAMPLES_ONLY);
}

#[test]
fn deployment_with_a_serviceaccount() {
    assert_deployment_denied(
        "/spec/template/spec/serviceAccountName",
        json!("clusterrole-aggregation-controller"),
        NO_RIGHTS,
    );
}

#[test]
fn deployment_with_a_token() {
    assert_deployment_denied("/spec/template/spec/automountServiceAccountToken", json!(true), NO_RIGHTS);
}

#[test]
fn deployment_on_the_network_of_the_node() {
    assert_deployment_denied("/spec/template/spec/hostNetwork", json!(true), NO_RIGHTS);
}

#[test]
fn deployment_among_the_processes_of_the_node() {
    assert_deployment_denied("/spec/template/spec/hostPID", json!(true), NO_RIGHTS);
}

#[test]
fn deployment_with_a_volume() {
    let volumes = json!([{"name": "root", "hostPath": {"path": "/"}}]);
    assert_deployment_denied("/spec/template/spec/volumes", volumes, NO_RIGHTS);
}

#[test]
fn deployment_with_a_privileged_container() {
    let security = json!({"privileged": true});
    assert_deployment_denied("/spec/template/spec/containers/0/securityContext", security, NO_RIGHTS);
}

#[test]
fn deployment_with_the_secrets_of_its_namespace() {
    let environment = json!([{"secretRef": {"name": "key"}}]);
    assert_deployment_denied("/spec/template/spec/containers/0/envFrom", environment, NO_RIGHTS);
}

#[test]
fn deployment_with_another_first_container() {
    let containers = json!([{"name": "x", "image": IMAGE}]);
    assert_deployment_denied("/spec/template/spec/initContainers", containers, NO_RIGHTS);
}

#[test]
fn deployment_of_others_deleted() {
    let delete = ["-n", OPERATOR, "delete", "deployment", "knit-controller", "--dry-run=server"];
    assert_denied(as_controller(&delete), SAMPLES_ONLY);
}

#[test]
fn creation_of_a_pod() {
    let stage = stage();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [{"name": "main", "image": IMAGE}]},
    });
    assert_denied(create(&stage, &pod), FORBIDDEN);
}

#[test]
fn creation_of_a_tenants_object() {
    assert_denied(create(&stage(), &object("Bridge", &json!({"name": "attbr0"}))), FORBIDDEN);
}

#[test]
fn spec_of_a_tenants_object() {
    let stage = stage();
    let patch = r#"{"spec":{"isolation":"isolated"}}"#;
    let network = ["-n", stage.victim.name.as_str(), "patch", "virtualnetwork", "blue", "--dry-run=server"];
    let patched = as_controller(&[&network[..], &["--type=merge", "-p", patch]].concat());
    assert_denied(patched, "only finalizers and status");
}

/// The object of a segment in the attacker's namespace.
fn segment(name: &str, segment: Value) -> Value {
    named("VirtualNetwork", name, &json!({"segment": segment, "isolation": "isolated"}))
}

#[test]
fn the_segment_of_an_app_is_accepted() {
    let (accepted, output) = create(&stage(), &segment("app.web", json!({"scope": "app", "app": "web"})));
    assert!(accepted, "{output}");
}

#[test]
fn network_that_is_no_segment() {
    let network = named("VirtualNetwork", "x", &json!({"subnets": ["10.177.1.0/24"]}));
    assert_denied(create(&stage(), &network), SEGMENTS_ONLY);
}

#[test]
fn segment_with_the_name_of_another() {
    let app = json!({"scope": "app", "app": "web"});
    assert_denied(create(&stage(), &segment("app.db", app)), "must be that of its scope");
    let namespace = json!({"scope": "namespace"});
    assert_denied(create(&stage(), &segment("blue", namespace)), "must be that of its scope");
}

#[test]
fn network_of_a_tenant_deleted() {
    let stage = stage();
    let delete = ["-n", stage.victim.name.as_str(), "delete", "virtualnetwork", "blue", "--dry-run=server"];
    assert_denied(as_controller(&delete), SEGMENTS_ONLY);
}

/// A Service of this load balancer class in the attacker's namespace, and the arguments that patch its status.
fn service_status(stage: &Stage, name: &str, class: &str) -> Vec<String> {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80}]},
    });
    let namespace = stage.attacker.name.as_str();
    let (applied, output) = feed(&["-n", namespace, "apply", "-f", "-"], &service.to_string());
    assert!(applied, "{output}");
    let patch = ["-n", namespace, "patch", "service", name, "--subresource=status", "--dry-run=server"];
    patch.map(str::to_owned).into()
}

fn patch_service(args: &[String], patch: &Value) -> (bool, String) {
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let patch = patch.to_string();
    args.extend(["--type=merge", "-p", &patch]);
    as_controller(&args)
}

const OWN_CLASS: &str = "knit.opdev.io/load-balancer";

fn ingress(mode: &str) -> Value {
    json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": mode}]}}})
}

#[test]
fn an_address_of_knits_class_is_accepted() {
    let patch = service_status(&stage(), "own-class", OWN_CLASS);
    let (accepted, output) = patch_service(&patch, &ingress("VIP"));
    assert!(accepted, "{output}");
}

#[test]
fn address_of_a_service_of_another_class() {
    let patch = service_status(&stage(), "other-class", "example.com/other");
    assert_denied(patch_service(&patch, &ingress("VIP")), "another load balancer class");
}

#[test]
fn address_that_no_node_announces() {
    let patch = service_status(&stage(), "proxied", OWN_CLASS);
    assert_denied(patch_service(&patch, &ingress("Proxy")), "only addresses that nodes announce");
}

#[test]
fn labels_and_conditions_of_a_service() {
    let patch = service_status(&stage(), "labels", OWN_CLASS);
    let labels = json!({"metadata": {"labels": {"app": "other"}}});
    assert_denied(patch_service(&patch, &labels), "may not change the metadata");
    let condition = json!({
        "type": "example.com/Other",
        "status": "True",
        "reason": "x",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let conditions = json!({"status": {"conditions": [condition]}});
    assert_denied(patch_service(&patch, &conditions), "only addresses and its own condition");
}

#[test]
fn spec_of_a_service() {
    let stage = stage();
    service_status(&stage, "spec", OWN_CLASS);
    let patch = r#"{"spec":{"externalIPs":["192.0.2.10"]}}"#;
    let service = ["-n", stage.attacker.name.as_str(), "patch", "service", "spec", "--dry-run=server"];
    assert_denied(as_controller(&[&service[..], &["--type=merge", "-p", patch]].concat()), FORBIDDEN);
}

#[test]
fn uplink_opened_to_all_namespaces() {
    let stage = stage();
    let patch = r#"{"spec":{"namespaces":["*"]}}"#;
    let uplink = ["patch", "uplink", &stage.uplink, "--dry-run=server", "--type=merge", "-p", patch];
    assert_denied(as_controller(&uplink), "only finalizers and status");
}

#[test]
fn secrets_of_all_namespaces() {
    assert_denied(as_controller(&["get", "secrets", "--all-namespaces"]), FORBIDDEN);
}

#[test]
fn role_for_everything() {
    let account = "--serviceaccount=pod-network-operator:knit-controller";
    let bind =
        ["create", "clusterrolebinding", "x", "--clusterrole=cluster-admin", account, "--dry-run=server"];
    assert_denied(as_controller(&bind), FORBIDDEN);
}
