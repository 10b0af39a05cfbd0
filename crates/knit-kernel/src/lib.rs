//! The kernel room: everything that Knit says to the kernel, and hears from it.
//!
//! - [`netlink`] builds, sends and reads netlink messages. It is synchronous and knows no link kind.
//! - [`apply`] carries out plans, or takes them back; [`fault`] makes them fail where a test wants it.
//! - [`observe`] says what the kernel holds, in the model's words.
//! - [`nft`] puts Knit's own tables into the packet filter.
//! - [`connections`] has the kernel forget connections, so that they are decided anew.
//! - [`redirect`] hands packets from pod to pod, past the bridge.
//! - [`features`] finds out, by trying, what this kernel offers.
//! - [`counters`] and [`nics`] say what went through links, and what NICs the host has; [`devices`] which NIC is a device's;
//!   [`ways`] which addresses are on which link.
//! - [`announce`] tells neighbours on a link that an address is here now.
//! - [`sockets`] opens the sockets that pods ask for, inside their namespaces.
//! - [`netns`] holds network namespaces by descriptor, and opens sockets inside them.
//!
//! This crate knows no Kubernetes object and no RPC. All unsafe code is in one private module, `sys`.

pub mod announce;
pub mod apply;
pub mod connections;
pub mod counters;
pub mod devices;
pub mod error;
pub mod fault;
pub mod features;
pub mod kernel;
mod kinds;
mod lent;
pub mod memory;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod nics;
pub mod notices;
pub mod observe;
mod reap;
pub mod redirect;
pub mod secrets;
pub mod sockets;
mod sys;
mod verify;
pub mod ways;

pub use apply::{Applied, ApplyError, Deletes, RollBack};
pub use error::{Error, Result};
pub use kernel::{Kernel, Places};
pub use netlink::{Message, Socket};
pub use netns::Netns;
pub use observe::{Look, ScopeLook, sysctls, use_sysctls_at};
pub use secrets::Secrets;
