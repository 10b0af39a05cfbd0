//! Pools and ranges that are made smaller or deleted while pods use them: nothing live is freed.

use knit_engine::{Event, StoredObject};
use knit_model::SandboxId;
use knit_model::problem::Reason;

use crate::support::node::{Node, object, sandbox, scope, veth, with_eth0};
use crate::support::pools_cluster::{PoolCluster, net, pool, pool_deleted};

/// The addresses with a live lease.
fn leased(node: &Node) -> Vec<String> {
    let leases = node.state.leases.iter();
    leases.filter(|(_, _, lease)| lease.is_live()).map(|(_, address, _)| address.to_string()).collect()
}

/// Attaches twelve pods, on three blocks of a pool.
fn twelve_pods() -> (PoolCluster, Vec<String>) {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 29);
    let mut given = Vec::new();
    for number in 0..12 {
        given.extend(cluster.attach(0, &format!("p{number}")).unwrap());
        cluster.settle();
    }
    assert_eq!((given.len(), cluster.blocks_of(0).len()), (12, 3));
    (cluster, given)
}

#[test]
fn pods_keep_their_addresses_when_their_pool_is_made_smaller() {
    let (mut cluster, given) = twelve_pods();
    let before = leased(&cluster.nodes[0]);
    cluster.broadcast(|| pool("pods", "10.240.0.0/28", 29));
    for _ in 0..8 {
        cluster.review(0);
    }
    assert_eq!(leased(&cluster.nodes[0]), before);
    for (number, address) in given.iter().enumerate() {
        assert_eq!(cluster.attach(0, &format!("p{number}")).unwrap(), std::slice::from_ref(address));
    }
    // New pods get addresses of what is left of the pool, or an error that names it.
    let mut refused = None;
    for number in 0..12 {
        match cluster.attach(0, &format!("q{number}")) {
            Ok(new) => assert!(net("10.240.0.0/28").contains(&net(&new[0]).addr()), "{new:?}"),
            Err(problem) => refused = Some(problem),
        }
        cluster.settle();
    }
    let refused = refused.expect("the pool is exhausted");
    assert_eq!(refused.reason, Reason::AddressesExhausted, "{refused}");
    assert!(refused.message.contains("pool pods (10.240.0.0/28)"), "{refused}");
    assert_eq!(cluster.nodes[0].state.unclaimed(false), 0);
}

#[test]
fn pods_keep_their_addresses_when_their_pool_is_deleted() {
    let (mut cluster, given) = twelve_pods();
    let before = leased(&cluster.nodes[0]);
    cluster.broadcast(|| pool_deleted("pods"));
    for _ in 0..8 {
        cluster.review(0);
    }
    assert_eq!(leased(&cluster.nodes[0]), before);
    assert_eq!(cluster.blocks_of(0).len(), 3, "other nodes must not claim them");
    for (number, address) in given.iter().enumerate() {
        assert_eq!(cluster.attach(0, &format!("p{number}")).unwrap(), std::slice::from_ref(address));
    }
    for number in 0..12 {
        cluster.detach(0, &format!("p{number}"));
    }
    for _ in 0..8 {
        cluster.review(0);
    }
    assert!(cluster.blocks.is_empty(), "{:?}", cluster.blocks);
}

/// All addresses that are leased on any node, and all blocks, without duplicates or overlaps.
fn assert_unique(cluster: &PoolCluster) {
    let mut all: Vec<String> = cluster.nodes.iter().flat_map(leased).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "an address is leased twice");
    let blocks: Vec<_> = cluster.blocks.values().map(|block| (block.cidr, &block.node)).collect();
    for (at, (one, node)) in blocks.iter().enumerate() {
        let overlapping = blocks[..at].iter().find(|(other, _)| knit_ipam::overlaps(*one, *other));
        assert_eq!(overlapping, None, "{one} of {node}: {blocks:?}");
    }
}

#[test]
fn a_pool_that_replaces_another_gives_no_address_that_pods_of_any_node_still_have() {
    // The new range has another first address, so its blocks have other numbers. The pool has the same or another name.
    let replacements = [
        ("pods", "10.240.0.16/28"),
        ("pods", "10.240.0.0/26"),
        ("other", "10.240.0.8/29"),
        ("other", "10.240.0.0/27"),
        ("other", "10.240.0.0/26"),
    ];
    for (name, range) in replacements {
        let mut cluster = PoolCluster::with_pool(2, "10.240.0.0/27", 29);
        for node in [0, 1] {
            for number in 0..6 {
                cluster.attach(node, &format!("p{number}")).unwrap();
                cluster.settle();
            }
        }
        let before: Vec<Vec<String>> = cluster.nodes.iter().map(leased).collect();
        cluster.broadcast(|| pool_deleted("pods"));
        cluster.broadcast(|| pool(name, range, 29));
        for node in [0, 1] {
            for number in 0..6 {
                // Without a free block the attach fails.
                let _ = cluster.attach(node, &format!("q{number}"));
                cluster.settle();
                assert_unique(&cluster);
            }
            cluster.review(node);
            assert!(before[node].iter().all(|address| leased(&cluster.nodes[node]).contains(address)));
        }
        assert_unique(&cluster);
    }
}

/// A Veth object of this generation.
fn range(range: &str, generation: i64) -> StoredObject {
    let mut object = object("Veth", "shop", "net", vec![veth("x", "net", "br0", range)]);
    object.object.generation = generation;
    object
}

#[test]
fn pods_keep_their_addresses_when_the_range_of_their_object_is_made_smaller() {
    let names: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut node = Node::with_kernel(with_eth0(&names));
    node.handle(Event::ObjectApplied(range("10.0.0.0/28", 1)));
    for (name, number) in names[..8].iter().zip(1..) {
        node.handle(Event::SandboxUpdated(sandbox(name, number, "shop", "x")));
    }
    let before = leased(&node);
    assert_eq!(before.len(), 8);
    node.handle(Event::ObjectApplied(range("10.0.0.0/29", 2)));
    assert_eq!((leased(&node), node.problems("net")), (before.clone(), Vec::new()));
    let addresses = |node: &Node| addresses_of(node, &names[..8]);
    let on_links = addresses(&node);
    assert!(on_links.iter().zip(&before).all(|(on_link, lease)| on_link.starts_with(lease)), "{on_links:?}");
    let key = node.state.objects.keys().find(|key| key.name == "net").unwrap().clone();
    let warnings = node.state.report(&key).unwrap().warnings;
    let expected =
        "keeps 10.0.0.7: network shop/br0 range 10.0.0.0/29 is exhausted: all 5 addresses are in use";
    assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:?}");
    // A new pod is denied. Comparisons with the kernel and restarts change nothing.
    node.handle(Event::SandboxUpdated(sandbox("p8", 9, "shop", "x")));
    assert!(node.problems("net")[0].contains("range 10.0.0.0/29 is exhausted"), "{:?}", node.problems("net"));
    node.state = node.replayed();
    node.handle(Event::Resync);
    assert_eq!((leased(&node), addresses(&node)), (before.clone(), on_links));
    // Pods that end make room for those outside of the range first: they are there longer.
    node.handle(Event::SandboxRemoved(SandboxId("p0".to_owned())));
    node.handle(Event::SandboxRemoved(SandboxId("p8".to_owned())));
    node.handle(Event::Resync);
    assert_eq!(leased(&node).len(), 7);
    assert_eq!(addresses_of(&node, &names[1..8]).len(), 7);
}

/// The addresses of the pods' interfaces in the kernel, in the order of the pods.
fn addresses_of(node: &Node, pods: &[&str]) -> Vec<String> {
    let observed = node.kernel.observe();
    let of = |pod: &&str| {
        let addresses = observed.scopes[&scope(pod)].addresses.values();
        addresses.map(|address| address.address.to_string()).collect::<Vec<_>>()
    };
    pods.iter().flat_map(of).collect()
}
