//! The network that a call means when it names none. It is an object like any other, which Knit writes itself; so it is
//! known from what was written down, before anyone is asked.

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{BridgeIntent, Intent, IntentSpec, NetworkIntent, NodeRoutesIntent};
use knit_model::link::{Attrs, Bridge};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use serde_json::json;

use crate::state::{BridgeKey, ObjectKey, State, StoredObject};

/// The namespace of what Knit brings along.
pub const NAMESPACE: &str = "knit-system";
/// The network's name.
pub const NAME: &str = "cluster-network";
/// The kind of its object.
pub const KIND: &str = "VirtualNetwork";
/// The annotation in which its manifest says how it goes on from the node.
pub const WAYS: &str = "knit.opdev.io/ways";

/// The network that every pod is on unless it says otherwise. The node routes to it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterNetwork<'a> {
    /// The network.
    pub network: &'a NetworkIntent,
    /// Its bridge on the node.
    pub bridge: &'a IfName,
    /// How it goes on from there.
    pub ways: Option<&'a NodeRoutesIntent>,
}

/// The object's identity.
pub fn key() -> ObjectKey {
    ObjectKey { kind: KIND.to_owned(), namespace: NAMESPACE.to_owned(), name: NAME.to_owned() }
}

/// What leases have as the network's id.
pub fn network_id() -> String {
    format!("{NAMESPACE}/network/{NAME}")
}

/// The object of the network with these ranges, and how it goes on from this node. Knit writes it itself.
pub fn object(ranges: &[IpNet], bridge: &IfName, mtu: Option<u32>, ways: &NodeRoutesIntent) -> StoredObject {
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
        NetworkIntent { name: NAME.to_owned(), ranges: ranges.to_vec(), isolated: false, mtu, span: None };
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
    if *ways != NodeRoutesIntent::default() {
        annotations[WAYS] = json!(ways).to_string().into();
        let origin = origin(&format!("metadata.annotations[{WAYS}]"));
        intents.push(Intent { origin, spec: IntentSpec::NodeRoutes(ways.clone()) });
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
    /// The cluster's network, if there is one.
    pub fn cluster(&self) -> Option<ClusterNetwork<'_>> {
        let intents = &self.objects.get(&key())?.intents;
        let network = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::Network(network) => Some(network),
            _ => None,
        })?;
        let bridge = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::Bridge(bridge) => Some(&bridge.name),
            _ => None,
        })?;
        let ways = intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::NodeRoutes(ways) => Some(ways),
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
