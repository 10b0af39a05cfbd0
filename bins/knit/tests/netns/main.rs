//! The agent, the CNI plugin and the commands on a real kernel, in network namespaces. Needs root.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod agent_config;
mod agent_faults;
mod agent_kills;
mod anti_spoofing;
mod attach;
mod client_commands;
mod cni;
mod cni_addresses;
mod cni_chain;
mod cni_faults;
mod cni_install;
mod doctor;
mod ebpf_redirect;
mod extension_faults;
mod extensions;
mod grpc_fuzz;
mod kernel_errors;
mod kinds;
mod link_specs;
mod local_api;
mod local_api_faults;
mod missing_kernel_support;
mod missing_tun_device;
mod nri;
mod packet_filter;
mod pod_sockets;
mod policy_commands;
mod python_client;
mod quiet_restart;
mod recent_recording;
mod socket_flood;
mod standalone_commands;
mod state_recovery;
mod support;
mod virtual_machines;
mod walkthrough;
