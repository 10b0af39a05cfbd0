//! The kernel room: everything that Knit says to the kernel, and hears from it.
//!
//! - [`netlink`] builds, sends and reads netlink messages. It is synchronous and knows no link kind.
//! - [`features`] finds out, by trying, what this kernel offers.
//! - [`netns`] holds network namespaces by descriptor, and opens sockets inside them.
//!
//! This crate knows no Kubernetes object and no RPC. All unsafe code is in one private module, `sys`.

pub mod error;
pub mod features;
pub mod netlink;
pub mod netns;
mod sys;

pub use error::{Error, Result};
pub use netlink::{Message, Socket};
pub use netns::Netns;
