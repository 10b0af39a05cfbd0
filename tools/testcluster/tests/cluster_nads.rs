//! NetworkAttachmentDefinitions on a real cluster, without Multus: docs/migrate-from-multus.md, with the manifests of that page.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_nads`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::kubectl::{Namespace, feed, kubectl, run, text};
use support::operator::{eventually, installed, on_node};

const NODES: [&str; 2] = ["node1", "node2"];
const OPERATOR_NAMESPACE: &str = "pod-network-operator";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const PAGE: &str = include_str!("../../../docs/migrate-from-multus.md");

/// A file of the page, by the name in its first line.
fn file(name: &str) -> String {
    let start = format!("```yaml\n# {name}\n");
    let (_, rest) = PAGE.split_once(&start).unwrap_or_else(|| panic!("the page shows no {name}"));
    rest.split_once("\n```").expect("a block has an end").0.to_owned() + "\n"
}

/// Knit as the page installs it, with the plugins that it uses; the installation of other tests is restored when dropped.
struct NadSupport;

impl NadSupport {
    fn new() -> Self {
        let deploy = |path: &str| format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
        kubectl(&["apply", "-f", &deploy("nads.yaml")]);
        let crd = "crd/network-attachment-definitions.k8s.cni.cncf.io";
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", crd]);
        let support = Self;
        kubectl(&["apply", "-k", &deploy("attachments")]);
        // Debian's plugins need a C library, which the image does not contain.
        let folders = [
            ("plugins", "/usr/lib/cni"),
            ("libraries", "/usr/lib/x86_64-linux-gnu"),
            ("loader", "/usr/lib64"),
        ];
        let volumes: Vec<Value> =
            folders.iter().map(|(name, path)| json!({"name": name, "hostPath": {"path": path}})).collect();
        let mounts: Vec<Value> = folders
            .iter()
            .map(|(name, path)| {
                let place = if *name == "plugins" { *path } else { path.strip_prefix("/usr").unwrap() };
                json!({"name": name, "mountPath": place, "readOnly": true})
            })
            .collect();
        let plugins =
            json!({"name": "KNIT_NETWORK_ATTACHMENTS_PLUGINS", "value": "bridge,host-local,tuning"});
        let container = json!({"name": "agent", "env": [plugins], "volumeMounts": mounts});
        let patch = json!({"spec": {"template": {"spec": {"volumes": volumes, "containers": [container]}}}});
        kubectl(&["-n", OPERATOR_NAMESPACE, "patch", "daemonset", "knit-agent", "-p", &patch.to_string()]);
        kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        support
    }
}

impl Drop for NadSupport {
    fn drop(&mut self) {
        let deploy = |path: &str| format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
        run(&["delete", "uplink", "fabric", "--ignore-not-found"]);
        run(&["delete", "-f", &deploy("attachments/attachments.yaml"), "--ignore-not-found"]);
        run(&["-n", OPERATOR_NAMESPACE, "delete", "daemonset", "knit-agent", "--ignore-not-found"]);
        run(&["apply", "-k", &deploy("beside")]);
        run(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        run(&["delete", "-f", &deploy("nads.yaml"), "--ignore-not-found"]);
        for node in NODES {
            // A bridge that a plugin created.
            let bridges = "ip -o link show type bridge | grep -o ' kn[a-z2-7]*:' | tr -d ' :'";
            on_node(node, &["sh", "-c", &format!("for link in $({bridges}); do ip link delete $link; done")]);
        }
    }
}

fn get(namespace: &Namespace, args: &[&str]) -> Value {
    serde_json::from_str(&namespace.kubectl(&[&["get"], args, &["-o", "json"]].concat())).unwrap()
}

/// The pods of the deployment that are not being deleted, by node.
fn pods(namespace: &Namespace) -> Vec<(String, String)> {
    let all = get(namespace, &["pods", "-l", "app=web"]);
    let living =
        all["items"].as_array().unwrap().iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut pods: Vec<(String, String)> =
        living.map(|pod| (text(&pod["spec"]["nodeName"]), text(&pod["metadata"]["name"]))).collect();
    pods.sort();
    pods
}

/// A pod's network status annotation.
fn status(namespace: &Namespace, pod: &str) -> Vec<Value> {
    let pod = get(namespace, &["pod", pod]);
    let annotation = pod["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]");
    serde_json::from_str(annotation).unwrap()
}

/// Waits until a pod's status lists these interfaces in this order; returns the first address of each.
fn wait_interfaces(namespace: &Namespace, pod: &str, interfaces: &[&str]) -> Vec<String> {
    let is_expected = |output: &Vec<Value>| output.iter().map(|one| &one["interface"]).eq(interfaces.iter());
    let output = eventually(&format!("{pod} has {interfaces:?}"), || status(namespace, pod), is_expected);
    output.iter().map(|one| one["ips"][0].as_str().unwrap_or_default().to_owned()).collect()
}

/// A link of a pod from `ip -j`, if it exists.
fn link(namespace: &Namespace, pod: &str, name: &str) -> Option<Value> {
    let shown = namespace.kubectl(&["exec", pod, "--", "ip", "-j", "addr"]);
    let all: Value = serde_json::from_str(&shown).unwrap();
    all.as_array().unwrap().iter().find(|link| link["ifname"] == name).cloned()
}

fn reaches(namespace: &Namespace, from: &str, to: &str) {
    let ping = || run(&["-n", &namespace.name, "exec", from, "--", "ping", "-c", "1", "-W", "2", to]);
    eventually(&format!("{from} to {to}"), || text(&ping()), |output| output.contains(" 0% packet loss"));
}

fn select_networks(namespace: &Namespace, pod: &str, networks: &str) {
    namespace.kubectl(&["annotate", "pod", pod, "--overwrite", &format!("{NETWORKS}={networks}")]);
}

fn node_links(node: &str) -> String {
    on_node(node, &["ip", "-br", "link"])
}

/// The namespace of the page's manifests.
fn shop() -> Namespace {
    let namespace = Namespace { name: "shop".to_owned() };
    let create = || text(&run(&["create", "namespace", "shop"]));
    eventually("there is a namespace shop", create, |output| output.contains("created"));
    namespace.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]);
    namespace
}

#[test]
fn a_deployment_with_network_attachment_definitions_works_unchanged() {
    let _exclusive = installed();
    let _nads = NadSupport::new();
    let shop = shop();
    let apply = |name: &str| {
        let (accepted, output) = feed(&["apply", "-f", "-"], &file(name));
        assert!(accepted, "{name}: {output}");
    };
    apply("shop.yaml");
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    let all = pods(&shop);
    assert_eq!(all.len(), 4, "{all:?}");

    // The NIC is not open yet: an Event reports it, and the other network works.
    let (_, first) = &all[0];
    wait_interfaces(&shop, first, &["eth0", "net1"]);
    let events =
        || shop.kubectl(&["get", "events", "--field-selector", &format!("involvedObject.name={first}")]);
    eventually("the closed NIC is reported", events, |output| {
        output.contains("NIC eth0 is not open to macvlan links of namespace shop")
    });
    apply("uplink.yaml");
    let mut fabric_addresses = BTreeSet::new();
    let mut configured = Vec::new();
    for (node, pod) in &all {
        let ips = wait_interfaces(&shop, pod, &["eth0", "net1", "fab0"]);
        let output = status(&shop, pod);
        assert_eq!(
            (&output[0]["default"], &output[1]["name"]),
            (&json!(true), &json!("shop/storage")),
            "{output:?}"
        );
        assert_eq!(
            (&output[1]["mtu"], &output[2]["name"]),
            (&json!(1400), &json!("shop/fabric")),
            "{output:?}"
        );
        let in_pod = link(&shop, pod, "net1").unwrap();
        assert_eq!((&in_pod["mtu"], &in_pod["address"]), (&json!(1400), &output[1]["mac"]));
        assert!(in_pod["addr_info"].as_array().unwrap().iter().any(|one| one["local"] == ips[1].as_str()));
        let last: u8 = ips[1].strip_prefix("192.168.117.").unwrap().parse().unwrap();
        assert!((131..=190).contains(&last), "{ips:?}");
        let last: u8 = ips[2].strip_prefix("192.168.118.").unwrap().parse().unwrap();
        assert!(last >= 16, "{ips:?}");
        fabric_addresses.insert(ips[2].clone());
        let routes = shop.kubectl(&["exec", pod, "--", "ip", "route"]);
        assert!(routes.contains("10.56.218.0/24 via 192.168.117.1 dev net1"), "{routes}");
        reaches(&shop, pod, "192.168.117.1");
        configured.push((node.clone(), pod.clone(), ips));
    }
    assert_eq!(fabric_addresses.len(), 4, "no two nodes allocated the same address: {fabric_addresses:?}");
    // On the same node over the bridge, between nodes over the NIC.
    for (node, pod, _) in &configured {
        for (other_node, other, ips) in configured.iter().filter(|(_, other, _)| other != pod) {
            if node == other_node {
                reaches(&shop, pod, &ips[1]);
            } else {
                reaches(&shop, pod, &ips[2]);
            }
            assert_ne!(pod, other);
        }
    }

    // A running pod: one network is removed and added again without affecting the other.
    let before = link(&shop, first, "net1").unwrap()["ifindex"].clone();
    select_networks(&shop, first, "storage");
    wait_interfaces(&shop, first, &["eth0", "net1"]);
    eventually("fab0 is gone", || link(&shop, first, "fab0"), Option::is_none);
    select_networks(
        &shop,
        first,
        r#"[{"name": "storage"}, {"name": "fabric", "interface": "fab0", "mac": "02:00:00:00:00:99"}]"#,
    );
    wait_interfaces(&shop, first, &["eth0", "net1", "fab0"]);
    assert_eq!(link(&shop, first, "fab0").unwrap()["address"], "02:00:00:00:00:99");
    assert_eq!(link(&shop, first, "net1").unwrap()["ifindex"], before);

    // A definition is edited, another one deleted.
    let edited = file("shop.yaml").replace("\"mtu\": 1400", "\"mtu\": 1380");
    let (accepted, output) = feed(&["apply", "-f", "-"], &edited);
    assert!(accepted, "{output}");
    let mtu = || link(&shop, first, "net1").unwrap()["mtu"].clone();
    eventually("the running pod follows", mtu, |mtu| *mtu == 1380);
    assert_eq!(link(&shop, first, "net1").unwrap()["ifindex"], before, "in place");
    shop.kubectl(&["delete", "net-attach-def", "storage"]);
    select_networks(&shop, first, "storage");
    wait_interfaces(&shop, first, &["eth0", "net1"]);
    assert_eq!(link(&shop, first, "net1").unwrap()["ifindex"], before, "attached pods keep it");

    // Plugins with their results.
    apply("tuned.yaml");
    select_networks(&shop, first, "storage, tuned@tun0");
    let ips = wait_interfaces(&shop, first, &["eth0", "net1", "tun0"]);
    assert!(ips[2].starts_with("192.168.119."), "{ips:?}");
    assert_eq!(link(&shop, first, "tun0").unwrap()["mtu"], 1300);
    let links = node_links(&all[0].0);
    assert!(!links.contains("tuned0"), "a plugin's bridge has no name that a tenant chose: {links}");

    // Another namespace's definition has to be shared.
    let other = Namespace::new("other");
    let definition = "
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: lab}
spec: {config: '{\"type\": \"bridge\", \"bridge\": \"lab0\"}'}
";
    let (accepted, output) = feed(&["-n", &other.name, "apply", "-f", "-"], definition);
    assert!(accepted, "{output}");
    select_networks(&shop, first, &format!("storage, tuned@tun0, {}/lab@other0", other.name));
    let reported = || shop.kubectl(&["get", "podnetworkstates", "-o", "json"]);
    eventually("it is rejected", reported, |states| states.contains("is not shared with namespace"));
    assert!(link(&shop, first, "other0").is_none());
    let share = format!("knit.opdev.io/shared-with={}", shop.name);
    other.kubectl(&["annotate", "net-attach-def", "lab", &share]);
    eventually("it is attached", || link(&shop, first, "other0"), Option::is_some);
    other.kubectl(&["annotate", "net-attach-def", "lab", "knit.opdev.io/shared-with-"]);
    eventually("it is taken back", || link(&shop, first, "other0"), Option::is_none);
    // All networks are removed.
    select_networks(&shop, first, "");
    wait_interfaces(&shop, first, &["eth0"]);
    for gone in ["net1", "fab0", "tun0"] {
        eventually(&format!("{gone} is gone"), || link(&shop, first, gone), Option::is_none);
    }

    // Deleting the deployment removes everything of Knit from the nodes.
    shop.kubectl(&["delete", "deployment", "web", "--timeout=120s"]);
    for node in NODES {
        eventually("the bridge is gone", || node_links(node), |links| !links.contains("storage0"));
    }
    let blocks = || kubectl(&["get", "podaddressblocks", "-o", "name"]);
    eventually("the blocks are released", blocks, |names| !names.contains("networkattachmentdefinition"));
}

#[test]
fn an_agent_may_change_only_the_network_status_of_its_own_pods() {
    let _exclusive = installed();
    let _nads = NadSupport::new();
    let namespace = Namespace::new("status");
    for node in NODES {
        namespace.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: on-{node}, labels: {{a: b}}, annotations: {{mine: 'yes'}}}}\n\
             spec:\n  nodeName: {node}\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
             - {{name: main, image: {}, imagePullPolicy: Never, args: [pause]}}\n",
            support::operator::IMAGE
        ));
    }
    let bound = ["--bound-object-kind=Node", "--bound-object-name=node1"];
    let token = kubectl(&[&["-n", OPERATOR_NAMESPACE, "create", "token", "knit-agent"][..], &bound].concat());
    let token = format!("--token={}", token.trim());
    let patch = |pod: &str, patch: &str| {
        let args = [
            "-n",
            &namespace.name,
            &token,
            "patch",
            "pod",
            pod,
            "--type=merge",
            "--dry-run=server",
            "-p",
            patch,
        ];
        let output = run(&args);
        (output.status.success(), text(&output))
    };
    let annotation = |key: &str| format!(r#"{{"metadata":{{"annotations":{{"{key}":"x"}}}}}}"#);
    for (pod, change, expected) in [
        ("on-node2", annotation(STATUS), "may not change a pod of another node"),
        ("on-node1", annotation(NETWORKS), "may change only the annotation"),
        ("on-node1", annotation("mine"), "may change only the annotation"),
        ("on-node1", annotation("mine").replace("\"x\"", "null"), "may change only the annotation"),
        ("on-node1", r#"{"metadata":{"labels":{"a":"c"}}}"#.to_owned(), "may change only the annotation"),
        (
            "on-node1",
            r#"{"metadata":{"finalizers":["example.org/held"]}}"#.to_owned(),
            "may change only the annotation",
        ),
        ("on-node1", r#"{"spec":{"activeDeadlineSeconds":1}}"#.to_owned(), "may change only the annotation"),
    ] {
        // A policy takes effect a moment after it is created.
        eventually(&change, || patch(pod, &change), |(good, output)| !good && output.contains(expected));
    }
    for change in [annotation(STATUS), annotation(STATUS).replace("\"x\"", "null")] {
        let (good, output) = patch("on-node1", &change);
        assert!(good, "{change}: {output}");
    }
}
