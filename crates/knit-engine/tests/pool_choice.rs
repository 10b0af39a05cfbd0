//! Whose a pool is: pods of a namespace that pools name take from those alone, and addresses by value and by name.

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
use knit_engine::blocks::News;
use knit_engine::call::Asked;
use knit_model::problem::Reason;
use support::pooled::{Cluster, net, pool, pool_for, pool_gone};

/// One address by value.
fn fixed(address: &str) -> Asked {
    Asked { addresses: vec![address.parse().unwrap()], ..Asked::default() }
}

/// Kept under a name.
fn sticky(name: &str) -> Asked {
    Asked { sticky: name.to_owned(), ..Asked::default() }
}

fn is_of(addresses: &[String], range: &str) -> bool {
    addresses.len() == 1 && net(range).contains(&net(&addresses[0]).addr())
}

#[test]
fn pods_of_a_named_namespace_take_from_its_pool_alone_and_others_never() {
    let mut cluster = Cluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    assert_eq!(cluster.held_by(0).len(), 1, "nobody of that namespace is here yet");
    let refused = cluster.attach_as(0, "shop", "a", Asked::default()).unwrap_err();
    assert_eq!(refused.reason, Reason::NotReady, "{refused}");
    assert!(refused.message.contains("pool red (10.9.0.0/24)"), "{refused}");
    cluster.settle();
    assert_eq!((cluster.held_by(0).len(), cluster.held_by(1).len()), (2, 1));
    assert!(is_of(&cluster.attach_as(0, "shop", "a", Asked::default()).unwrap(), "10.9.0.0/24"));
    assert!(is_of(&cluster.attach_as(0, "web", "b", Asked::default()).unwrap(), "10.240.0.0/24"));
    cluster.settle();
    assert_eq!(cluster.held_by(0).len(), 2);
    // There is more before it is full, and it goes when the last pod of the namespace has gone.
    for number in 0..5 {
        let id = format!("p{number}");
        assert!(is_of(&cluster.attach_as(0, "shop", &id, Asked::default()).unwrap(), "10.9.0.0/24"));
        cluster.settle();
    }
    assert_eq!(cluster.held_by(0).len(), 3);
    for id in ["a", "p0", "p1", "p2", "p3", "p4"] {
        cluster.detach(0, id);
    }
    (0..40).for_each(|_| cluster.review(0));
    assert_eq!(cluster.held_by(0).len(), 1, "what is left is for everyone");
    assert_eq!(cluster.nodes[0].replayed().remembered(), cluster.nodes[0].state.remembered());
}

#[test]
fn a_block_that_a_pod_asked_for_is_there_when_it_comes_again() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 27);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    cluster.attach_as(0, "shop", "a", Asked::default()).unwrap_err();
    cluster.settle();
    (0..5).for_each(|_| cluster.review(0));
    cluster.attach_as(0, "shop", "a", Asked::default()).unwrap();
    // Nobody comes for this one.
    cluster.detach(0, "a");
    (0..3).for_each(|_| cluster.review(0));
    assert_eq!(cluster.held_by(0).len(), 1);
    cluster.attach_as(0, "shop", "b", Asked::default()).unwrap_err();
    cluster.settle();
    assert_eq!(cluster.held_by(0).len(), 2);
    (0..30).for_each(|_| cluster.review(0));
    assert_eq!(cluster.held_by(0).len(), 1);
}

#[test]
fn a_pool_that_is_used_up_says_so_and_pods_of_others_still_come() {
    let mut cluster = Cluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/29", 30));
    for (node, id) in [(0, "a"), (1, "a")] {
        cluster.attach_as(node, "shop", id, Asked::default()).unwrap_err();
        cluster.settle();
        cluster.attach_as(node, "shop", id, Asked::default()).unwrap();
        cluster.settle();
    }
    let refused = cluster.attach_as(0, "shop", "b", Asked::default()).unwrap_err();
    assert_eq!(refused.reason, Reason::AddressesExhausted, "{refused}");
    assert_eq!(
        refused.message,
        "network cluster-network: pool red (10.9.0.0/29) is exhausted: all 1 addresses of this node's blocks are in use, \
         and other nodes hold the other 1 blocks"
    );
    cluster.attach_as(0, "web", "b", Asked::default()).unwrap();
    // A second pool for the namespace helps, and what the first has for others does not matter.
    cluster.all_hear(|| pool_for(&["shop", "bank"], "more", "10.10.0.0/24", 29));
    cluster.attach_as(0, "shop", "p0", Asked::default()).unwrap_err();
    cluster.settle();
    assert!(is_of(&cluster.attach_as(0, "shop", "p0", Asked::default()).unwrap(), "10.10.0.0/24"));
}

#[test]
fn running_pods_keep_their_addresses_when_a_pool_for_their_namespace_comes_and_goes() {
    let mut cluster = Cluster::new(1);
    cluster.settle();
    let before = cluster.attach_as(0, "shop", "old", Asked::default()).unwrap();
    assert_eq!(before, ["10.1.0.2/24"]);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    assert_eq!(cluster.attach_as(0, "shop", "old", Asked::default()).unwrap(), before);
    assert_eq!(cluster.attach_as(0, "web", "a", Asked::default()).unwrap(), ["10.1.0.3/24"]);
    cluster.attach_as(0, "shop", "new", Asked::default()).unwrap_err();
    cluster.settle();
    let new = cluster.attach_as(0, "shop", "new", Asked::default()).unwrap();
    assert!(is_of(&new, "10.9.0.0/24"));
    // In the other family there is a pool for the namespace alone: others have no address there, and old pods stay.
    cluster.all_hear(|| pool_for(&["shop"], "six", "fd09::/112", 122));
    assert_eq!(cluster.attach_as(0, "shop", "new", Asked::default()).unwrap(), new);
    cluster.attach_as(0, "shop", "p0", Asked::default()).unwrap_err();
    cluster.settle();
    assert_eq!(cluster.attach_as(0, "shop", "p0", Asked::default()).unwrap().len(), 2);
    assert_eq!(cluster.attach_as(0, "web", "p1", Asked::default()).unwrap().len(), 1);
    cluster.all_hear(|| pool_gone("red"));
    assert!(is_of(&cluster.attach_as(0, "shop", "new", Asked::default()).unwrap()[..1], "10.9.0.0/24"));
    let last = cluster.attach_as(0, "shop", "b", Asked::default()).unwrap();
    assert!(last[0].starts_with("10.1.0."), "{last:?}");
}

#[test]
fn an_address_by_value_is_given_where_its_block_is() {
    let mut cluster = Cluster::with_pool(2, "10.240.0.0/24", 27);
    let theirs = cluster.held_by(1)[0];
    let inside = theirs.hosts().nth(6).unwrap().to_string();
    let refused = cluster.attach_as(0, "web", "a", fixed(&inside)).unwrap_err();
    assert_eq!(refused.reason, Reason::Conflict, "{refused}");
    assert!(refused.message.contains("which node node1 holds"), "{refused}");
    assert_eq!(cluster.attach_as(1, "web", "a", fixed(&inside)).unwrap(), [format!("{inside}/27")]);
    let refused = cluster.attach_as(1, "web", "b", fixed(&inside)).unwrap_err();
    assert!(refused.message.contains("is in use by interface eth0 of pod web/a"), "{refused}");
    // Nobody holds this one: it is claimed, and the pod comes again.
    let free = (0..8).map(|index| net(&format!("10.240.0.{}/27", index * 32)));
    let free =
        free.into_iter().find(|block| cluster.blocks.values().all(|held| held.cidr != *block)).unwrap();
    let wanted = free.hosts().nth(3).unwrap().to_string();
    let refused = cluster.attach_as(0, "web", "b", fixed(&wanted)).unwrap_err();
    assert_eq!(refused.reason, Reason::NotReady, "{refused}");
    cluster.settle();
    assert!(cluster.held_by(0).contains(&free));
    assert_eq!(cluster.attach_as(0, "web", "b", fixed(&wanted)).unwrap(), [format!("{wanted}/27")]);
    let refused = cluster.attach_as(0, "web", "p0", fixed("10.7.0.9")).unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidValue, "{refused}");
    let gateway = free.hosts().next().unwrap().to_string();
    let refused = cluster.attach_as(0, "web", "p0", fixed(&gateway)).unwrap_err();
    assert!(refused.message.contains("it is the bridge's"), "{refused}");
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    let refused = cluster.attach_as(0, "web", "p0", fixed("10.9.0.10")).unwrap_err();
    assert_eq!(refused.reason, Reason::NotAllowed, "{refused}");
    assert!(refused.message.contains("pool red, which pods of namespace web take nothing from"), "{refused}");
}

#[test]
fn a_fixed_address_goes_with_its_pod_to_another_node_when_its_block_is_given_back() {
    let mut cluster = Cluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 30));
    for node in [0, 1] {
        cluster.attach_as(node, "shop", "a", fixed("10.9.0.6")).unwrap_err();
        cluster.settle();
        assert_eq!(cluster.attach_as(node, "shop", "a", fixed("10.9.0.6")).unwrap(), ["10.9.0.6/30"]);
        cluster.settle();
        cluster.detach(node, "a");
        cluster.settle();
        (0..3).for_each(|_| cluster.review(node));
    }
}

#[test]
fn the_next_pod_of_a_name_has_the_address_of_the_last_one() {
    let mut cluster = Cluster::with_pool(1, "10.240.0.0/24", 26);
    let first = cluster.attach_as(0, "shop", "p0", sticky("web-0")).unwrap();
    let other = cluster.attach_as(0, "shop", "p1", sticky("web-1")).unwrap();
    cluster.detach(0, "p0");
    cluster.detach(0, "p1");
    cluster.attach_as(0, "shop", "p2", Asked::default()).unwrap();
    // As it is written down.
    let journalled = cluster.nodes[0].replayed();
    cluster.nodes[0].state.leases = journalled.leases;
    assert_eq!(cluster.attach_as(0, "shop", "p3", sticky("web-1")).unwrap(), other);
    assert_ne!(cluster.attach_as(0, "bank", "p4", sticky("web-0")).unwrap(), first, "another namespace's");
    assert_ne!(cluster.attach_as(0, "shop", "p5", sticky("web-1")).unwrap(), other, "somebody has it");
    assert_eq!(cluster.attach_as(0, "shop", "p6", sticky("web-0")).unwrap(), first);
    // By the pod's own name, which here is its sandbox's.
    let own = cluster.attach_as(0, "shop", "p7", sticky("true")).unwrap();
    cluster.detach(0, "p7");
    assert_eq!(cluster.attach_as(0, "shop", "p7", sticky("true")).unwrap(), own);
}

#[test]
fn blocks_of_two_sizes_are_for_whoever_asks() {
    let mut cluster = Cluster::new(1);
    cluster.all_hear(|| pool_for(&["shop"], "red", "10.9.0.0/24", 30));
    cluster.all_hear(|| pool("pods", "10.240.0.0/24", 26));
    // While no API server answers, nothing is claimed twice.
    cluster.attach_as(0, "shop", "a", Asked::default()).unwrap_err();
    cluster.attach_as(0, "shop", "b", Asked::default()).unwrap_err();
    assert_eq!(cluster.nodes[0].orders.len(), 1);
    cluster.nodes[0].hear(Event::Blocks(News::Reviewed));
    cluster.settle();
    cluster.attach_as(0, "shop", "a", Asked::default()).unwrap();
}
