//! The network that a call means when it names none. It is an object like any other, which Knit writes itself; so it is
//! known from what was written down, before anyone is asked.

use knit_model::IfName;
use knit_model::intent::{NetworkWant, Want, WaysWant};

use crate::state::{BridgeKey, ObjectKey, State};

/// The namespace of what Knit brings along.
pub const NAMESPACE: &str = "knit-system";
/// The network's name.
pub const NAME: &str = "cluster-network";
/// The kind of its object.
pub const KIND: &str = "VirtualNetwork";

/// The network that every pod is on unless it says otherwise. The node routes to it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterNetwork<'a> {
    /// The network.
    pub network: &'a NetworkWant,
    /// Its bridge on the node.
    pub bridge: &'a IfName,
    /// How it goes on from there.
    pub ways: Option<&'a WaysWant>,
}

/// The object's identity.
pub fn key() -> ObjectKey {
    ObjectKey { kind: KIND.to_owned(), namespace: NAMESPACE.to_owned(), name: NAME.to_owned() }
}

/// What leases have as the network's id.
pub fn network_id() -> String {
    format!("{NAMESPACE}/network/{NAME}")
}

impl State {
    /// The cluster's network, if there is one.
    pub fn cluster(&self) -> Option<ClusterNetwork<'_>> {
        let intents = &self.objects.get(&key())?.intents;
        let network = intents.iter().find_map(|intent| match &intent.want {
            Want::Network(network) => Some(network),
            _ => None,
        })?;
        let bridge = intents.iter().find_map(|intent| match &intent.want {
            Want::Bridge(bridge) => Some(&bridge.name),
            _ => None,
        })?;
        let ways = intents.iter().find_map(|intent| match &intent.want {
            Want::Ways(ways) => Some(ways),
            _ => None,
        });
        Some(ClusterNetwork { network, bridge, ways })
    }
}

impl ClusterNetwork<'_> {
    /// Whether these names are the network's.
    pub fn is(&self, namespace: &str, name: &str) -> bool {
        namespace == NAMESPACE && name == NAME
    }

    /// Its bridge.
    pub fn bridge_key(&self) -> BridgeKey {
        BridgeKey { namespace: NAMESPACE.to_owned(), name: self.bridge.clone() }
    }
}
