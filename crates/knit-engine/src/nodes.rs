//! The nodes of the cluster, as their Node objects describe them. The API server has them: they are not persistent. What
//! follows from them for routes ([`crate::peers`]) is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::PublicKey;
use knit_model::connected_routes::ConnectedRoutes;
use serde::{Deserialize, Serialize};

use crate::egress;
use crate::overlay::{self, TunnelConfig};
use crate::peers;
use crate::service_announcements;
use crate::state::State;
use crate::step::Effects;

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Whether it is this node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_local: bool,
    /// The pod ranges in its spec.
    pub ranges: Vec<IpNet>,
    /// Its InternalIP addresses.
    pub addresses: Vec<IpAddr>,
    /// Its other addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_addresses: Vec<IpAddr>,
    /// Whether its Ready condition is true.
    pub is_ready: bool,
    /// Its published WireGuard public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
}

impl NodeInfo {
    /// Its addresses of all types.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.iter().chain(&self.other_addresses)
    }
}

/// A change of the nodes, or of how they are reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeEvent {
    /// The complete list of nodes.
    Listed(Vec<NodeInfo>),
    /// A node was created or changed.
    Applied(NodeInfo),
    /// A node was deleted.
    Deleted(String),
    /// The connected routes of this node, with the profile `primary`.
    Connected(ConnectedRoutes),
}

/// The known nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// All nodes by name; `None` until they are listed, so that nothing is concluded from a missing one.
    all: Option<BTreeMap<String, NodeInfo>>,
    /// The connected routes of this node; `None` if Knit does not route between nodes.
    connected: Option<ConnectedRoutes>,
    /// The overlay tunnels of this node; `None` until its links are known.
    pub(crate) tunnels: Option<TunnelConfig>,
}

impl Nodes {
    /// Whether the nodes are listed.
    pub(crate) fn has_synced(&self) -> bool {
        self.all.is_some()
    }

    /// All nodes that are known.
    pub(crate) fn all(&self) -> impl Iterator<Item = &NodeInfo> {
        self.all.iter().flat_map(BTreeMap::values)
    }

    /// A node by name.
    pub(crate) fn get(&self, name: &str) -> Option<&NodeInfo> {
        self.all.as_ref()?.get(name)
    }

    /// Whether a node is known to be Ready.
    pub(crate) fn is_ready(&self, name: &str) -> bool {
        self.get(name).is_some_and(|node| node.is_ready)
    }

    /// The other nodes and the connected routes, if both are known.
    pub(crate) fn routed(&self) -> Option<(&BTreeMap<String, NodeInfo>, &ConnectedRoutes)> {
        self.all.as_ref().zip(self.connected.as_ref())
    }
}

/// Changes the nodes: what follows from which of them are Ready is decided again.
fn on_readiness_change(state: &mut State, change: impl FnOnce(&mut State), effects: &mut Effects) {
    egress::on_node_change(state, change, effects);
    service_announcements::on_node_change(state, effects);
}

/// Handles a change of nodes. Most updates of a Node are heartbeats, which change nothing here. Returns whether addresses of nodes
/// or pod ranges may have changed.
pub(crate) fn handle(state: &mut State, event: NodeEvent, effects: &mut Effects) -> bool {
    let (changed, is_address_change) = match event {
        NodeEvent::Connected(connected) => {
            if state.nodes.connected.as_ref() == Some(&connected) {
                return false;
            }
            state.nodes.connected = Some(connected);
            peers::update_all(state, effects);
            return true;
        }
        NodeEvent::Listed(listed) => {
            let listed: BTreeMap<String, NodeInfo> =
                listed.into_iter().map(|node| (node.name.clone(), node)).collect();
            if state.nodes.all.as_ref() == Some(&listed) {
                return false;
            }
            on_readiness_change(state, |state| state.nodes.all = Some(listed), effects);
            overlay::update_underlay(state, effects);
            peers::update_all(state, effects);
            return true;
        }
        NodeEvent::Applied(node) => {
            let Some(known) = &state.nodes.all else { return false };
            let before = known.get(&node.name);
            if before == Some(&node) {
                return false;
            }
            let has_same = |is_same: fn(&NodeInfo, &NodeInfo) -> bool| {
                before.is_some_and(|before| is_same(before, &node))
            };
            let same_readiness = has_same(|before, node| before.is_ready == node.is_ready);
            let same_addresses = has_same(|before, node| {
                before.all_addresses().eq(node.all_addresses()) && before.ranges == node.ranges
            });
            let name = node.name.clone();
            let insert = |state: &mut State| {
                state.nodes.all.as_mut().and_then(|all| all.insert(node.name.clone(), node));
            };
            match same_readiness {
                true => insert(state),
                false => on_readiness_change(state, insert, effects),
            }
            (name, !same_addresses)
        }
        NodeEvent::Deleted(name) => {
            if state.nodes.get(&name).is_none() {
                return false;
            }
            let remove = |state: &mut State| {
                state.nodes.all.as_mut().and_then(|all| all.remove(&name));
            };
            on_readiness_change(state, remove, effects);
            (name, true)
        }
    };
    overlay::update_underlay(state, effects);
    peers::update(state, &BTreeSet::from([changed]), effects);
    is_address_change
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_and_readiness_change_no_addresses() {
        let (mut state, mut effects) = (State::default(), Effects::default());
        let mut handle = |event: NodeEvent| super::handle(&mut state, event, &mut effects);
        let node = NodeInfo {
            name: "a".to_owned(),
            ranges: vec!["10.75.1.0/24".parse().unwrap()],
            addresses: vec!["192.0.2.9".parse().unwrap()],
            ..NodeInfo::default()
        };
        let listed = || NodeEvent::Listed(vec![node.clone()]);
        assert_eq!([listed(), listed()].map(&mut handle), [true, false]);
        let applied = |change: fn(&mut NodeInfo)| {
            let mut node = node.clone();
            change(&mut node);
            NodeEvent::Applied(node)
        };
        assert!(!handle(applied(|_| ())), "a heartbeat");
        assert!(!handle(applied(|node| node.is_ready = true)));
        assert!(handle(applied(|node| node.addresses.clear())));
        assert!(handle(applied(|_| ())));
        assert!(handle(applied(|node| node.ranges.clear())));
        assert!(handle(applied(|_| ())));
        assert!(handle(applied(|node| node.other_addresses = vec!["203.0.113.9".parse().unwrap()])));
        assert!(handle(applied(|node| node.name = "b".to_owned())), "a new node");
        let gone = || NodeEvent::Deleted("b".to_owned());
        assert_eq!([gone(), gone()].map(handle), [true, false]);
    }
}
