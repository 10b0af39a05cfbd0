//! Every target over its corpus, and over changed inputs of it: what fuzzing found once is found again without it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod seeds;

use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use knit_fuzz::{TARGETS, Target, corpus, targets};

/// The time for changed inputs of one target.
const TIME: Duration = Duration::from_millis(200);
/// The longest changed input.
const MAX_INPUT: usize = 4_096;
/// What an input consists of the most, in texts and in binary messages.
const TOKENS: [&[u8]; 16] = [
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n---\n",
    b"/",
    b"0",
    b"-1",
    b"255",
    b"99999999999",
    b"null",
    b"\xff\xff",
    b"\0\0\0\0",
];

/// A linear congruential generator: the same inputs in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

/// Changes some bytes, and inserts or removes some.
fn changed(random: &mut Random, input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => {
                let end = (at + random.below(16)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            _ => drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
        }
    }
    bytes.truncate(MAX_INPUT);
    bytes
}

fn run(target: &Target) {
    let inputs = corpus::inputs(target).expect("the corpus can be read");
    assert!(!inputs.is_empty(), "{} has no corpus", target.name);
    for (path, input) in &inputs {
        run_once(target, path, input);
    }
    let (mut random, until) = (Random(1), Instant::now() + TIME);
    while Instant::now() < until {
        let (path, input) = &inputs[random.below(inputs.len())];
        run_once(target, path, &changed(&mut random, input));
    }
}

/// Runs a target, and names the input if it fails.
fn run_once(target: &Target, path: &Path, input: &[u8]) {
    let function = targets::function(target.name).expect("every target has a function");
    if catch_unwind(|| function(input)).is_err() {
        panic!("{} failed, from {}: {}", target.name, path.display(), input.escape_ascii());
    }
}

#[test]
fn no_target_fails_on_its_corpus_and_on_changed_inputs() {
    for target in TARGETS {
        run(target);
    }
}

#[test]
fn changed_inputs_differ() {
    let mut random = Random(1);
    let changed: std::collections::BTreeSet<Vec<u8>> =
        (0..100).map(|_| changed(&mut random, b"0123456789")).collect();
    assert!(changed.len() > 80);
}
