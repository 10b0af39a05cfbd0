//! The other nodes of the cluster, as routes to them need them: each is an item of its own, so that a node that joins or
//! leaves does not rewrite the others. They follow from the nodes, the blocks of pools and this node's connected routes.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::intent::PeerNode;

use crate::blocks::{Block, BlockEvent};
use crate::cluster;
use crate::event::{Record, Unit};
use crate::nodes::NodeInfo;
use crate::packet_filter;
use crate::resolve;
use crate::state::State;
use crate::step::Effects;

/// The other nodes by name.
pub type Peers = BTreeMap<String, PeerNode>;

/// The nodes whose pod ranges a change of blocks may change.
pub(crate) fn holders(state: &State, event: &BlockEvent) -> BTreeSet<String> {
    let all = state.blocks.remote.values().map(|block| &block.node);
    let holder = |name: &str| state.blocks.remote.get(name).map(|block| &block.node);
    match event {
        BlockEvent::Listed(listed) => all.chain(listed.iter().map(|block| &block.node)).cloned().collect(),
        BlockEvent::Applied(block) => holder(&block.name).into_iter().chain([&block.node]).cloned().collect(),
        BlockEvent::Deleted { name, .. } => holder(name).into_iter().cloned().collect(),
        _ => BTreeSet::new(),
    }
}

/// Computes all peers again.
pub(crate) fn update_all(state: &mut State, effects: &mut Effects) {
    let Some((nodes, _)) = state.nodes.routed() else { return };
    let names = nodes.keys().chain(state.peers.keys()).cloned().collect();
    update(state, &names, effects);
}

/// Computes these peers again, and records those that changed.
pub(crate) fn update(state: &mut State, names: &BTreeSet<String>, effects: &mut Effects) {
    let Some((nodes, connected)) = state.nodes.routed().filter(|_| !names.is_empty()) else { return };
    let mut blocks: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
    for block in state.blocks.remote.values().filter(|block| names.contains(&block.node)) {
        if is_of_pool(block) {
            blocks.entry(&block.node).or_default().push(block.cidr);
        }
    }
    let (mut applied, mut removed) = (Vec::new(), Vec::new());
    for name in names {
        let blocks = blocks.remove(name.as_str()).unwrap_or_default();
        let peer = nodes.get(name).and_then(|node| peer(node, blocks, connected));
        match (peer, state.peers.get(name)) {
            (Some(peer), known) if known != Some(&peer) => applied.push(peer),
            (None, Some(_)) => removed.push(name.clone()),
            _ => {}
        }
    }
    if !applied.is_empty() || !removed.is_empty() {
        record(state, applied, removed, effects);
    }
}

fn record(state: &mut State, applied: Vec<PeerNode>, removed: Vec<String>, effects: &mut Effects) {
    let of_peer = |peer: &PeerNode| -> Vec<IpNet> {
        peer.ranges.iter().copied().chain(peer.all_addresses().map(IpNet::from)).collect()
    };
    let new_ranges: Vec<IpNet> = applied.iter().flat_map(of_peer).collect();
    effects.record(state, Record::Peers { applied, removed });
    // A tenant's bridge loses a range that a node has now, and may get one that no node has any more.
    let affected = resolve::bridges_with_ranges(state, &new_ranges);
    state.dirty.extend(affected);
    packet_filter::on_reserved_ranges(state, &new_ranges);
    if state.cluster().is_some_and(|cluster| cluster.node_routes.is_some()) {
        state.dirty.insert(Unit::NodeRoutes);
        packet_filter::on_peers_change(state);
        effects.changed(BTreeSet::from([cluster::key()]));
    }
}

/// Whether a block is a pod range of its node.
fn is_of_pool(block: &Block) -> bool {
    block.pool_key().is_some_and(|pool| pool.is_pod_address_pool())
}

/// A node with these blocks of pools, as routes to it need it; `None` without pods. The transport is chosen later.
fn peer(node: &NodeInfo, mut blocks: Vec<IpNet>, connected: &ConnectedRoutes) -> Option<PeerNode> {
    let mut ranges = node.ranges.clone();
    ranges.append(&mut blocks);
    if node.is_local || ranges.is_empty() {
        return None;
    }
    // Routes need a peer on the same link: a router in between does not know the pod ranges.
    let link_for = |address| connected.link_for(address).cloned();
    let addresses = node.addresses.iter().filter_map(|address| Some((*address, link_for(*address)?)));
    let off_link = node.addresses.iter().filter(|address| link_for(**address).is_none());
    Some(PeerNode {
        name: node.name.clone(),
        ranges,
        addresses: addresses.collect(),
        off_link_addresses: off_link.copied().collect(),
        key: node.key,
    })
}
