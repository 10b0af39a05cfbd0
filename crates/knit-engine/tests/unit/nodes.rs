//! Nodes, one by one: what follows for the other nodes that are routed to ([`knit_engine::peers`]).

use ipnet::IpNet;
use knit_engine::blocks::{Block, BlockEvent, PoolKey};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::{Event, Record};
use knit_model::NetState;
use knit_model::connected_routes::ConnectedRoutes;

use crate::support::node::Node;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Node 1 is the local one. Nodes up to 9 are on its link.
fn info(number: u8) -> NodeInfo {
    NodeInfo {
        name: format!("node{number}"),
        is_local: number == 1,
        ranges: vec![net(&format!("10.1.{number}.0/24"))],
        addresses: vec![format!("192.0.2.{number}").parse().unwrap()],
        other_addresses: Vec::new(),
        is_ready: true,
        key: None,
    }
}

fn handle(node: &mut Node, event: NodeEvent) {
    node.handle(Event::Nodes(event));
}

fn connect(node: &mut Node, ranges: &[&str]) {
    let on_link = ranges.iter().map(|range| (net(range), 0, Some("eth0".parse().unwrap())));
    handle(node, NodeEvent::Connected(ConnectedRoutes::new(on_link)));
}

/// A node that knows these nodes.
fn node(numbers: &[u8]) -> Node {
    let mut node = Node::with_kernel(NetState::default());
    handle(&mut node, NodeEvent::Listed(numbers.iter().map(|number| info(*number)).collect()));
    connect(&mut node, &["192.0.2.0/29"]);
    node
}

/// Each peer with its ranges and whether it is on a link of this node.
fn peers(node: &Node) -> Vec<String> {
    let peers = node.state.peers.values().map(|peer| {
        let ranges: Vec<String> = peer.ranges.iter().map(ToString::to_string).collect();
        let place = if peer.addresses.is_empty() { "off link" } else { "on link" };
        format!("{} {} {place}", peer.name, ranges.join(" "))
    });
    peers.collect()
}

/// How many peers each record of the journal changes, from a position on.
fn recorded(node: &Node, from: usize) -> Vec<usize> {
    let records = node.journal[from..].iter().filter_map(|record| match record {
        Record::Peers { applied, removed } => Some(applied.len() + removed.len()),
        _ => None,
    });
    records.collect()
}

#[test]
fn each_node_is_a_peer_of_its_own() {
    let mut node = node(&[1, 2, 9]);
    assert_eq!(peers(&node), ["node2 10.1.2.0/24 on link", "node9 10.1.9.0/24 off link"]);
    let before = node.journal.len();
    handle(&mut node, NodeEvent::Applied(info(3)));
    assert_eq!(peers(&node).len(), 3);
    // A heartbeat, and a change of a field that routes do not depend on.
    handle(&mut node, NodeEvent::Applied(info(3)));
    handle(&mut node, NodeEvent::Applied(NodeInfo { is_ready: false, ..info(3) }));
    handle(&mut node, NodeEvent::Deleted("node2".to_owned()));
    handle(&mut node, NodeEvent::Deleted("node2".to_owned()));
    assert_eq!(peers(&node), ["node3 10.1.3.0/24 on link", "node9 10.1.9.0/24 off link"]);
    assert_eq!(recorded(&node, before), [1, 1]);
    // A node without pod ranges has no pods to be reached.
    handle(&mut node, NodeEvent::Applied(NodeInfo { ranges: vec![], ..info(3) }));
    assert_eq!(peers(&node), ["node9 10.1.9.0/24 off link"]);
}

#[test]
fn link_of_this_node_changes_how_others_are_reached() {
    let mut node = node(&[1, 2, 9]);
    let before = node.journal.len();
    connect(&mut node, &["192.0.2.0/28"]);
    assert_eq!(peers(&node), ["node2 10.1.2.0/24 on link", "node9 10.1.9.0/24 on link"]);
    assert_eq!(recorded(&node, before), [1], "the other one is not recorded again");
}

#[test]
fn peers_stay_after_a_restart_until_the_nodes_are_listed() {
    let mut node = node(&[1, 2, 3]);
    node.state = node.replayed();
    node.handle(Event::Restarted);
    connect(&mut node, &["192.0.2.0/29"]);
    // A single node says nothing about the others.
    handle(&mut node, NodeEvent::Applied(info(4)));
    assert_eq!(peers(&node), ["node2 10.1.2.0/24 on link", "node3 10.1.3.0/24 on link"]);
    handle(&mut node, NodeEvent::Listed(vec![info(1), info(3)]));
    assert_eq!(peers(&node), ["node3 10.1.3.0/24 on link"]);
}

#[test]
fn blocks_of_pools_are_ranges_of_their_node() {
    let mut node = node(&[1, 2, 3]);
    let pool = PoolKey { network: "pods".to_owned(), range: net("10.240.0.0/24") };
    let block = |holder: u8, index: u32| Block {
        name: format!("pods-{index:x}"),
        uid: format!("uid{index}"),
        pool: pool.title(),
        cidr: net(&format!("10.240.0.{}/26", 64 * index)),
        node: format!("node{holder}"),
        is_local: holder == 1,
    };
    let mut blocks = |event| node.handle(Event::Blocks(event));
    blocks(BlockEvent::Listed(vec![block(1, 0), block(2, 1)]));
    blocks(BlockEvent::Applied(block(3, 2)));
    assert_eq!(
        peers(&node),
        ["node2 10.1.2.0/24 10.240.0.64/26 on link", "node3 10.1.3.0/24 10.240.0.128/26 on link"]
    );
    let mut blocks = |event| node.handle(Event::Blocks(event));
    blocks(BlockEvent::Deleted { name: "pods-2".to_owned(), uid: "uid2".to_owned() });
    // Returned by one node and claimed by another.
    blocks(BlockEvent::Applied(Block { uid: "new".to_owned(), ..block(3, 1) }));
    assert_eq!(peers(&node), ["node2 10.1.2.0/24 on link", "node3 10.1.3.0/24 10.240.0.64/26 on link"]);
    // A block whose name belongs to another range is no range of a pod.
    let mut blocks = |event| node.handle(Event::Blocks(event));
    blocks(BlockEvent::Applied(Block { name: "pods-3".to_owned(), ..block(3, 2) }));
    assert_eq!(peers(&node)[1], "node3 10.1.3.0/24 10.240.0.64/26 on link");
}
