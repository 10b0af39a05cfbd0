//! MAC and IP addresses of others for interfaces that the tenant describes, on the cluster network and on bridges of its own.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::hostile::frames::{self, Mac, UDP, arp_reply, show_mac, udp};
use crate::hostile::objects::{Stored, object, select};
use crate::hostile::stage::{Host, Stage, stage};
use crate::hostile::wire::PORT;
use crate::support::kubectl::run;
use crate::support::operator::eventually;
use crate::support::programs::script;

/// A macvlan on the pod's cluster interface with chosen addresses, once it exists.
fn nested<'a>(stage: &'a Stage, fields: &Value) -> Stored<'a> {
    let mut spec = json!({"selector": select("plain"), "interfaceName": "att0", "parent": "eth0"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let stored = stage.create(&object("Macvlan", &spec));
    let links = || script(&stage.attacker, "plain", "ip -o link show up");
    eventually("the attacker has its interface", links, |links| links.contains("att0"));
    stored
}

/// Asserts that datagrams with these source addresses do not leave the pod's interface for the cluster network.
#[track_caller]
fn assert_nested_dropped(stage: &Stage, mac: Mac, address: IpAddr) {
    for to in [&stage.near, &stage.far] {
        let (attack, control) = (stage.note(), stage.note());
        let destination = if address.is_ipv4() { to.ipv4 } else { to.ipv6 };
        let payload = udp(PORT, PORT, attack.as_bytes());
        let datagram = frames::packet((mac, stage.next_hop(to)), (address, destination), UDP, &payload);
        let mut all = vec![datagram];
        if address.is_ipv4() {
            all.push(arp_reply((mac, to.mac), mac, address, to.ipv4, &attack));
        }
        stage.send_on(&stage.plain, "att0", &all);
        stage.assert_arrives(&stage.plain, to, &control);
        let received = stage.received(to, &attack);
        assert!(received.is_empty(), "{} received {received:#?}", to.pod);
    }
}

#[test]
fn macvlan_with_the_mac_and_address_of_a_neighbour() {
    let stage = stage();
    let before = stage.host_state(&[]);
    let (mac, address) = (stage.near.mac, stage.near.ipv4);
    let stored =
        nested(&stage, &json!({"hardwareAddr": show_mac(mac), "addresses": [format!("{address}/32")]}));
    stored.assert_message("packets from it are dropped");
    assert_nested_dropped(&stage, mac, address);
    stage.assert_unaffected(&before, &[]);
}

#[test]
fn macvlan_with_the_ipv6_address_of_a_neighbour() {
    let stage = stage();
    let before = stage.host_state(&[]);
    let mac = frames::parse_mac("02:00:00:66:00:02");
    let address = stage.near.ipv6;
    let _link =
        nested(&stage, &json!({"hardwareAddr": show_mac(mac), "addresses": [format!("{address}/128")]}));
    assert_nested_dropped(&stage, mac, address);
    stage.assert_unaffected(&before, &[]);
}

#[test]
fn macvlan_with_the_mac_of_the_gateway() {
    let stage = stage();
    let before = stage.host_state(&[]);
    let _link = nested(&stage, &json!({"hardwareAddr": show_mac(stage.gateway)}));
    assert_nested_dropped(&stage, stage.gateway, stage.plain.ipv4);
    stage.assert_unaffected(&before, &[]);
}

/// A macvlan with a MAC address of its own and this address.
#[track_caller]
fn assert_address_dropped(address: impl Fn(&Stage) -> IpAddr) {
    let stage = stage();
    let before = stage.host_state(&[]);
    let mac = frames::parse_mac("02:00:00:66:00:01");
    let address = address(&stage);
    let length = if address.is_ipv4() { 32 } else { 128 };
    let _link =
        nested(&stage, &json!({"hardwareAddr": show_mac(mac), "addresses": [format!("{address}/{length}")]}));
    assert_nested_dropped(&stage, mac, address);
    stage.assert_unaffected(&before, &[]);
}

#[test]
fn macvlan_with_the_address_of_a_pod_of_the_other_node() {
    assert_address_dropped(|stage| stage.far.ipv4);
}

#[test]
fn macvlan_with_the_address_of_a_service() {
    assert_address_dropped(|_| "10.96.0.10".parse().unwrap());
}

#[test]
fn macvlan_with_an_address_outside_of_the_cluster() {
    // A policy of the other tenant may trust it.
    assert_address_dropped(|_| "203.0.113.9".parse().unwrap());
}

#[test]
fn macvlan_with_an_ipv6_address_outside_of_the_cluster() {
    assert_address_dropped(|_| "2001:db8:9::9".parse().unwrap());
}

#[test]
fn veth_with_the_address_of_another_tenants_pod() {
    let stage = stage();
    let address = format!("{}/24", stage.far.ipv4);
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr6", "addresses": [address]});
    let _veth = stage.assert_harmless(&object("Veth", &spec), &[]);
}

/// The addresses of a new pod of the attacker with these annotations.
fn addresses_with(stage: &Stage, annotations: &Value) -> String {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "annotated", "annotations": annotations},
        "spec": {
            "nodeName": "node1",
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": crate::support::operator::IMAGE,
                "imagePullPolicy": "Never",
                "args": ["pause"],
            }],
        },
    });
    let (accepted, output) = stage.attacker.feed(&[&stage.tenant, "create", "-f", "-"], &pod.to_string());
    assert!(accepted, "{output}");
    let args =
        ["-n", &stage.attacker.name, "get", "pod", "annotated", "-o", "jsonpath={.status.podIPs[*].ip}"];
    let addresses = || String::from_utf8(run(&args).stdout).unwrap();
    let addresses = eventually("the pod has addresses", addresses, |addresses| addresses.contains(':'));
    stage.attacker.kubectl(&["delete", "pod", "annotated", "--timeout=60s"]);
    addresses
}

#[track_caller]
fn assert_annotation_without_effect(stage: &Stage, annotations: &Value, host: &Host) {
    let before = stage.host_state(&[]);
    let addresses = addresses_with(stage, annotations);
    let chosen = host.ipv4.to_string();
    assert!(addresses.split_whitespace().all(|address| address != chosen), "{addresses}");
    stage.assert_unaffected(&before, &[]);
}

#[test]
fn pod_annotation_for_the_addresses_of_another_namespaces_pod() {
    let stage = stage();
    let args = [
        "-n",
        &stage.victim.name,
        "annotate",
        "--overwrite",
        "pod",
        "near",
        "knit.opdev.io/sticky-addresses=web",
    ];
    crate::support::kubectl::kubectl(&args);
    let annotations = json!({"knit.opdev.io/sticky-addresses": "web"});
    assert_annotation_without_effect(&stage, &annotations, &stage.near);
}
