//! Routes and tunnels between nodes: two nodes share a link, the third is behind a router. Needs root.

use crate::support::routed_cluster::{A, B, C, NodeFamilies, RoutedCluster, Transport, WIREGUARD};

#[test]
fn node_behind_a_router_uses_a_tunnel_and_node_on_the_link_does_not() {
    let mut cluster = RoutedCluster::new("waysauto", NodeFamilies::DualStack);
    cluster.configure(Transport::Auto);
    let routes = cluster.route_descriptions(A);
    assert!(
        routes[0].starts_with("pods of node b in 10.1.2.0/24: native, through 192.0.2.2 on eth0"),
        "{routes:?}"
    );
    assert!(
        routes[2].starts_with("pods of node c in 10.1.3.0/24: vxlan, to 203.0.113.3 by knitvx4"),
        "{routes:?}"
    );
    cluster.assert_pods_reach_each_other();
    // The counters of the tunnel link show which path a packet took.
    assert_eq!(cluster.tunnel_packets_during(A, || cluster.ping(A, B)), 0, "no tunnel");
    assert!(cluster.tunnel_packets_during(A, || cluster.ping(A, C)) > 0, "through the tunnel");
    assert!(cluster.tunnel_packets_during(C, || cluster.ping(B, C)) > 0, "through the tunnel");
    cluster.assert_nodes_and_pods_reach_each_other();
    cluster.assert_large_packets_fit();
    cluster.assert_no_drift();
    cluster.remove_all();
}

#[test]
fn switching_from_tunnels_to_native_leaves_nothing_behind() {
    let mut cluster = RoutedCluster::new("waysall", NodeFamilies::DualStack);
    cluster.configure(Transport::Native);
    assert!(
        cluster.route_descriptions(A).iter().all(|route| route.contains(": native")),
        "{:?}",
        cluster.route_descriptions(A)
    );
    assert!(
        cluster.warnings(A).iter().any(|warning| warning.contains("node c")),
        "{:?}",
        cluster.warnings(A)
    );
    let native = cluster.dumps();
    cluster.ping(A, B);
    cluster.configure(Transport::Vxlan);
    cluster.assert_pods_reach_each_other();
    assert!(cluster.tunnel_packets_during(A, || cluster.ping(A, B)) > 0, "also on a shared link");
    cluster.assert_nodes_and_pods_reach_each_other();
    cluster.configure(Transport::Native);
    cluster.assert_matches(&native);
    cluster.ping(A, B);
    cluster.remove_all();
}

#[test]
fn both_families_use_ipv6_only_nodes() {
    let mut cluster = RoutedCluster::new("wayssix", NodeFamilies::Ipv6);
    cluster.configure(Transport::Auto);
    assert!(
        cluster
            .route_descriptions(A)
            .iter()
            .any(|route| route.contains("vxlan, to 2001:db8:3::3 by knitvx6"))
    );
    cluster.assert_pods_reach_each_other();
    cluster.assert_large_packets_fit();
    cluster.remove_all();
}

#[test]
fn tunnel_drift_is_repaired_and_a_removed_node_is_cleaned_up() {
    let mut cluster = RoutedCluster::new("waysmend", NodeFamilies::Ipv4);
    cluster.configure(Transport::Vxlan);
    let expected = cluster.dumps();
    let mac = cluster.mac_of(C);
    let entry = format!("{mac} dev knitvx4 dst 203.0.113.3");
    for command in [
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
        cluster.run_command(A, &command);
        let repairs = cluster.repair(A);
        assert!(!repairs.is_empty(), "{command}");
        cluster.connect_pod(A);
        cluster.assert_matches(&expected);
        assert!(cluster.repair(A).is_empty(), "{command}: repaired twice");
    }
    cluster.assert_pods_reach_each_other();
    cluster.remove_node(C, Transport::Vxlan);
    cluster.ping(A, B);
    assert!(
        !cluster.output_contains(A, &["bridge", "fdb", "show", "dev", "knitvx4"], &mac),
        "its FDB entry is deleted"
    );
    assert!(
        !cluster.output_contains(A, &["ip", "route", "show", "table", "7500"], "10.1.3.0/24"),
        "its route is deleted"
    );
    assert!(
        !cluster.output_contains(A, &["ip", "neigh", "show", "dev", "knitvx4"], "10.1.3.1"),
        "its neighbour entry is deleted"
    );
    cluster.remove_all();
}

#[test]
fn traffic_is_encrypted_or_not_sent() {
    let mut cluster = RoutedCluster::new("waysdark", NodeFamilies::DualStack);
    cluster.configure(Transport::Auto);
    let unencrypted = cluster.dumps();
    cluster.configure(Transport::WireGuard);
    let capture = cluster.capture();
    // With WireGuard in the kernel pods reach each other; without it nothing is sent.
    match cluster.key_of(A) {
        Some(_) => cluster.assert_pods_reach_each_other(),
        None => {
            let warnings = cluster.warnings(A);
            assert!(warnings[0].ends_with("this kernel has no wireguard: CONFIG_WIREGUARD"), "{warnings:?}");
            for to in [B, C] {
                cluster.assert_unreachable(A, to);
                cluster.assert_unreachable(to, A);
            }
        }
    }
    let packets = capture.packets();
    assert!(packets.iter().all(|packet| packet.port == Some(WIREGUARD)), "{packets:?}");
    cluster.configure(Transport::Auto);
    cluster.assert_matches(&unencrypted);
    cluster.ping(A, C);
    cluster.remove_all();
}
