//! Pods are scheduled to nodes with the networks they need: node labels that Knit maintains, and policies that use them.
//!
//! Run by `cargo xtask test cluster`, which loads the image.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, feed, kubectl, run};
use support::operator::{IMAGE, eventually, installed, on_node};

const POLICIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/placement");
const NIC: &str = "placenic";
const TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Resources outside the test's namespace, removed when dropped.
struct TestUplink {
    uplink: String,
}

impl TestUplink {
    /// A NIC on the second node only, and an Uplink for it.
    fn new(namespace: &str) -> Self {
        let uplink = format!("place-{}", std::process::id());
        let this = Self { uplink };
        // A veth pair stands in for a NIC: Knit does not own it, and its peer is the cable.
        on_node("node2", &["ip", "link", "add", NIC, "type", "veth", "peer", "name", "placecable"]);
        for link in [NIC, "placecable"] {
            on_node("node2", &["ip", "link", "set", link, "up"]);
        }
        kubectl(&["apply", "-k", POLICIES]);
        let object = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Uplink\nmetadata: {{name: {}}}\nspec: {{link: {NIC}, namespaces: [{namespace}]}}\n",
            this.uplink
        );
        let (accepted, output) = feed(&["create", "-f", "-"], &object);
        assert!(accepted, "{output}");
        this
    }
}

impl Drop for TestUplink {
    fn drop(&mut self) {
        run(&["delete", "uplinks.podnetwork.opdev.io", &self.uplink, "--ignore-not-found"]);
        run(&["delete", "-k", POLICIES, "--ignore-not-found"]);
        on_node("node2", &["sh", "-c", &format!("ip link del {NIC} 2>/dev/null || true")]);
    }
}

/// A label of a node; empty without it.
fn label(node: &str, key: &str) -> String {
    let node: Value = serde_json::from_str(&kubectl(&["get", "node", node, "-o", "json"])).unwrap();
    node["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned()
}

fn pod(name: &str, labels: Value, affinity: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "affinity": affinity,
            "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": ["pause"]}],
        },
    })
}

/// A pod after admission, from a dry run.
fn dry_run(namespace: &Namespace, pod: &Value) -> Value {
    let (accepted, output) =
        namespace.feed(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &pod.to_string());
    assert!(accepted, "{output}");
    serde_json::from_str(&output).unwrap()
}

fn create(namespace: &Namespace, pod: &Value) {
    let (accepted, output) = namespace.feed(&["create", "-f", "-"], &pod.to_string());
    assert!(accepted, "{output}");
}

fn is_unschedulable(namespace: &Namespace, pod: &str) -> bool {
    let pod: Value = serde_json::from_str(&namespace.kubectl(&["get", "pod", pod, "-o", "json"])).unwrap();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable")
}

#[test]
fn pods_are_scheduled_to_nodes_that_support_their_networks() {
    let _exclusive = installed();
    let namespace = Namespace::new("placement");
    let ground = TestUplink::new(&namespace.name);
    let key = format!("uplink.knit.opdev.io/{}", ground.uplink);
    let labels = || ["node1", "node2"].map(|node| label(node, &key));
    eventually("labels show which node has the NIC", labels, |seen| *seen == ["false", "true"]);
    assert_eq!(label("node1", "link.knit.opdev.io/macvlan"), "true");
    assert_eq!(label("node1", "link.knit.opdev.io/wireguard"), "false", "this kernel has none");

    let object = |kind: &str, spec: &str| {
        namespace.apply(&format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: {kind}\nmetadata: {{name: outside}}\nspec: {spec}\n"
        ));
    };
    object("Macvlan", &format!("{{interfaceName: out0, parent: {}, cidr: 10.88.0.0/24}}", ground.uplink));
    let labels_of_pod = json!({"podnetwork.opdev.io/macvlan": "outside"});
    let needs = |pod: &Value| pod.pointer(TERMS).cloned().unwrap_or_default();
    let expected = json!([
        {"key": "link.knit.opdev.io/macvlan", "operator": "In", "values": ["true"]},
        {"key": key, "operator": "NotIn", "values": ["false"]},
    ]);
    // Policies take effect a moment after they are created.
    let plain = pod("plain", labels_of_pod.clone(), json!({}));
    let seen = || needs(&dry_run(&namespace, &plain));
    eventually("the policies are in force", seen, |seen| *seen == json!([{"matchExpressions": expected}]));
    let other =
        dry_run(&namespace, &pod("other", json!({"podnetwork.opdev.io/macvlan": "inside"}), json!({})));
    assert_eq!(needs(&other), Value::Null, "no object selects it");

    // The pod's own affinity is kept in each of its alternatives.
    let on = |node: &str| json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let own = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
        [{"matchExpressions": [on("node1")]}, {"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]}]}}});
    let pinned = pod("pinned", labels_of_pod.clone(), own);
    let seen = needs(&dry_run(&namespace, &pinned));
    assert_eq!(seen[0]["matchExpressions"], json!([on("node1"), expected[0], expected[1]]));
    assert_eq!(seen[1]["matchExpressions"], expected);
    assert_eq!(seen[1]["matchFields"][0]["key"], "metadata.name");

    for name in ["a", "b", "c"] {
        create(&namespace, &pod(name, labels_of_pod.clone(), json!({})));
    }
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/a", "pod/b", "pod/c", "--timeout=120s"]);
    let nodes = namespace.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    assert_eq!(nodes, "node2 node2 node2");
    create(&namespace, &pinned);
    eventually(
        "no node has the NIC and the pinned name",
        || is_unschedulable(&namespace, "pinned"),
        |pending| *pending,
    );

    // A link kind that no node's kernel supports.
    object("WireGuard", "{interfaceName: wg0, cidr: 10.89.0.0/24}");
    create(&namespace, &pod("crypt", json!({"podnetwork.opdev.io/wireguard": "outside"}), json!({})));
    eventually("no kernel supports it", || is_unschedulable(&namespace, "crypt"), |pending| *pending);

    // The NIC is removed.
    on_node("node2", &["ip", "link", "del", NIC]);
    eventually("no node has the NIC", labels, |seen| *seen == ["false", "false"]);
    kubectl(&["delete", "uplinks.podnetwork.opdev.io", &ground.uplink]);
    eventually("the labels are removed", labels, |seen| *seen == ["", ""]);
}
