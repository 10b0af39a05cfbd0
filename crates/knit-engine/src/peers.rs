//! The other nodes of the cluster: each is an item of its own, so that a node that joins or leaves does not rewrite the others.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use knit_model::intent::PeerNode;

use crate::cluster;
use crate::event::{Record, Unit};
use crate::packet_filter;
use crate::resolve;
use crate::state::State;
use crate::step::Effects;

/// The other nodes by name.
pub type Peers = BTreeMap<String, PeerNode>;

/// The complete list of other nodes, of which only the differences are recorded.
pub(crate) fn on_peers(state: &mut State, peers: Vec<PeerNode>, effects: &mut Effects) {
    let names: BTreeSet<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
    let removed = state.peers.keys().filter(|name| !names.contains(name.as_str())).cloned();
    let removed: Vec<String> = removed.collect();
    let is_new = |peer: &PeerNode| state.peers.get(&peer.name) != Some(peer);
    let applied: Vec<PeerNode> = peers.into_iter().filter(is_new).collect();
    if removed.is_empty() && applied.is_empty() {
        return;
    }
    let of_peer = |peer: &PeerNode| -> Vec<IpNet> {
        peer.ranges.iter().copied().chain(peer.all_addresses().map(IpNet::from)).collect()
    };
    let new_ranges: Vec<IpNet> = applied.iter().flat_map(of_peer).collect();
    effects.record(state, Record::Peers { applied, removed });
    // A tenant's bridge loses a range that a node has now, and may get one that no node has any more.
    let affected = resolve::bridges_with_ranges(state, &new_ranges);
    state.dirty.extend(affected);
    if state.cluster().is_some_and(|cluster| cluster.node_routes.is_some()) {
        state.dirty.insert(Unit::NodeRoutes);
        packet_filter::on_peers_change(state);
        effects.changed(BTreeSet::from([cluster::key()]));
    }
}
