//! A small cluster with every kind of fault on several seeds; and planted faults, each of which must be detected.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

use knit_sim::{PlantedFault, SimOptions, SimStats, run};

fn small(seed: u64) -> SimOptions {
    SimOptions { nodes: 16, pods: 120, tenants: 12, full_view: 16, seed, minutes: 2, churn: 20, fault: None }
}

#[test]
fn small_cluster_converges_and_leaves_nothing_behind() {
    let check = |seed| {
        let stats = run(&small(seed), |_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(stats.pods > 130 && stats.blocks_claimed > 15, "{stats:?}");
        assert_eq!(stats.blocks_claimed, stats.blocks_released);
        assert!(stats.extension_calls > stats.pods, "{stats:?}");
        stats
    };
    let checks = [4, 8].map(|seed| std::thread::spawn(move || check(seed)));
    let all = checks.map(|check| check.join().unwrap());
    let happened: [fn(&SimStats) -> u64; 13] = [
        |stats| stats.agent_restarts,
        |stats| stats.partitions,
        |stats| stats.kernel_failures,
        |stats| stats.journal_replays,
        |stats| stats.nodes_removed,
        |stats| stats.nodes_joined,
        |stats| stats.routes,
        |stats| stats.quota_claims,
        |stats| stats.quota_conflicts,
        |stats| stats.annotated_pods,
        |stats| stats.annotations_changed,
        |stats| stats.definitions_changed,
        |stats| stats.extensions_replaced,
    ];
    for (index, count) in happened.iter().enumerate() {
        assert!(all.iter().map(count).sum::<u64>() > 0, "number {index} did not happen: {all:?}");
    }
}

#[test]
fn same_seed_gives_the_same_history() {
    let options =
        |seed| SimOptions { nodes: 8, pods: 40, tenants: 8, full_view: 3, minutes: 1, ..small(seed) };
    let history = |seed| format!("{:?}", run(&options(seed), |_| {}).unwrap());
    assert_eq!(history(9), history(9));
    assert_ne!(history(9), history(10));
}

fn violation_in(options: SimOptions, fault: PlantedFault) -> String {
    let options = SimOptions { nodes: 12, full_view: 12, fault: Some(fault), ..options };
    let failure = run(&options, |_| {}).expect_err("the fault is detected");
    assert!(failure.seed == 1 && !failure.trace.is_empty(), "{failure}");
    failure.message
}

fn violation(fault: PlantedFault) -> String {
    violation_in(SimOptions { pods: 60, minutes: 1, ..small(1) }, fault)
}

/// Nodes that compete for the blocks and quotas of two tenants.
fn violation_with_conflicts(fault: PlantedFault) -> String {
    violation_in(SimOptions { pods: 200, tenants: 2, ..small(1) }, fault)
}

#[test]
fn duplicate_blocks_are_detected() {
    let message = violation_with_conflicts(PlantedFault::DuplicateBlocks);
    assert!(message.contains("twice"), "{message}");
}

#[test]
fn ignored_deletes_are_detected() {
    let message = violation(PlantedFault::IgnoredDeletes);
    // Another node waits for the block, or nothing does.
    assert!(message.contains("waits for a block") || message.contains("was not released"), "{message}");
}

#[test]
fn lost_journal_record_is_detected() {
    let message = violation(PlantedFault::LostJournalRecord);
    assert!(message.contains("the replayed journal differs from the state"), "{message}");
}

#[test]
fn routes_to_nodes_that_left_are_detected() {
    let message = violation(PlantedFault::LostNodeDeletions);
    assert!(message.contains("a node that has left"), "{message}");
}

#[test]
fn addresses_outside_of_their_pool_are_detected() {
    let message = violation(PlantedFault::OpenPools);
    assert!(message.contains("not of its pool or node"), "{message}");
}

#[test]
fn claims_beyond_a_quota_are_detected() {
    let message = violation_with_conflicts(PlantedFault::UncheckedClaims);
    assert!(message.contains("nodes claim"), "{message}");
}

#[test]
fn bypassed_extensions_are_detected() {
    let message = violation(PlantedFault::SkippedExtensions);
    assert!(message.contains("was bypassed"), "{message}");
}

#[test]
fn networks_without_an_interface_are_detected() {
    let message = violation(PlantedFault::SkippedNetworks);
    assert!(message.contains("interfaces and no reported problem"), "{message}");
}
