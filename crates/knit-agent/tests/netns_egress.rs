//! Pods leave the cluster by a gateway, with real packets: three nodes on one link, and a host outside that knows no way to pods.
//! Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    pub mod gateways;
}

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use support::gateways::{A, ADDRESSES, B, C, Gateways, OTHER, SHOP, WORLD};

#[test]
fn the_outside_sees_the_gateways_address_also_when_the_next_node_has_it() {
    let mut nodes = Gateways::new("egress", false);
    let before = nodes.dumps();
    nodes.have_gateway(&["b", "c"]);
    nodes.are_well(&[A, B, C]);
    assert_eq!(nodes.seen(A, SHOP), ADDRESSES, "a pod of another node");
    assert_eq!(nodes.seen(B, SHOP), ADDRESSES, "a pod of the gateway's node");
    assert_eq!(nodes.seen(A, OTHER), nodes.node(A), "a pod of another namespace");
    nodes.assert_known_at(B);
    // Inside of the cluster pods are themselves.
    assert_eq!(nodes.seen_by_node(A, SHOP, C), nodes.pod(A, SHOP));
    let calls = |at| WORLD.map(|world| Call::new(&nodes, at, world));
    let mut calls: Vec<Call> = [A, B, C].into_iter().flat_map(calls).collect();
    calls.iter_mut().for_each(Call::talk);
    // The first node is not well: the second announces the address before anybody asks.
    nodes.are_well(&[A, C]);
    nodes.assert_known_at(C);
    calls.iter_mut().for_each(Call::talk);
    assert_eq!(nodes.seen(A, SHOP), ADDRESSES);
    assert_eq!(nodes.seen(B, SHOP), ADDRESSES, "it is an ordinary node now");
    assert!(nodes.state(B).is_empty(), "{:?}", nodes.state(B));
    // Nobody is well: the last one stays.
    nodes.are_well(&[A]);
    assert_eq!(nodes.seen(A, SHOP), ADDRESSES);
    nodes.are_well(&[A, B, C]);
    nodes.assert_known_at(B);
    calls.iter_mut().for_each(Call::talk);
    assert_eq!(nodes.seen(A, SHOP), ADDRESSES);
    nodes.assert_at_rest();
    nodes.drop_gateway();
    assert_eq!(nodes.seen(A, SHOP), nodes.node(A));
    drop(calls);
    nodes.assert_like(&before);
}

#[test]
fn a_gateway_that_is_reached_by_a_tunnel_is_one_as_well() {
    let mut nodes = Gateways::new("egressvx", true);
    nodes.have_gateway(&["b"]);
    nodes.are_well(&[A, B, C]);
    assert_eq!(nodes.seen(A, SHOP), ADDRESSES);
    // Answers come by the tunnel, from where nodes would not look for the outside.
    WORLD.map(|world| Call::new(&nodes, A, world)).iter_mut().for_each(Call::talk);
    assert_eq!(nodes.seen(B, SHOP), ADDRESSES);
    assert_eq!(nodes.seen(A, OTHER), nodes.node(A));
    nodes.assert_at_rest();
    // What an agent that lost its memory has left on a link of others is found by its mark.
    assert!(nodes.has_address(B));
    nodes.lose_memory(B);
    assert!(!nodes.has_address(B));
}

#[test]
fn without_a_node_its_pods_do_not_leave_and_with_one_family_the_other_is_as_before() {
    let mut nodes = Gateways::new("egressno", false);
    nodes.have_gateway(&["b"]);
    assert!(!nodes.leaves(A, SHOP), "nothing is known of its node yet");
    assert_eq!(nodes.seen_by_node(A, SHOP, C), nodes.pod(A, SHOP), "inside of the cluster all is as before");
    nodes.have_gateway_with(&ADDRESSES[..1], &["b"]);
    nodes.are_well(&[A, B]);
    assert_eq!(nodes.seen(A, SHOP), [ADDRESSES[0], nodes.node(A)[1].as_str()]);
    // The node has no way out by the gateway's table: packets do not go another way.
    nodes.by_hand(A, "ip rule del priority 7501");
    assert!(!nodes.leaves(A, SHOP), "not by another way");
    assert!(!nodes.repair(A).is_empty());
    assert!(nodes.leaves(A, SHOP));
}

/// A connection of a pod with a host outside.
struct Call {
    pod: TcpStream,
    world: TcpStream,
}

impl Call {
    fn new(nodes: &Gateways, at: usize, world: &str) -> Self {
        let listener = nodes.world.run(|| TcpListener::bind((world, 0)).unwrap());
        let to: SocketAddr = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let pod = nodes.namespace(at, SHOP).run(connect);
        let (world, _) = listener.accept().unwrap();
        world.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        pod.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { pod, world }
    }

    /// A word, and an answer.
    fn talk(&mut self) {
        let mut word = [0; 4];
        self.pod.write_all(b"ping").unwrap();
        self.world.read_exact(&mut word).unwrap();
        self.world.write_all(b"pong").unwrap();
        self.pod.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"pong");
    }
}
