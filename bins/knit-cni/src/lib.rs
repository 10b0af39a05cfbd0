//! The CNI shim: what a container runtime asks in the Container Network Interface becomes a call of the node's agent.
//!
//! It decides nothing and touches nothing: it reads environment and standard input, checks them, asks the agent on its
//! socket, and writes the answer in the words of the specification's version that was asked for. All of it but the socket
//! is plain functions, so that tests can hand them anything.

mod args;
mod capabilities;
mod config;
mod environment;
mod failure;
mod prior;
mod request;
mod result;
mod verbs;
mod version;
mod wire;

pub use environment::{Command, Environment};
pub use failure::Failure;
pub use verbs::{Ask, run};
pub use version::Version;
pub use wire::{Socket, since_boot};

/// What a runtime is told: what goes to standard output, what to standard error, and whether it worked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For the runtime.
    pub output: String,
    /// For whoever reads the runtime's log.
    pub words: Vec<String>,
    /// Whether it worked.
    pub success: bool,
}
