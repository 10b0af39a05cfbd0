//! MultiNetworkPolicies on a real cluster, beside its network plugin: docs/network-policy.md, on a network across nodes.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_multi_networkpolicy`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::Value;
use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{IMAGE, eventually, installed};

const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/multi-networkpolicies.yaml");

const NETWORK: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [192.168.126.0/24, 'fd74:6b6e:6974:126::/64'], transport: vxlan}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: blue}
spec: {interfaceName: blue0, network: blue}
";

/// Pods `db` are reached from pods `web` only.
const POLICY: &str = "
apiVersion: k8s.cni.cncf.io/v1beta1
kind: MultiNetworkPolicy
metadata:
  name: db
  annotations: {k8s.v1.cni.cncf.io/policy-for: VirtualNetwork/blue}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {matchLabels: {app: web}}}]
";

/// The CRD, removed when dropped.
struct Definition;

impl Definition {
    fn new() -> Self {
        kubectl(&["apply", "-f", CRD]);
        let crd = "crd/multi-networkpolicies.k8s.cni.cncf.io";
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", crd]);
        Self
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        run(&["delete", "-f", CRD, "--ignore-not-found"]);
    }
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{podnetwork.opdev.io/veth: blue, app: {name}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: \"{IMAGE}\", imagePullPolicy: Never, args: [pause]}}
"
    )
}

/// The first interface of a pod's PodNetworkState.
fn interface(namespace: &Namespace, pod: &str) -> Value {
    let output = run(&["-n", &namespace.name, "get", "podnetworkstate", pod, "-o", "json"]);
    let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    state["status"]["objects"][0]["interfaces"][0].clone()
}

fn addresses(namespace: &Namespace, pod: &str) -> Vec<String> {
    let all = |interface: &Value| interface["addresses"].as_array().cloned().unwrap_or_default();
    let state = eventually(
        &format!("{pod} has addresses"),
        || interface(namespace, pod),
        |interface| all(interface).len() == 2,
    );
    let texts =
        all(&state).into_iter().map(|one| one.as_str().unwrap().split('/').next().unwrap().to_owned());
    texts.collect()
}

/// Waits until a pod reaches another at all of its addresses, or at none.
fn expect(namespace: &Namespace, from: &str, to: &[String], reached: bool) {
    for to in to {
        let ping =
            || run(&["-n", &namespace.name, "exec", from, "--", "ping", "-n", "-c", "1", "-W", "1", to]);
        let what = format!("{from} {} {to}", if reached { "reaches" } else { "does not reach" });
        eventually(&what, || text(&ping()), |output| output.contains(" 0% packet loss") == reached);
    }
}

#[test]
fn a_multi_networkpolicy_applies_to_running_pods_on_a_network_across_nodes() {
    let _exclusive = installed();
    let _definition = Definition::new();
    let namespace = Namespace::new("multi-policy");
    let pods = [pod("db", "node1"), pod("web", "node2"), pod("other", "node2")].concat();
    namespace.apply(&format!("{NETWORK}{pods}"));
    let db = addresses(&namespace, "db");
    for from in ["web", "other"] {
        expect(&namespace, from, &db, true);
    }
    let networks = interface(&namespace, "db")["networks"].clone();
    let expected = ["Veth", "VirtualNetwork"].map(|kind| format!("{kind}/{}/blue", namespace.name));
    assert_eq!(networks, serde_json::json!(expected));
    // Agents find the CRD within ten seconds.
    namespace.apply(POLICY);
    expect(&namespace, "other", &db, false);
    expect(&namespace, "web", &db, true);
    // The protected pod reaches others, and the cluster network is not affected.
    expect(&namespace, "db", &addresses(&namespace, "other"), true);
    let eth0 = namespace.kubectl(&["get", "pod", "db", "-o", "jsonpath={.status.podIP}"]);
    expect(&namespace, "other", &[eth0.trim().to_owned()], true);
    // A label, and a pod that is created later.
    namespace.kubectl(&["label", "pod", "other", "app=web", "--overwrite"]);
    expect(&namespace, "other", &db, true);
    namespace.kubectl(&["label", "pod", "other", "app=other", "--overwrite"]);
    expect(&namespace, "other", &db, false);
    namespace.kubectl(&["delete", "pod", "web"]);
    namespace.apply(&pod("web", "node1"));
    expect(&namespace, "web", &db, true);
    namespace.kubectl(&["delete", "multi-networkpolicies", "db"]);
    expect(&namespace, "other", &db, true);
}
