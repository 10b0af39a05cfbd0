//! IP address management (IPAM): address pools, blocks and leases of attachments.
//!
//! No I/O and no clock: every result is a function of the leases and the arguments. Invariants:
//!
//! - an address of a network has at most one live lease; networks are independent of each other;
//! - only `release*`, `garbage_collect` and `restore` end a lease; leases never expire;
//! - the same leases and the same request give the same address, also after a restart from disk.

pub mod block;
pub mod error;
mod interval_set;
pub mod lease;
pub mod leases;
mod number;
pub mod overlap;
pub mod pool;

pub use block::{BlockLayout, last_quarter};
pub use error::AllocError;
pub use lease::{AttachmentId, Lease, LeaseKey, Release, Time};
pub use leases::{Capacity, LeaseRequest, Leases, MAX_RELEASED};
pub use number::bounds;
pub use overlap::{overlap_message, overlaps};
pub use pool::{Pool, SubRange};
