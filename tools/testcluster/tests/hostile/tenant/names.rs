//! Names on the host: those of the system, of Knit, of other CNI plugins and of other tenants.

use serde_json::{Value, json};

use crate::hostile::objects::{object, select};
use crate::hostile::stage::{NODES, assert_denied, stage};
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

fn bridge(name: &str) -> Value {
    object("Bridge", &json!({"name": name}))
}

/// Index, name and kind of a host link, empty if there is none.
fn links(name: &str) -> Vec<String> {
    let show = format!(
        "ip -d -o link show dev '{name}' 2>/dev/null | grep -oE '^[0-9]+: [^ ]+|(bridge|veth|vxlan) ' || true"
    );
    NODES.map(|node| on_node(node, &["sh", "-c", &show])).to_vec()
}

/// Asserts that the nodes refuse a bridge of this name, and that a link of this name stays as it is.
#[track_caller]
fn assert_name_refused(name: &str) {
    let stage = stage();
    let before = links(name);
    stage.assert_refused_by_nodes(&bridge(name), "the name is reserved", &[]);
    assert_eq!(links(name), before);
}

#[test]
fn bridge_with_the_name_of_the_nodes_nic() {
    assert_name_refused("eth0");
}

#[test]
fn bridge_with_the_name_of_another_nic() {
    assert_name_refused("eth1");
}

#[test]
fn bridge_with_the_name_of_the_cluster_bridge() {
    assert_name_refused("knit0");
}

#[test]
fn bridge_with_the_name_of_knits_wireguard_link() {
    assert_name_refused("knitwg0");
}

#[test]
fn bridge_with_the_name_of_knits_vxlan_link() {
    assert_name_refused("knitvx4");
}

#[test]
fn bridge_with_the_name_of_the_reference_plugins_bridge() {
    assert_name_refused("cni0");
}

#[test]
fn bridge_with_the_name_of_flannels_link() {
    assert_name_refused("flannel.1");
}

#[test]
fn bridge_with_the_name_of_dockers_bridge() {
    assert_name_refused("docker0");
}

#[test]
fn bridge_with_the_name_of_kube_proxys_link() {
    assert_name_refused("kube-ipvs0");
}

#[test]
fn bridge_with_the_name_of_the_loopback_link() {
    let stage = stage();
    stage.assert_refused(&bridge("lo"), "the name is reserved", &[]);
}

#[test]
fn bridge_of_an_interface_with_the_name_of_the_cluster_bridge() {
    let stage = stage();
    let before = links("knit0");
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "master": "knit0"});
    stage.assert_refused_by_nodes(&object("Veth", &spec), "knit0", &[]);
    assert_eq!(links("knit0"), before);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
}

#[test]
fn bridge_with_the_name_of_another_tenants_bridge() {
    let stage = stage();
    let before = eventually(
        "the other tenant has it",
        || links("viclab0"),
        |links| links.iter().all(|link| link.contains("bridge")),
    );
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "master": "viclab0", "cidr": "192.168.110.0/24"});
    let stored = stage.assert_harmless(&object("Veth", &spec), &["192.168.110.1"]);
    stored.assert_message("another namespace");
    assert_eq!(links("viclab0"), before);
    let ports = on_node("node1", &["ip", "-o", "link", "show", "master", "viclab0"]);
    assert_eq!(ports.trim(), "", "the attacker's pod is no port of it");
}

/// Asserts that the API server rejects a name of a bridge.
#[track_caller]
fn assert_name_invalid(name: &str) {
    let stage = stage();
    assert_denied(stage.try_create(&stage.tenant, &bridge(name)), "spec.name");
}

#[test]
fn bridge_name_of_sixteen_bytes() {
    assert_name_invalid("abcdefghijklmnop");
}

#[test]
fn bridge_name_with_a_path() {
    assert_name_invalid("../x");
}

#[test]
fn bridge_name_with_spaces() {
    assert_name_invalid("a b");
}

#[test]
fn bridge_name_with_a_newline() {
    assert_name_invalid("a\nb");
}

#[test]
fn bridge_name_with_a_pattern() {
    assert_name_invalid("att%d");
}

#[test]
fn bridge_name_of_dots() {
    assert_name_invalid("..");
}

#[test]
fn bridge_name_of_fifteen_bytes_affects_nobody() {
    let stage = stage();
    stage.assert_harmless(&bridge("abcdefghijklmno"), &[]);
}

#[test]
fn interface_with_the_name_of_the_pods_cluster_interface() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "eth0", "master": "attbr4"});
    stage.assert_refused(&object("Veth", &spec), "eth0", &[]);
    stage.assert_arrives(&stage.plain, &stage.near, &stage.note());
}
