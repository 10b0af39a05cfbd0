//! Who can send into overlay networks through the UDP port of the tunnels, with real packets. Needs root.

use std::time::Duration;

use knit_engine::Event;
use knit_testbed::{Namespace, eventually};

use crate::support::overlay_cluster::{A, B, OverlayCluster};

/// The pods on the two nodes.
const WEB: (&str, &str) = ("shop/web", "10.60.0.2");
const DB: (&str, &str) = ("shop/db", "10.60.0.16");

fn two_nodes(test: &str) -> OverlayCluster {
    let mut cluster = OverlayCluster::new(test, false);
    cluster.network("shop", "");
    for (at, pod) in [(A, "web"), (B, "db")] {
        cluster.claim_blocks(at, "shop");
        cluster.add_pod(at, "shop", pod, "blue");
    }
    cluster.ping(WEB.0, DB.1);
    cluster
}

/// A tunnel into the tenant's network, as somebody makes it who knows its VNI.
fn intrude(cluster: &OverlayCluster, from: &Namespace, local: &str, node: &str) {
    let link = cluster.tunnel(A, "shop").unwrap().link;
    let shown = cluster.ip_json(A, &["-d", "link", "show", link.as_str()]);
    let vni = shown[0]["linkinfo"]["info_data"]["id"].as_u64().unwrap().to_string();
    let tunnel = ["id", &vni, "dstport", "7475", "local", local, "remote", node];
    from.ip(&[&["link", "add", "intruder", "type", "vxlan"][..], &tunnel].concat());
    from.ip(&["addr", "add", "10.60.0.200/24", "dev", "intruder"]);
    from.ip(&["link", "set", "intruder", "up"]);
}

/// Sends echo requests through the intruder's tunnel. Neighbours are static: replies may not find their way back.
fn send_echo_requests(cluster: &OverlayCluster, from: &Namespace, to: (&str, &str)) {
    let shown = cluster.pod(to.0).namespace().ip_json(&["link", "show", "blue0"]);
    let mac = shown[0]["address"].as_str().unwrap().to_owned();
    from.ip(&["neigh", "replace", to.1, "lladdr", &mac, "dev", "intruder"]);
    drop(from.output("ping", &["-n", "-c", "3", "-i", "0.2", "-w", "1", to.1]));
}

/// How many echo requests a pod has received.
fn echo_requests(cluster: &OverlayCluster, pod: &str) -> u64 {
    let text = cluster.pod(pod).namespace().output("cat", &["/proc/net/snmp"]).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp:")).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "InEchos").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

/// Asserts that the intruder's packets do not reach the pod, and that they would without the guard of this node.
fn assert_rejected(cluster: &mut OverlayCluster, from: &Namespace, to: (&str, &str), guard: usize) {
    let before = echo_requests(cluster, to.0);
    send_echo_requests(cluster, from, to);
    assert_eq!(echo_requests(cluster, to.0), before, "{} receives packets of the intruder", to.0);
    cluster.run_command(guard, &["nft", "delete", "table", "inet", "knit"]);
    eventually("packets arrive without the guard", Duration::from_secs(10), || {
        send_echo_requests(cluster, from, to);
        echo_requests(cluster, to.0) > before
    });
    cluster.handle(guard, Event::PacketFilterChanged);
    let before = echo_requests(cluster, to.0);
    send_echo_requests(cluster, from, to);
    assert_eq!(echo_requests(cluster, to.0), before, "the guard is restored");
    cluster.ping(WEB.0, DB.1);
    cluster.assert_no_drift();
}

#[test]
fn a_host_that_is_no_node_cannot_send_into_an_overlay() {
    let mut cluster = two_nodes("tunhost");
    let stranger = cluster.stranger("192.0.2.99/24");
    intrude(&cluster, &stranger, "192.0.2.99", "192.0.2.1");
    assert_rejected(&mut cluster, &stranger, WEB, A);
    cluster.remove_all();
}

#[test]
fn a_pod_with_the_address_of_a_node_cannot_send_into_an_overlay() {
    let mut cluster = two_nodes("tunspoof");
    // A pod of another network plugin, which does not check sources.
    let pod = cluster.connected_pod(A, "198.51.100.2/24", "198.51.100.1/24");
    pod.address("eth0", "192.0.2.2/32");
    pod.ip(&["route", "add", "192.0.2.1/32", "via", "198.51.100.1", "dev", "eth0"]);
    intrude(&cluster, &pod, "192.0.2.2", "192.0.2.1");
    assert_rejected(&mut cluster, &pod, WEB, A);
    cluster.disconnect_pod(A);
    cluster.remove_all();
}

#[test]
fn a_masqueraded_pod_cannot_send_into_an_overlay_of_another_node() {
    let mut cluster = two_nodes("tunmasq");
    let pod = cluster.connected_pod(A, "198.51.100.2/24", "198.51.100.1/24");
    pod.ip(&["route", "add", "default", "via", "198.51.100.1"]);
    let forwarding = cluster.run_command(A, &["cat", "/proc/sys/net/ipv4/ip_forward"]);
    let set = |cluster: &OverlayCluster, value: &str| {
        cluster.run_command(A, &["sysctl", "-q", "-w", &format!("net.ipv4.ip_forward={}", value.trim())]);
    };
    set(&cluster, "1");
    let nat = "add table ip other
        add chain ip other post { type nat hook postrouting priority 100; }
        add rule ip other post ip saddr 198.51.100.0/24 masquerade";
    for line in nat.lines() {
        cluster.run_command(A, &["nft", line.trim()]);
    }
    intrude(&cluster, &pod, "198.51.100.2", "192.0.2.2");
    // Node B cannot distinguish the packets from those of node A, so node A drops them.
    assert_rejected(&mut cluster, &pod, DB, A);
    cluster.run_command(A, &["nft", "delete table ip other"]);
    set(&cluster, &forwarding);
    cluster.disconnect_pod(A);
    cluster.remove_all();
}
