//! The eBPF fast path: which ports of pods bypass the bridge, and which pods of other nodes it covers.
//!
//! Ports without anti-spoofing must not use the fast path: the program identifies a pod by its source address. If the fast path is
//! unavailable, packets take the bridge: this is logged, and no attach fails.

use std::sync::Arc;

use knit_engine::packet_filter::{FastPathChange, GuardedPort};
use knit_kernel::Kernel;
use knit_kernel::redirect::{Redirect, RedirectPort, RedirectSpec};

/// Applies a change.
pub(crate) fn update(redirect: &Redirect, kernel: &Kernel, change: &FastPathChange) {
    let result = match change {
        FastPathChange::All(all) => {
            let ports = all.ports.iter().filter_map(port).collect();
            let spec =
                RedirectSpec { ports, bridge: all.bridge.clone(), ranges: Arc::clone(&all.node_routes) };
            redirect.apply(kernel.host(), &spec)
        }
        FastPathChange::Add(ports) => {
            let ports: Vec<RedirectPort> = ports.iter().filter_map(port).collect();
            redirect.add_ports(kernel.host(), &ports)
        }
    };
    if let Err(why) = result {
        tracing::warn!(error = %why, "fast path unavailable: all packets between pods take the bridge");
    }
}

fn port(guarded: &GuardedPort) -> Option<RedirectPort> {
    let mac = *guarded.macs.first()?;
    Some(RedirectPort { link: guarded.link.clone(), mac, addresses: guarded.addresses.clone() })
}
