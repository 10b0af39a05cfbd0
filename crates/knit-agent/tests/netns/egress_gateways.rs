//! Egress gateways, with real packets: three nodes on one link, and an external host without routes to pods. Needs
//! root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::egress_cluster::{A, ADDRESSES, B, C, EXTERNAL, EgressCluster, OTHER, SHOP};

#[test]
fn external_host_sees_the_gateway_address_also_after_failover() {
    let mut cluster = EgressCluster::new("egress", false);
    let before = cluster.dumps();
    cluster.apply_gateway(&["b", "c"]);
    cluster.set_ready_nodes(&[A, B, C]);
    assert_eq!(cluster.source_addresses(A, SHOP), ADDRESSES, "a pod of another node");
    assert_eq!(cluster.source_addresses(B, SHOP), ADDRESSES, "a pod of the gateway's node");
    assert_eq!(cluster.source_addresses(A, OTHER), cluster.node(A), "a pod of another namespace");
    cluster.assert_neighbours_point_to(B);
    // Inside the cluster pods keep their own addresses.
    assert_eq!(cluster.source_addresses_at_node(A, SHOP, C), cluster.pod(A, SHOP));
    let connections = |at| EXTERNAL.map(|external| Connection::new(&cluster, at, external));
    let mut connections: Vec<Connection> = [A, B, C].into_iter().flat_map(connections).collect();
    connections.iter_mut().for_each(Connection::exchange);
    // The active node is not ready: the next node announces the address.
    cluster.set_ready_nodes(&[A, C]);
    cluster.assert_neighbours_point_to(C);
    connections.iter_mut().for_each(Connection::exchange);
    assert_eq!(cluster.source_addresses(A, SHOP), ADDRESSES);
    assert_eq!(cluster.source_addresses(B, SHOP), ADDRESSES, "no longer the gateway");
    assert!(cluster.gateway_status(B).is_empty(), "{:?}", cluster.gateway_status(B));
    // No node of the gateway is ready: the last active one stays.
    cluster.set_ready_nodes(&[A]);
    assert_eq!(cluster.source_addresses(A, SHOP), ADDRESSES);
    cluster.set_ready_nodes(&[A, B, C]);
    cluster.assert_neighbours_point_to(B);
    connections.iter_mut().for_each(Connection::exchange);
    assert_eq!(cluster.source_addresses(A, SHOP), ADDRESSES);
    cluster.assert_no_drift();
    cluster.delete_gateway();
    assert_eq!(cluster.source_addresses(A, SHOP), cluster.node(A));
    drop(connections);
    cluster.assert_matches(&before);
}

#[test]
fn gateway_behind_a_tunnel_works() {
    let mut cluster = EgressCluster::new("egressvx", true);
    cluster.apply_gateway(&["b"]);
    cluster.set_ready_nodes(&[A, B, C]);
    assert_eq!(cluster.source_addresses(A, SHOP), ADDRESSES);
    // Replies arrive through the tunnel, which reverse path filtering must accept.
    EXTERNAL.map(|external| Connection::new(&cluster, A, external)).iter_mut().for_each(Connection::exchange);
    assert_eq!(cluster.source_addresses(B, SHOP), ADDRESSES);
    assert_eq!(cluster.source_addresses(A, OTHER), cluster.node(A));
    cluster.assert_no_drift();
    // An agent without its state finds the address on a foreign link by its mark.
    assert!(cluster.has_address(B));
    cluster.restart_without_state(B);
    assert!(!cluster.has_address(B));
}

#[test]
fn egress_is_blocked_without_an_active_node_and_other_family_is_unaffected() {
    let mut cluster = EgressCluster::new("egressno", false);
    cluster.apply_gateway(&["b"]);
    assert!(!cluster.reaches_external(A, SHOP), "the node's readiness is not known yet");
    assert_eq!(
        cluster.source_addresses_at_node(A, SHOP, C),
        cluster.pod(A, SHOP),
        "traffic inside the cluster is unaffected"
    );
    cluster.apply_gateway_with(&ADDRESSES[..1], &["b"]);
    cluster.set_ready_nodes(&[A, B]);
    assert_eq!(cluster.source_addresses(A, SHOP), [ADDRESSES[0], cluster.node(A)[1].as_str()]);
    // Without the rule to the gateway's table packets must not use the main table.
    cluster.run_command(A, "ip rule del priority 7501");
    assert!(!cluster.reaches_external(A, SHOP), "not through the main table");
    assert!(!cluster.repair(A).is_empty());
    assert!(cluster.reaches_external(A, SHOP));
}

/// A TCP connection of a pod with the external host.
struct Connection {
    pod: TcpStream,
    external: TcpStream,
}

impl Connection {
    fn new(cluster: &EgressCluster, at: usize, external: &str) -> Self {
        let listener = cluster.external.run(|| TcpListener::bind((external, 0)).unwrap());
        let to: SocketAddr = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let pod = cluster.namespace(at, SHOP).run(connect);
        let (external, _) = listener.accept().unwrap();
        external.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        pod.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { pod, external }
    }

    /// One message in each direction.
    fn exchange(&mut self) {
        let mut message = [0; 4];
        self.pod.write_all(b"ping").unwrap();
        self.external.read_exact(&mut message).unwrap();
        self.external.write_all(b"pong").unwrap();
        self.pod.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"pong");
    }
}
