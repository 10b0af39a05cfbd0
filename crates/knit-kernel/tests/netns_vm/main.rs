//! The kernel layer on the real kernel, both in network namespaces and in a guest with a full kernel. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "../support"]
mod support {
    #![allow(dead_code, reason = "each test program uses a part of it")]
    pub mod coverage;
    pub mod edits;
    pub mod faults;
    pub mod node;
    pub mod states;
}

mod moved_devices;
mod netlink;
mod tap;

/// Runs before each test node is created. These tests need no kernel modules beforehand.
fn prepare_kernel() {}
