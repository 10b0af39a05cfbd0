//! Load balancer addresses that this node announces: addresses of the link to their network, so that the kernel answers
//! ARP and neighbour solicitations for them also while the agent is away.

use knit_model::problem::Reason;

use super::egress_gateways::add_local_address;
use crate::cluster::ClusterNetwork;
use crate::resolve::Resolved;
use crate::service_announcements::KIND;
use crate::services::Reserved;
use crate::state::{ObjectKey, State};

/// Adds the addresses.
pub(super) fn add(state: &State, cluster: ClusterNetwork<'_>, resolved: &mut Resolved) {
    resolved.requesters.extend(state.service_address_pools().map(|(key, _)| key.clone()));
    let own = cluster.node_routes.and_then(|node_routes| node_routes.local_node.as_ref());
    if state.announcements.active.is_empty() {
        return;
    }
    let reserved = Reserved::of(state);
    for (address, pool) in &state.announcements.active {
        let key = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: pool.clone() };
        let intents = state.objects.get(&key).map(|object| &object.intents[..]).unwrap_or_default();
        // A deleted pool.
        let Some(intent) = intents.first() else { continue };
        // What is wrong with one address must not hide the others.
        let origin = intent.origin.at(format!("address {address}"));
        if reserved.has_announced(*address) {
            let why =
                format!("{address} is not announced: it is an address of a node, or of pods or Services");
            resolved.problem(&key, origin.field, Reason::Conflict, why);
            continue;
        }
        match own.and_then(|own| own.link_for(*address)) {
            Some(link) => add_local_address(&key, *address, link, &origin, resolved),
            None => {
                let why = format!("{address} is not announced: this node has no link for it");
                resolved.problem(&key, origin.field, Reason::NotReady, why);
            }
        }
    }
}
