//! Packets between pods that go past the bridge: which ports that is for, and which pods of other nodes.
//!
//! Only for guarded ports: what is not guarded may speak in many names, and the program knows a pod by its name. Where it cannot be
//! done packets take the bridge, which is slower and nothing else: so it is said, and no attach fails for it.

use std::sync::Arc;

use knit_engine::forward::{Forwarding, Port};
use knit_kernel::Kernel;
use knit_kernel::redirect::{self, Redirect};

/// Has packets of exactly the guarded ports go past the bridge, as far as they may.
pub(crate) fn apply(redirect: &Redirect, kernel: &Kernel, all: &Forwarding) {
    let wanted = redirect::Wanted {
        ports: ports(&all.guarded),
        bridge: all.bridge.clone(),
        ranges: Arc::clone(&all.beyond),
    };
    if let Err(why) = redirect.apply(kernel.host(), &wanted) {
        tracing::warn!(%why, "packets between pods all take the bridge");
    }
}

fn ports(guarded: &[Port]) -> Vec<redirect::Port> {
    let direct = guarded.iter().filter(|port| port.direct);
    let one = direct.filter_map(|port| {
        let mac = *port.macs.first()?;
        Some(redirect::Port { link: port.link.clone(), mac, addresses: port.addresses.clone() })
    });
    one.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_may_be_passed_by_are() {
        let port = |link: &str, direct| Port {
            link: link.parse().unwrap(),
            macs: ["02:00:00:00:00:01".parse().unwrap()].into(),
            addresses: ["10.75.0.2".parse().unwrap()].into(),
            direct,
        };
        let ports = ports(&[port("a", true), port("b", false)]);
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].link.as_str(), "a");
    }
}
