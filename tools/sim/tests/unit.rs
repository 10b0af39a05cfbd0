//! A small cluster with every kind of fault on several seeds; and planted faults, each of which must be detected.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

use knit_sim::{PlantedFault, SimOptions, run};

fn small(seed: u64) -> SimOptions {
    SimOptions { nodes: 24, pods: 300, seed, minutes: 3, churn: 20, fault: None }
}

#[test]
fn small_cluster_converges_and_leaves_nothing_behind() {
    let check = |seed| {
        let stats = run(&small(seed), |_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(stats.pods > 400 && stats.blocks_claimed > 15, "{stats:?}");
        assert_eq!(stats.blocks_claimed, stats.blocks_released);
        let faults = [stats.agent_restarts, stats.partitions, stats.kernel_failures, stats.journal_replays];
        assert!(faults.iter().all(|count| *count > 0), "seed {seed}: {stats:?}");
    };
    std::thread::scope(|scope| (1..=3).for_each(|seed| drop(scope.spawn(move || check(seed)))));
}

#[test]
fn same_seed_gives_the_same_history() {
    let options = |seed| SimOptions { nodes: 8, pods: 80, ..small(seed) };
    let history = |seed| format!("{:?}", run(&options(seed), |_| {}).unwrap());
    assert_eq!(history(9), history(9));
    assert_ne!(history(9), history(10));
}

fn violation(fault: PlantedFault) -> String {
    let options = SimOptions { fault: Some(fault), ..small(1) };
    let failure = run(&options, |_| {}).expect_err("the fault is detected");
    assert!(failure.seed == 1 && !failure.trace.is_empty(), "{failure}");
    failure.message
}

#[test]
fn duplicate_blocks_are_detected() {
    let message = violation(PlantedFault::DuplicateBlocks);
    assert!(message.contains("twice"), "{message}");
}

#[test]
fn ignored_deletes_are_detected() {
    let message = violation(PlantedFault::IgnoredDeletes);
    assert!(message.contains("was not released"), "{message}");
}

#[test]
fn lost_journal_record_is_detected() {
    let message = violation(PlantedFault::LostJournalRecord);
    assert!(message.contains("the replayed journal differs from the state"), "{message}");
}
