//! The network that every pod is on unless it says otherwise: an object that Knit writes itself.

use ipnet::IpNet;
use knit_engine::StoredObject;
use knit_engine::cluster::{KIND, NAME, NAMESPACE};
use knit_model::IfName;
use knit_model::intent::{BridgeWant, Intent, NetworkWant, Want};
use knit_model::link::{Attrs, Bridge};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use serde_json::json;

use crate::daemon::Cluster;

/// Its bridge on the node.
pub const BRIDGE: &str = "knit0";

impl Cluster {
    /// The cluster's network with these ranges.
    pub fn new(ranges: &[IpNet], bridge: &IfName, mtu: Option<u32>) -> Self {
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
        let network = NetworkWant { name: NAME.to_owned(), ranges: ranges.to_vec(), isolated: false, mtu };
        let attrs = Attrs { mtu, ..Attrs::default() };
        let on_node = BridgeWant {
            name: bridge.clone(),
            ranges: ranges.to_vec(),
            attrs,
            bridge: Bridge::default(),
            port: None,
        };
        let intents = vec![
            Intent { origin: origin("spec"), want: Want::Network(network) },
            Intent { origin: origin("spec.subnets"), want: Want::Bridge(on_node) },
        ];
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
                "annotations": { "knit.opdev.io/bridge": bridge },
            },
            "spec": spec,
        });
        Self(StoredObject { object, intents, warnings: Vec::new(), manifest, since: 0, file: None })
    }
}
