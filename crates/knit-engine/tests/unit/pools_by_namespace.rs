//! Pool selection: pods of a namespace named by a pool use only such pools; fixed and sticky addresses.

use knit_engine::Event;
use knit_engine::blocks::BlockEvent;
use knit_engine::call::InterfaceRequest;
use knit_model::problem::Reason;

use crate::support::pools_cluster::{PoolCluster, net, pool, pool_deleted, pool_for};

/// One fixed address.
fn fixed(address: &str) -> InterfaceRequest {
    InterfaceRequest { addresses: vec![address.parse().unwrap()], ..InterfaceRequest::default() }
}

/// An address kept under a name.
fn sticky(name: &str) -> InterfaceRequest {
    InterfaceRequest { sticky: name.to_owned(), ..InterfaceRequest::default() }
}

fn is_in_range(addresses: &[String], range: &str) -> bool {
    addresses.len() == 1 && net(range).contains(&net(&addresses[0]).addr())
}

#[test]
fn namespace_uses_its_own_pool_only_and_others_never_do() {
    let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    assert_eq!(cluster.blocks_of(0).len(), 1, "no pod of that namespace is on the node yet");
    let rejected = cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap_err();
    assert_eq!(rejected.reason, Reason::NotReady, "{rejected}");
    assert!(rejected.message.contains("pool red (10.9.0.0/24)"), "{rejected}");
    cluster.settle();
    assert_eq!((cluster.blocks_of(0).len(), cluster.blocks_of(1).len()), (2, 1));
    assert!(is_in_range(
        &cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap(),
        "10.9.0.0/24"
    ));
    assert!(is_in_range(
        &cluster.attach_as(0, "web", "b", InterfaceRequest::default()).unwrap(),
        "10.240.0.0/24"
    ));
    cluster.settle();
    assert_eq!(cluster.blocks_of(0).len(), 2);
    // A further block is claimed before the first is full, and released after the last pod of the namespace.
    for number in 0..5 {
        let id = format!("p{number}");
        assert!(is_in_range(
            &cluster.attach_as(0, "shop", &id, InterfaceRequest::default()).unwrap(),
            "10.9.0.0/24"
        ));
        cluster.settle();
    }
    assert_eq!(cluster.blocks_of(0).len(), 3);
    for id in ["a", "p0", "p1", "p2", "p3", "p4"] {
        cluster.detach(0, id);
    }
    (0..40).for_each(|_| cluster.review(0));
    assert_eq!(cluster.blocks_of(0).len(), 1, "the block of the shared pool is kept");
    assert_eq!(cluster.nodes[0].replayed().persistent(), cluster.nodes[0].state.persistent());
}

#[test]
fn block_claimed_for_a_pod_is_kept_until_its_retry() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 27);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap_err();
    cluster.settle();
    (0..5).for_each(|_| cluster.review(0));
    cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap();
    // No pod retries for this block.
    cluster.detach(0, "a");
    (0..3).for_each(|_| cluster.review(0));
    assert_eq!(cluster.blocks_of(0).len(), 1);
    cluster.attach_as(0, "shop", "b", InterfaceRequest::default()).unwrap_err();
    cluster.settle();
    assert_eq!(cluster.blocks_of(0).len(), 2);
    (0..30).for_each(|_| cluster.review(0));
    assert_eq!(cluster.blocks_of(0).len(), 1);
}

#[test]
fn exhausted_pool_is_reported_and_other_namespaces_are_unaffected() {
    let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/29", 30));
    for (node, id) in [(0, "a"), (1, "a")] {
        cluster.attach_as(node, "shop", id, InterfaceRequest::default()).unwrap_err();
        cluster.settle();
        cluster.attach_as(node, "shop", id, InterfaceRequest::default()).unwrap();
        cluster.settle();
    }
    let rejected = cluster.attach_as(0, "shop", "b", InterfaceRequest::default()).unwrap_err();
    assert_eq!(rejected.reason, Reason::AddressesExhausted, "{rejected}");
    assert_eq!(
        rejected.message,
        "network cluster-network: pool red (10.9.0.0/29) is exhausted: all 1 addresses of this node's blocks are in use, \
         and other nodes hold the other 1 blocks"
    );
    cluster.attach_as(0, "web", "b", InterfaceRequest::default()).unwrap();
    // A second pool for the namespace helps.
    cluster.broadcast(|| pool_for(&["shop", "bank"], "more", "10.10.0.0/24", 29));
    cluster.attach_as(0, "shop", "p0", InterfaceRequest::default()).unwrap_err();
    cluster.settle();
    assert!(is_in_range(
        &cluster.attach_as(0, "shop", "p0", InterfaceRequest::default()).unwrap(),
        "10.10.0.0/24"
    ));
}

#[test]
fn running_pods_keep_their_addresses_when_a_pool_of_their_namespace_is_added_or_deleted() {
    let mut cluster = PoolCluster::new(1);
    cluster.settle();
    let before = cluster.attach_as(0, "shop", "old", InterfaceRequest::default()).unwrap();
    assert_eq!(before, ["10.1.0.2/24"]);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    assert_eq!(cluster.attach_as(0, "shop", "old", InterfaceRequest::default()).unwrap(), before);
    assert_eq!(cluster.attach_as(0, "web", "a", InterfaceRequest::default()).unwrap(), ["10.1.0.3/24"]);
    cluster.attach_as(0, "shop", "new", InterfaceRequest::default()).unwrap_err();
    cluster.settle();
    let new = cluster.attach_as(0, "shop", "new", InterfaceRequest::default()).unwrap();
    assert!(is_in_range(&new, "10.9.0.0/24"));
    // The IPv6 pool serves one namespace only: other pods get no IPv6 address, and running pods keep theirs.
    cluster.broadcast(|| pool_for(&["shop"], "six", "fd09::/112", 122));
    assert_eq!(cluster.attach_as(0, "shop", "new", InterfaceRequest::default()).unwrap(), new);
    cluster.attach_as(0, "shop", "p0", InterfaceRequest::default()).unwrap_err();
    cluster.settle();
    assert_eq!(cluster.attach_as(0, "shop", "p0", InterfaceRequest::default()).unwrap().len(), 2);
    assert_eq!(cluster.attach_as(0, "web", "p1", InterfaceRequest::default()).unwrap().len(), 1);
    cluster.broadcast(|| pool_deleted("red"));
    assert!(is_in_range(
        &cluster.attach_as(0, "shop", "new", InterfaceRequest::default()).unwrap()[..1],
        "10.9.0.0/24"
    ));
    let last = cluster.attach_as(0, "shop", "b", InterfaceRequest::default()).unwrap();
    assert!(last[0].starts_with("10.1.0."), "{last:?}");
}

#[test]
fn fixed_address_is_allocated_on_the_node_that_holds_its_block() {
    let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/24", 27);
    let theirs = cluster.blocks_of(1)[0];
    let address = theirs.hosts().nth(6).unwrap().to_string();
    let rejected = cluster.attach_as(0, "web", "a", fixed(&address)).unwrap_err();
    assert_eq!(rejected.reason, Reason::Conflict, "{rejected}");
    assert!(rejected.message.contains("which node node1 holds"), "{rejected}");
    assert_eq!(cluster.attach_as(1, "web", "a", fixed(&address)).unwrap(), [format!("{address}/27")]);
    let rejected = cluster.attach_as(1, "web", "b", fixed(&address)).unwrap_err();
    assert!(rejected.message.contains("is in use by interface eth0 of pod web/a"), "{rejected}");
    // A free block is claimed, and the retry succeeds.
    let free = (0..8).map(|index| net(&format!("10.240.0.{}/27", index * 32)));
    let free =
        free.into_iter().find(|block| cluster.blocks.values().all(|held| held.cidr != *block)).unwrap();
    let address = free.hosts().nth(3).unwrap().to_string();
    let rejected = cluster.attach_as(0, "web", "b", fixed(&address)).unwrap_err();
    assert_eq!(rejected.reason, Reason::NotReady, "{rejected}");
    cluster.settle();
    assert!(cluster.blocks_of(0).contains(&free));
    assert_eq!(cluster.attach_as(0, "web", "b", fixed(&address)).unwrap(), [format!("{address}/27")]);
    let rejected = cluster.attach_as(0, "web", "p0", fixed("10.7.0.9")).unwrap_err();
    assert_eq!(rejected.reason, Reason::InvalidValue, "{rejected}");
    let gateway = free.hosts().next().unwrap().to_string();
    let rejected = cluster.attach_as(0, "web", "p0", fixed(&gateway)).unwrap_err();
    assert!(rejected.message.contains("it is the gateway address of the bridge"), "{rejected}");
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 29));
    let rejected = cluster.attach_as(0, "web", "p0", fixed("10.9.0.10")).unwrap_err();
    assert_eq!(rejected.reason, Reason::NotAllowed, "{rejected}");
    assert!(rejected.message.contains("pool red, which pods of namespace web cannot use"), "{rejected}");
}

#[test]
fn fixed_address_moves_with_its_pod_once_its_block_is_released() {
    let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/24", 27);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 30));
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
fn sticky_name_gets_the_previous_address() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 26);
    let first = cluster.attach_as(0, "shop", "p0", sticky("web-0")).unwrap();
    let other = cluster.attach_as(0, "shop", "p1", sticky("web-1")).unwrap();
    cluster.detach(0, "p0");
    cluster.detach(0, "p1");
    cluster.attach_as(0, "shop", "p2", InterfaceRequest::default()).unwrap();
    // From the journal.
    let journalled = cluster.nodes[0].replayed();
    cluster.nodes[0].state.leases = journalled.leases;
    assert_eq!(cluster.attach_as(0, "shop", "p3", sticky("web-1")).unwrap(), other);
    assert_ne!(cluster.attach_as(0, "bank", "p4", sticky("web-0")).unwrap(), first, "another namespace");
    assert_ne!(cluster.attach_as(0, "shop", "p5", sticky("web-1")).unwrap(), other, "the address is in use");
    assert_eq!(cluster.attach_as(0, "shop", "p6", sticky("web-0")).unwrap(), first);
    // Sticky by the pod's own name, which here is the sandbox ID.
    let own = cluster.attach_as(0, "shop", "p7", sticky("true")).unwrap();
    cluster.detach(0, "p7");
    assert_eq!(cluster.attach_as(0, "shop", "p7", sticky("true")).unwrap(), own);
}

#[test]
fn pools_with_different_block_sizes_coexist() {
    let mut cluster = PoolCluster::new(1);
    cluster.broadcast(|| pool_for(&["shop"], "red", "10.9.0.0/24", 30));
    cluster.broadcast(|| pool("pods", "10.240.0.0/24", 26));
    // While the API server does not answer, nothing is claimed twice.
    cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap_err();
    cluster.attach_as(0, "shop", "b", InterfaceRequest::default()).unwrap_err();
    assert_eq!(cluster.nodes[0].block_requests.len(), 1);
    cluster.nodes[0].handle(Event::Blocks(BlockEvent::ReviewDue));
    cluster.settle();
    cluster.attach_as(0, "shop", "a", InterfaceRequest::default()).unwrap();
}
