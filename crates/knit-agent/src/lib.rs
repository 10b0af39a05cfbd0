//! Knit on a node: runs the engine with a kernel, a journal and a clock.
//!
//! [`Node`] executes the engine's effects. [`Standalone`] is a node whose objects come from files and whose pods are network namespaces: Knit
//! on one machine, without a cluster. [`daemon::Daemon`] is a long-running node that serves a socket; [`run`] is the agent program.
//! The module `kubernetes` feeds it from an API server and a container runtime; it is built with the Cargo feature of that name.

// The event loop and the configuration serve both kinds of nodes.
#![cfg_attr(not(feature = "kubernetes"), allow(dead_code, reason = "used by the module `kubernetes`"))]

mod announce;
mod api_objects;
pub mod capacity;
pub mod cluster_network;
pub mod cni;
pub mod config;
pub mod daemon;
pub mod error;
pub mod executor;
mod fast_path;
mod host;
pub mod http;
pub mod keys;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod log;
pub mod metrics;
pub mod node;
mod nri;
pub mod plugin_chain;
mod pod;
mod pod_networks;
mod policy_drops;
mod process_netns;
mod recorder;
pub mod run;
pub mod sandboxes;
pub mod services;
mod sockets;
pub mod standalone;

pub use error::{Error, Result};
pub use node::Node;
pub use standalone::Standalone;
