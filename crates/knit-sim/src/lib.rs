//! Thousands of nodes in one process: the agents' and the controller's own decisions, without a kernel and without a
//! network.
//!
//! Each node is a [`knit_engine::State`] that hears events through [`knit_engine::step`], as it does in an agent of the
//! profile `primary`: pods are attached to the cluster's network by calls, and pods of tenants get a second interface with
//! an address of a range that nodes share. The controller is [`knit_controller::step`]. What is made up is everything
//! around them: the kernel, the API server, the runtime, the clock, and what goes wrong with each.
//!
//! Everything follows from the seed: the same seed gives the same history, event by event. What always has to hold is
//! checked while it runs; a failure names the seed and the last events.

mod api;
mod check;
mod cluster;
mod controller;
mod counts;
mod dice;
#[path = "../../knit-model/tests/support/kernel.rs"]
#[allow(dead_code, reason = "the kernel of the models' own tests, of which a part is needed here")]
mod kernel;
mod node;
mod queue;
mod scenario;
mod trace;

use std::fmt;

pub use api::Fault;
pub use counts::{Counts, Spread};
pub use dice::Dice;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes.
    pub nodes: usize,
    /// How many pods at a time.
    pub pods: usize,
    /// Everything follows from it.
    pub seed: u64,
    /// For so many minutes pods come and go and things go wrong, on the simulated clock.
    pub minutes: u64,
    /// How many of a hundred pods are replaced in a minute.
    pub churn: u64,
    /// What is wrong on purpose.
    pub fault: Option<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 5_000, pods: 150_000, seed: 1, minutes: 10, churn: 5, fault: None }
    }
}

/// Something that must not happen, and what came before it.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Failure {
    /// The seed that shows it again.
    pub seed: u64,
    /// What is wrong, in words.
    pub what: String,
    /// The last events that have to do with it, oldest first.
    pub last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "seed {}: {}", self.seed, self.what)?;
        self.last.iter().try_for_each(|line| writeln!(out, "  {line}"))
    }
}

/// Simulates, and says what was counted. `tell` hears now and then how far it is.
pub fn run(options: &Options, tell: impl FnMut(&str)) -> Result<Counts, Failure> {
    cluster::Cluster::new(options.clone()).run(tell)
}
