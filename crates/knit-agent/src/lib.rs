//! Knit on a node: the engine's host. It has the kernel, the journal and the clock; the engine decides.
//!
//! [`Node`] carries out the engine's effects. [`Standalone`] is a node whose objects come from files and whose pods are
//! network namespaces: Knit on one machine, without a cluster. [`daemon::Daemon`] is a node that runs on and is asked over
//! a socket; [`run`] makes a program of it. [`beside`] feeds it from an API server and a container runtime.

mod announce;
pub mod capacity;
pub mod chain;
pub mod cluster_network;
pub mod cni;
pub mod config;
pub mod daemon;
pub mod error;
mod forward;
pub mod hands;
pub mod http;
pub mod keys;
pub mod kubernetes;
pub mod log;
pub mod metrics;
pub mod node;
mod nri;
mod pod;
pub mod run;
pub mod sandboxes;
pub mod services;
mod sockets;
pub mod standalone;
mod visit;

pub use error::{Error, Result};
pub use node::Node;
pub use standalone::Standalone;
