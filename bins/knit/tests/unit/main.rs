//! The commands without a kernel and without a cluster.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod cli;
mod client;
mod fake_agent;
mod policy;
#[cfg(feature = "cluster")]
mod preflight;
