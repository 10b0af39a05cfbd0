//! The Helm chart: linted, rendered, rejected with bad values, installed and uninstalled by helm on a real cluster.
//!
//! A node selector keeps Knit's pods off the nodes: other tests cover them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::kubectl::{Namespace, feed, kubectl, run, text};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/knit");
const NO_NODE: &str = "{knit.test/no-such-node: 'true'}";

/// Runs helm with these values on its standard input.
fn helm(args: &[&str], values: &str) -> (bool, String) {
    let program =
        std::env::var("KNIT_TEST_HELM").expect("KNIT_TEST_HELM names helm: run `cargo xtask test cluster`");
    let home = tempfile::tempdir().unwrap();
    let mut child = Command::new(program)
        .args(args)
        .envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, home.path())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Not every command reads its standard input.
    let _ = child.stdin.take().unwrap().write_all(values.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.success(), text(&output))
}

fn template(values: &str) -> (bool, String) {
    helm(&["template", "knit", CHART, "--kube-version", "1.36", "-f", "-"], values)
}

/// The objects of a YAML stream except CRDs, which are the same files, by kind and name. Labels of the release are removed, and
/// so are meaningless differences: line breaks in strings, and the order of named or mounted items.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let documents = text.split("\n---\n").map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    let named = documents
        .filter(|object| object["kind"].is_string() && object["kind"] != "CustomResourceDefinition")
        .map(|mut object| {
            if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
                labels.retain(|key, _| !key.starts_with("app.kubernetes.io/") && key != "helm.sh/chart");
                if labels.is_empty() {
                    object["metadata"].as_object_mut().unwrap().remove("labels");
                }
            }
            normalize(&mut object);
            (
                format!(
                    "{} {}/{}",
                    object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
                ),
                object,
            )
        });
    named.collect()
}

fn normalize(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.split_whitespace().collect::<Vec<_>>().join(" "),
        Value::Object(fields) => fields.values_mut().for_each(normalize),
        Value::Array(all) => {
            all.iter_mut().for_each(normalize);
            let key = |one: &Value| one["mountPath"].as_str().or(one["name"].as_str()).map(str::to_owned);
            all.sort_by_key(key);
        }
        _ => {}
    }
}

fn object(kind: &str, spec: &str) -> String {
    format!("apiVersion: podnetwork.opdev.io/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n")
}

/// A Helm release, removed when dropped.
struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        helm(&["uninstall", "knit", "-n", "default", "--ignore-not-found"], "");
        run(&["delete", "namespace", "pod-network-operator", "--ignore-not-found", "--timeout=180s"]);
    }
}

/// All objects of the release in the cluster.
fn release_objects() -> String {
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces,\
                 uplinks.podnetwork.opdev.io,clusterranges.podnetwork.opdev.io,resourcequotas,daemonsets,deployments,serviceaccounts,roles,rolebindings";
    kubectl(&["get", kinds, "-A", "-l", "app.kubernetes.io/instance=knit", "-o", "name"])
}

#[test]
fn the_chart_passes_lint_and_renders_its_values() {
    let (good, output) = helm(&["lint", "--strict", CHART], "");
    assert!(good, "{output}");
    let (good, text) = template("{}");
    assert!(good, "{text}");
    assert!(
        text.contains("image: localhost/knit:0.1.0") && text.contains("name: knit-bridge-editor"),
        "{text}"
    );
    assert!(
        text.contains("kind: DaemonSet")
            && text.contains("name: knit-ranges")
            && !text.contains("PrometheusRule")
    );
    for object in ["\nkind: Uplink\n", "\nkind: ClusterRanges\n", "\nkind: ResourceQuota\n"] {
        assert!(!text.contains(object), "{object}");
    }
    for (values, expected) in [
        ("clusterRanges: {tenants: []}", "\nspec:\n  tenants: []\n"),
        ("clusterRanges: {tenants: [10.0.0.0/8]}", "\nspec:\n  tenants:\n  - 10.0.0.0/8\n"),
        ("clusterRanges: {nodes: [10.0.0.0/8]}", "\nspec:\n  nodes:\n  - 10.0.0.0/8\n"),
    ] {
        let (good, text) = template(values);
        assert!(good && text.contains("\nkind: ClusterRanges\n") && text.contains(expected), "{text}");
    }

    let values = "image: {repository: registry.example/knit, tag: v7, pullPolicy: Never}\nnamespace: {name: other}\n\
                  controller: {replicas: 3}\nagent: {resources: {limits: {memory: 99Mi}}, metricsAddress: '0.0.0.0:9475'}\n\
                  admission: {enabled: false}\nalerts: {enabled: true, labels: {release: prometheus}}\n\
                  quotas: {shop: {podconfigs: 3, bridges: 4}}\n";
    let (good, text) = template(values);
    assert!(good, "{text}");
    for line in [
        "image: registry.example/knit:v7",
        "imagePullPolicy: Never",
        "replicas: 3",
        "memory: 99Mi",
        "value: 0.0.0.0:9475",
        "kind: PrometheusRule",
        "release: prometheus",
        "alert: KnitProblems",
        "namespace: other",
        "count/podconfigs.podconfig.opdev.io: \"3\"",
        "count/bridges.podnetwork.opdev.io: \"4\"",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("pod-network-operator") && !text.contains("name: knit-ranges"), "{text}");
}

#[test]
fn helm_and_kustomize_install_the_same() {
    for profile in ["beside", "primary"] {
        let (good, by_helm) = template(&format!("profile: {profile}"));
        assert!(good, "{by_helm}");
        let folder = format!("{}/../../deploy/{profile}", env!("CARGO_MANIFEST_DIR"));
        let (mut by_helm, by_kustomize) = (objects(&by_helm), objects(&kubectl(&["kustomize", &folder])));
        let agent = by_helm.get_mut(r#""DaemonSet" "pod-network-operator"/"knit-agent""#).unwrap();
        let env = agent["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut().unwrap();
        // The chart sets the agent's default, which the manifest omits.
        let metrics = env.iter().position(|one| one["name"] == "KNIT_METRICS_ADDR").unwrap();
        assert_eq!(env.remove(metrics)["value"], "127.0.0.1:9475");
        for (name, object) in &by_kustomize {
            let same = by_helm.get(name).unwrap_or_else(|| panic!("{profile}: helm has no {name}"));
            assert_eq!(same, object, "{profile}: {name}");
        }
        assert_eq!(by_helm.len(), by_kustomize.len(), "{profile}: {:?}", by_helm.keys());
    }
}

#[test]
fn with_the_primary_profile_the_values_reach_the_agents_configuration() {
    let (good, text) = template(
        "profile: primary\nprimary: {apiServer: {host: 192.0.2.1}, config: {logLevel: debug, clusterNetwork: {mtu: 1400}}}\n",
    );
    assert!(good, "{text}");
    let objects = objects(&text);
    let data = |name: &str| &objects[&format!(r#""ConfigMap" "pod-network-operator"/"{name}""#)]["data"];
    let expected =
        serde_json::json!({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "6443"});
    assert_eq!(*data("knit-api-server"), expected);
    let config = data("knit-agent")["agent.yaml"].as_str().unwrap();
    for line in ["install: true", "masquerade: true", "mtu: 1400", "logLevel: debug"] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
    let (_, text) = template("primary: {apiServer: {host: 192.0.2.1}}\n");
    assert!(!text.contains("knit-api-server"), "only the primary profile uses it");
}

#[test]
fn bad_values_are_rejected() {
    for (values, expected) in [
        ("imag: {}", "imag"),
        ("image: {pullPolicy: Sometimes}", "pullPolicy"),
        ("profile: secondary", "profile"),
        ("primary: {apiServer: {port: https}}", "port"),
        ("uplinks: {fabric: {vlans: ['1']}}", "link"),
        ("clusterRanges: {pods: [10.0.0.0]}", "pods"),
        ("clusterRanges: {tenants: [10.0.0.0]}", "tenants"),
        ("quotas: {shop: {bridges: many}}", "bridges"),
        ("agent: {metricsAddress: everywhere}", "metricsAddress"),
    ] {
        let (good, output) = template(values);
        assert!(!good && output.contains(expected), "{values}: {output}");
    }
}

#[test]
fn helm_installs_knit_and_uninstalling_leaves_the_definitions_only() {
    let shop = Namespace::new("chart");
    // helm does not adopt objects that were installed without it.
    let kinds = "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    run(&["delete", kinds, "-l", "app.kubernetes.io/part-of=knit", "--timeout=180s"]);
    let release = Release;
    let values = format!(
        "agent: {{nodeSelector: {NO_NODE}}}\ncontroller: {{nodeSelector: {NO_NODE}}}\n\
         clusterRanges: {{services: [10.96.0.0/16]}}\nuplinks: {{chart-nic: {{link: eno2, namespaces: [{name}], kinds: [vlan], vlans: ['100-199']}}}}\n\
         quotas: {{{name}: {{bridges: 1}}}}\n",
        name = shop.name
    );
    let (good, output) = helm(&["install", "knit", CHART, "-n", "default", "-f", "-"], &values);
    assert!(good && output.contains("is starting in namespace pod-network-operator"), "{output}");
    let label = "-o=jsonpath={.metadata.labels.pod-security\\.kubernetes\\.io/enforce}";
    assert_eq!(kubectl(&["get", "namespace", "pod-network-operator", label]), "privileged");
    let desired = "-o=jsonpath={.status.desiredNumberScheduled}";
    assert_eq!(
        kubectl(&["-n", "pod-network-operator", "get", "daemonset", "knit-agent", desired]).trim_matches('0'),
        ""
    );
    assert!(
        kubectl(&["get", "uplinks.podnetwork.opdev.io", "chart-nic", "-o", "name"]).contains("chart-nic")
    );

    // The ranges are enforced, and a tenant has only the rights of its role.
    let end = Instant::now() + Duration::from_secs(120);
    let bad = object("Bridge", "{name: br0, cidr: 10.96.1.0/24}");
    while shop.feed(&["create", "--dry-run=server", "-f", "-"], &bad).0 {
        assert!(Instant::now() < end, "the range policy is not enforced");
        std::thread::sleep(Duration::from_millis(500));
    }
    shop.kubectl(&["create", "serviceaccount", "tenant"]);
    let account = format!("--serviceaccount={}:tenant", shop.name);
    shop.kubectl(&["create", "rolebinding", "vlans", "--clusterrole=knit-vlan-editor", &account]);
    let token = format!("--token={}", shop.kubectl(&["create", "token", "tenant"]).trim());
    let create = |object: &str| shop.feed(&[&token, "create", "--dry-run=server", "-f", "-"], object);
    // A new role binding takes effect a moment later.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (good, output) = create(&object("Vlan", "{interfaceName: v0, parent: chart-nic, id: 100}"));
        if good {
            break;
        }
        assert!(Instant::now() < end, "{output}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let (good, output) = create(&object("Bridge", "{name: br0}"));
    assert!(!good && output.contains("cannot create resource \"bridges\""), "{output}");
    let (good, output) = feed(&[&token, "create", "-f", "-"], &object("Uplink", "{link: eno1}"));
    assert!(!good && output.contains("forbidden"), "{output}");

    assert!(release_objects().contains("knit-agent"));
    let (good, output) = helm(&["uninstall", "knit", "-n", "default", "--wait", "--timeout", "180s"], "");
    assert!(good, "{output}");
    let end = Instant::now() + Duration::from_secs(180);
    while !release_objects().is_empty() {
        assert!(Instant::now() < end, "left behind: {}", release_objects());
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(kubectl(&["get", "crd", "bridges.podnetwork.opdev.io", "-o", "name"]).contains("bridges"));
    drop(release);
}
