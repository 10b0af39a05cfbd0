//! Addresses that have just come to this node are announced to the neighbours there: whoever knew them elsewhere would go on to
//! send there for a while. They are a gateway's, or those of a pod on a network that is one on all nodes.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use knit_kernel::announce::Announcement;
use knit_kernel::{Netns, Places};
use knit_model::{IfName, Plan, Scope, Step};

/// A neighbour may miss one.
const TIMES: u32 = 3;
/// Between one and the next.
const PAUSE: Duration = Duration::from_millis(300);

/// Announces the addresses of gateways that a plan has put on links of the host: once before this returns, and again a little later.
pub(crate) fn arrived(host: &Netns, plan: &Plan) {
    tell(new_addresses(plan).map(|(link, address)| (host, link, address)));
}

/// The same for the addresses of pods of which a plan says that neighbours are told.
pub(crate) fn came(places: &Places, plan: &Plan) {
    tell(plan.announced.iter().filter_map(|(scope, link, address)| match scope {
        Scope::Host => None,
        Scope::Sandbox(id) => Some((places.netns(id)?, link, *address)),
    }));
}

fn tell<'a>(addresses: impl Iterator<Item = (&'a Netns, &'a IfName, IpAddr)>) {
    let mut ready = Vec::new();
    for (netns, link, address) in addresses {
        match Announcement::prepare(netns, link, address) {
            Ok(one) => ready.extend(one),
            Err(why) => tracing::warn!(%why, %address, "neighbours are not told of an address"),
        }
    }
    if ready.is_empty() {
        return;
    }
    send(&ready);
    let again = move || {
        for _ in 1..TIMES {
            thread::sleep(PAUSE);
            send(&ready);
        }
    };
    if let Err(why) = thread::Builder::new().name("knit-announce".to_owned()).spawn(again) {
        tracing::warn!(%why, "neighbours are told of an address only once");
    }
}

fn send(ready: &[Announcement]) {
    for one in ready {
        if let Err(why) = one.send() {
            tracing::warn!(%why, "neighbours are not told of an address");
        }
    }
}

/// The addresses of gateways that a plan adds: those that nobody here speaks from by himself.
fn new_addresses(plan: &Plan) -> impl Iterator<Item = (&IfName, IpAddr)> {
    let on_host = plan.steps.iter().filter(|planned| planned.scope == Scope::Host);
    on_host.filter_map(|planned| match &planned.step {
        Step::AddAddress(address) if address.deprecated => Some((&address.link, address.address.addr())),
        _ => None,
    })
}
