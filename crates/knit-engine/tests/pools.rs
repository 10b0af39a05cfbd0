//! Pools: nodes take their pods' ranges from them, no block twice, more when there is little room, and back when it is empty.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod pooled;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod tasks;
}

use knit_engine::Event;
use knit_engine::blocks::{News, Order};
use knit_model::problem::Reason;
use support::node::{Node, scope};
use support::pooled::{Cluster, net, pool, pool_gone};

/// Where a pod's default routes go.
fn gateways(node: &Node, id: &str) -> Vec<String> {
    let seen = node.kernel.observe();
    let routes = seen.scopes[&scope(id)].routes.values();
    let ways = routes.filter(|route| route.to.prefix_len() == 0);
    ways.map(|route| route.via[0].gateway.unwrap().to_string()).collect()
}

#[test]
fn each_node_has_a_block_of_its_own_and_without_pools_what_the_cluster_gave_it() {
    let mut cluster = Cluster::new(2);
    assert_eq!(cluster.attach(0, "old").unwrap_err().reason, Reason::NotFound);
    cluster.settle();
    assert_eq!(cluster.attach(0, "old").unwrap(), ["10.1.0.2/24"]);
    cluster.all_hear(|| pool("pods", "10.240.0.0/24", 26));
    cluster.all_hear(|| pool("six", "fd24::/112", 122));
    let (first, second) = (cluster.held_by(0), cluster.held_by(1));
    assert_eq!((first.len(), second.len()), (2, 2), "one of each family");
    assert!(!first.iter().any(|block| second.contains(block)));
    let given = cluster.attach(0, "new").unwrap();
    assert_eq!(given.len(), 2);
    for (address, block) in given.iter().zip(&first) {
        assert!(block.contains(&net(address).addr()), "{address} is of {block}");
    }
    // The pod from before keeps what it has, and its range stays for it alone.
    assert_eq!(cluster.attach(0, "old").unwrap()[0], "10.1.0.2/24");
    assert_eq!(gateways(&cluster.nodes[0], "old")[0], "10.1.0.1");
    let ranges = cluster.nodes[0].state.ranges(&[]);
    assert!(ranges.own.contains(&net("10.1.0.0/24")) && ranges.own.len() == 3, "{ranges:?}");
    assert_eq!(ranges.others["node1"].len(), 2);
    cluster.detach(0, "old");
    cluster.settle();
    assert_eq!(cluster.nodes[0].state.ranges(&[]).own.len(), 2, "nobody needs it any more");
}

#[test]
fn a_node_takes_more_before_it_is_full_and_gives_back_what_is_empty() {
    // Blocks of 5 addresses for pods.
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 29);
    assert_eq!(cluster.held_by(0).len(), 1);
    let mut given = Vec::new();
    for number in 0..12 {
        given.extend(cluster.attach(0, &format!("p{number}")).unwrap());
        cluster.settle();
    }
    assert_eq!(given.len(), 12, "one address each, of whichever block has room");
    let held = cluster.held_by(0);
    assert_eq!(held.len(), 3);
    // Every pod goes out through the bridge's address of its own block.
    for (number, address) in given.iter().enumerate() {
        let way = gateways(&cluster.nodes[0], &format!("p{number}"));
        let block = held.iter().find(|block| block.contains(&net(address).addr())).unwrap();
        assert_eq!(way, [block.hosts().next().unwrap().to_string()]);
    }
    // As it is written down, it is the same again.
    assert_eq!(cluster.nodes[0].replayed().remembered(), cluster.nodes[0].state.remembered());
    for number in 0..12 {
        cluster.detach(0, &format!("p{number}"));
    }
    for _ in 0..8 {
        cluster.review(0);
    }
    assert_eq!(cluster.held_by(0).len(), 1, "one stays, so that the next pod does not wait");
    assert_eq!(cluster.nodes[0].state.ranges(&[]).own, cluster.held_by(0));
}

#[test]
fn a_pool_that_is_used_up_is_told_and_one_more_pool_helps() {
    let mut cluster = Cluster::with_pool(2, "10.240.0.0/28", 29);
    for number in 0..5 {
        cluster.attach(0, &format!("p{number}")).unwrap();
    }
    cluster.settle();
    let refused = cluster.attach(0, "p5").unwrap_err();
    assert_eq!(refused.reason, Reason::AddressesExhausted, "{refused}");
    assert_eq!(cluster.nodes[0].state.untaken(false), 0);
    cluster.all_hear(|| pool("second", "10.241.0.0/28", 29));
    cluster.attach(0, "p5").unwrap();
}

#[test]
fn while_a_block_is_on_its_way_a_pod_is_told_to_come_again() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 30);
    // Each block has room for one pod. The next is ordered, and no API server answers.
    cluster.attach(0, "a").unwrap();
    let refused = cluster.attach(0, "b").unwrap_err();
    assert_eq!(refused.reason, Reason::NotReady, "{refused}");
    assert!(refused.message.contains("another block is being claimed"), "{refused}");
    cluster.settle();
    cluster.attach(0, "b").unwrap();
}

#[test]
fn a_block_that_goes_back_gives_no_address_from_that_moment_on() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 29);
    for number in 0..8 {
        cluster.attach(0, &format!("p{number}")).unwrap();
        cluster.settle();
    }
    let before = cluster.held_by(0);
    for number in 0..8 {
        cluster.detach(0, &format!("p{number}"));
    }
    cluster.nodes[0].hear(Event::Blocks(News::Reviewed));
    cluster.nodes[0].hear(Event::Blocks(News::Reviewed));
    let Some(Order::Return { name, .. }) = cluster.nodes[0].orders.front().cloned() else {
        panic!("nothing goes back");
    };
    let going = cluster.blocks[&name].cidr;
    assert!(before.contains(&going));
    // The network still has the range, since nobody has looked yet.
    for number in 0..5 {
        let given = cluster.attach(0, &format!("q{number}")).unwrap();
        assert!(!going.contains(&net(&given[0]).addr()), "{given:?} is of {going}");
    }
}

#[test]
fn a_block_that_somebody_deletes_is_claimed_again_for_the_pods_on_it() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 26);
    let given = cluster.attach(0, "a").unwrap();
    let (name, block) = cluster.blocks.pop_first().unwrap();
    cluster.tell(&News::Deleted { name: name.clone(), uid: block.uid });
    cluster.settle();
    assert_eq!(cluster.blocks[&name].node, "node0");
    assert_eq!(cluster.attach(0, "a").unwrap(), given);
}

#[test]
fn a_pool_that_goes_gives_the_ranges_back_that_the_cluster_gave() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 26);
    cluster.attach(0, "a").unwrap();
    cluster.all_hear(|| pool_gone("pods"));
    assert_eq!(cluster.attach(0, "b").unwrap(), ["10.1.0.2/24"]);
    cluster.detach(0, "a");
    cluster.settle();
    cluster.review(0);
    cluster.review(0);
    assert!(cluster.blocks.is_empty());
    assert_eq!(cluster.nodes[0].state.ranges(&[net("10.1.0.0/24")]).own, [net("10.1.0.0/24")]);
}
