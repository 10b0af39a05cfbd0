//! Announces addresses that moved to this node to its neighbours (gratuitous ARP, unsolicited neighbour advertisements), so that
//! they update stale neighbour entries. Used for gateway addresses and for pods on overlay networks.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use knit_kernel::l2_announcement::L2Announcement;
use knit_kernel::{Netns, SandboxNamespaces};
use knit_model::{IfName, Plan, Scope, Step};

/// Announcements per address: a neighbour may miss one.
const ANNOUNCEMENTS: u32 = 3;
/// The pause between two announcements.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(300);

/// Announces the gateway addresses that a plan adds to host links: once before this returns, then again from a thread.
pub(crate) fn announce_gateways(host: &Netns, plan: &Plan) {
    announce(new_addresses(plan).map(|(link, address)| (host, link, address)));
}

/// Announces the pod addresses that a plan marks for announcement.
pub(crate) fn announce_pods(namespaces: &SandboxNamespaces, plan: &Plan) {
    announce(plan.announced_addresses.iter().filter_map(|(scope, link, address)| match scope {
        Scope::Host => None,
        Scope::Sandbox(id) => Some((namespaces.netns(id)?, link, *address)),
    }));
}

fn announce<'a>(addresses: impl Iterator<Item = (&'a Netns, &'a IfName, IpAddr)>) {
    let mut ready = Vec::new();
    for (netns, link, address) in addresses {
        match L2Announcement::prepare(netns, link, address) {
            Ok(one) => ready.extend(one),
            Err(why) => tracing::warn!(error = %why, %address, "cannot announce the address to neighbours"),
        }
    }
    if ready.is_empty() {
        return;
    }
    send(&ready);
    let repeat = move || {
        for _ in 1..ANNOUNCEMENTS {
            thread::sleep(ANNOUNCE_INTERVAL);
            send(&ready);
        }
    };
    if let Err(why) = thread::Builder::new().name("knit-announce".to_owned()).spawn(repeat) {
        tracing::warn!(error = %why, "addresses are announced only once");
    }
}

fn send(ready: &[L2Announcement]) {
    for one in ready {
        if let Err(why) = one.send() {
            tracing::warn!(error = %why, "cannot announce the address to neighbours");
        }
    }
}

/// The gateway addresses that a plan adds. They are deprecated: the node never uses them as source addresses itself.
fn new_addresses(plan: &Plan) -> impl Iterator<Item = (&IfName, IpAddr)> {
    let on_host = plan.steps.iter().filter(|planned| planned.scope == Scope::Host);
    on_host.filter_map(|planned| match &planned.step {
        Step::AddAddress(address) if address.deprecated => Some((&address.link, address.address.addr())),
        _ => None,
    })
}
