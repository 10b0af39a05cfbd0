//! Pods go where their networks can be had, on a real cluster: labels that Knit keeps on nodes, and policies that use them.
//!
//! Run by `cargo xtask test cluster`, which loads the image.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use serde_json::{Value, json};
use support::beside::{IMAGE, eventually, installed, on_node};
use support::kubectl::{Namespace, feed, kubectl, run};

const POLICIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/placement");
const NIC: &str = "placenic";
const TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// What the test makes beside its namespace; it goes also when the test fails.
struct Ground {
    uplink: String,
}

impl Ground {
    /// A NIC on the second node alone, and an Uplink for it.
    fn new(namespace: &str) -> Self {
        let uplink = format!("place-{}", std::process::id());
        let ground = Self { uplink };
        // A pair stands for a NIC: it is not Knit's, and its other end is the cable.
        on_node("node2", &["ip", "link", "add", NIC, "type", "veth", "peer", "name", "placecable"]);
        for link in [NIC, "placecable"] {
            on_node("node2", &["ip", "link", "set", link, "up"]);
        }
        kubectl(&["apply", "-k", POLICIES]);
        let object = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Uplink\nmetadata: {{name: {}}}\nspec: {{link: {NIC}, namespaces: [{namespace}]}}\n",
            ground.uplink
        );
        let (accepted, said) = feed(&["create", "-f", "-"], &object);
        assert!(accepted, "{said}");
        ground
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        run(&["delete", "uplinks.podnetwork.opdev.io", &self.uplink, "--ignore-not-found"]);
        run(&["delete", "-k", POLICIES, "--ignore-not-found"]);
        on_node("node2", &["sh", "-c", &format!("ip link del {NIC} 2>/dev/null || true")]);
    }
}

/// A label of a node; nothing if it has none.
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

/// A pod as the API server would make it.
fn tried(namespace: &Namespace, pod: &Value) -> Value {
    let (accepted, said) =
        namespace.feed(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &pod.to_string());
    assert!(accepted, "{said}");
    serde_json::from_str(&said).unwrap()
}

fn make(namespace: &Namespace, pod: &Value) {
    let (accepted, said) = namespace.feed(&["create", "-f", "-"], &pod.to_string());
    assert!(accepted, "{said}");
}

fn is_refused_by_scheduler(namespace: &Namespace, pod: &str) -> bool {
    let pod: Value = serde_json::from_str(&namespace.kubectl(&["get", "pod", pod, "-o", "json"])).unwrap();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable")
}

#[test]
fn pods_go_to_nodes_that_have_what_their_networks_need() {
    let _turn = installed();
    let namespace = Namespace::new("placement");
    let ground = Ground::new(&namespace.name);
    let key = format!("uplink.knit.opdev.io/{}", ground.uplink);
    let labels = || ["node1", "node2"].map(|node| label(node, &key));
    eventually("nodes say which has the NIC", labels, |seen| *seen == ["false", "true"]);
    assert_eq!(label("node1", "link.knit.opdev.io/macvlan"), "true");
    assert_eq!(label("node1", "link.knit.opdev.io/wireguard"), "false", "this kernel has none");

    let object = |kind: &str, spec: &str| {
        namespace.apply(&format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: {kind}\nmetadata: {{name: outside}}\nspec: {spec}\n"
        ));
    };
    object("Macvlan", &format!("{{interfaceName: out0, parent: {}, cidr: 10.88.0.0/24}}", ground.uplink));
    let wants = json!({"podnetwork.opdev.io/macvlan": "outside"});
    let needs = |pod: &Value| pod.pointer(TERMS).cloned().unwrap_or_default();
    let expected = json!([
        {"key": "link.knit.opdev.io/macvlan", "operator": "In", "values": ["true"]},
        {"key": key, "operator": "NotIn", "values": ["false"]},
    ]);
    // Policies are in force a moment after they are made.
    let plain = pod("plain", wants.clone(), json!({}));
    let seen = || needs(&tried(&namespace, &plain));
    eventually("the policies are in force", seen, |seen| *seen == json!([{"matchExpressions": expected}]));
    let other = tried(&namespace, &pod("other", json!({"podnetwork.opdev.io/macvlan": "inside"}), json!({})));
    assert_eq!(needs(&other), Value::Null, "no object is for it");

    // What a pod says itself stays, in each of its alternatives.
    let on = |node: &str| json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let own = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
        [{"matchExpressions": [on("node1")]}, {"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]}]}}});
    let choosy = pod("choosy", wants.clone(), own);
    let seen = needs(&tried(&namespace, &choosy));
    assert_eq!(seen[0]["matchExpressions"], json!([on("node1"), expected[0], expected[1]]));
    assert_eq!(seen[1]["matchExpressions"], expected);
    assert_eq!(seen[1]["matchFields"][0]["key"], "metadata.name");

    for name in ["a", "b", "c"] {
        make(&namespace, &pod(name, wants.clone(), json!({})));
    }
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/a", "pod/b", "pod/c", "--timeout=120s"]);
    let nodes = namespace.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    assert_eq!(nodes, "node2 node2 node2");
    make(&namespace, &choosy);
    eventually("no node is right", || is_refused_by_scheduler(&namespace, "choosy"), |refused| *refused);

    // A kind of link that no node's kernel has.
    object("WireGuard", "{interfaceName: wg0, cidr: 10.89.0.0/24}");
    make(&namespace, &pod("crypt", json!({"podnetwork.opdev.io/wireguard": "outside"}), json!({})));
    eventually("no kernel is right", || is_refused_by_scheduler(&namespace, "crypt"), |refused| *refused);

    // The NIC goes, and comes on the other node.
    on_node("node2", &["ip", "link", "del", NIC]);
    eventually("nobody has the NIC", labels, |seen| *seen == ["false", "false"]);
    kubectl(&["delete", "uplinks.podnetwork.opdev.io", &ground.uplink]);
    eventually("nobody asks for it", labels, |seen| *seen == ["", ""]);
}
