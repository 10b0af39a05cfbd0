//! Clocks that jump: leases of running pods are never freed, and released addresses are reused in the same order.

use knit_engine::Event;
use knit_engine::blocks::BlockEvent;

use crate::support::pools_cluster::PoolCluster;

/// Milliseconds of a year.
const YEAR: u64 = 365 * 86_400_000;
/// Unix time of the start, in milliseconds.
const START: u64 = 1_800_000_000_000;
/// Where the clock jumps to, one after the other.
const JUMPS: [u64; 6] = [START + YEAR, START, 0, START + 50 * YEAR, START - YEAR, u64::MAX - (1 << 32)];

/// A node with four pods on two of its blocks, and two released addresses.
fn node() -> (PoolCluster, Vec<String>) {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 29);
    cluster.nodes[0].clock = START;
    let mut given = Vec::new();
    for number in 0..6 {
        given.extend(cluster.attach(0, &format!("p{number}")).unwrap());
        cluster.settle();
    }
    for number in [1, 4] {
        cluster.detach(0, &format!("p{number}"));
    }
    assert_eq!(given.len(), 6);
    (cluster, vec![given[0].clone(), given[2].clone(), given[3].clone(), given[5].clone()])
}

/// The addresses with a live lease.
fn leased(cluster: &PoolCluster) -> Vec<String> {
    let leases = cluster.nodes[0].state.leases.iter();
    let live = leases.filter(|(_, _, lease)| lease.is_live());
    live.map(|(_, address, _)| format!("{address}/29")).collect()
}

/// What an agent does after a start: it reads its journal, the blocks, and compares with the kernel.
fn restart(cluster: &mut PoolCluster) {
    let node = &mut cluster.nodes[0];
    node.state = node.replayed();
    node.handle(Event::Blocks(BlockEvent::UsePools { node: "node0".to_owned() }));
    let mut blocks: Vec<_> = cluster.blocks.values().cloned().collect();
    blocks.iter_mut().for_each(|block| block.is_local = true);
    node.handle(Event::Blocks(BlockEvent::Listed(blocks)));
    node.handle(Event::Resync);
    cluster.settle();
}

#[test]
fn no_lease_is_freed_by_a_clock_that_jumps() {
    let (mut cluster, mut running) = node();
    running.sort_unstable();
    assert_eq!(leased(&cluster), running);
    for clock in JUMPS {
        cluster.nodes[0].clock = clock;
        cluster.nodes[0].handle(Event::Resync);
        (0..8).for_each(|_| cluster.review(0));
        assert_eq!(leased(&cluster), running, "after a jump to {clock}");
        restart(&mut cluster);
        assert_eq!(leased(&cluster), running, "after a jump to {clock} and a restart");
        // Other pods take all other addresses of the node's blocks, and none of those.
        let mut others = Vec::new();
        for number in 0..8 {
            if let Ok(given) = cluster.attach(0, &format!("q{number}")) {
                others.extend(given);
            }
            cluster.settle();
        }
        assert!(others.len() >= 6, "{others:?}");
        assert!(others.iter().all(|address| !running.contains(address)), "{others:?} and {running:?}");
        (0..8).for_each(|number| cluster.detach(0, &format!("q{number}")));
        cluster.settle();
        // The pods keep what they have when they are attached again.
        assert_eq!(cluster.attach(0, "p0").unwrap(), running[..1]);
    }
}

#[test]
fn released_addresses_are_reused_in_the_order_of_their_release_whatever_the_clock_says() {
    let mut cluster = PoolCluster::with_pool(1, "10.240.0.0/24", 29);
    let given: Vec<String> =
        (0..5).flat_map(|number| cluster.attach(0, &format!("p{number}")).unwrap()).collect();
    // Each release is earlier than the one before, by the clock.
    for (number, clock) in [(3, START + YEAR), (0, START), (2, 0)] {
        cluster.nodes[0].clock = clock;
        cluster.detach(0, &format!("p{number}"));
    }
    let again: Vec<String> =
        (0..3).flat_map(|number| cluster.attach(0, &format!("q{number}")).unwrap()).collect();
    assert_eq!(again, [given[3].clone(), given[0].clone(), given[2].clone()]);
}
