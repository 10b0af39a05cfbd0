//! Simulates thousands of nodes in one process: the agents' and the controller's real decisions, without a kernel
//! and without a network.
//!
//! Each node is a [`knit_engine::State`] that handles events through [`knit_engine::step`], as in an agent of the
//! profile `primary`: pods are attached to the cluster network by CNI calls, in which extensions take part, with
//! addresses of the node's range or of an address pool. Tenant pods get a second interface with an address of a range
//! that nodes share, and those of NetworkAttachmentDefinitions in their annotation, within the tenant's quota. The
//! controller is [`knit_controller_engine::step`]. Everything around them is simulated: the kernel, the API server, the
//! runtime, extensions, the clock, and their faults.
//!
//! Each node receives the objects, quotas, definitions and blocks of the tenants that may run on it. Nodes with a full
//! view receive those of all tenants, and all other nodes, to which they have routes: [`SimOptions::full_view`].
//!
//! The simulation is deterministic: the same seed gives the same history, event by event. Invariants are checked
//! while it runs; a violation reports the seed and the last events.

mod api_server;
mod cluster;
mod controller;
mod invariants;
#[path = "../../../crates/knit-model/tests/unit/fake_kernel.rs"]
#[allow(dead_code, reason = "shared with the tests of knit-model")]
mod kernel;
mod node;
mod queue;
mod rng;
mod scenario;
mod stats;
mod trace;

use std::fmt;

pub use api_server::PlantedFault;
pub use rng::SeededRng;
pub use stats::{Distribution, SimStats, StepTimes};

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of pods at any time.
    pub pods: usize,
    /// Number of tenants, each with its own objects.
    pub tenants: usize,
    /// Number of nodes that receive everything that the API server has: what all nodes together would hold grows with
    /// the square of the cluster.
    pub full_view: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Simulated minutes with churn and faults.
    pub minutes: u64,
    /// Percentage of pods that are replaced per minute.
    pub churn: u64,
    /// A fault planted on purpose.
    pub fault: Option<PlantedFault>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            nodes: 5_000,
            pods: 150_000,
            tenants: 5_000,
            full_view: 10,
            seed: 1,
            minutes: 10,
            churn: 5,
            fault: None,
        }
    }
}

/// A violated invariant, and the events before it.
#[derive(Clone, Debug, thiserror::Error)]
pub struct InvariantViolation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// What is wrong.
    pub message: String,
    /// The last events of the affected nodes, oldest first.
    pub trace: Vec<String>,
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "seed {}: {}", self.seed, self.message)?;
        self.trace.iter().try_for_each(|line| writeln!(out, "  {line}"))
    }
}

/// Runs a simulation and returns its statistics. `progress` is called regularly with a summary.
pub fn run(options: &SimOptions, progress: impl FnMut(&str)) -> Result<SimStats, InvariantViolation> {
    cluster::Cluster::new(options.clone()).run(progress)
}
