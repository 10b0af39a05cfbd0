//! The eBPF fast path: which ports and which pods of other nodes it covers.
//!
//! Ports without anti-spoofing must not use the fast path: the program identifies a pod by its source address. If the fast path is
//! unavailable, packets take the bridge: this is logged, and no attach fails.

use std::sync::Arc;

use knit_engine::packet_filter::{GuardedPort, PacketFilter};
use knit_kernel::Kernel;
use knit_kernel::redirect::{self, Redirect};

/// Enables the fast path for exactly the guarded ports that allow it.
pub(crate) fn update(redirect: &Redirect, kernel: &Kernel, all: &PacketFilter) {
    let desired = redirect::RedirectSpec {
        ports: ports(&all.guarded_ports),
        bridge: all.bridge.clone(),
        ranges: Arc::clone(&all.node_routes),
    };
    if let Err(why) = redirect.apply(kernel.host(), &desired) {
        tracing::warn!(error = %why, "fast path unavailable: all packets between pods take the bridge");
    }
}

fn ports(guarded: &[GuardedPort]) -> Vec<redirect::RedirectPort> {
    let eligible = guarded.iter().filter(|port| port.fast_path);
    let ports = eligible.filter_map(|port| {
        let mac = *port.macs.first()?;
        Some(redirect::RedirectPort { link: port.link.clone(), mac, addresses: port.addresses.clone() })
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_allow_it_use_the_fast_path() {
        let port = |link: &str, direct| GuardedPort {
            link: link.parse().unwrap(),
            macs: ["02:00:00:00:00:01".parse().unwrap()].into(),
            addresses: ["10.75.0.2".parse().unwrap()].into(),
            fast_path: direct,
        };
        let ports = ports(&[port("a", true), port("b", false)]);
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].link.as_str(), "a");
    }
}
