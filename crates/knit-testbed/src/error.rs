//! What can go wrong while a test looks at its world.
//!
//! Making the world never returns an error: a test cannot go on without it, so that those calls panic, which
//! also makes the testbed print its state. Only observations (`ping`, `sysctl`, ...) answer with these.

use std::io;
use std::process::ExitStatus;

/// What to do when the machine does not let us make namespaces.
pub(crate) const ADVICE: &str =
    "run as root, or `cargo xtask test netns`, which uses user namespaces when the machine allows them";

/// Why an observation could not be made, or did not see what the test hoped for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses to make network namespaces, or there is no place to show them by name.
    #[error("may not make network namespaces: {cause}; {ADVICE}")]
    NotAllowed {
        /// What was refused.
        cause: String,
    },
    /// The namespace is gone because its testbed is closed.
    #[error("namespace {namespace} is gone: its testbed was closed")]
    Closed {
        /// The namespace's name.
        namespace: String,
    },
    /// A system call on the namespace failed.
    #[error("namespace {namespace}: cannot {action}: {source}")]
    System {
        /// The namespace's name.
        namespace: String,
        /// What was tried.
        action: String,
        /// The kernel's answer.
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
        /// What it complained about.
        stderr: String,
    },
    /// A program printed something that is not the JSON we asked for.
    #[error("namespace {namespace}: `{command}` did not print JSON: {source}")]
    NotJson {
        /// The namespace's name.
        namespace: String,
        /// The program and its arguments.
        command: String,
        /// Where the text stops being JSON.
        source: serde_json::Error,
    },
    /// A sysctl cannot be read or written.
    #[error("namespace {namespace}: sysctl {key}: {source}")]
    Sysctl {
        /// The namespace's name.
        namespace: String,
        /// The sysctl as the test named it.
        key: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There was no answer.
    #[error("{from} does not reach {to} by {protocol}: {reason}")]
    Unreached {
        /// The namespace that asked.
        from: String,
        /// The address that did not answer.
        to: String,
        /// `ping`, `tcp` or `udp`.
        protocol: &'static str,
        /// What was seen instead.
        reason: String,
    },
}
