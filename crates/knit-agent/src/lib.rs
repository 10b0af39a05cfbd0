//! Knit on a node: the engine's host. It has the kernel, the journal and the clock; the engine decides.
//!
//! [`Node`] carries out the engine's effects. [`Standalone`] is a node whose objects come from files and whose pods are
//! network namespaces: Knit on one machine, without a cluster.

pub mod error;
pub mod keys;
pub mod node;
pub mod sandboxes;
pub mod standalone;

pub use error::{Error, Result};
pub use node::Node;
pub use standalone::Standalone;
