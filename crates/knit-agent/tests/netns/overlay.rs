//! Overlay networks between nodes, with real packets. Needs root.

use std::net::IpAddr;

use knit_engine::Event;

use crate::support::overlay_cluster::{A, B, C, GATEWAYS, OverlayCluster, resolved_addresses};

/// The first address of each range on a node.
const ON_A: [&str; 2] = ["10.60.0.2", "fd00:60::2"];
const ON_B: [&str; 2] = ["10.60.0.16", "fd00:60:0:0:1000::"];
const ON_C: [&str; 2] = ["10.60.0.32", "fd00:60:0:0:2000::"];

/// A pod on each of two nodes.
fn two_node_overlay(test: &str, over_ipv6: bool) -> OverlayCluster {
    let mut cluster = OverlayCluster::new(test, over_ipv6);
    cluster.network("shop", "");
    cluster.claim_blocks(A, "shop");
    cluster.claim_blocks(B, "shop");
    cluster.add_pod(A, "shop", "web", "blue");
    cluster.add_pod(B, "shop", "db", "blue");
    cluster
}

#[test]
fn pods_of_two_nodes_share_a_subnet_and_a_third_node_joins_and_leaves() {
    let mut cluster = two_node_overlay("spantwo", false);
    for (on_a, on_b) in ON_A.into_iter().zip(ON_B) {
        cluster.ping("shop/web", on_b);
        cluster.ping("shop/db", on_a);
    }
    // Packets of the pod's full MTU pass without fragmentation.
    assert_eq!((cluster.mtu(A, "vn-blue"), cluster.mtu(B, "vn-blue")), (1450, 1450));
    for (to, header) in ON_B.into_iter().zip([28, 48]) {
        let size = (1450 - header).to_string();
        cluster
            .pod("shop/web")
            .output("ping", &["-n", "-c", "1", "-w", "2", "-M", "do", "-s", &size, to])
            .unwrap();
    }
    // Each node has an entry for the other, and no more.
    assert!(
        cluster.fdb_entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.2"),
        "{}",
        cluster.fdb_entries(A, "shop")
    );
    assert!(!cluster.fdb_entries(A, "shop").contains("192.0.2.3"));
    assert!(cluster.tunnel(C, "shop").is_none());
    cluster.claim_blocks(C, "shop");
    cluster.add_pod(C, "shop", "job", "blue");
    assert!(
        cluster.fdb_entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.3"),
        "{}",
        cluster.fdb_entries(A, "shop")
    );
    for to in ON_A.into_iter().chain(ON_B) {
        cluster.ping("shop/job", to);
    }
    cluster.assert_no_drift();
    cluster.remove_pod(C, "shop", "job");
    assert!(cluster.tunnel(C, "shop").is_none(), "the last pod of the node is deleted");
    cluster.release_blocks(C);
    assert!(!cluster.fdb_entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.3"));
    cluster.assert_no_ping("shop/web", ON_C[0]);
    cluster.ping("shop/web", ON_B[0]);
    // An entry deleted by hand is restored.
    let link = cluster.tunnel(A, "shop").unwrap().link.to_string();
    cluster.run_command(A, &["bridge", "fdb", "del", "00:00:00:00:00:00", "dev", &link, "dst", "192.0.2.2"]);
    cluster.handle(A, Event::Resync);
    assert!(cluster.fdb_entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.2"));
    cluster.remove_all();
}

#[test]
fn overlay_over_ipv6_only_nodes() {
    let cluster = two_node_overlay("spansix", true);
    assert_eq!(cluster.mtu(A, "vn-blue"), 1430);
    for to in ON_B {
        cluster.ping("shop/web", to);
    }
    cluster.remove_all();
}

#[test]
fn gateway_address_is_local_to_each_node_and_not_resolved_through_the_tunnel() {
    let mut cluster = two_node_overlay("spangate", false);
    let ping_gateways = |cluster: &OverlayCluster| {
        for pod in ["shop/web", "shop/db"] {
            cluster.pod(pod).namespace().ip(&["neigh", "flush", "dev", "blue0"]);
            GATEWAYS.into_iter().for_each(|gateway| cluster.ping(pod, gateway));
        }
    };
    let gateways: Vec<IpAddr> = GATEWAYS.iter().map(|text| text.parse().unwrap()).collect();
    let capture = cluster.capture();
    ping_gateways(&cluster);
    cluster.pod("shop/web").namespace().ip(&["neigh", "flush", "dev", "blue0"]);
    ON_B.into_iter().for_each(|to| cluster.ping("shop/web", to));
    let resolved = resolved_addresses(&capture);
    for other in ON_B {
        assert!(
            resolved.contains(&other.parse::<IpAddr>().unwrap()),
            "pods resolve each other: {resolved:?}"
        );
    }
    assert!(gateways.iter().all(|gateway| !resolved.contains(gateway)), "{resolved:?}");
    // Without the filter they are resolved through the tunnel, which proves the check above.
    for at in [A, B] {
        cluster.run_command(at, &["nft", "delete", "table", "bridge", "knit"]);
    }
    ping_gateways(&cluster);
    let resolved = resolved_addresses(&capture);
    assert!(gateways.iter().all(|gateway| resolved.contains(gateway)), "{resolved:?}");
    cluster.handle(A, Event::PacketFilterChanged);
    cluster.handle(B, Event::PacketFilterChanged);
    resolved_addresses(&capture);
    ping_gateways(&cluster);
    let resolved = resolved_addresses(&capture);
    assert!(gateways.iter().all(|gateway| !resolved.contains(gateway)), "{resolved:?}");
    cluster.remove_all();
}

#[test]
fn two_tenants_use_the_same_subnet_in_isolation() {
    let mut cluster = two_node_overlay("spantwins", false);
    cluster.network("lab", "");
    cluster.claim_blocks(A, "lab");
    cluster.claim_blocks(B, "lab");
    cluster.add_pod(A, "lab", "web", "blue");
    cluster.add_pod(B, "lab", "db", "blue");
    for tenant in ["shop", "lab"] {
        for to in ON_B {
            cluster.ping(&format!("{tenant}/web"), to);
        }
    }
    let warnings = cluster.warnings(A, "lab", "Veth");
    assert!(warnings.iter().any(|one| one.contains("has no address of 10.60.0.0/24")), "{warnings:?}");
    assert_ne!(cluster.tunnel(A, "shop").unwrap().link, cluster.tunnel(A, "lab").unwrap().link);
    // After the pod of one tenant is deleted, the other tenant's pod with the same address does not reply.
    cluster.remove_pod(B, "shop", "db");
    cluster.pod("shop/web").namespace().ip(&["neigh", "flush", "dev", "blue0"]);
    cluster.assert_no_ping("shop/web", ON_B[0]);
    cluster.ping("lab/web", ON_B[0]);
    cluster.remove_all();
}

#[test]
fn moved_pod_is_reached_on_its_new_node_at_once() {
    let mut cluster = two_node_overlay("spanmove", false);
    cluster.claim_blocks(C, "shop");
    let fixed = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: fixed}
spec: {interfaceName: blue0, network: blue, addresses: [10.60.0.200/24, 'fd00:60:0:0:c000::7/64']}
";
    cluster.apply("shop", fixed);
    let addresses = ["10.60.0.200", "fd00:60:0:0:c000::7"];
    let start = |cluster: &mut OverlayCluster, at: usize| {
        cluster.add_waiting_pod(at, "shop", "vip", "fixed");
        let problems = cluster.problems(at);
        assert!(problems[0].contains("10.60.0.200 waits for podaddressblock/"), "{problems:?}");
        addresses.iter().for_each(|address| cluster.claim_address(at, "shop", address));
        assert_eq!(cluster.problems(at), [""; 0]);
    };
    start(&mut cluster, B);
    addresses.iter().for_each(|address| cluster.ping("shop/web", address));
    for (from, to, end) in [(B, C, "192.0.2.3"), (C, B, "192.0.2.2")] {
        cluster.remove_pod(from, "shop", "vip");
        start(&mut cluster, to);
        // The stale neighbour and FDB entries are updated without a timeout.
        for address in addresses {
            cluster.pod("shop/web").output("ping", &["-n", "-c", "1", "-w", "1", address]).unwrap();
        }
        let link = cluster.pod("shop/vip").namespace().ip_json(&["link", "show", "blue0"]);
        let entry = format!("{} dst {end}", link[0]["address"].as_str().unwrap());
        assert!(cluster.fdb_entries(A, "shop").contains(&entry), "{}", cluster.fdb_entries(A, "shop"));
    }
    cluster.remove_all();
}
