//! Knit next to the reference network, on a real cluster: the walkthroughs of both predecessors with kubectl.
//!
//! Run by `cargo xtask test cluster`, which loads the image; manually against a cluster with the image:
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_operator`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{
    IMAGE, OnlyNode, assert_foreign_state, eventually, installed, on_node, stable_foreign_state,
};

const NODES: [&str; 2] = ["node1", "node2"];

/// The predecessor's `podconfig_v1alpha1_podconfig-a.yaml`.
const SAMPLE: &str = "
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata: {name: podconfig-sample-a}
spec:
  sampleDeployment: {create: true, name: cnf-example-a}
  networkAttachments:
    - {name: pc0, linkType: veth, master: pcbr0, parent: pc0, cidr: 192.168.100.0/24}
    - {name: pc1, linkType: veth, master: pcbr1, parent: pc1, cidr: 192.168.99.0/24}
";

fn pod(name: &str, node: &str, labels: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsUser: 65532, runAsNonRoot: true}}
  containers:
  - name: main
    image: {IMAGE}
    imagePullPolicy: Never
    args: [pause]
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
---
"
    )
}

/// An object from the API server.
fn get(namespace: &Namespace, kind: &str, name: &str) -> Value {
    serde_json::from_str(&namespace.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

/// A link of a pod, from `ip -j`.
fn link(namespace: &Namespace, pod: &str, name: &str) -> Value {
    let shown: Value = serde_json::from_str(
        &namespace.kubectl(&["exec", pod, "--", "ip", "-j", "addr", "show", "dev", name]),
    )
    .unwrap();
    shown[0].clone()
}

fn node_link(node: &str, name: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(&on_node(node, &["ip", "-j", "addr"])).unwrap();
    all.as_array().unwrap().iter().find(|link| link["ifname"] == name).cloned()
}

fn links(namespace: &Namespace, pod: &str) -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&namespace.kubectl(&["exec", pod, "--", "ip", "-j", "link"])).unwrap();
    shown.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

fn ipv4(link: &Value) -> Vec<String> {
    let all = link["addr_info"].as_array().unwrap().iter().filter(|one| one["family"] == "inet");
    all.map(|one| format!("{}/{}", one["local"].as_str().unwrap(), one["prefixlen"])).collect()
}

fn ping(namespace: &Namespace, from: &str, to: &str) {
    let ping = || run(&["-n", &namespace.name, "exec", from, "--", "ping", "-c", "1", "-W", "2", to]);
    eventually(&format!("{from} to {to}"), || text(&ping()), |output| output.contains(" 0% packet loss"));
}

/// Waits until a link is gone: deletions are deferred and batched.
fn wait_gone(node: &str, name: &str) {
    eventually("it is gone", || node_link(node, name), Option::is_none);
}

fn wait_ready(namespace: &Namespace, object: &str) {
    namespace.kubectl(&["wait", "--for=condition=Ready", object, "--timeout=60s"]);
}

/// Deletes an object and waits until its finalizer is removed.
fn delete(namespace: &Namespace, kind: &str, name: &str) {
    namespace.kubectl(&["delete", kind, name, "--timeout=60s"]);
}

#[test]
fn podconfig_sample_a_with_its_deployment_works_as_in_the_walkthrough() {
    let _exclusive = installed();
    let namespace = Namespace::new("cnf-test");
    let _one_node = OnlyNode::on("node1", &NODES);
    let before = stable_foreign_state(&NODES);

    namespace.apply(SAMPLE);
    let status = eventually(
        "two pods are configured",
        || get(&namespace, "podconfig", "podconfig-sample-a")["status"].clone(),
        |status| status["phase"] == "configured" && status["readyPods"] == 2,
    );
    wait_ready(&namespace, "podconfig/podconfig-sample-a");
    let object = get(&namespace, "podconfig", "podconfig-sample-a");
    assert_eq!(object["metadata"]["finalizers"], json!(["podconfig.finalizers.opdev.io"]));
    namespace.kubectl(&["wait", "--for=condition=Available", "deployment/cnf-example-a", "--timeout=60s"]);

    let pods = status["podConfigurations"].as_array().unwrap().clone();
    let mut last_octets = Vec::new();
    for entry in &pods {
        let pod = entry["podName"].as_str().unwrap();
        assert!(pod.starts_with("cnf-example-a-"), "{pod}");
        let lines: Vec<&str> =
            entry["configList"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        let first = lines[0].split_whitespace().next().unwrap();
        let number = first.strip_prefix("{podVethName:pc0").unwrap();
        for (index, network) in [(0, 100), (1, 99)] {
            let name = format!("pc{index}{number}");
            // The order of the pods may differ between the networks.
            let seen = link(&namespace, pod, &name)["addr_info"][0]["local"].as_str().unwrap().to_owned();
            let last = seen.rsplit('.').next().unwrap().to_owned();
            last_octets.push((index, last.clone()));
            let line = format!(
                "{{podVethName:{name} podIPAddr:192.168.{network}.{last}/24 peerVethName:h{name} bridge:pcbr{index}}}"
            );
            assert_eq!(lines[index], line);
            let in_pod = link(&namespace, pod, &name);
            assert_eq!(ipv4(&in_pod), [format!("192.168.{network}.{last}/24")]);
            assert_eq!((&in_pod["mtu"], &in_pod["operstate"]), (&json!(1500), &json!("UP")));
            assert_eq!(node_link("node1", &format!("h{name}")).unwrap()["master"], format!("pcbr{index}"));
            let bridge = node_link("node1", &format!("pcbr{index}")).unwrap();
            assert_eq!(
                (ipv4(&bridge), &bridge["mtu"]),
                (vec![format!("192.168.{network}.1/24")], &json!(1500))
            );
        }
        for to in [
            "192.168.100.1",
            "192.168.99.1",
            "192.168.100.2",
            "192.168.100.3",
            "192.168.99.2",
            "192.168.99.3",
        ] {
            ping(&namespace, pod, to);
        }
    }
    last_octets.sort();
    let both = [(0, "2"), (0, "3"), (1, "2"), (1, "3")].map(|(index, last)| (index, last.to_owned()));
    assert_eq!(last_octets, both);
    assert_foreign_state(&before, &NODES);
    let described = || namespace.kubectl(&["describe", "podconfig", "podconfig-sample-a"]);
    eventually("an Event is recorded", described, |described| described.contains("Configured"));

    delete(&namespace, "podconfig", "podconfig-sample-a");
    for name in ["pcbr0", "pcbr1"] {
        wait_gone("node1", name);
    }
    let states = || namespace.kubectl(&["get", "podnetworkstates", "-o", "name"]);
    eventually("no state is left", states, |states| states.is_empty());
    eventually(
        "the Deployment is deleted with the object",
        || namespace.kubectl(&["get", "pods", "-o", "name"]),
        |pods| pods.is_empty(),
    );
    assert_foreign_state(&before, &NODES);
}

#[test]
fn a_bridge_and_a_podnetworkconfig_change_running_pods_and_restore_them() {
    let _exclusive = installed();
    let namespace = Namespace::new("cnf-telco");
    let labels = "podNetworkConfig: cnf-a";
    namespace.apply(&format!("{}{}", pod("a", "node1", labels), pod("b", "node1", labels)));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    let before = stable_foreign_state(&NODES);
    let mtu = link(&namespace, "a", "eth0")["mtu"].clone();

    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: {name: pnobr0}
spec: {name: pnobr0, cidr: 192.168.110.0/24, mtu: 1400}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodNetworkConfig
metadata: {name: cnf-a}
spec:
  eth0: {mtu: 1300}
  additionalNetworks:
    - {networkName: net1, linkType: veth, master: pnobr0, mtu: 1400, cidr: 192.168.110.0/24}
",
    );
    let config = eventually(
        "both pods are configured",
        || get(&namespace, "podnetworkconfig", "cnf-a"),
        |config| config["status"]["phase"] == "configured" && config["status"]["readyPods"] == 2,
    );
    wait_ready(&namespace, "podnetworkconfig/cnf-a");
    wait_ready(&namespace, "bridge/pnobr0");
    assert_eq!(config["metadata"]["finalizers"], json!(["podnetworkconfig.finalizers.opdev.io"]));
    for (entry, (pod, other)) in
        config["status"]["PodNetworkConfigs"].as_array().unwrap().iter().zip([("a", "b"), ("b", "a")])
    {
        assert_eq!(entry["podName"], pod);
        let name = links(&namespace, pod).into_iter().find(|name| name.starts_with("net1")).unwrap();
        let in_pod = link(&namespace, pod, &name);
        let address = ipv4(&in_pod).remove(0);
        let line = format!("{{podVethName:{name} podIPAddr:{address} peerVethName:h{name} bridge:pnobr0}}");
        assert!(entry["configList"].as_array().unwrap().contains(&json!(line)), "{line} in {entry}");
        assert_eq!(in_pod["mtu"], 1400);
        assert_eq!(link(&namespace, pod, "eth0")["mtu"], 1300);
        ping(&namespace, pod, "192.168.110.1");
        let far = links(&namespace, other).into_iter().find(|name| name.starts_with("net1")).unwrap();
        let far = ipv4(&link(&namespace, other, &far)).remove(0);
        ping(&namespace, pod, far.split('/').next().unwrap());
    }
    assert_eq!(node_link("node1", "pnobr0").unwrap()["mtu"], 1400);
    assert_foreign_state(&before, &NODES);

    // A field change is applied to the existing interface.
    let patch = r#"{"spec":{"eth0":{"mtu":1280}}}"#;
    namespace.kubectl(&["patch", "podnetworkconfig", "cnf-a", "--type=merge", "-p", patch]);
    for pod in ["a", "b"] {
        eventually("the new MTU", || link(&namespace, pod, "eth0")["mtu"].clone(), |mtu| *mtu == 1280);
    }
    wait_ready(&namespace, "podnetworkconfig/cnf-a");

    // Without its label a pod loses only these changes.
    namespace.kubectl(&["label", "pod", "a", "podNetworkConfig-"]);
    eventually("a is restored", || links(&namespace, "a"), |links| *links == ["lo", "eth0"]);
    eventually("its MTU is restored", || link(&namespace, "a", "eth0")["mtu"].clone(), |now| *now == mtu);
    assert_eq!(link(&namespace, "b", "eth0")["mtu"], 1280);
    ping(&namespace, "b", "192.168.110.1");
    eventually(
        "one pod is left in the status",
        || get(&namespace, "podnetworkconfig", "cnf-a")["status"]["pods"].clone(),
        |pods| *pods == 1,
    );

    delete(&namespace, "podnetworkconfig", "cnf-a");
    eventually("b is restored", || links(&namespace, "b"), |links| *links == ["lo", "eth0"]);
    eventually("its MTU is restored", || link(&namespace, "b", "eth0")["mtu"].clone(), |now| *now == mtu);
    assert!(node_link("node1", "pnobr0").is_some(), "the Bridge object still exists");
    delete(&namespace, "bridge", "pnobr0");
    NODES.iter().for_each(|node| wait_gone(node, "pnobr0"));
    assert_foreign_state(&before, &NODES);
}

#[test]
fn pods_of_two_nodes_share_one_status_and_a_host_network_pod_is_rejected_with_a_message() {
    let _exclusive = installed();
    let namespace = Namespace::new("spread");
    namespace.apply(&SAMPLE.replace("  sampleDeployment: {create: true, name: cnf-example-a}\n", ""));
    let labels = "podconfig: podconfig-sample-a";
    namespace.apply(&format!("{}{}", pod("a", "node1", labels), pod("b", "node2", labels)));
    let status = || get(&namespace, "podconfig", "podconfig-sample-a")["status"].clone();
    eventually("both pods", status, |status| status["readyPods"] == 2 && status["phase"] == "configured");
    let nodes = || namespace.kubectl(&["get", "podnetworkstates", "-o", "jsonpath={.items[*].status.node}"]);
    eventually("each node reports it", nodes, |nodes| nodes == "node1 node2");

    let host = pod("h", "node2", labels).replace("spec:\n", "spec:\n  hostNetwork: true\n");
    namespace.apply(&host);
    eventually("the host network pod is rejected", status, |status| {
        let message = status["conditions"][0]["message"].as_str().unwrap_or_default();
        status["pods"] == 3 && message.contains("pod h uses the host network")
    });
    namespace.kubectl(&["delete", "pod", "h"]);
    eventually("the other pods are unaffected", status, |status| {
        status["pods"] == 2 && status["phase"] == "configured"
    });

    // A deleted pod takes its links with it; an object without pods is deleted at once.
    namespace.kubectl(&["delete", "pod", "a", "b"]);
    eventually(
        "nothing is left on the nodes",
        || NODES.map(|node| node_link(node, "pcbr0")),
        |seen| seen.iter().all(Option::is_none),
    );
    eventually("the status lists no pods", status, |status| status["pods"] == 0);
    delete(&namespace, "podconfig", "podconfig-sample-a");
}

#[test]
fn a_tap_is_added_to_a_running_pod_without_capabilities() {
    let _exclusive = installed();
    let namespace = Namespace::new("taps");
    let before = stable_foreign_state(&NODES);
    namespace.apply(&pod("vm", "node1", "podnetwork.opdev.io/tap: vm"));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Tap
metadata: {name: vm}
spec: {interfaceName: tap0, owner: 65532, addresses: [10.80.0.1/24]}
",
    );
    let status = || get(&namespace, "tap", "vm")["status"].clone();
    eventually("the pod has it", status, |status| status["readyPods"] == 1);
    wait_ready(&namespace, "tap/vm");
    assert_eq!(ipv4(&link(&namespace, "vm", "tap0")), ["10.80.0.1/24"]);
    let shown = namespace.kubectl(&["exec", "vm", "--", "ip", "-d", "link", "show", "dev", "tap0"]);
    assert!(shown.contains("tun type tap") && shown.contains("user 65532"), "{shown}");
    delete(&namespace, "tap", "vm");
    eventually("the pod is restored", || links(&namespace, "vm"), |links| *links == ["lo", "eth0"]);
    namespace.kubectl(&["delete", "pod", "vm"]);
    assert_foreign_state(&before, &NODES);
}

#[test]
fn each_process_watches_quotas_once() {
    let _exclusive = installed();
    let watches = |plural: &str| -> f64 {
        let resource = format!("resource=\"{plural}\"");
        let metrics = kubectl(&["get", "--raw", "/metrics"]);
        let all = metrics.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
        let watches = all.filter(|line| line.contains(&resource) && line.contains("verb=\"WATCH\""));
        watches.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    eventually(
        "as many watches of quotas as of bridges",
        || (watches("networkquotas"), watches("bridges")),
        |(quotas, bridges)| quotas == bridges && *quotas >= 3.0,
    );
}

#[test]
fn a_tenant_has_only_the_granted_rights_on_kinds() {
    let _exclusive = installed();
    let namespace = Namespace::new("grants");
    namespace.kubectl(&["create", "serviceaccount", "tenant"]);
    let account = format!("--serviceaccount={}:tenant", namespace.name);
    namespace.kubectl(&["create", "rolebinding", "vlans", "--clusterrole=knit-vlan-editor", &account]);
    let token = namespace.kubectl(&["create", "token", "tenant"]);
    let may = |verb: &str, what: &str| {
        let mut args = vec!["-n", &namespace.name, "--token", token.trim(), "auth", "can-i", verb];
        args.extend(what.split(' '));
        // Warnings go to standard error.
        String::from_utf8(run(&args).stdout).unwrap().trim().to_owned()
    };
    // A new role binding takes effect a moment later.
    for (verb, what) in
        [("create", "vlans.podnetwork.opdev.io"), ("list", "podnetworkstates.podnetwork.opdev.io")]
    {
        eventually(what, || may(verb, what), |output| output == "yes");
    }
    for (verb, what) in [
        ("create", "bridges.podnetwork.opdev.io"),
        ("create", "podconfigs.podconfig.opdev.io"),
        ("create", "uplinks.podnetwork.opdev.io"),
        ("patch", "podnetworkstates.podnetwork.opdev.io"),
        ("patch", "vlans.podnetwork.opdev.io --subresource=status"),
    ] {
        assert_eq!(may(verb, what), "no", "{verb} {what}");
    }
}
