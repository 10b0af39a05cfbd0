//! Load balancer addresses, with real packets: a client on the nodes' link, two nodes, and a pod on each. Needs root.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use crate::support::announcing_cluster::{
    A, ADDRESSES, AnnouncingCluster, B, CLIENT, HOST_PORT, NODE_PORT, PORT, Server, node_addresses,
};

/// The promise, counted from the Ready condition of the node.
const FAILOVER: Duration = Duration::from_secs(2);

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

fn other(at: usize) -> usize {
    if at == A { B } else { A }
}

#[test]
fn a_client_reaches_pods_on_both_nodes_and_another_node_takes_over_within_two_seconds() {
    let mut cluster = AnnouncingCluster::new("lbfail");
    assert!(cluster.get(&cluster.client, ADDRESSES[0], PORT).is_err(), "no node announces it");
    cluster.serve(false, &[A, B]);
    cluster.delete_service();
    let before = cluster.dumps();
    cluster.serve(false, &[A, B]);
    for address in ADDRESSES {
        let (pods, _) = cluster.answers(&cluster.client, address);
        assert_eq!(pods, names(&["a", "b"]), "{address}");
        for at in [A, B] {
            let (pods, _) = cluster.answers(cluster.pod(at), address);
            assert_eq!(pods, names(&["a", "b"]), "{address} from the pod of node {at}");
            assert!(cluster.get(cluster.host(at), address, PORT).is_ok(), "{address} from node {at}");
        }
    }
    cluster.assert_no_drift();
    for address in ADDRESSES {
        let failed = cluster.holder(address).unwrap();
        // The node is gone, and cannot withdraw anything.
        cluster.set_cable(failed, "down");
        cluster.set_ready_nodes_at(other(failed), &[other(failed)]);
        cluster.set_endpoints_at(other(failed), &[other(failed)]);
        let (_, _, after) = cluster.get_soon(&cluster.client, address, PORT);
        assert!(after < FAILOVER, "{address}: {after:?}");
        // It is back, and learns that it is not Ready; then it is Ready again.
        cluster.set_ready_nodes_at(failed, &[other(failed)]);
        cluster.set_cable(failed, "up");
        assert_eq!(cluster.holder(address), Some(other(failed)));
        cluster.get_soon(&cluster.client, address, PORT);
        cluster.set_ready_nodes(&[A, B]);
        cluster.set_endpoints(&[A, B]);
        assert_eq!(cluster.holder(address), Some(failed));
        let (_, _, after) = cluster.get_soon(&cluster.client, address, PORT);
        assert!(after < FAILOVER, "{address}: {after:?}");
    }
    // An agent that starts again keeps the addresses before it knows the Services.
    let holders = ADDRESSES.map(|address| cluster.holder(address));
    for at in [A, B] {
        cluster.restart(at);
        assert_eq!(ADDRESSES.map(|address| cluster.holder(address)), holders);
        cluster.set_ready_nodes_at(at, &[A, B]);
    }
    cluster.serve(false, &[A, B]);
    assert_eq!(ADDRESSES.map(|address| cluster.holder(address)), holders);
    cluster.delete_service();
    assert_eq!(ADDRESSES.map(|address| cluster.holder(address)), [None, None]);
    cluster.assert_matches(&before);
    cluster.serve(false, &[A, B]);
    cluster.delete_pool();
    assert_eq!(ADDRESSES.map(|address| cluster.holder(address)), [None, None]);
}

#[test]
fn with_the_local_policy_the_address_follows_the_endpoint_and_pods_see_the_client() {
    let mut cluster = AnnouncingCluster::new("lblocal");
    for (at, name) in [(B, "b"), (A, "a")] {
        match at {
            B => cluster.serve(true, &[B]),
            _ => cluster.set_endpoints(&[A]),
        }
        for (address, client) in ADDRESSES.iter().zip(CLIENT) {
            assert_eq!(cluster.holder(address), Some(at));
            let (pod, peer, after) = cluster.get_soon(&cluster.client, address, PORT);
            assert_eq!((pod.as_str(), peer), (name, client.parse::<IpAddr>().unwrap()));
            assert!(after < FAILOVER, "{after:?}");
        }
    }
    cluster.assert_no_drift();
}

#[test]
fn programs_of_the_node_node_ports_and_host_ports_are_not_reached_at_an_announced_address() {
    let mut cluster = AnnouncingCluster::new("lbports");
    let servers = [A, B].map(|at| Server::start("node", cluster.host(at), 9999));
    cluster.serve(false, &[A, B]);
    for (family, address) in ADDRESSES.iter().enumerate() {
        let holder = cluster.holder(address).unwrap();
        cluster.get_soon(&cluster.client, address, PORT);
        let own = &node_addresses(holder)[family];
        for port in [9999, NODE_PORT, HOST_PORT] {
            cluster.get_soon(&cluster.client, own, port);
            for from in [&cluster.client, cluster.pod(holder), cluster.host(holder)] {
                let refused = cluster.get(from, address, port).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}:{port}: {refused}");
            }
        }
        cluster.client.ping(address).unwrap();
    }
    drop(servers);
}
