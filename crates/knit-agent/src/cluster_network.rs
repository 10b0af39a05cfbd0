//! The cluster network: the default network of all pods, an object that Knit creates itself.

use ipnet::IpNet;
use knit_engine::{Event, cluster};
use knit_model::IfName;
use knit_model::intent::{IntentSpec, NodeRoutesIntent};
use serde_json::json;

use crate::daemon::ClusterNetworkObject;

/// The name of its bridge on the node.
pub const BRIDGE: &str = "knit0";

impl ClusterNetworkObject {
    /// The cluster network with these ranges and these routes to other nodes.
    pub fn new(
        ranges: &[IpNet],
        bridge: &IfName,
        mtu: Option<u32>,
        routes: Option<&NodeRoutesIntent>,
    ) -> Self {
        Self(cluster::object(ranges, bridge, mtu, routes))
    }

    /// The event that applies it.
    pub fn applied(&self) -> Event {
        Event::ObjectApplied(self.0.clone())
    }

    /// The same network with the MTU of another: running pods keep their MTU.
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

    /// Whether its ranges are blocks of address pools.
    pub(crate) fn is_pooled(&self) -> bool {
        let mut specs = self.0.intents.iter().map(|intent| &intent.spec);
        specs.any(|spec| matches!(spec, IntentSpec::NodeRoutes(routes) if !routes.pools.is_empty()))
    }

    /// The part that running pods depend on: everything but the routes to other nodes; with pools, not the ranges either.
    pub(crate) fn for_pods(&self, is_pooled: bool) -> serde_json::Value {
        let mut manifest = self.0.manifest.clone();
        if is_pooled {
            manifest["spec"]["subnets"] = serde_json::Value::Null;
        }
        if let Some(annotations) = manifest["metadata"]["annotations"].as_object_mut() {
            annotations.remove(cluster::NODE_ROUTES_ANNOTATION);
        }
        manifest
    }
}
