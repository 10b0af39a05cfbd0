//! The kernel layer: netlink, nftables, network namespaces and eBPF pins.
//!
//! - [`netlink`] builds, sends and decodes netlink messages. It is synchronous and independent of link kinds.
//! - [`observe`] reads the kernel's state into the model's types.
//! - [`decode`] decodes replies of the kernel from bytes.
//! - [`apply`] applies plans and rolls them back; [`fault`] injects failures for tests.
//! - [`nft`] writes Knit's nftables tables.
//! - [`conntrack`] deletes connection tracking entries, so that the next packet is evaluated again.
//! - [`redirect`] is the eBPF fast path between pods.
//! - [`features`] probes which features the kernel supports.
//! - [`counters`], [`nics`] and [`devices`] read link statistics, the host's NICs, and the NIC of a PCI device.
//! - [`connected_routes`] finds the link on which an address is directly reachable.
//! - [`notifications`] reports links that are removed on the host.
//! - [`l2_announcement`] sends gratuitous ARP and unsolicited neighbour advertisements.
//! - [`sockets`] opens sockets inside a pod's network namespace.
//! - [`netns`] holds network namespaces by descriptor.
//!
//! This crate has no knowledge of Kubernetes objects or RPCs. All unsafe code is in the private module `sys`.

pub mod apply;
pub mod connected_routes;
pub mod conntrack;
pub mod counters;
pub mod decode;
mod deferred_delete;
pub mod devices;
pub mod error;
pub mod fault;
pub mod features;
pub mod kernel;
mod kinds;
pub mod l2_announcement;
pub mod memory;
mod moved_device_mark;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod nics;
pub mod notifications;
pub mod observe;
pub mod private_keys;
pub mod redirect;
pub mod sockets;
mod sys;
mod verify;

pub use apply::{AppliedPlan, ApplyError, DeleteMode, Rollback};
pub use error::{Error, Result};
pub use kernel::{Kernel, SandboxNamespaces};
pub use netlink::{Message, Socket};
pub use netns::Netns;
pub use observe::{ScopeQuery, StateQuery, set_sysctl_root, sysctl_root};
pub use private_keys::PrivateKeySource;
