//! Pools and leases: which attachment holds which address of which network.
//!
//! No I/O and no clock: every answer follows from the leases and the arguments. What always holds:
//!
//! - an address of a network has at most one live lease; two networks know nothing of each other;
//! - only `release*`, `garbage_collect` and `restore` end a lease: time never does, whatever the clock says;
//! - the same leases and the same question give the same address, before and after they were on disk.

pub mod block;
pub mod error;
pub mod lease;
pub mod leases;
mod number;
pub mod overlap;
pub mod pool;
mod runs;

pub use block::{Split, last_quarter};
pub use error::AllocError;
pub use lease::{AttachmentId, Key, Lease, Released, Time};
pub use leases::{Capacity, LeaseRequest, Leases, RESTING_MAX};
pub use number::bounds;
pub use overlap::{forbidden, overlaps};
pub use pool::{Part, Pool};
