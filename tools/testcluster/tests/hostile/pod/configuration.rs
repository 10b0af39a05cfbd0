//! A pod with NET_ADMIN in its own network namespace, as an admin may allow: any configuration of its interface.

use crate::hostile::frames::show_mac;
use crate::hostile::host_state::HostState;
use crate::hostile::stage::{Stage, TUNNEL, stage};
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

/// A changed configuration of the pod's interface, restored when dropped.
struct Configuration<'a> {
    stage: &'a Stage,
    before: HostState,
}

impl<'a> Configuration<'a> {
    #[track_caller]
    fn change(stage: &'a Stage, commands: &str) -> Self {
        let this = Self { stage, before: stage.host_state(&[]) };
        let output = script(&stage.attacker, "admin", &format!("set -e; {commands}; echo configured"));
        assert!(output.contains("configured"), "{output}");
        this
    }

    /// Asserts that the pod's packets reach none of the other tenant's, and that nobody is affected.
    #[track_caller]
    fn assert_no_ping(&self, link: &str) {
        let stage = self.stage;
        for to in [&stage.near, &stage.far] {
            let ping = format!("ping -n -c 2 -i 0.2 -W 1 -I {link} {}", to.ipv4);
            let output = script(&stage.attacker, "admin", &ping);
            assert!(!output.contains("bytes from"), "{output}");
        }
        stage.assert_unaffected(&self.before, &[]);
    }
}

impl Drop for Configuration<'_> {
    fn drop(&mut self) {
        let (mac, ipv4, ipv6) = {
            let host = &self.stage.admin;
            (show_mac(host.mac), host.ipv4, host.ipv6)
        };
        let restore = format!(
            "for link in att0 att1; do ip link delete $link 2> /dev/null; done; \
             ip link set eth0 address {mac}; ip link set eth0 promisc off; \
             for to in $(ip -o addr show dev eth0 scope global | grep -o 'inet6* [^ ]*' | cut -d' ' -f2); do \
             case $to in {ipv4}/*|{ipv6}/*) ;; *) ip addr del $to dev eth0;; esac; done; true"
        );
        script(&self.stage.attacker, "admin", &restore);
    }
}

#[test]
fn interface_with_the_mac_of_a_neighbour() {
    let stage = stage();
    let change = format!("ip link set eth0 address {}", show_mac(stage.near.mac));
    Configuration::change(&stage, &change).assert_no_ping("eth0");
}

#[test]
fn interface_with_the_mac_of_the_gateway() {
    let stage = stage();
    let change = format!("ip link set eth0 address {}", show_mac(stage.gateway));
    Configuration::change(&stage, &change).assert_no_ping("eth0");
}

#[test]
fn interface_with_the_address_of_a_neighbour() {
    let stage = stage();
    let change = format!("ip addr add {}/32 dev eth0", stage.near.ipv4);
    let configuration = Configuration::change(&stage, &change);
    let ping = format!("ping -n -c 2 -i 0.2 -W 1 -I {} {}", stage.near.ipv4, stage.far.ipv4);
    let output = script(&stage.attacker, "admin", &ping);
    assert!(!output.contains("bytes from"), "{output}");
    script(&stage.attacker, "admin", &format!("busybox arping -U -c 3 -I eth0 {}", stage.near.ipv4));
    stage.assert_unaffected(&configuration.before, &[]);
}

#[test]
fn interface_with_the_address_of_the_gateway() {
    let stage = stage();
    let gateway = script(&stage.attacker, "admin", "ip route show default | cut -d' ' -f3");
    let gateway = gateway.trim();
    let change =
        format!("ip addr add {gateway}/32 dev eth0; busybox arping -U -c 3 -I eth0 {gateway} || true");
    let configuration = Configuration::change(&stage, &change);
    stage.assert_unaffected(&configuration.before, &[]);
}

#[test]
fn nested_macvlan_with_the_mac_and_address_of_a_neighbour() {
    let stage = stage();
    let (mac, address) = (show_mac(stage.near.mac), stage.near.ipv4);
    let change = format!(
        "ip link add att0 link eth0 address {mac} type macvlan mode bridge; ip addr add {address}/24 dev att0; ip link set att0 up; \
         busybox arping -U -c 3 -I att0 {address} || true"
    );
    let configuration = Configuration::change(&stage, &change);
    // The neighbour's address is the pod's own now, so only the other pod can answer.
    let output =
        script(&stage.attacker, "admin", &format!("ping -n -c 2 -i 0.2 -W 1 -I att0 {}", stage.far.ipv4));
    assert!(!output.contains("bytes from"), "{output}");
    stage.assert_unaffected(&configuration.before, &[]);
}

#[test]
fn nested_bridge_with_a_mac_of_its_own() {
    let stage = stage();
    let change = "ip link add att0 type veth peer name att1; ip link set att0 up; ip link set att1 up; \
                  ip link set att0 address 02:00:00:66:00:07; ip link set eth0 promisc on";
    let configuration = Configuration::change(&stage, change);
    stage.assert_unaffected(&configuration.before, &[]);
    stage.assert_dropped_on_the_bridge(&stage.admin, |to, note| {
        let mut frame = stage.honest(&stage.admin, to, note);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0x66, 0, 7]);
        vec![frame]
    });
}

#[test]
fn tunnel_of_a_pod_into_another_tenants_network() {
    let stage = stage();
    for node in ["node1", "node2"] {
        let address = on_node(node, &["ip", "-4", "-o", "addr", "show", "dev", "eth0"]);
        let (_, rest) = address.split_once("inet ").unwrap();
        let remote = rest.split('/').next().unwrap();
        let change = format!(
            "ip link add att0 type vxlan id {} dstport {TUNNEL} remote {remote} local {}; ip addr add 192.168.117.77/24 dev att0; ip link set att0 up",
            stage.vni, stage.admin.ipv4
        );
        let configuration = Configuration::change(&stage, &change);
        for to in stage.blue {
            let ping = format!("ping -n -c 2 -i 0.2 -W 1 -I att0 {to}");
            let output = script(&stage.attacker, "admin", &ping);
            assert!(!output.contains("bytes from"), "{output}");
        }
        stage.assert_unaffected(&configuration.before, &[]);
    }
}

#[test]
fn frames_for_others_are_not_received_in_promiscuous_mode() {
    let stage = stage();
    let _configuration = Configuration::change(&stage, "ip link set eth0 promisc on");
    let watch =
        "LD_LIBRARY_PATH=/tmp timeout 30 /tmp/knit-frames watch eth0 hostile-secret > /tmp/captured 2>&1 &";
    script(&stage.attacker, "admin", watch);
    let ready = || script(&stage.attacker, "admin", "cat /tmp/captured");
    eventually("the attacker listens", ready, |output| output.contains("watching"));
    for (from, to) in [(&stage.near, &stage.far), (&stage.far, &stage.near)] {
        let url = format!("http://{}:8080/echo?msg=hostile-secret", to.ipv4);
        let answer = || script(&stage.victim, from.pod, &format!("curl -sS --max-time 2 '{url}'"));
        eventually("pods exchange a secret", answer, |answer| answer.contains("hostile-secret"));
    }
    assert_eq!(ready().trim(), "watching", "the attacker received a frame of others");
}
