//! The status that Knit reports about pods, nodes and itself on a real cluster, and keys from Secrets.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_states`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, feed, kubectl, run, text};
use support::operator::{IMAGE, eventually, installed, on_node};

fn pod(name: &str, node: &str, labels: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: {IMAGE}, imagePullPolicy: Never, args: [pause]}}
---
"
    )
}

fn get(namespace: &Namespace, kind: &str, name: &str) -> Value {
    serde_json::from_str(&namespace.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

fn node_state(node: &str) -> Value {
    let text = kubectl(&["get", "nodenetwork", node, "-o", "json"]);
    serde_json::from_str::<Value>(&text).unwrap()["status"].clone()
}

/// An Uplink for the nodes' NIC, deleted when dropped.
struct TestUplink(String);

impl TestUplink {
    fn new() -> Self {
        let name = format!("states-{}", std::process::id());
        let manifest = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Uplink\nmetadata: {{name: {name}}}\nspec: {{link: eth0}}\n"
        );
        let (accepted, output) = feed(&["apply", "-f", "-"], &manifest);
        assert!(accepted, "{output}");
        Self(name)
    }
}

impl Drop for TestUplink {
    fn drop(&mut self) {
        run(&["delete", "uplink", &self.0]);
    }
}

/// Reason and message of an object's condition.
fn ready(namespace: &Namespace, kind: &str, name: &str) -> (String, String) {
    let object = get(namespace, kind, name);
    let text = |field: &str| object["status"]["conditions"][0][field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn states_report_interface_counters_and_node_capabilities() {
    let _exclusive = installed();
    let namespace = Namespace::new("states");
    namespace.apply(&pod("a", "node1", "podnetwork.opdev.io/veth: counted"));
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: counted}
spec: {interfaceName: net1, master: countbr0, cidr: 192.168.103.0/24}
",
    );
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/a", "--timeout=60s"]);
    let status = || get(&namespace, "veth", "counted")["status"].clone();
    eventually("the pod has it", status, |status| status["readyPods"] == 1);
    namespace.kubectl(&["wait", "--for=condition=Ready", "veth/counted", "--timeout=60s"]);
    let interface =
        || get(&namespace, "podnetworkstate", "a")["status"]["objects"][0]["interfaces"][0].clone();
    eventually("it has counters", interface, |interface| interface["counters"]["rx"]["errors"] == 0);
    namespace.kubectl(&["exec", "a", "--", "ping", "-c", "20", "-i", "0.01", "-s", "1000", "192.168.103.1"]);
    // Counters alone do not cause an early update; the next change includes them.
    let version = get(&namespace, "podnetworkstate", "a")["metadata"]["resourceVersion"].clone();
    namespace.kubectl(&["patch", "veth", "counted", "--type=merge", "-p", r#"{"spec":{"mtu":1400}}"#]);
    let counted = eventually("the change is written", interface, |interface| interface["mtu"] == 1400);
    for direction in ["rx", "tx"] {
        let counted = &counted["counters"][direction];
        assert!(counted["bytes"].as_u64() > Some(20_000), "{counted}");
        assert!(counted["packets"].as_u64() >= Some(20), "{counted}");
    }
    let state = get(&namespace, "podnetworkstate", "a");
    assert_ne!(state["metadata"]["resourceVersion"], version);
    assert!(state["status"]["countedAt"].is_string(), "{state}");

    let uplink = TestUplink::new();
    let bridge = json!({"namespace": namespace.name, "requested": "countbr0", "name": "countbr0", "addresses": ["192.168.103.1/24"]});
    let is_reported = |state: &Value| {
        let bridges = state["bridges"].as_array();
        state["uplinks"][0]["openedBy"] == uplink.0
            && bridges.is_some_and(|bridges| bridges.contains(&bridge))
    };
    let state = eventually("the uplink and the bridge are reported", || node_state("node1"), is_reported);
    let eth0 = &state["uplinks"][0];
    assert_eq!((&eth0["name"], &eth0["up"], &eth0["mtu"]), (&json!("eth0"), &json!(true), &json!(1500)));
    assert!(eth0["hardwareAddr"].is_string());
    let kind = |name: &str| {
        let links = state["kernel"]["links"].as_array().unwrap();
        links
            .iter()
            .find(|link| link["kind"] == name)
            .cloned()
            .unwrap_or_else(|| panic!("{name} in {links:?}"))
    };
    assert_eq!(kind("veth"), json!({"kind": "veth", "present": true}));
    // The agent reports the same as `knit doctor` on the same kernel.
    let has_wireguard = std::path::Path::new("/sys/module/wireguard").exists();
    assert_eq!(kind("wireguard")["present"], has_wireguard);
    assert_eq!(kind("wireguard")["why"].is_null(), has_wireguard);
    let shown = kubectl(&["get", "nodenetwork", "node1", "-o", "wide"]);
    let release = state["kernel"]["release"].as_str().unwrap();
    assert!(shown.contains(release) && shown.contains("LACKS"), "{shown}");

    drop(uplink);
    let is_closed = |state: &Value| state["uplinks"].as_array().is_none_or(Vec::is_empty);
    eventually("a closed virtual link is not listed as a NIC", || node_state("node1"), is_closed);
}

#[test]
fn the_leader_and_the_standby_controller_are_both_ready() {
    let _exclusive = installed();
    let pods = || {
        let args = ["-n", "pod-network-operator", "get", "pods", "-l", "app=knit-controller", "-o", "json"];
        let pods: Value = serde_json::from_str(&kubectl(&args)).unwrap();
        pods["items"].as_array().unwrap().clone()
    };
    // A replica of another test may still be terminating.
    let is_ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let pods = eventually("both are ready", pods, |pods| pods.len() == 2 && pods.iter().all(is_ready));
    for pod in &pods {
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
        let address = pod["status"]["podIP"].as_str().unwrap();
        let request = |path: &str| {
            let url = format!("http://{address}:9477{path}");
            // Without an answer the request is retried.
            on_node("node1", &["sh", "-c", &format!("curl -s --max-time 5 {url} || true")])
        };
        for path in ["/readyz", "/livez"] {
            eventually(path, || request(path), |output| output == "ok\n");
        }
    }
}

#[test]
fn a_key_is_read_from_a_granted_secret_and_every_error_is_reported() {
    let _exclusive = installed();
    let namespace = Namespace::new("keys");
    namespace.apply(&pod("a", "node1", "podnetwork.opdev.io/wireguard: tunnel"));
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: WireGuard
metadata: {name: tunnel}
spec: {interfaceName: wg0, addresses: [10.70.0.1/24], privateKeySecret: {name: tunnel, key: private}}
",
    );
    let wait_condition = |what: &str, reason: &str, expected: &str| {
        let seen = || ready(&namespace, "wireguard", "tunnel");
        eventually(what, seen, |seen| seen.0 == reason && seen.1.contains(expected));
    };
    wait_condition("the agent has no right", "NotAllowed", "key private of Secret tunnel in namespace keys-");
    let account = "pod-network-operator:knit-agent";
    let may = |verb: &str, what: &str| {
        let user = format!("--as=system:serviceaccount:{account}");
        let args = ["-n", &namespace.name, "auth", "can-i", verb, what, &user];
        String::from_utf8(run(&args).stdout).unwrap().trim().to_owned()
    };
    assert_eq!(may("get", "secrets/tunnel"), "no");

    namespace.kubectl(&[
        "create",
        "role",
        "tunnel-key",
        "--verb=get,list,watch",
        "--resource=secrets",
        "--resource-name=tunnel",
    ]);
    let to = format!("--serviceaccount={account}");
    namespace.kubectl(&["create", "rolebinding", "tunnel-key", "--role=tunnel-key", &to]);
    eventually("the grant is effective", || may("get", "secrets/tunnel"), |may| may == "yes");
    assert_eq!(may("get", "secrets/other"), "no");
    wait_condition("it is granted and missing", "NotFound", "key private of Secret tunnel");

    let secret = |value: &str| {
        let manifest = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: tunnel}}\nstringData: {{private: \"{value}\"}}\n"
        );
        namespace.apply(&manifest);
    };
    secret("not so secret");
    wait_condition("it is not a key", "InvalidValue", "a key is 32 bytes in base64");
    assert!(!ready(&namespace, "wireguard", "tunnel").1.contains("not so secret"));

    secret("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=");
    let public = || get(&namespace, "podnetworkstate", "a")["status"].to_string();
    if std::path::Path::new("/sys/module/wireguard").exists() {
        eventually("it has its key", public, |state| state.contains("publicKey"));
        let first = public();
        secret("yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=");
        eventually("it has another key", public, |state| state.contains("publicKey") && *state != first);
        namespace.kubectl(&["delete", "secret", "tunnel"]);
        wait_condition("it is deleted, and the tunnel stays", "NotFound", "key private of Secret tunnel");
    } else {
        wait_condition(
            "the key is valid, and the kernel lacks WireGuard",
            "KernelUnsupported",
            "CONFIG_WIREGUARD",
        );
    }
    let events = || namespace.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    let events = eventually("an Event reports it", events, |events| {
        events.contains("the agent may not read this Secret")
    });
    assert!(!events.contains("waiting for the API server"), "reading a key is not a problem: {events}");
}

#[test]
fn a_quota_applies_to_all_nodes_together_and_removes_nothing() {
    let _exclusive = installed();
    let namespace = Namespace::new("quota");
    let quota = |limit: u32| {
        namespace.apply(&format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: NetworkQuota\nmetadata: {{name: most}}\nspec: {{interfaces: {limit}, addresses: 20, bridges: 2}}\n"
        ));
    };
    quota(3);
    let label = "podnetwork.opdev.io/veth: many";
    let pods = [("a", "node1"), ("b", "node1"), ("c", "node2"), ("d", "node2")];
    namespace.apply(&pods.map(|(name, node)| pod(name, node, label)).concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: many}
spec: {interfaceName: net1, master: quotabr0, cidr: 192.168.104.0/24}
",
    );
    // Counted in the kernel, not in the status.
    let configured = || {
        let has =
            |pod: &str| namespace.kubectl(&["exec", pod, "--", "ls", "/sys/class/net"]).contains("net1");
        pods.iter().filter(|(pod, _)| has(pod)).count()
    };
    let used = || get(&namespace, "networkquota", "most")["status"]["used"].clone();
    let wait_reason = |reason: &str| {
        eventually(reason, || ready(&namespace, "veth", "many"), |seen| seen.0 == reason);
    };
    wait_reason("QuotaExceeded");
    eventually("three are configured", configured, |count| *count == 3);
    // A claim covers everything that is requested, though the quota of addresses would allow more.
    eventually("it is claimed", used, |used| used["interfaces"] == 3 && used["bridges"] == 2);
    eventually(
        "it has a message",
        || ready(&namespace, "veth", "many"),
        |seen| seen.1.contains("may have 3 interfaces on all nodes (networkquota most)"),
    );
    let claims = get(&namespace, "networkquota", "most")["status"]["claims"].clone();
    let of = |node: &str| claims[node]["interfaces"].as_u64().unwrap();
    assert_eq!(of("node1") + of("node2"), 3, "{claims}");
    let events = || namespace.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
    eventually("an Event reports it", events, |events| events.contains("QuotaExceeded"));
    let messages = namespace.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
    assert!(!messages.contains("2 bridges"), "a pending claim is not a problem: {messages}");
    let shown = namespace.kubectl(&["get", "networkquota", "most"]);
    assert!(shown.contains("MAX-INTERFACES"), "{shown}");

    quota(4);
    namespace.kubectl(&["wait", "--for=condition=Ready", "veth/many", "--timeout=60s"]);
    eventually("four are configured", configured, |count| *count == 4);
    quota(1);
    namespace.kubectl(&["patch", "veth", "many", "--type=merge", "-p", r#"{"spec":{"mtu":1400}}"#]);
    eventually(
        "the change is applied on all nodes",
        || get(&namespace, "veth", "many")["status"].clone(),
        |status| status["observedGeneration"] == 2 && status["readyPods"] == 4,
    );
    assert_eq!(configured(), 4);
    eventually("all four count", used, |used| used["interfaces"] == 4);
    namespace.kubectl(&["delete", "pod", "a", "b"]);
    eventually("deleted interfaces do not count", used, |used| {
        *used == json!({"interfaces": 2, "addresses": 2, "bridges": 1})
    });

    // A tenant with all grantable rights cannot change quotas, and an agent claims for its own node only.
    namespace.kubectl(&["create", "serviceaccount", "tenant"]);
    let account = format!("--serviceaccount={}:tenant", namespace.name);
    namespace.kubectl(&["create", "rolebinding", "all", "--clusterrole=knit-tenant", &account]);
    let user = format!("--as=system:serviceaccount:{}:tenant", namespace.name);
    for verb in ["create", "patch", "delete"] {
        let answer =
            run(&["-n", &namespace.name, "auth", "can-i", verb, "networkquotas.podnetwork.opdev.io", &user]);
        assert_eq!(String::from_utf8(answer.stdout).unwrap().trim(), "no", "{verb}");
    }
    let claim = |node: &str| {
        let patch =
            format!(r#"{{"status":{{"claims":{{"{node}":{{"interfaces":0,"addresses":0,"bridges":0}}}}}}}}"#);
        let agent = "--as=system:serviceaccount:pod-network-operator:knit-agent";
        let on = "--as-user-extra=authentication.kubernetes.io/node-name=node1";
        let args = ["-n", &namespace.name, "patch", "networkquota", "most", "--subresource=status"];
        text(&run(&[&args[..], &["--type=merge", "-p", &patch, agent, on]].concat()))
    };
    let output = claim("node2");
    assert!(output.contains("the agent of node1 may not change what another node has claimed"), "{output}");
    assert!(claim("node1").contains("patched"));
}
