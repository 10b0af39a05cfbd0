//! A network that is one on several nodes, with real packets. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "each test uses a part of it")]
    pub mod spanned;
    #[allow(dead_code, reason = "shared with the tests of encrypted ways")]
    pub mod wiretap;
}

use std::net::IpAddr;

use knit_engine::Event;
use support::spanned::{A, B, C, GATEWAYS, Spanned, neighbours};

/// The first address of each range on a node.
const ON_A: [&str; 2] = ["10.60.0.2", "fd00:60::2"];
const ON_B: [&str; 2] = ["10.60.0.16", "fd00:60:0:0:1000::"];
const ON_C: [&str; 2] = ["10.60.0.32", "fd00:60:0:0:2000::"];

/// A pod on each of two nodes.
fn two(test: &str, over_ipv6: bool) -> Spanned {
    let mut nodes = Spanned::new(test, over_ipv6);
    nodes.network("shop", "");
    nodes.join(A, "shop");
    nodes.join(B, "shop");
    nodes.add(A, "shop", "web", "blue");
    nodes.add(B, "shop", "db", "blue");
    nodes
}

#[test]
fn pods_of_two_nodes_are_neighbours_and_a_third_joins_and_leaves() {
    let mut nodes = two("spantwo", false);
    for (on_a, on_b) in ON_A.into_iter().zip(ON_B) {
        nodes.ping("shop/web", on_b);
        nodes.ping("shop/db", on_a);
    }
    // What fills a pod's MTU gets through in one piece.
    assert_eq!((nodes.mtu(A, "vn-blue"), nodes.mtu(B, "vn-blue")), (1450, 1450));
    for (to, header) in ON_B.into_iter().zip([28, 48]) {
        let size = (1450 - header).to_string();
        nodes
            .pod("shop/web")
            .output("ping", &["-n", "-c", "1", "-w", "2", "-M", "do", "-s", &size, to])
            .unwrap();
    }
    // Each knows the other, and nobody else.
    assert!(
        nodes.entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.2"),
        "{}",
        nodes.entries(A, "shop")
    );
    assert!(!nodes.entries(A, "shop").contains("192.0.2.3"));
    assert!(nodes.tunnel(C, "shop").is_none());
    nodes.join(C, "shop");
    nodes.add(C, "shop", "job", "blue");
    assert!(
        nodes.entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.3"),
        "{}",
        nodes.entries(A, "shop")
    );
    for to in ON_A.into_iter().chain(ON_B) {
        nodes.ping("shop/job", to);
    }
    nodes.assert_at_rest();
    nodes.remove(C, "shop", "job");
    assert!(nodes.tunnel(C, "shop").is_none(), "the last pod there is gone");
    nodes.leave(C);
    assert!(!nodes.entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.3"));
    nodes.cannot_ping("shop/web", ON_C[0]);
    nodes.ping("shop/web", ON_B[0]);
    // Someone takes an entry away: it comes back.
    let link = nodes.tunnel(A, "shop").unwrap().link.to_string();
    nodes.on(A, &["bridge", "fdb", "del", "00:00:00:00:00:00", "dev", &link, "dst", "192.0.2.2"]);
    nodes.hear(A, Event::Resync);
    assert!(nodes.entries(A, "shop").contains("00:00:00:00:00:00 dst 192.0.2.2"));
    nodes.remove_all();
}

#[test]
fn a_network_goes_over_ipv6_where_nodes_have_no_other() {
    let nodes = two("spansix", true);
    assert_eq!(nodes.mtu(A, "vn-blue"), 1430);
    for to in ON_B {
        nodes.ping("shop/web", to);
    }
    nodes.remove_all();
}

#[test]
fn the_first_address_is_each_node_s_own_and_is_not_spoken_of_through_the_tunnel() {
    let mut nodes = two("spangate", false);
    let ping_gateways = |nodes: &Spanned| {
        for pod in ["shop/web", "shop/db"] {
            nodes.pod(pod).namespace().ip(&["neigh", "flush", "dev", "blue0"]);
            GATEWAYS.into_iter().for_each(|gateway| nodes.ping(pod, gateway));
        }
    };
    let gateways: Vec<IpAddr> = GATEWAYS.iter().map(|text| text.parse().unwrap()).collect();
    let wire = nodes.listen();
    ping_gateways(&nodes);
    nodes.pod("shop/web").namespace().ip(&["neigh", "flush", "dev", "blue0"]);
    ON_B.into_iter().for_each(|to| nodes.ping("shop/web", to));
    let about = neighbours(&wire);
    for other in ON_B {
        assert!(about.contains(&other.parse::<IpAddr>().unwrap()), "pods find each other: {about:?}");
    }
    assert!(gateways.iter().all(|gateway| !about.contains(gateway)), "{about:?}");
    // Without the filter they would be, so that the silence above means something.
    for at in [A, B] {
        nodes.on(at, &["nft", "delete", "table", "bridge", "knit"]);
    }
    ping_gateways(&nodes);
    let about = neighbours(&wire);
    assert!(gateways.iter().all(|gateway| about.contains(gateway)), "{about:?}");
    nodes.hear(A, Event::Reforward);
    nodes.hear(B, Event::Reforward);
    neighbours(&wire);
    ping_gateways(&nodes);
    let about = neighbours(&wire);
    assert!(gateways.iter().all(|gateway| !about.contains(gateway)), "{about:?}");
    nodes.remove_all();
}

#[test]
fn two_tenants_have_the_same_network_and_do_not_see_each_other() {
    let mut nodes = two("spantwins", false);
    nodes.network("lab", "");
    nodes.join(A, "lab");
    nodes.join(B, "lab");
    nodes.add(A, "lab", "web", "blue");
    nodes.add(B, "lab", "db", "blue");
    for tenant in ["shop", "lab"] {
        for to in ON_B {
            nodes.ping(&format!("{tenant}/web"), to);
        }
    }
    let told = nodes.warnings(A, "lab", "Veth");
    assert!(told.iter().any(|one| one.contains("has no address of 10.60.0.0/24")), "{told:?}");
    assert_ne!(nodes.tunnel(A, "shop").unwrap().link, nodes.tunnel(A, "lab").unwrap().link);
    // One's pod goes: the other's with the same address does not answer for it.
    nodes.remove(B, "shop", "db");
    nodes.pod("shop/web").namespace().ip(&["neigh", "flush", "dev", "blue0"]);
    nodes.cannot_ping("shop/web", ON_B[0]);
    nodes.ping("lab/web", ON_B[0]);
    nodes.remove_all();
}

#[test]
fn a_pod_that_moves_is_reached_on_its_new_node_at_once() {
    let mut nodes = two("spanmove", false);
    nodes.join(C, "shop");
    let fixed = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: fixed}
spec: {interfaceName: blue0, network: blue, addresses: [10.60.0.200/24, 'fd00:60:0:0:c000::7/64']}
";
    nodes.apply("shop", fixed);
    let addresses = ["10.60.0.200", "fd00:60:0:0:c000::7"];
    let come = |nodes: &mut Spanned, at: usize| {
        nodes.begin(at, "shop", "vip", "fixed");
        let told = nodes.problems(at);
        assert!(told[0].contains("10.60.0.200 waits for podaddressblock/"), "{told:?}");
        addresses.iter().for_each(|address| nodes.claim(at, "shop", address));
        assert_eq!(nodes.problems(at), [""; 0]);
    };
    come(&mut nodes, B);
    addresses.iter().for_each(|address| nodes.ping("shop/web", address));
    for (from, to, end) in [(B, C, "192.0.2.3"), (C, B, "192.0.2.2")] {
        nodes.remove(from, "shop", "vip");
        come(&mut nodes, to);
        // Nobody forgot anything, and nobody waits.
        for address in addresses {
            nodes.pod("shop/web").output("ping", &["-n", "-c", "1", "-w", "1", address]).unwrap();
        }
        let link = nodes.pod("shop/vip").namespace().ip_json(&["link", "show", "blue0"]);
        let learnt = format!("{} dst {end}", link[0]["address"].as_str().unwrap());
        assert!(nodes.entries(A, "shop").contains(&learnt), "{}", nodes.entries(A, "shop"));
    }
    nodes.remove_all();
}
