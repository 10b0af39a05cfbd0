//! The CNI plugin: each CNI command of a container runtime becomes one call of the node agent.
//!
//! The plugin makes no decisions and changes nothing itself. It validates the environment and standard input, calls the
//! agent on its socket, and prints the result in the requested CNI version. Everything but the socket, and the file beside it with the
//! time of the last successful STATUS, is pure functions.

mod args;
mod capabilities;
mod commands;
mod config;
mod environment;
mod error;
mod prev_result;
mod request;
mod result;
mod socket;
mod version;

pub use commands::{AgentTransport, run};
pub use environment::{Command, Environment};
pub use error::CniError;
pub use socket::{AgentSocket, boot_time_nanos};
pub use version::Version;

/// The result of one CNI command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Standard output: a result or an error.
    pub output: String,
    /// Standard error: warnings for the log of the runtime.
    pub warnings: Vec<String>,
    /// Whether the command succeeded.
    pub success: bool,
}
