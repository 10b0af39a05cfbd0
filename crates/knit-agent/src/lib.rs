//! Knit on a node: runs the engine with a kernel, a journal and a clock.
//!
//! [`Node`] executes the engine's effects. [`Standalone`] is a node whose objects come from files and whose pods are network namespaces: Knit
//! on one machine, without a cluster. [`daemon::Daemon`] is a long-running node that serves a socket; [`run`] is the agent program.
//! [`kubernetes`] feeds it from an API server and a container runtime.

mod announce;
pub mod capacity;
pub mod cluster_network;
pub mod cni;
pub mod config;
pub mod daemon;
pub mod error;
pub mod executor;
mod host;
pub mod http;
pub mod keys;
pub mod kubernetes;
pub mod log;
pub mod metrics;
pub mod node;
mod nri;
mod packet_filter;
pub mod plugin_chain;
mod pod;
mod process_netns;
pub mod run;
pub mod sandboxes;
pub mod services;
mod sockets;
pub mod standalone;

pub use error::{Error, Result};
pub use node::Node;
pub use standalone::Standalone;
