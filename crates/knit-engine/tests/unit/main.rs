//! Tests of the engine: events in, effects out, against an in-memory kernel, API server and CNI plugins.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

mod address_blocks;
mod address_pools;
mod address_reuse;
mod annotations;
mod attach_options;
mod bridge_vlans;
mod calls;
mod clock_jumps;
mod cni_chains;
mod conflicts;
mod egress_gateways;
mod encryption;
mod extensions;
mod extensions_with_cni_chains;
mod fuzz_records;
mod host_devices;
mod incremental_observe;
mod interface_limit;
mod missing_kernel_features;
mod node_routes;
mod nodes;
mod overlay;
mod packet_filter;
mod pod_sockets;
mod pod_startup;
mod pod_tunnels;
mod pools_by_namespace;
mod pools_in_use;
mod quota_claims;
mod quotas;
mod reconcile;
mod routing;
mod stacked_interfaces;
mod support;
mod wireguard_keys;
