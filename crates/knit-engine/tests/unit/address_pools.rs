//! Address pools: nodes claim blocks for their pods, never the same block, more before they are full, and release
//! empty ones.

use knit_engine::Event;
use knit_engine::blocks::{BlockEvent, BlockRequest};
use knit_model::problem::Reason;

use crate::support::node::{Node, scope};
use crate::support::pools_cluster::{PoolCluster, net, pool, pool_deleted};

/// The gateways of a pod's default routes.
fn gateways(node: &Node, id: &str) -> Vec<String> {
    let seen = node.kernel.observe();
    let routes = seen.scopes[&scope(id)].routes.values();
    let defaults = routes.filter(|route| route.to.prefix_len() == 0);
    defaults.map(|route| route.via[0].gateway.unwrap().to_string()).collect()
}

#[test]
fn each_node_claims_its_own_block_and_without_pools_uses_its_podcidr() {
    let mut cluster = PoolCluster::new(2);
    assert_eq!(cluster.attach(0, "old").unwrap_err().reason, Reason::NotFound);
    cluster.settle();
    assert_eq!(cluster.attach(0, "old").unwrap(), ["10.1.0.2/24"]);
    cluster.broadcast(|| pool("pods", "10.240.0.0/24", 26));
    cluster.broadcast(|| pool("six", "fd24::/112", 122));
    let (first, second) = (cluster.blocks_of(0), cluster.blocks_of(1));
    assert_eq!((first.len(), second.len()), (2, 2), "one per family");
    assert!(!first.iter().any(|block| second.contains(block)));
    let given = cluster.attach(0, "new").unwrap();
    assert_eq!(given.len(), 2);
    for (address, block) in given.iter().zip(&first) {
        assert!(block.contains(&net(address).addr()), "{address} is of {block}");
    }
    // The running pod keeps its address, and its range is kept for it alone.
    assert_eq!(cluster.attach(0, "old").unwrap()[0], "10.1.0.2/24");
    assert_eq!(gateways(&cluster.nodes[0], "old")[0], "10.1.0.1");
    let ranges = cluster.nodes[0].state.ranges(&[]);
    assert!(ranges.own.contains(&net("10.1.0.0/24")) && ranges.own.len() == 3, "{ranges:?}");
    cluster.detach(0, "old");
    cluster.settle();
    assert_eq!(cluster.nodes[0].state.ranges(&[]).own.len(), 2, "the range is no longer used");
}

#[test]
fn node_claims_more_blocks_before_it_is_full_and_releases_empty_ones() {
    // Five pod addresses per block.
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 29);
    assert_eq!(cluster.blocks_of(0).len(), 1);
    let mut given = Vec::new();
    for number in 0..12 {
        given.extend(cluster.attach(0, &format!("p{number}")).unwrap());
        cluster.settle();
    }
    assert_eq!(given.len(), 12, "one address each, from any block with capacity");
    let held = cluster.blocks_of(0);
    assert_eq!(held.len(), 3);
    // The default gateway of each pod is the bridge address of its own block.
    for (number, address) in given.iter().enumerate() {
        let gateways = gateways(&cluster.nodes[0], &format!("p{number}"));
        let block = held.iter().find(|block| block.contains(&net(address).addr())).unwrap();
        assert_eq!(gateways, [block.hosts().next().unwrap().to_string()]);
    }
    // Replaying the journal gives the same state.
    assert_eq!(cluster.nodes[0].replayed().persistent(), cluster.nodes[0].state.persistent());
    for number in 0..12 {
        cluster.detach(0, &format!("p{number}"));
    }
    for _ in 0..8 {
        cluster.review(0);
    }
    assert_eq!(cluster.blocks_of(0).len(), 1, "one block is kept, so that the next pod does not wait");
    assert_eq!(cluster.nodes[0].state.ranges(&[]).own, cluster.blocks_of(0));
}

#[test]
fn exhausted_pool_is_reported_and_another_pool_helps() {
    let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/28", 29);
    for number in 0..5 {
        cluster.attach(0, &format!("p{number}")).unwrap();
    }
    cluster.settle();
    let rejected = cluster.attach(0, "p5").unwrap_err();
    assert_eq!(rejected.reason, Reason::AddressesExhausted, "{rejected}");
    assert_eq!(cluster.nodes[0].state.unclaimed(false), 0);
    cluster.broadcast(|| pool("second", "10.241.0.0/28", 29));
    cluster.attach(0, "p5").unwrap();
}

#[test]
fn attach_during_a_block_claim_is_answered_not_ready() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 30);
    // One pod address per block. The next block is requested, and the API server does not answer.
    cluster.attach(0, "a").unwrap();
    let rejected = cluster.attach(0, "b").unwrap_err();
    assert_eq!(rejected.reason, Reason::NotReady, "{rejected}");
    assert!(rejected.message.contains("another block is being claimed"), "{rejected}");
    cluster.settle();
    cluster.attach(0, "b").unwrap();
}

#[test]
fn block_under_release_allocates_no_address() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 29);
    for number in 0..8 {
        cluster.attach(0, &format!("p{number}")).unwrap();
        cluster.settle();
    }
    let before = cluster.blocks_of(0);
    for number in 0..8 {
        cluster.detach(0, &format!("p{number}"));
    }
    cluster.nodes[0].handle(Event::Blocks(BlockEvent::ReviewDue));
    cluster.nodes[0].handle(Event::Blocks(BlockEvent::ReviewDue));
    let Some(BlockRequest::Return { name, .. }) = cluster.nodes[0].block_requests.front().cloned() else {
        panic!("no block is released");
    };
    let released = cluster.blocks[&name].cidr;
    assert!(before.contains(&released));
    // The network still has the range, because it is not synced yet.
    for number in 0..5 {
        let given = cluster.attach(0, &format!("q{number}")).unwrap();
        assert!(!released.contains(&net(&given[0]).addr()), "{given:?} is of {released}");
    }
}

#[test]
fn deleted_block_is_claimed_again_for_its_pods() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 26);
    let given = cluster.attach(0, "a").unwrap();
    let (name, block) = cluster.blocks.pop_first().unwrap();
    cluster.notify_all(&BlockEvent::Deleted { name: name.clone(), uid: block.uid });
    cluster.settle();
    assert_eq!(cluster.blocks[&name].node, "node0");
    assert_eq!(cluster.attach(0, "a").unwrap(), given);
}

#[test]
fn deleting_the_pool_restores_the_podcidr() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 26);
    cluster.attach(0, "a").unwrap();
    cluster.broadcast(|| pool_deleted("pods"));
    assert_eq!(cluster.attach(0, "b").unwrap(), ["10.1.0.2/24"]);
    cluster.detach(0, "a");
    cluster.settle();
    cluster.review(0);
    cluster.review(0);
    assert!(cluster.blocks.is_empty());
    assert_eq!(cluster.nodes[0].state.ranges(&[net("10.1.0.0/24")]).own, [net("10.1.0.0/24")]);
}
