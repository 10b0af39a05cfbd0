//! Link kinds and features that only a full kernel has, in a guest.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "../support"]
mod support {
    #![allow(dead_code, reason = "each test program uses a part of it")]
    pub mod coverage;
    pub mod edits;
    pub mod faults;
    pub mod l2;
    pub mod node;
    pub mod states;
}

mod bridge_vlans;
mod features;
mod l2_kinds;
mod tunnels;
mod wireguard;

use std::process::Command;
use std::sync::Once;

/// Loads the modules that create fallback devices in every network namespace (`gre0`, `sit0`, ...). They must exist
/// before the first test node: a test that runs meanwhile would take them for links that were left behind.
fn prepare_kernel() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let modules = ["geneve", "ip_gre", "ip6_gre", "ipip", "sit", "ip6_tunnel"];
        let done = Command::new("modprobe").arg("-a").args(modules).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    });
}
