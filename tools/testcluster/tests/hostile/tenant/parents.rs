//! Devices of the host as lower links of the tenant's interfaces: the node's NIC, and an Uplink that is not open to it.

use serde_json::{Value, json};

use crate::hostile::objects::{object, select};
use crate::hostile::stage::{NODES, assert_denied, stage};
use crate::support::operator::on_node;
use crate::support::programs::script;

/// Asserts that an interface on the other tenant's Uplink is refused, and that the NIC stays on the node.
#[track_caller]
fn assert_uplink_closed(kind: &str, fields: Value) {
    let stage = stage();
    let mut spec = json!({"selector": select("plain"), "interfaceName": "att0", "parent": stage.uplink});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let object = object(kind, &spec);
    let expected = format!("uplink {} is not open to namespace {}", stage.uplink, stage.attacker.name);
    let (accepted, output) = stage.try_create(&stage.tenant, &object);
    if accepted {
        stage.assert_refused_by_nodes(&object, &expected, &[]);
    } else {
        assert_denied((accepted, output), &expected);
    }
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
    for node in NODES {
        assert!(on_node(node, &["ip", "-o", "link", "show", "dev", "eth0"]).contains("eth0"));
    }
}

#[test]
fn macvlan_on_an_uplink_of_another_tenant() {
    assert_uplink_closed("Macvlan", json!({}));
}

#[test]
fn macvtap_on_an_uplink_of_another_tenant() {
    assert_uplink_closed("Macvtap", json!({}));
}

#[test]
fn vxlan_on_an_uplink_of_another_tenant() {
    assert_uplink_closed("Vxlan", json!({"vni": 7, "remote": "239.1.1.1"}));
}

#[test]
fn hostdevice_on_an_uplink_of_another_tenant() {
    assert_uplink_closed("HostDevice", json!({}));
}

#[test]
fn hostdevice_of_the_nodes_nic() {
    let stage = stage();
    let before = NODES.map(|node| on_node(node, &["cat", "/sys/class/net/eth0/ifindex"]));
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "parent": "eth0"});
    let state = stage.host_state(&[]);
    let stored = stage.create(&object("HostDevice", &spec));
    stored.assert_message("there is no Uplink eth0");
    assert_eq!(NODES.map(|node| on_node(node, &["cat", "/sys/class/net/eth0/ifindex"])), before);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
    stage.assert_unaffected(&state, &[]);
}

#[test]
fn macvlan_on_the_cluster_bridge() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "parent": "knit0"});
    stage.assert_refused_by_nodes(&object("Macvlan", &spec), "knit0", &[]);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
}

#[test]
fn macvlan_on_a_bridge_of_another_tenant() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "parent": "viclab0"});
    stage.assert_refused_by_nodes(&object("Macvlan", &spec), "viclab0", &[]);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
}
