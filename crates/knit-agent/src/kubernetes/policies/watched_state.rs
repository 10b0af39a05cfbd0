//! The subset of a PodNetworkState that policies need. Other fields are dropped while parsing.

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_crds::states::PodNetworkState;
use knit_policy::{PodKey, PodNetworks};
use serde::Deserialize;

/// A watched PodNetworkState.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawState")]
pub(super) struct WatchedState {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    uid: String,
    networks: PodNetworks,
}

impl WatchedState {
    /// The pod, its uid and its addresses on additional networks.
    pub(super) fn into_networks(self) -> (PodKey, (String, PodNetworks)) {
        let namespace = self.metadata.namespace.unwrap_or_default();
        let key = PodKey { namespace, name: self.metadata.name.unwrap_or_default() };
        (key, (self.uid, self.networks))
    }
}

/// The fields that are parsed.
#[derive(Deserialize)]
struct RawState {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(rename = "podUID")]
    pod_uid: String,
    objects: Vec<Applied>,
}

#[derive(Deserialize)]
struct Applied {
    #[serde(default)]
    interfaces: Vec<Interface>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interface {
    networks: Vec<String>,
    addresses: Vec<String>,
}

impl From<RawState> for WatchedState {
    fn from(raw: RawState) -> Self {
        let Metadata { name, namespace, resource_version } = raw.metadata;
        let mut networks = PodNetworks::new();
        for interface in raw.status.objects.into_iter().flat_map(|object| object.interfaces) {
            let parsed = interface.addresses.iter().filter_map(|text| text.parse::<IpNet>().ok());
            let addresses: Vec<_> = parsed.map(|address| address.addr()).collect();
            for network in interface.networks {
                networks.entry(network).or_default().extend(&addresses);
            }
        }
        Self {
            metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() },
            uid: raw.status.pod_uid,
            networks,
        }
    }
}

impl_resource_subset!(WatchedState, PodNetworkState);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_the_addresses_of_each_network() {
        let interface = |networks: &[&str], addresses: &[&str]| json!({"field": "", "name": "net", "networks": networks, "addresses": addresses, "ready": true});
        let state: WatchedState = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "status": {"podUID": "u1", "objects": [
                {"kind": "Attachment", "name": "eth0", "interfaces": [interface(&[], &["10.75.0.2/24"])]},
                {"kind": "Veth", "name": "a", "interfaces": [interface(&["Veth/shop/a", "Bridge/shop/br"], &["10.9.0.2/24", "fd09::2/64"])]},
                {"kind": "Veth", "name": "b", "interfaces": [interface(&["Veth/shop/b", "Bridge/shop/br"], &["10.9.0.3/24"])]},
            ]},
        }))
        .unwrap();
        let (key, (uid, networks)) = state.into_networks();
        assert_eq!((key.namespace.as_str(), key.name.as_str(), uid.as_str()), ("shop", "web", "u1"));
        let shown: Vec<_> = networks.iter().map(|(name, all)| (name.as_str(), all.len())).collect();
        assert_eq!(shown, [("Bridge/shop/br", 3), ("Veth/shop/a", 2), ("Veth/shop/b", 1)]);
    }
}
