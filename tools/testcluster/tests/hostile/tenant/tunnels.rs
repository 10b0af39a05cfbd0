//! Tunnels from the tenant's pods into networks of others, to ports of nodes, and with keys of others.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::hostile::frames::{BROADCAST, Mac, UDP, encode, packet, parse_mac, udp};
use crate::hostile::objects::{Stored, object, select};
use crate::hostile::stage::{FRAMES, Host, Stage, TUNNEL, assert_denied, stage};
use crate::hostile::wire::PORT;
use crate::support::kubectl::{Namespace, kubectl};
use crate::support::operator::eventually;
use crate::support::programs::script;

/// An address of the other tenant's network that no pod has.
const FREE: &str = "192.168.117.77/24";

fn node_address(node: &str) -> String {
    let all = kubectl(&[
        "get",
        "node",
        node,
        "-o",
        "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}",
    ]);
    all.split_whitespace().find(|one| one.contains('.')).unwrap().to_owned()
}

/// MAC and IPv4 address of a link of a pod.
fn link(namespace: &Namespace, pod: &str, link: &str) -> (Mac, IpAddr) {
    let shown = script(namespace, pod, &format!("ip -j addr show dev {link}"));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let all = shown[0]["addr_info"].as_array().unwrap();
    let address = all.iter().find(|one| one["family"] == "inet").unwrap()["local"].as_str().unwrap();
    (parse_mac(shown[0]["address"].as_str().unwrap()), address.parse().unwrap())
}

/// A broadcast frame with a datagram.
fn broadcast((mac, from): (Mac, IpAddr), to: IpAddr, note: &str) -> Vec<u8> {
    packet((mac, BROADCAST), (from, to), UDP, &udp(PORT, PORT, note.as_bytes()))
}

/// Asserts that frames of the attacker's pod on this link do not get into the other tenant's network, and that frames of its
/// own pods do.
#[track_caller]
fn assert_isolated(stage: &Stage, from: &Host) {
    let (attack, control) = (stage.note(), stage.note());
    let own = link(&stage.attacker, from.pod, "att0");
    let frames = stage.blue.map(|to| broadcast(own, to, &attack));
    stage.send_on(from, "att0", &frames);
    let honest = broadcast(link(&stage.victim, "near", "blue0"), stage.blue[1], &control);
    let attempt = || {
        script(&stage.victim, "near", &format!("{FRAMES} send blue0 {}", encode(&honest)));
        stage.received(&stage.far, &control)
    };
    eventually("the network works", attempt, |received| !received.is_empty());
    for to in [&stage.near, &stage.far] {
        let received = stage.received(to, &attack);
        assert!(received.is_empty(), "{} received {received:#?}", to.pod);
    }
}

/// A tunnel in the attacker's pod, once it exists.
fn tunnel<'a>(stage: &'a Stage, pod: &str, spec: &Value) -> Stored<'a> {
    let mut all = json!({"selector": select(pod), "interfaceName": "att0", "addresses": [FREE]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let stored = stage.create(&object("Vxlan", &all));
    let links = || script(&stage.attacker, pod, "ip -o link");
    eventually("the attacker has its tunnel", links, |links| links.contains("att0"));
    stored
}

/// A VXLAN tunnel with the number of the other tenant's network and the port of the nodes' tunnels.
#[track_caller]
fn assert_vxlan_is_dropped(remote: &str, pod: impl Fn(&Stage) -> &Host) {
    let stage = stage();
    let before = stage.host_state(&[]);
    let spec = json!({"vni": stage.vni, "port": TUNNEL, "remote": remote});
    let _tunnel = tunnel(&stage, pod(&stage).pod, &spec);
    assert_isolated(&stage, pod(&stage));
    stage.assert_unaffected(&before, &[]);
}

#[test]
fn vxlan_into_another_tenants_network_by_the_other_node() {
    assert_vxlan_is_dropped(&node_address("node2"), |stage| &stage.plain);
}

#[test]
fn vxlan_into_another_tenants_network_by_its_own_node() {
    assert_vxlan_is_dropped(&node_address("node1"), |stage| &stage.plain);
}

#[test]
fn vxlan_into_another_tenants_network_by_the_gateway_of_the_cluster_network() {
    let gateway = {
        let stage = stage();
        let shown = script(&stage.attacker, "plain", "ip route show default");
        shown.split_whitespace().nth(2).unwrap().to_owned()
    };
    assert_vxlan_is_dropped(&gateway, |stage| &stage.plain);
}

#[test]
fn vxlan_into_another_tenants_network_by_the_default_port_of_a_node() {
    let stage = stage();
    let spec = json!({"vni": stage.vni, "remote": node_address("node2")});
    let _tunnel = tunnel(&stage, "plain", &spec);
    assert_isolated(&stage, &stage.plain);
}

#[test]
fn vxlan_with_a_pod_of_another_namespace_as_remote() {
    let stage = stage();
    let remote = format!("{}/far", stage.victim.name);
    let spec =
        json!({"selector": select("plain"), "interfaceName": "att0", "vni": stage.vni, "remote": remote});
    assert_denied(stage.try_create(&stage.tenant, &object("Vxlan", &spec)), "spec.remote");
}

#[test]
fn virtualnetwork_with_the_vni_of_another_tenants_network() {
    let stage = stage();
    let network = object(
        "VirtualNetwork",
        &json!({"subnets": ["192.168.117.0/24"], "transport": "vxlan", "vni": stage.vni}),
    );
    let name = network["metadata"]["name"].clone();
    let network = stage.create(&network);
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "network": name});
    let veth = stage.create(&object("Veth", &spec));
    let status = || format!("{}{}", network.status(), veth.status());
    eventually("the older network has it", status, |status| status.contains("which is older"));
    if script(&stage.attacker, "plain", "ip -o addr").contains(" att0 ") {
        assert_isolated(&stage, &stage.plain);
    }
    let ping = script(&stage.victim, "near", &format!("ping -n -c 1 -W 2 {}", stage.blue[1]));
    assert!(ping.contains(" 0% packet loss"), "{ping}");
}

#[test]
fn virtualnetwork_with_the_name_and_subnet_of_another_tenants_network() {
    let stage = stage();
    let mut network =
        object("VirtualNetwork", &json!({"subnets": ["192.168.117.0/24"], "transport": "vxlan"}));
    network["metadata"]["name"] = json!("blue");
    let _network = stage.create(&network);
    let _veth = stage.create(&object(
        "Veth",
        &json!({"selector": select("plain"), "interfaceName": "att0", "network": "blue"}),
    ));
    let links = || script(&stage.attacker, "plain", "ip -o addr show dev att0");
    eventually("the pod is on its own network", links, |links| links.contains("192.168.117."));
    assert_isolated(&stage, &stage.plain);
}

#[test]
fn veth_on_a_network_of_another_namespace() {
    let stage = stage();
    let network = format!("{}/blue", stage.victim.name);
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "network": network});
    assert_denied(stage.try_create(&stage.tenant, &object("Veth", &spec)), "spec.network");
}

#[test]
fn veth_on_a_network_that_only_another_namespace_has() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "network": "blue"});
    stage.assert_refused_by_nodes(&object("Veth", &spec), "there is no VirtualNetwork blue", &[]);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
}

#[test]
fn veth_for_pods_of_another_namespace() {
    let stage = stage();
    let spec =
        json!({"selector": {"matchLabels": {"team": "victim"}}, "interfaceName": "att0", "master": "attbr5"});
    let _veth = stage.assert_harmless(&object("Veth", &spec), &[]);
    for host in [&stage.near, &stage.far] {
        assert!(!script(&stage.victim, host.pod, "ip -o link").contains("att0"));
    }
}

#[test]
fn wireguard_with_a_secret_of_another_namespace() {
    let stage = stage();
    let secret = json!({"name": format!("{}/key", stage.victim.name), "key": "private"});
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "privateKeySecret": secret});
    assert_denied(stage.try_create(&stage.tenant, &object("WireGuard", &spec)), "spec.privateKeySecret.name");
}

#[test]
fn wireguard_with_a_secret_that_only_another_namespace_has() {
    let stage = stage();
    let secret = json!({"name": "key", "key": "private"});
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "privateKeySecret": secret});
    stage.assert_refused_by_nodes(&object("WireGuard", &spec), "Secret key", &[]);
    assert!(!script(&stage.attacker, "plain", "ip -o link").contains("att0"));
}
