//! The network that every pod is on unless it says otherwise: an object that Knit writes itself.

use ipnet::IpNet;
use knit_engine::cluster::{KIND, NAME, NAMESPACE};
use knit_engine::{Event, StoredObject};
use knit_model::IfName;
use knit_model::intent::{BridgeWant, Intent, NetworkWant, Want, WaysWant};
use knit_model::link::{Attrs, Bridge};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use serde_json::json;

use crate::daemon::Cluster;

/// Its bridge on the node.
pub const BRIDGE: &str = "knit0";

/// Where the manifest says how the network goes on from this node.
const WAYS: &str = "knit.opdev.io/ways";

impl Cluster {
    /// The cluster's network with these ranges, and how it goes on from this node.
    pub fn new(ranges: &[IpNet], bridge: &IfName, mtu: Option<u32>, ways: &WaysWant) -> Self {
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
        let mut intents = vec![
            Intent { origin: origin("spec"), want: Want::Network(network) },
            Intent { origin: origin("spec.subnets"), want: Want::Bridge(on_node) },
        ];
        let mut annotations = json!({ "knit.opdev.io/bridge": bridge });
        if *ways != WaysWant::default() {
            annotations[WAYS] = json!(ways).to_string().into();
            let origin = origin(&format!("metadata.annotations[{WAYS}]"));
            intents.push(Intent { origin, want: Want::Ways(ways.clone()) });
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
        Self(StoredObject { object, intents, warnings: Vec::new(), manifest, since: 0, file: None })
    }

    /// How the engine hears of it.
    pub fn applied(&self) -> Event {
        Event::ObjectApplied(self.0.clone())
    }

    /// The same with the MTU of another: pods on it keep what they have.
    pub(crate) fn with_mtu_of(mut self, other: &Self) -> Self {
        let mtu = other.0.intents.iter().find_map(|intent| match &intent.want {
            Want::Network(network) => network.mtu,
            _ => None,
        });
        for intent in &mut self.0.intents {
            match &mut intent.want {
                Want::Network(network) => network.mtu = mtu,
                Want::Bridge(bridge) => bridge.attrs.mtu = mtu,
                _ => {}
            }
        }
        if let Some(spec) = self.0.manifest["spec"].as_object_mut() {
            spec.remove("mtu");
            spec.extend(mtu.map(|mtu| ("mtu".to_owned(), json!(mtu))));
        }
        self
    }

    /// Its ranges on this node.
    pub(crate) fn ranges(&self) -> Vec<IpNet> {
        let networks = self.0.intents.iter().filter_map(|intent| match &intent.want {
            Want::Network(network) => Some(network.ranges.clone()),
            _ => None,
        });
        networks.flatten().collect()
    }

    /// Whether its ranges are blocks of pools.
    pub(crate) fn is_pooled(&self) -> bool {
        let mut wants = self.0.intents.iter().map(|intent| &intent.want);
        wants.any(|want| matches!(want, Want::Ways(ways) if !ways.pools.is_empty()))
    }

    /// What pods on it depend on: everything but how it goes on from this node; of pools, only the range of its own address.
    pub(crate) fn for_pods(&self, is_pooled: bool) -> serde_json::Value {
        let mut manifest = self.0.manifest.clone();
        if is_pooled {
            manifest["spec"]["subnets"] = serde_json::Value::Null;
        }
        if let Some(annotations) = manifest["metadata"]["annotations"].as_object_mut() {
            annotations.remove(WAYS);
        }
        manifest
    }
}
