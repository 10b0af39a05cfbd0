//! The network that every pod is on unless it says otherwise: an object that Knit writes itself.

use ipnet::IpNet;
use knit_engine::{Event, cluster};
use knit_model::IfName;
use knit_model::intent::{IntentSpec, NodeRoutesIntent};
use serde_json::json;

use crate::daemon::Cluster;

/// Its bridge on the node.
pub const BRIDGE: &str = "knit0";

impl Cluster {
    /// The cluster's network with these ranges, and how it goes on from this node.
    pub fn new(ranges: &[IpNet], bridge: &IfName, mtu: Option<u32>, ways: &NodeRoutesIntent) -> Self {
        Self(cluster::object(ranges, bridge, mtu, ways))
    }

    /// How the engine hears of it.
    pub fn applied(&self) -> Event {
        Event::ObjectApplied(self.0.clone())
    }

    /// The same with the MTU of another: pods on it keep what they have.
    pub(crate) fn with_mtu_of(mut self, other: &Self) -> Self {
        let mtu = other.0.intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::Network(network) => network.mtu,
            _ => None,
        });
        for intent in &mut self.0.intents {
            match &mut intent.spec {
                IntentSpec::Network(network) => network.mtu = mtu,
                IntentSpec::Bridge(bridge) => bridge.attrs.mtu = mtu,
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
        let networks = self.0.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Network(network) => Some(network.ranges.clone()),
            _ => None,
        });
        networks.flatten().collect()
    }

    /// Whether its ranges are blocks of pools.
    pub(crate) fn is_pooled(&self) -> bool {
        let mut wants = self.0.intents.iter().map(|intent| &intent.spec);
        wants.any(|want| matches!(want, IntentSpec::NodeRoutes(ways) if !ways.pools.is_empty()))
    }

    /// What pods on it depend on: everything but how it goes on from this node; of pools, only the range of its own address.
    pub(crate) fn for_pods(&self, is_pooled: bool) -> serde_json::Value {
        let mut manifest = self.0.manifest.clone();
        if is_pooled {
            manifest["spec"]["subnets"] = serde_json::Value::Null;
        }
        if let Some(annotations) = manifest["metadata"]["annotations"].as_object_mut() {
            annotations.remove(cluster::WAYS);
        }
        manifest
    }
}
