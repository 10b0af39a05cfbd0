//! Pods of three nodes reach each other encrypted, on a kernel that has WireGuard, and nobody on the way reads along.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared with the tests of other ways")]
    pub mod nodes;
    #[allow(dead_code, reason = "shared with the tests of networks on all nodes")]
    pub mod wiretap;
}

use std::net::IpAddr;

use support::nodes::{A, B, C, Nodes, Over, Transport, WIREGUARD};
use support::wiretap::Heard;

/// What the echo servers are asked.
const QUESTION: &[u8] = b"knit: is anybody there?";

fn is_pod(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..2] == [10, 1],
        IpAddr::V6(address) => address.segments()[0] == 0xfd01,
    }
}

/// Only packets of the tunnel were on the cables.
fn assert_all_encrypted(heard: &[Heard]) {
    for packet in heard {
        assert!(!is_pod(packet.from) && !is_pod(packet.to), "{} to {}", packet.from, packet.to);
        assert_eq!(packet.port, Some(WIREGUARD), "{} to {}", packet.from, packet.to);
        assert!(!packet.says(QUESTION));
    }
}

#[test]
fn all_that_pods_say_to_other_nodes_is_encrypted_until_it_is_turned_off_again() {
    let mut nodes = Nodes::new("wgways", Over::Both);
    nodes.have(Transport::Auto);
    let clear = nodes.dumps();
    let wire = nodes.listen();
    nodes.ping(A, B);
    nodes.ping(A, C);
    assert!(wire.heard().iter().any(|packet| is_pod(packet.from) && is_pod(packet.to)), "it is heard well");

    nodes.have(Transport::WireGuard);
    let told = nodes.told(A);
    assert_eq!(told[0], "pods of node b in 10.1.2.0/24: wireguard, to 192.0.2.2:7476 by knitwg0");
    assert_eq!(told[3], "pods of node c in fd01:3::/64: wireguard, to 203.0.113.3:7476 by knitwg0");
    wire.heard();
    nodes.assert_pods_reach_each_other();
    nodes.assert_nodes_and_pods_reach_each_other();
    nodes.assert_large_packets_fit();
    let heard = wire.heard();
    assert!(heard.len() > 50, "{}", heard.len());
    assert_all_encrypted(&heard);
    assert!(nodes.counted(A, || nodes.ping(A, B)) > 0);
    nodes.assert_at_rest();
    assert!(nodes.has_key_on_disk(A));

    // Someone's changes are mended.
    let whole = nodes.dumps();
    for words in ["ip link del knitwg0", "ip link set knitwg0 down", "ip route flush table 7500"] {
        nodes.do_by_hand(A, words);
        assert!(!nodes.repair(A).is_empty(), "{words}");
        nodes.assert_like(&whole);
        assert!(nodes.repair(A).is_empty(), "{words}: once is enough");
    }
    nodes.ping(A, C);

    nodes.have(Transport::Auto);
    nodes.assert_like(&clear);
    assert_eq!((nodes.key_of(A), nodes.has_key_on_disk(A)), (None, false));
    nodes.ping(A, C);
    nodes.remove_all();
}

#[test]
fn a_node_without_a_key_is_not_reached_in_clear_and_one_with_a_new_key_is_reached_again() {
    let mut nodes = Nodes::new("wgkeys", Over::Ipv4);
    nodes.have(Transport::WireGuard);
    nodes.ping(A, C);
    nodes.tell_key(C, false);
    assert_eq!(
        nodes.warned(A),
        ["10.1.3.0/24", "fd01:3::/64"]
            .map(|range| format!("pods of node c in {range} are not reached: it has told no WireGuard key"))
    );
    let wire = nodes.listen();
    nodes.assert_cut_off(A, C);
    nodes.assert_cut_off(C, A);
    nodes.ping(A, B);
    assert_all_encrypted(&wire.heard());
    assert!(nodes.has(A, &["ip", "route", "show", "table", "7500"], "unreachable 10.1.3.0/24"));
    assert!(nodes.repair(A).is_empty(), "and that is how it should be");

    // It comes back without its folder: the others learn its new key.
    let old = nodes.key_of(C).unwrap();
    nodes.lose_state(C);
    assert_ne!(nodes.key_of(C).unwrap(), old);
    nodes.tell_key(C, true);
    nodes.assert_pods_reach_each_other();
    assert_all_encrypted(&wire.heard());
}

#[test]
fn a_node_that_cannot_encrypt_yet_sends_nothing_and_begins_when_it_can() {
    let mut nodes = Nodes::new("wgport", Over::Ipv4);
    nodes.have(Transport::Auto);
    nodes.ping(A, B);
    let taken = nodes.take_port(A);
    nodes.troubled = Some(A);
    let wire = nodes.listen();
    nodes.have(Transport::WireGuard);
    let problems = nodes.problems(A);
    assert!(problems[0].contains("knitwg0") && problems[0].contains("in use"), "{problems:?}");
    assert_eq!(nodes.key_of(A), None);
    nodes.assert_cut_off(A, B);
    nodes.assert_cut_off(A, C);
    assert_all_encrypted(&wire.heard());
    drop(taken);
    nodes.troubled = None;
    nodes.have(Transport::WireGuard);
    nodes.assert_pods_reach_each_other();
    assert_all_encrypted(&wire.heard());
    nodes.remove_all();
}

#[test]
fn both_families_are_encrypted_over_ipv6_where_nodes_have_no_other() {
    let mut nodes = Nodes::new("wgsix", Over::Ipv6);
    nodes.have(Transport::WireGuard);
    assert!(nodes.told(A).iter().any(|way| way.contains("wireguard, to [2001:db8:3::3]:7476 by knitwg0")));
    let wire = nodes.listen();
    nodes.assert_pods_reach_each_other();
    nodes.assert_nodes_and_pods_reach_each_other();
    nodes.assert_large_packets_fit();
    assert_all_encrypted(&wire.heard());
    nodes.remove_all();
}
