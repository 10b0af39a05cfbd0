//! Address blocks of a range shared by several nodes: no duplicate address, no wait while a block has capacity,
//! and empty blocks are released.

use proptest::prelude::*;

use crate::support::blocks_cluster::{BlockCluster, shared_range_object};
use crate::support::cases;
use crate::support::node::{Node, object, sandbox, veth};

fn texts(addresses: &[std::net::IpAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn each_node_claims_its_own_block_in_order() {
    let mut cluster = BlockCluster::new(2, "192.168.100.0/24");
    cluster.add_pod(0, 1);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    let problems = cluster.nodes[0].problems("net");
    assert_eq!(
        problems,
        [
            "spec.entries[0]: network shop/br0 range 192.168.100.0/24 waits for a block of addresses, which is being claimed for this node"
        ]
    );
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    cluster.add_pod(0, 2);
    cluster.add_pod(1, 3);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["192.168.100.2", "192.168.100.3"]);
    assert_eq!(texts(&cluster.addresses(1)), ["192.168.100.16"]);
    assert_eq!(cluster.held_blocks(), ["node0:192.168.100.0/28", "node1:192.168.100.16/28"]);
}

#[test]
fn nodes_that_lost_a_race_search_at_different_places() {
    let mut cluster = BlockCluster::new(10, "10.0.0.0/20");
    (0..10).for_each(|node| cluster.add_pod(node, node as u32));
    // In each round all nodes claim a block at the same time.
    let mut rounds = 0;
    while (0..10).any(|node| cluster.addresses(node).is_empty()) {
        rounds += 1;
        assert!(rounds <= 5, "each round would give a block to one node only");
        (0..10).for_each(|node| cluster.process_request(node, true));
    }
    cluster.settle();
    assert!(texts(&cluster.addresses(0)).contains(&"10.0.0.2".to_owned()), "the first block is used first");
}

#[test]
fn reachable_addresses_exclude_blocks_of_other_nodes() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/24");
    let pool = knit_ipam::Pool::with_gateway("shop/br0", "10.0.0.0/24".parse().unwrap());
    let total =
        |cluster: &BlockCluster, node: usize| cluster.nodes[node].state.blocks.reachable(&pool).total();
    assert_eq!(total(&cluster, 0), 253);
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.add_pod(1, 2);
    cluster.settle();
    assert_eq!((total(&cluster, 0), total(&cluster, 1)), (253 - 16, 253 - 14));
}

#[test]
fn two_nodes_racing_for_one_block_end_with_one_block_each() {
    let mut cluster = BlockCluster::new(2, "192.168.100.0/24");
    cluster.add_pod(0, 1);
    cluster.add_pod(1, 2);
    // Neither node has received the other's claim.
    cluster.process_request(1, true);
    cluster.process_request(0, true);
    cluster.process_request(0, true);
    assert_eq!(texts(&cluster.addresses(1)), ["192.168.100.2"]);
    assert_eq!(texts(&cluster.addresses(0)), ["192.168.100.16"]);
}

#[test]
fn range_of_a_file_object_belongs_to_this_node_alone() {
    let mut node = Node::with_kernel(Default::default());
    let own = object("Veth", "shop", "net", vec![veth("x", "net", "br0", "10.0.0.0/24")]);
    node.handle(knit_engine::Event::ObjectApplied(own));
    node.handle(knit_engine::Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    assert_eq!(node.problems("net"), [""; 0]);
    assert!(node.block_requests.is_empty());
}

#[test]
fn node_with_capacity_claims_nothing_and_full_node_reports_and_retries() {
    let mut cluster = BlockCluster::new(1, "10.0.0.0/24");
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.api.unavailable = true;
    for pod in 2..15 {
        cluster.add_pod(0, pod);
        assert!(cluster.nodes[0].block_requests.is_empty(), "pod {pod}");
    }
    assert_eq!(cluster.addresses(0).len(), 14);
    // The same holds after a restart: own blocks are journalled.
    cluster.restart(0, false);
    cluster.remove_pod(0, 3);
    cluster.add_pod(0, 15);
    assert_eq!(cluster.addresses(0).len(), 14);
    cluster.add_pod(0, 16);
    assert!(cluster.nodes[0].problems("net")[0].contains("the block watch has not synced yet"));
    cluster.list(0);
    cluster.process_request(0, true);
    let problems = cluster.nodes[0].problems("net");
    assert!(
        problems[0].contains("none can be claimed so far (the API server does not answer)"),
        "{problems:?}"
    );
    // A released address of an own block serves as well.
    cluster.remove_pod(0, 4);
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    cluster.add_pod(0, 17);
    cluster.api.unavailable = false;
    cluster.settle();
    assert_eq!(cluster.nodes[0].problems("net"), [""; 0]);
    assert_eq!(cluster.addresses(0).len(), 15);
}

#[test]
fn burst_of_pods_claims_as_many_blocks_as_needed() {
    let mut cluster = BlockCluster::new(1, "10.0.0.0/24");
    for pod in 1..=40 {
        cluster.add_pod(0, pod);
    }
    // Blocks of 14, 16 and 16 addresses.
    assert_eq!(cluster.nodes[0].block_requests.len(), 3);
    cluster.settle();
    assert_eq!((cluster.addresses(0).len(), cluster.held_blocks().len()), (40, 3));
}

#[test]
fn empty_block_is_released_after_a_delay() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/24");
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.remove_pod(0, 1);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.held_blocks().len(), 1);
    // A pod used the block in between, which resets the delay.
    cluster.add_pod(0, 2);
    cluster.review(0);
    cluster.remove_pod(0, 2);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.held_blocks().len(), 1);
    cluster.review(0);
    assert_eq!(cluster.nodes[0].block_requests.len(), 1);
    // Once the release is requested the block is not used, although it still exists.
    cluster.add_pod(0, 3);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    cluster.settle();
    assert_eq!(cluster.addresses(0).len(), 1);
    assert_eq!(cluster.held_blocks().len(), 1);
}

#[test]
fn stale_list_does_not_restore_a_released_block() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/29");
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.remove_pod(0, 1);
    cluster.restart_watch(0);
    cluster.review(0);
    cluster.review(0);
    cluster.process_request(0, true);
    cluster.deliver_watch_event(1);
    cluster.add_pod(1, 2);
    cluster.process_request(1, true);
    assert_eq!(texts(&cluster.addresses(1)), ["10.0.0.2"]);
    // This list still assigns the block to the first node.
    cluster.deliver_watch_event(0);
    cluster.add_pod(0, 3);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0]);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.3"]);
}

#[test]
fn block_under_release_at_a_crash_is_not_used_and_is_released() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/29");
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.remove_pod(0, 1);
    cluster.review(0);
    cluster.review(0);
    assert_eq!(cluster.nodes[0].block_requests.len(), 1);
    // The agent dies before the API server answers; the list still has the block.
    cluster.restart(0, false);
    cluster.deliver_watch_event(0);
    cluster.add_pod(0, 2);
    assert_eq!(texts(&cluster.addresses(0)), [""; 0], "the block may be deleted at any moment");
    let orders = cluster.nodes[0].block_requests.iter();
    let returns =
        orders.filter(|order| matches!(order, knit_engine::blocks::BlockRequest::Return { .. })).count();
    assert_eq!(returns, 1, "{:?}", cluster.nodes[0].block_requests);
    cluster.settle();
    assert_eq!(cluster.addresses(0).len(), 1);
    assert_eq!(cluster.held_blocks().len(), 1);
    assert_eq!(cluster.nodes[0].replayed().persistent(), cluster.nodes[0].state.persistent());
}

#[test]
fn range_held_by_other_nodes_is_reported_exhausted_until_a_block_is_released() {
    // A /30 has one allocatable address.
    let mut cluster = BlockCluster::new(2, "10.0.0.0/30");
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.add_pod(1, 2);
    cluster.settle();
    assert_eq!(
        cluster.nodes[1].problems("net"),
        [
            "spec.entries[0]: network shop/br0 range 10.0.0.0/30 is exhausted: other nodes hold all of its 1 blocks"
        ]
    );
    cluster.add_pod(0, 3);
    assert_eq!(
        cluster.nodes[0].problems("net"),
        ["spec.entries[0]: network shop/br0 range 10.0.0.0/30 is exhausted: its only address is in use"]
    );
    cluster.remove_pod(0, 3);
    cluster.remove_pod(0, 1);
    cluster.review(0);
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.nodes[1].problems("net"), [""; 0]);
    assert_eq!(texts(&cluster.addresses(1)), ["10.0.0.2"]);
}

#[test]
fn deleted_block_is_claimed_again_for_its_addresses_and_not_used_meanwhile() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/24");
    cluster.add_pod(0, 1);
    cluster.settle();
    let name = cluster.api.blocks.keys().next().unwrap().clone();
    cluster.api.delete(&name, None);
    cluster.deliver_watch_event(0);
    assert_eq!(cluster.nodes[0].block_requests.len(), 1, "the block is claimed again");
    cluster.settle();
    assert_eq!(cluster.held_blocks(), ["node0:10.0.0.0/28"]);
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2"]);

    // The other node is faster: the pod keeps its address, and a warning reports it.
    cluster.api.delete(&name, None);
    cluster.deliver_watch_event(1);
    cluster.add_pod(1, 2);
    cluster.process_request(1, true);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2"]);
    let key = shared_range_object("10.0.0.0/24").key();
    let warnings = cluster.nodes[0].state.report(&key).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("node node1 holds its block"), "{warnings:?}");
    // New addresses come from another block.
    cluster.add_pod(0, 3);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.2", "10.0.0.16"]);
    // When the other node releases the block, it is claimed for the address in use.
    cluster.remove_pod(1, 2);
    cluster.review(1);
    cluster.review(1);
    cluster.settle();
    assert_eq!(cluster.nodes[0].state.report(&key).unwrap().warnings, [""; 0]);
    assert_eq!(cluster.held_blocks(), ["node0:10.0.0.0/28", "node0:10.0.0.16/28"]);
}

#[test]
fn addresses_allocated_before_blocks_existed_get_their_blocks() {
    let mut cluster = BlockCluster::new(2, "10.0.0.0/24");
    let node = &mut cluster.nodes[0];
    let mut own = shared_range_object("10.0.0.0/24");
    own.intents[0].origin.dialect = knit_model::provenance::Dialect::File;
    own.object.generation = 2;
    node.handle(knit_engine::Event::ObjectApplied(own));
    for pod in 1..=16 {
        node.handle(knit_engine::Event::SandboxUpdated(sandbox(&format!("p{pod}"), pod, "shop", "x")));
    }
    assert_eq!((node.block_requests.len(), node.state.blocks.has_any()), (0, false));
    let mut now = shared_range_object("10.0.0.0/24");
    now.object.generation = 3;
    node.handle(knit_engine::Event::ObjectApplied(now));
    let before = cluster.addresses(0);
    cluster.settle();
    assert_eq!(cluster.addresses(0), before);
    assert_eq!(cluster.held_blocks(), ["node0:10.0.0.0/28", "node0:10.0.0.16/28"]);
}

#[test]
fn fixed_address_is_never_allocated_to_another_pod() {
    let mut cluster = BlockCluster::new(1, "10.0.0.0/24");
    let mut fixed = shared_range_object("10.0.0.0/24");
    fixed.object.name = "fixed".to_owned();
    let knit_model::intent::IntentSpec::Interface(intent) = &mut fixed.intents[0].spec else {
        unreachable!()
    };
    intent.pods = knit_model::intent::Selector::label("net", "far");
    intent.ranges.clear();
    intent.fixed = vec!["10.0.0.2/24".parse().unwrap()];
    cluster.nodes[0].handle(knit_engine::Event::ObjectApplied(fixed));
    cluster.add_pod(0, 1);
    cluster.settle();
    assert_eq!(texts(&cluster.addresses(0)), ["10.0.0.3"]);
}

#[test]
fn block_used_between_two_reviews_is_kept() {
    let mut cluster = BlockCluster::new(1, "10.0.0.0/24");
    for pod in 1..4 {
        cluster.add_pod(0, pod);
        cluster.settle();
        cluster.remove_pod(0, pod);
        cluster.review(0);
        cluster.settle();
        assert_eq!(cluster.held_blocks().len(), 1, "pod {pod} used it since the last review");
    }
    cluster.review(0);
    cluster.settle();
    assert_eq!(cluster.held_blocks(), [""; 0]);
}

/// An operation on a node or on the API server.
#[derive(Clone, Debug)]
enum Operation {
    Add(usize, u32),
    Remove(usize, u32),
    DeliverWatchEvent(usize),
    ProcessRequest(usize),
    Review(usize),
    List(usize),
    Restart(usize, bool),
    SetUnavailable(bool),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let (node, pod) = (|| 0..2_usize, || 0..12_u32);
    let operation = prop_oneof![
        4 => (node(), pod()).prop_map(|(node, pod)| Operation::Add(node, pod)),
        3 => (node(), pod()).prop_map(|(node, pod)| Operation::Remove(node, pod)),
        4 => node().prop_map(Operation::DeliverWatchEvent),
        5 => node().prop_map(Operation::ProcessRequest),
        3 => node().prop_map(Operation::Review),
        1 => node().prop_map(Operation::List),
        1 => (node(), any::<bool>()).prop_map(|(node, sent)| Operation::Restart(node, sent)),
        1 => any::<bool>().prop_map(Operation::SetUnavailable),
    ];
    prop::collection::vec(operation, 1..120)
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn no_interleaving_of_two_nodes_allocates_an_address_twice(
        operations in operations(),
        range in prop::sample::select(vec!["10.0.0.0/24", "10.0.0.0/28", "10.0.0.0/29", "fd00::/64"]),
    ) {
        let mut cluster = BlockCluster::new(2, range);
        for operation in operations {
            match operation.clone() {
                // Pod names are unique across nodes.
                Operation::Add(node, pod) => cluster.add_pod(node, pod * 2 + node as u32),
                Operation::Remove(node, pod) => cluster.remove_pod(node, pod * 2 + node as u32),
                Operation::DeliverWatchEvent(node) => cluster.deliver_watch_event(node),
                Operation::ProcessRequest(node) => cluster.process_request(node, true),
                Operation::Review(node) => cluster.review(node),
                Operation::List(node) if !cluster.api.unavailable => cluster.restart_watch(node),
                Operation::List(_) => {}
                Operation::Restart(node, sent) => cluster.restart(node, sent),
                Operation::SetUnavailable(unavailable) => cluster.api.unavailable = unavailable,
            }
            prop_assert_eq!(cluster.duplicate_addresses(), [].into(), "after {:?}", operation);
        }
        // At the end the cluster settles and all empty blocks are released.
        cluster.api.unavailable = false;
        for node in 0..2 {
            cluster.list(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.duplicate_addresses(), [].into());
        for node in 0..2 {
            let names: Vec<u32> = cluster.nodes[node].state.sandboxes.values().map(|pod| pod.number).collect();
            names.into_iter().for_each(|pod| cluster.remove_pod(node, pod));
            cluster.review(node);
            cluster.review(node);
        }
        cluster.settle();
        prop_assert_eq!(cluster.held_blocks(), Vec::<String>::new());
    }
}
