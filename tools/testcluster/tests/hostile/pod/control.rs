//! Knit's own sockets and ports, from a pod: tunnels, metrics, health, the agent's and the runtime's sockets.

use std::net::IpAddr;

use crate::hostile::frames::{UDP, packet, udp, vxlan};
use crate::hostile::stage::{NODES, Stage, stage};
use crate::hostile::wire::PORT;
use crate::support::operator::on_node;
use crate::support::programs::script;

const METRICS: u16 = 9475;
const HEALTH: u16 = 9476;

/// The addresses of a link of a node that others reach, of both families.
fn addresses(node: &str, link: &str) -> Vec<IpAddr> {
    let shown = on_node(node, &["ip", "-j", "addr", "show", "dev", link]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let all = shown[0]["addr_info"].as_array().unwrap().iter();
    let global = all.filter(|one| one["scope"] == "global");
    global.map(|one| one["local"].as_str().unwrap().parse().unwrap()).collect()
}

fn url(address: IpAddr, port: u16) -> String {
    let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    format!("http://{host}:{port}")
}

/// Asserts that a pod gets no answer from a port of both nodes.
#[track_caller]
fn assert_closed_to_pods(port: u16, path: &str) {
    let stage = stage();
    let served =
        on_node("node1", &["curl", "-sS", "--max-time", "5", &format!("http://127.0.0.1:{port}{path}")]);
    assert!(!served.is_empty(), "the node itself gets an answer");
    for to in NODES.iter().flat_map(|node| [addresses(node, "eth0"), addresses(node, "knit0")].concat()) {
        let request = format!("curl -sS -g --max-time 2 {}{path}", url(to, port));
        let output = script(&stage.attacker, "plain", &request);
        assert!(output.contains("curl: (7)") || output.contains("curl: (28)"), "{to}: {output}");
    }
}

#[test]
fn metrics_of_the_agents_from_a_pod() {
    assert_closed_to_pods(METRICS, "/metrics");
}

#[test]
fn health_of_the_agents_from_a_pod() {
    assert_closed_to_pods(HEALTH, "/livez");
}

#[test]
fn metrics_and_health_of_the_agent_from_the_other_node() {
    let _stage = stage();
    for to in addresses("node2", "eth0") {
        for port in [METRICS, HEALTH] {
            let request = format!("curl -sS -g --max-time 2 {}/ 2>&1 || true", url(to, port));
            let output = on_node("node1", &["sh", "-c", &request]);
            assert!(output.contains("curl: (7)") || output.contains("curl: (28)"), "{to}: {output}");
        }
    }
}

#[test]
fn sockets_of_the_agent_and_the_runtime_from_a_pod() {
    let stage = stage();
    let paths = [
        "/run/knit/kni.sock",
        "/run/knit/cni.sock",
        "/run/knit/plugins",
        "/run/containerd/containerd.sock",
        "/var/run/nri/nri.sock",
    ];
    for pod in ["plain", "admin"] {
        for path in paths {
            let output = script(&stage.attacker, pod, &format!("ls -d {path}"));
            assert!(output.contains("No such file"), "{pod}: {output}");
        }
        let names = script(&stage.attacker, pod, "cat /proc/net/unix");
        assert!(!names.contains("/run/"), "{pod}: {names}");
    }
}

#[test]
fn sockets_of_the_agent_for_other_users_of_the_node() {
    let _stage = stage();
    for socket in ["/run/knit/kni.sock", "/run/knit/cni.sock"] {
        let connect = format!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups nc -N -U {socket} </dev/null 2>&1; echo $?"
        );
        let output = on_node("node1", &["sh", "-c", &connect]);
        assert!(output.contains("ermission denied"), "{socket}: {output}");
    }
}

/// A frame into the other tenant's network inside of a VXLAN packet.
fn inner(stage: &Stage, note: &str) -> Vec<u8> {
    let from: IpAddr = "192.168.117.77".parse().unwrap();
    packet((stage.plain.mac, [0xff; 6]), (from, stage.blue[0]), UDP, &udp(PORT, PORT, note.as_bytes()))
}

/// Asserts that a VXLAN packet of the pod to these addresses does not get into the other tenant's network.
#[track_caller]
fn assert_tunnel_closed(source: impl Fn(&Stage) -> IpAddr, to: &[IpAddr]) {
    let stage = stage();
    let attack = stage.note();
    let source = source(&stage);
    for to in to.iter().filter(|to| to.is_ipv4() == source.is_ipv4()) {
        let outer = vxlan(stage.vni, &inner(&stage, &attack));
        stage.send(&stage.plain, &[packet((stage.plain.mac, stage.gateway), (source, *to), UDP, &outer)]);
    }
    for to in [&stage.near, &stage.far] {
        stage.assert_arrives(&stage.plain, to, &stage.note());
        let received = stage.received(to, &attack);
        assert!(received.is_empty(), "{} received {received:#?}", to.pod);
    }
}

#[test]
fn vxlan_packets_to_the_tunnel_port_of_the_own_node() {
    let to = [addresses("node1", "eth0"), addresses("node1", "knit0")].concat();
    assert_tunnel_closed(|stage| stage.plain.ipv4, &to);
}

#[test]
fn vxlan_packets_to_the_tunnel_port_of_the_other_node() {
    let to = [addresses("node2", "eth0"), addresses("node2", "knit0")].concat();
    assert_tunnel_closed(|stage| stage.plain.ipv4, &to);
}

#[test]
fn vxlan_packets_with_the_source_of_a_node() {
    let source = addresses("node2", "eth0").into_iter().find(IpAddr::is_ipv4).unwrap();
    assert_tunnel_closed(|_| source, &addresses("node1", "eth0"));
}

#[test]
fn vxlan_packets_over_ipv6() {
    let to = [addresses("node1", "eth0"), addresses("node2", "eth0")].concat();
    assert_tunnel_closed(|stage| stage.plain.ipv6, &to);
}
