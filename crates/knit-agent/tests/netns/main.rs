//! The agent's decisions applied to the real kernel, in network namespaces. Needs root.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

mod api_server_faults;
mod batch_deletion;
mod chosen_addresses;
mod egress_gateways;
mod faults;
mod namespace_settings;
mod network_attachments;
mod network_policy;
mod node_routes;
mod overlay;
mod policies_on_interfaces;
mod repair;
mod service_announcements;
mod services;
mod shared_definitions;
mod table_owner;
mod tunnel_ports;

#[path = "../support"]
mod support {
    #![allow(dead_code, reason = "shared with the VM tests")]
    pub mod agent_process;
    pub mod announcing_cluster;
    pub mod api_objects;
    pub mod api_requests;
    pub mod api_server;
    pub mod cluster_agent;
    pub mod egress_cluster;
    pub mod fault_steps;
    pub mod interface_policies;
    pub mod overlay_cluster;
    pub mod packet_capture;
    pub mod routed_cluster;
    pub mod test_host;
}
