//! NetworkAttachmentDefinitions of a tenant: those of other namespaces, and plugins with paths and links of the host.

use serde_json::{Value, json};

use crate::hostile::stage::{NODES, Stage, stage};
use crate::support::kubectl::{kubectl, run};
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

const OPERATOR: [&str; 2] = ["-n", "pod-network-operator"];
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

fn deploy(path: &str) -> String {
    format!("{}/../../deploy/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Agents that read definitions and may run some plugins; dropped, they are configured as before.
struct DefinitionSupport {
    template: Value,
}

impl DefinitionSupport {
    fn new() -> Self {
        let daemonset = kubectl(&[&OPERATOR[..], &["get", "daemonset", "knit-agent", "-o", "json"]].concat());
        let daemonset: Value = serde_json::from_str(&daemonset).unwrap();
        let support = Self { template: daemonset["spec"]["template"].clone() };
        kubectl(&["apply", "-f", &deploy("nads.yaml")]);
        let crd = "crd/network-attachment-definitions.k8s.cni.cncf.io";
        kubectl(&["wait", "--for=condition=Established", "--timeout=60s", crd]);
        kubectl(&["apply", "-f", &deploy("attachments/attachments.yaml")]);
        let file = format!("--patch-file={}", deploy("attachments/agent.patch.yaml"));
        kubectl(&[&OPERATOR[..], &["patch", "daemonset", "knit-agent", &file]].concat());
        let plugins =
            json!({"name": "KNIT_NETWORK_ATTACHMENTS_PLUGINS", "value": "bridge,host-local,tuning,macvlan"});
        let container = json!({"name": "agent", "env": [plugins]});
        let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}}).to_string();
        kubectl(&[&OPERATOR[..], &["patch", "daemonset", "knit-agent", "-p", &patch]].concat());
        rollout();
        support
    }
}

impl Drop for DefinitionSupport {
    fn drop(&mut self) {
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": self.template}]).to_string();
        run(&[&OPERATOR[..], &["patch", "daemonset", "knit-agent", "--type=json", "-p", &patch]].concat());
        rollout();
        run(&["delete", "-f", &deploy("attachments/attachments.yaml"), "--ignore-not-found"]);
        run(&["delete", "-f", &deploy("nads.yaml"), "--ignore-not-found"]);
    }
}

fn rollout() {
    run(&[&OPERATOR[..], &["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]].concat());
}

fn definition(name: &str, config: &Value) -> String {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name},
        "spec": {"config": config.to_string()},
    })
    .to_string()
}

fn select_networks(stage: &Stage, networks: &str) {
    let annotation = format!("{NETWORKS}={networks}");
    stage.attacker.kubectl(&["annotate", "--overwrite", "pod", "plain", &annotation]);
}

/// Asserts that a pod does not get the network, for this reason, and that the host stays as it is.
#[track_caller]
fn assert_network_refused(stage: &Stage, network: &str, expected: &str) {
    let before = stage.host_state(&[]);
    select_networks(stage, &format!("{network}@att0"));
    let state = || {
        let args = ["-n", &stage.attacker.name, "get", "podnetworkstates", "plain", "-o", "json"];
        String::from_utf8_lossy(&run(&args).stdout).into_owned()
    };
    eventually(&format!("{network} is refused: {expected}"), state, |state| state.contains(expected));
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"), "{network}");
    stage.assert_unaffected(&before, &[]);
}

/// Asserts that the node does not become the gateway of a network outside of the cluster.
#[track_caller]
fn assert_gateway_refused(stage: &Stage) {
    let ipam = json!({"type": "host-local", "subnet": "1.1.1.0/30"});
    let config = json!({"type": "bridge", "bridge": "attgw0", "isGateway": true, "ipam": ipam});
    stage.attacker.apply(&definition("gateway", &config));
    let before = stage.host_state(&["1.1.1.1"]);
    select_networks(stage, "gateway@att0");
    let args = ["-n", &stage.attacker.name, "get", "podnetworkstates", "plain", "-o", "json"];
    let state = || String::from_utf8_lossy(&run(&args).stdout).into_owned();
    let expected = "is not within a range that is open to tenants";
    eventually("the gateway is refused", state, |state| state.contains(expected));
    stage.assert_unaffected(&before, &["1.1.1.1"]);
    stage.attacker.kubectl(&["delete", "net-attach-def", "gateway"]);
}

#[test]
fn definitions_of_other_namespaces_and_with_paths_and_links_of_the_host() {
    let stage = stage();
    let _support = DefinitionSupport::new();
    let links = || NODES.map(|node| on_node(node, &["sh", "-c", "ip -br link | cut -d' ' -f1 | sort"]));
    let before = links();
    stage.victim.apply(&definition("lab", &json!({"type": "bridge", "bridge": "viclab0"})));
    assert_network_refused(&stage, &format!("{}/lab", stage.victim.name), "is not shared with namespace");
    let list =
        |plugin: Value| json!({"cniVersion": "1.0.0", "name": "x", "plugins": [plugin, {"type": "tuning"}]});
    let host_local = |field: &str, path: &str| {
        list(
            json!({"type": "bridge", "bridge": "x", "ipam": {"type": "host-local", "subnet": "10.66.0.0/24", field: path}}),
        )
    };
    let cases = [
        ("bridge-of-the-cluster", json!({"type": "bridge", "bridge": "knit0"}), "the name is reserved"),
        (
            "nic-of-the-node",
            json!({"type": "macvlan", "master": "eth0"}),
            "NIC eth0 is not open to macvlan links",
        ),
        (
            "device-of-the-node",
            json!({"type": "host-device", "device": "eth0"}),
            "is not open to host-device links",
        ),
        ("list-with-a-nic", list(json!({"type": "macvlan", "master": "eth0"})), "must be the only one"),
        (
            "list-with-an-address-of-the-node",
            list(json!({"type": "bridge", "isGateway": true})),
            "field isGateway",
        ),
        ("list-with-a-folder-of-the-node", host_local("dataDir", "/etc"), "field dataDir"),
        ("list-with-a-file-of-the-node", host_local("resolvConf", "/etc/shadow"), "field resolvConf"),
        (
            "list-with-a-sysctl-of-the-kernel",
            list(json!({"type": "tuning", "sysctl": {"kernel.core_pattern": "x"}})),
            "not an allowed sysctl",
        ),
        ("list-with-another-plugin", list(json!({"type": "portmap"})), "plugin portmap is not allowed"),
        ("list-with-a-program-of-the-node", list(json!({"type": "../../../bin/sh"})), "bin/sh"),
    ];
    for (name, config, expected) in cases {
        stage.attacker.apply(&definition(name, &config));
        assert_network_refused(&stage, name, expected);
        stage.attacker.kubectl(&["delete", "net-attach-def", name]);
    }
    assert_gateway_refused(&stage);
    select_networks(&stage, "");
    eventually("no link was added to a node", links, |links| *links == before);
}
