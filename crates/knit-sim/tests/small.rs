//! A small cluster, with every kind of trouble, on several seeds; and faults on purpose, each of which has to be noticed.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use knit_sim::{Fault, Options, run};

fn small(seed: u64) -> Options {
    Options { nodes: 40, pods: 600, seed, minutes: 3, churn: 20, fault: None }
}

#[test]
fn a_small_cluster_comes_to_rest_and_leaves_nothing_behind() {
    for seed in 1..=3 {
        let counts = run(&small(seed), |_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(counts.pods > 800 && counts.claimed > 20, "{counts:?}");
        assert_eq!(counts.claimed, counts.given_back);
        let troubles = [counts.restarts, counts.partitions, counts.kernel_failures, counts.replays];
        assert!(troubles.iter().all(|count| *count > 0), "seed {seed}: {counts:?}");
    }
}

#[test]
fn the_same_seed_has_the_same_history() {
    let history = |seed| format!("{:?}", run(&small(seed), |_| {}).unwrap());
    assert_eq!(history(9), history(9));
    assert_ne!(history(9), history(10));
}

fn noticed(fault: Fault) -> String {
    let options = Options { fault: Some(fault), ..small(1) };
    let failure = run(&options, |_| {}).expect_err("the fault is noticed");
    assert!(failure.seed == 1 && !failure.last.is_empty(), "{failure}");
    failure.what
}

#[test]
fn an_api_server_that_takes_a_second_block_is_noticed() {
    let what = noticed(Fault::TakesASecondBlock);
    assert!(what.contains("twice"), "{what}");
}

#[test]
fn blocks_that_stay_are_noticed() {
    let what = noticed(Fault::KeepsBlocks);
    assert!(what.contains("was not given back"), "{what}");
}

#[test]
fn a_journal_that_loses_something_is_noticed() {
    let what = noticed(Fault::LosesBlockGone);
    assert!(what.contains("the journal does not give the state"), "{what}");
}
