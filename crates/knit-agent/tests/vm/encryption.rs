//! WireGuard between three nodes, on a kernel that has it: nothing leaves unencrypted.

use std::net::IpAddr;

use knit_testbed::ECHO_REQUEST;

use crate::support::packet_capture::CapturedPacket;
use crate::support::routed_cluster::{A, B, C, NodeFamilies, RoutedCluster, Transport, WIREGUARD};

fn is_pod(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..2] == [10, 1],
        IpAddr::V6(address) => address.segments()[0] == 0xfd01,
    }
}

/// Asserts that only WireGuard packets were on the links.
fn assert_all_encrypted(packets: &[CapturedPacket]) {
    for packet in packets {
        assert!(!is_pod(packet.from) && !is_pod(packet.to), "{} to {}", packet.from, packet.to);
        assert_eq!(packet.port, Some(WIREGUARD), "{} to {}", packet.from, packet.to);
        assert!(!packet.contains(ECHO_REQUEST));
    }
}

#[test]
fn pod_traffic_between_nodes_is_encrypted_until_disabled() {
    let mut cluster = RoutedCluster::new("wgways", NodeFamilies::DualStack);
    cluster.configure(Transport::Auto);
    let unencrypted = cluster.dumps();
    let capture = cluster.capture();
    cluster.ping(A, B);
    cluster.ping(A, C);
    assert!(
        capture.packets().iter().any(|packet| is_pod(packet.from) && is_pod(packet.to)),
        "the capture works"
    );

    cluster.configure(Transport::WireGuard);
    let routes = cluster.route_descriptions(A);
    assert_eq!(routes[0], "pods of node b in 10.1.2.0/24: wireguard, to 192.0.2.2:7476 by knitwg0");
    assert_eq!(routes[3], "pods of node c in fd01:3::/64: wireguard, to 203.0.113.3:7476 by knitwg0");
    capture.packets();
    cluster.assert_pods_reach_each_other();
    cluster.assert_nodes_and_pods_reach_each_other();
    cluster.assert_large_packets_fit();
    let packets = capture.packets();
    assert!(packets.len() > 50, "{}", packets.len());
    assert_all_encrypted(&packets);
    assert!(cluster.tunnel_packets_during(A, || cluster.ping(A, B)) > 0);
    cluster.assert_no_drift();
    assert!(cluster.has_key_on_disk(A));

    // Drift is repaired.
    let expected = cluster.dumps();
    for command in ["ip link del knitwg0", "ip link set knitwg0 down", "ip route flush table 7500"] {
        cluster.run_command(A, command);
        assert!(!cluster.repair(A).is_empty(), "{command}");
        cluster.assert_matches(&expected);
        assert!(cluster.repair(A).is_empty(), "{command}: repaired twice");
    }
    cluster.ping(A, C);

    cluster.configure(Transport::Auto);
    cluster.assert_matches(&unencrypted);
    assert_eq!((cluster.key_of(A), cluster.has_key_on_disk(A)), (None, false));
    cluster.ping(A, C);
    cluster.remove_all();
}

#[test]
fn node_without_a_key_is_unreachable_and_a_new_key_restores_it() {
    let mut cluster = RoutedCluster::new("wgkeys", NodeFamilies::Ipv4);
    cluster.configure(Transport::WireGuard);
    cluster.ping(A, C);
    cluster.publish_key(C, false);
    assert_eq!(
        cluster.warnings(A),
        ["10.1.3.0/24", "fd01:3::/64"].map(|range| format!(
            "pods of node c in {range} are not reached: it has not published a WireGuard public key"
        ))
    );
    let capture = cluster.capture();
    cluster.assert_unreachable(A, C);
    cluster.assert_unreachable(C, A);
    cluster.ping(A, B);
    assert_all_encrypted(&capture.packets());
    assert!(cluster.output_contains(A, &["ip", "route", "show", "table", "7500"], "unreachable 10.1.3.0/24"));
    assert!(cluster.repair(A).is_empty(), "the unreachable routes are desired state");

    // The node returns without its state folder: the others learn its new key.
    let old = cluster.key_of(C).unwrap();
    cluster.lose_state(C);
    assert_ne!(cluster.key_of(C).unwrap(), old);
    cluster.publish_key(C, true);
    cluster.assert_pods_reach_each_other();
    assert_all_encrypted(&capture.packets());
}

#[test]
fn node_that_cannot_encrypt_sends_nothing_and_starts_when_it_can() {
    let mut cluster = RoutedCluster::new("wgport", NodeFamilies::Ipv4);
    cluster.configure(Transport::Auto);
    cluster.ping(A, B);
    let occupied = cluster.occupy_wireguard_port(A);
    cluster.failing_node = Some(A);
    let capture = cluster.capture();
    cluster.configure(Transport::WireGuard);
    let problems = cluster.problems(A);
    assert!(problems[0].contains("knitwg0") && problems[0].contains("in use"), "{problems:?}");
    assert_eq!(cluster.key_of(A), None);
    cluster.assert_unreachable(A, B);
    cluster.assert_unreachable(A, C);
    assert_all_encrypted(&capture.packets());
    drop(occupied);
    cluster.failing_node = None;
    cluster.configure(Transport::WireGuard);
    cluster.assert_pods_reach_each_other();
    assert_all_encrypted(&capture.packets());
    cluster.remove_all();
}

#[test]
fn both_families_are_encrypted_over_ipv6_only_nodes() {
    let mut cluster = RoutedCluster::new("wgsix", NodeFamilies::Ipv6);
    cluster.configure(Transport::WireGuard);
    assert!(
        cluster
            .route_descriptions(A)
            .iter()
            .any(|route| route.contains("wireguard, to [2001:db8:3::3]:7476 by knitwg0"))
    );
    let capture = cluster.capture();
    cluster.assert_pods_reach_each_other();
    cluster.assert_nodes_and_pods_reach_each_other();
    cluster.assert_large_packets_fit();
    assert_all_encrypted(&capture.packets());
    cluster.remove_all();
}
