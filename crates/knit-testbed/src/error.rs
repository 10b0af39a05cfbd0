//! Errors of observations.
//!
//! Building a topology never returns an error: a test cannot continue without it, so those calls panic, which also
//! prints the testbed's state. Only observations (`ping`, `sysctl`, ...) return these errors.

use std::io;
use std::process::ExitStatus;

/// Hint for machines that do not allow network namespaces.
pub(crate) const ADVICE: &str =
    "run as root, or `cargo xtask test netns`, which uses user namespaces when the machine allows them";

/// Why an observation failed or did not show the expected result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Network namespaces cannot be created, or there is no directory for their names.
    #[error("cannot create network namespaces: {cause}; {ADVICE}")]
    NotAllowed {
        /// The cause.
        cause: String,
    },
    /// The namespace was deleted because its testbed is closed.
    #[error("namespace {namespace} is deleted: its testbed is closed")]
    Closed {
        /// The namespace's name.
        namespace: String,
    },
    /// A system call on the namespace failed.
    #[error("namespace {namespace}: cannot {action}: {source}")]
    System {
        /// The namespace's name.
        namespace: String,
        /// The attempted action.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error(
        "namespace {namespace}: cannot start `{command}`: {source}; `cargo xtask deps` shows missing packages"
    )]
    Start {
        /// The namespace's name.
        namespace: String,
        /// The program and its arguments.
        command: String,
        /// Why it did not start.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("namespace {namespace}: `{command}` failed ({status}): {stderr}")]
    Failed {
        /// The namespace's name.
        namespace: String,
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// A program printed something other than JSON.
    #[error("namespace {namespace}: `{command}` did not print JSON: {source}")]
    NotJson {
        /// The namespace's name.
        namespace: String,
        /// The program and its arguments.
        command: String,
        /// Where parsing failed.
        source: serde_json::Error,
    },
    /// A sysctl cannot be read or written.
    #[error("namespace {namespace}: sysctl {key}: {source}")]
    Sysctl {
        /// The namespace's name.
        namespace: String,
        /// The sysctl as the test named it.
        key: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// No reply.
    #[error("{from} does not reach {to} over {protocol}: {reason}")]
    Unreachable {
        /// The sending namespace.
        from: String,
        /// The address without a reply.
        to: String,
        /// `ping`, `tcp` or `udp`.
        protocol: &'static str,
        /// The reason.
        reason: String,
    },
}
