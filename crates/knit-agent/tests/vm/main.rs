//! The agent on a kernel with VRFs and WireGuard, in a virtual machine. Needs root.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

mod encryption;
mod policies_on_interfaces;
mod vrf_faults;
mod vrf_routes;
mod wireguard;

#[path = "../support"]
mod support {
    #![allow(dead_code, reason = "shared with the netns tests")]
    pub mod fault_steps;
    pub mod interface_policies;
    pub mod packet_capture;
    pub mod routed_cluster;
    pub mod test_host;
}
