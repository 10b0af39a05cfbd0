//! The cluster network, the default network of calls. It is an object that Knit writes itself, so it is known from the
//! journal before the API server is reachable.

use std::sync::LazyLock;

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{BridgeIntent, Intent, IntentSpec, NetworkIntent, NodeRoutesIntent};
use knit_model::link::{Attrs, Bridge};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use serde_json::json;

use crate::peers::Peers;
use crate::state::{BridgeKey, ObjectKey, State, StoredObject};

/// The namespace of Knit's own objects.
pub const NAMESPACE: &str = "knit-system";
/// The network's name.
pub const NAME: &str = "cluster-network";
/// The kind of its object.
pub const KIND: &str = "VirtualNetwork";
/// The annotation of its manifest with the node routes.
pub const NODE_ROUTES_ANNOTATION: &str = "knit.opdev.io/node-routes";

/// The cluster network, which every pod is on by default. The node has routes to it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterNetwork<'a> {
    /// The network.
    pub network: &'a NetworkIntent,
    /// Its bridge on the node.
    pub bridge: &'a IfName,
    /// How pods on other nodes are reached.
    pub node_routes: Option<&'a NodeRoutesIntent>,
    /// The other nodes.
    pub peers: &'a Peers,
}

/// The key of its object.
pub fn key() -> ObjectKey {
    KEY.clone()
}

/// Every step of the engine looks it up.
static KEY: LazyLock<ObjectKey> = LazyLock::new(|| ObjectKey {
    kind: KIND.to_owned(),
    namespace: NAMESPACE.to_owned(),
    name: NAME.to_owned(),
});

/// The network's id in leases.
pub fn network_id() -> String {
    format!("{NAMESPACE}/network/{NAME}")
}

/// The object of the cluster network with these ranges and node routes.
pub fn object(
    ranges: &[IpNet],
    bridge: &IfName,
    mtu: Option<u32>,
    node_routes: Option<&NodeRoutesIntent>,
) -> StoredObject {
    let object = ObjectRef {
        kind: KIND.to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: NAME.to_owned(),
        uid: NAME.to_owned(),
        generation: 1,
    };
    let origin = |field: &str| Provenance {
        dialect: Dialect::Knit,
        object: Some(object.clone()),
        field: field.to_owned(),
        call: None,
    };
    let network =
        NetworkIntent { name: NAME.to_owned(), ranges: ranges.to_vec(), isolated: false, mtu, overlay: None };
    let attrs = Attrs { mtu, ..Attrs::default() };
    let on_node = BridgeIntent {
        name: bridge.clone(),
        ranges: ranges.to_vec(),
        attrs,
        bridge: Bridge::default(),
        port: None,
    };
    let mut intents = vec![
        Intent { origin: origin("spec"), spec: IntentSpec::Network(network) },
        Intent { origin: origin("spec.subnets"), spec: IntentSpec::Bridge(on_node) },
    ];
    let mut annotations = json!({ "knit.opdev.io/bridge": bridge });
    if let Some(node_routes) = node_routes {
        annotations[NODE_ROUTES_ANNOTATION] = json!(node_routes).to_string().into();
        let origin = origin(&format!("metadata.annotations[{NODE_ROUTES_ANNOTATION}]"));
        intents.push(Intent { origin, spec: IntentSpec::NodeRoutes(node_routes.clone()) });
    }
    let mut spec = json!({ "subnets": ranges });
    if let Some(mtu) = mtu {
        spec["mtu"] = json!(mtu);
    }
    let manifest = json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": KIND,
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "uid": NAME,
            "generation": 1,
            "annotations": annotations,
        },
        "spec": spec,
    });
    StoredObject { object, intents, warnings: Vec::new(), manifest, since: 0, file: None }
}

impl State {
    /// The cluster network, if there is one.
    pub fn cluster(&self) -> Option<ClusterNetwork<'_>> {
        let intents = &self.objects.get(&KEY)?.intents;
        let network = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::Network(network) => Some(network),
            _ => None,
        })?;
        let bridge = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::Bridge(bridge) => Some(&bridge.name),
            _ => None,
        })?;
        let node_routes = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::NodeRoutes(node_routes) => Some(node_routes),
            _ => None,
        });
        Some(ClusterNetwork { network, bridge, node_routes, peers: &self.peers })
    }
}

impl ClusterNetwork<'_> {
    /// Whether this is the cluster network.
    pub fn is(&self, namespace: &str, name: &str) -> bool {
        namespace == NAMESPACE && name == NAME
    }

    /// The key of its bridge.
    pub fn bridge_key(&self) -> BridgeKey {
        BridgeKey { namespace: NAMESPACE.to_owned(), name: self.bridge.clone() }
    }
}
