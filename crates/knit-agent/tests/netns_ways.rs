//! Pods of three nodes reach each other: two nodes share a link, the third is behind a router. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared with the tests of encrypted ways")]
    pub mod nodes;
    #[allow(dead_code, reason = "shared with the tests of encrypted ways")]
    pub mod wiretap;
}

use support::nodes::{A, B, C, Nodes, Over, Transport, WIREGUARD};

#[test]
fn a_node_behind_a_router_is_reached_by_a_tunnel_and_one_on_the_link_without() {
    let mut nodes = Nodes::new("waysauto", Over::Both);
    nodes.have(Transport::Auto);
    let told = nodes.told(A);
    assert!(
        told[0].starts_with("pods of node b in 10.1.2.0/24: native, through 192.0.2.2 on eth0"),
        "{told:?}"
    );
    assert!(
        told[2].starts_with("pods of node c in 10.1.3.0/24: vxlan, to 203.0.113.3 by knitvx4"),
        "{told:?}"
    );
    nodes.assert_pods_reach_each_other();
    // The device's own counter says which way a packet went.
    assert_eq!(nodes.counted(A, || nodes.ping(A, B)), 0, "without a tunnel");
    assert!(nodes.counted(A, || nodes.ping(A, C)) > 0, "by the tunnel");
    assert!(nodes.counted(C, || nodes.ping(B, C)) > 0, "by the tunnel");
    nodes.assert_nodes_and_pods_reach_each_other();
    nodes.assert_large_packets_fit();
    nodes.assert_at_rest();
    nodes.remove_all();
}

#[test]
fn tunnels_for_all_leave_nothing_behind_when_ways_are_native_again() {
    let mut nodes = Nodes::new("waysall", Over::Both);
    nodes.have(Transport::Native);
    assert!(nodes.told(A).iter().all(|way| way.contains(": native")), "{:?}", nodes.told(A));
    assert!(nodes.warned(A).iter().any(|warning| warning.contains("node c")), "{:?}", nodes.warned(A));
    let native = nodes.dumps();
    nodes.ping(A, B);
    nodes.have(Transport::Vxlan);
    nodes.assert_pods_reach_each_other();
    assert!(nodes.counted(A, || nodes.ping(A, B)) > 0, "also where the two share a link");
    nodes.assert_nodes_and_pods_reach_each_other();
    nodes.have(Transport::Native);
    nodes.assert_like(&native);
    nodes.ping(A, B);
    nodes.remove_all();
}

#[test]
fn both_families_go_over_ipv6_where_nodes_have_no_other() {
    let mut nodes = Nodes::new("wayssix", Over::Ipv6);
    nodes.have(Transport::Auto);
    assert!(nodes.told(A).iter().any(|way| way.contains("vxlan, to 2001:db8:3::3 by knitvx6")));
    nodes.assert_pods_reach_each_other();
    nodes.assert_large_packets_fit();
    nodes.remove_all();
}

#[test]
fn what_someone_does_to_a_tunnel_is_mended_and_a_node_that_leaves_takes_its_own_along() {
    let mut nodes = Nodes::new("waysmend", Over::Ipv4);
    nodes.have(Transport::Vxlan);
    let whole = nodes.dumps();
    let mac = nodes.mac_of(C);
    let entry = format!("{mac} dev knitvx4 dst 203.0.113.3");
    for words in [
        "ip link del knitvx4".to_owned(),
        "ip link set knitvx4 down".to_owned(),
        format!("bridge fdb del {entry}"),
        format!("bridge fdb replace {mac} dev knitvx4 dst 203.0.113.9"),
        "bridge fdb add 02:00:00:00:00:09 dev knitvx4 dst 203.0.113.9".to_owned(),
        "ip neigh del 10.1.3.1 dev knitvx4".to_owned(),
        "ip route flush table 7500".to_owned(),
        "ip rule del from 10.1.1.0/24".to_owned(),
        "ip link del knit0".to_owned(),
    ] {
        nodes.do_by_hand(A, &words);
        let repairs = nodes.repair(A);
        assert!(!repairs.is_empty(), "{words}");
        nodes.plug(A);
        nodes.assert_like(&whole);
        assert!(nodes.repair(A).is_empty(), "{words}: once is enough");
    }
    nodes.assert_pods_reach_each_other();
    nodes.leave(C, Transport::Vxlan);
    nodes.ping(A, B);
    assert!(!nodes.has(A, &["bridge", "fdb", "show", "dev", "knitvx4"], &mac), "its entry is gone");
    assert!(!nodes.has(A, &["ip", "route", "show", "table", "7500"], "10.1.3.0/24"), "and its route");
    assert!(!nodes.has(A, &["ip", "neigh", "show", "dev", "knitvx4"], "10.1.3.1"), "and its neighbour");
    nodes.remove_all();
}

#[test]
fn what_is_to_be_encrypted_is_so_or_is_not_sent() {
    let mut nodes = Nodes::new("waysdark", Over::Both);
    nodes.have(Transport::Auto);
    let clear = nodes.dumps();
    nodes.have(Transport::WireGuard);
    let wire = nodes.listen();
    // Both are as promised; which it is, is the kernel's to say.
    match nodes.key_of(A) {
        Some(_) => nodes.assert_pods_reach_each_other(),
        None => {
            let told = nodes.warned(A);
            assert!(told[0].ends_with("this kernel has no wireguard: CONFIG_WIREGUARD"), "{told:?}");
            for to in [B, C] {
                nodes.assert_cut_off(A, to);
                nodes.assert_cut_off(to, A);
            }
        }
    }
    let heard = wire.heard();
    assert!(heard.iter().all(|packet| packet.port == Some(WIREGUARD)), "{heard:?}");
    nodes.have(Transport::Auto);
    nodes.assert_like(&clear);
    nodes.ping(A, C);
    nodes.remove_all();
}
