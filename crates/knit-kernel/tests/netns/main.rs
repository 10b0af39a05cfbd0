//! The kernel layer on the real kernel, in network namespaces. Needs root.
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

mod counters;
mod deletes;
mod faults;
mod features;
mod limits;
mod netns_switch;
mod nft;
mod nft_changes;
mod nft_random;
mod observe;
mod plans;
mod random;
mod redirect;
mod redirect_nodes;
mod services;
mod table_owner;
mod unsupported_kinds;

/// Runs before each test node is created. Network namespaces need no preparation.
fn prepare_kernel() {}
