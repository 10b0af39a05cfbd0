//! What is kept of a node. A node of the API is tens of kilobytes, most of it about images and conditions, and every node
//! hears of every other: so the rest is dropped while it is read.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_model::PublicKey;
use serde::Deserialize;

use crate::kubernetes::room::{CONDITION, Said, TAINT};

/// The condition by which a node says that it is well.
const READY: &str = "Ready";

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::kubernetes) struct Known {
    /// The ranges of its pods.
    pub(super) ranges: Vec<IpNet>,
    /// Its own addresses.
    pub(in crate::kubernetes) addresses: Vec<IpAddr>,
    /// Whether it is Ready, as the API server says.
    pub(super) is_ready: bool,
    /// The key that it tells others.
    pub(super) key: Option<PublicKey>,
}

/// A node, as it is watched.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Told")]
pub(super) struct Brief {
    /// Its name, and the version that the watch goes on from.
    metadata: ObjectMeta,
    known: Known,
    said: Said,
    /// What it tells others as its key, whatever it is.
    told_key: Option<String>,
}

impl Brief {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// What it says about room for pods.
    pub(super) fn said(&self) -> Said {
        self.said
    }

    /// What it tells others as its key, whatever it is.
    pub(super) fn told_key(&self) -> Option<&str> {
        self.told_key.as_deref()
    }

    /// Its name, and what is known of it.
    pub(super) fn split(self) -> (String, Known) {
        (self.metadata.name.unwrap_or_default(), self.known)
    }
}

/// The part of a node that is read.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    resource_version: Option<String>,
    #[serde(default)]
    annotations: Annotations,
}

/// Of all annotations the one that agents write.
#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "knit.opdev.io/wireguard-public-key")]
    key: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default, rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    #[serde(default)]
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    addresses: Vec<Address>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl From<Told> for Brief {
    fn from(told: Told) -> Self {
        let Metadata { name, resource_version, annotations } = told.metadata;
        let own = told.status.addresses.iter().filter(|address| address.kind == "InternalIP");
        let known = Known {
            ranges: told.spec.pod_cidrs.iter().filter_map(|range| range.parse().ok()).collect(),
            addresses: own.filter_map(|address| address.address.parse().ok()).collect(),
            is_ready: told.status.conditions.iter().any(|one| one.kind == READY && one.status == "True"),
            key: annotations.key.as_ref().and_then(|key| key.parse().ok()),
        };
        let condition = told.status.conditions.iter().find(|condition| condition.kind == CONDITION);
        let said = Said {
            is_tainted: told.spec.taints.iter().any(|taint| taint.key == TAINT),
            available: condition.map(|condition| condition.status == "True"),
        };
        let metadata = ObjectMeta { name, resource_version, ..ObjectMeta::default() };
        Self { metadata, known, said, told_key: annotations.key }
    }
}

watched_as!(Brief, Node);

#[cfg(test)]
mod tests {
    use knit_kube::kube::Resource;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::told_key::ANNOTATION;

    #[test]
    fn a_node_is_its_ranges_and_its_own_addresses() {
        let brief: Brief = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "a", "resourceVersion": "7", "managedFields": [{"manager": "kubelet"}]},
            "spec": {"podCIDRs": ["10.1.0.0/24", "fd01::/64", "nonsense"]},
            "status": {"images": [{"names": ["x"]}], "addresses": [
                {"type": "Hostname", "address": "a"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "2001:db8::1"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
            ]},
        }))
        .unwrap();
        assert_eq!(brief.meta().resource_version.as_deref(), Some("7"), "the watch goes on from it");
        assert_eq!(brief.said(), Said::default());
        assert_eq!(Brief::url_path(&(), None), "/api/v1/nodes");
        let (name, known) = brief.split();
        assert_eq!(name, "a");
        assert_eq!(known.ranges, ["10.1.0.0/24".parse::<IpNet>().unwrap(), "fd01::/64".parse().unwrap()]);
        let addresses: Vec<String> = known.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
        assert!(!known.is_ready, "it does not say so");
    }

    #[test]
    fn what_a_node_says_about_room_is_its_taint_and_its_condition() {
        let brief: Brief = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": CONDITION, "status": "False"}]},
        }))
        .unwrap();
        assert_eq!(brief.said(), Said { is_tainted: true, available: Some(false) });
        assert!(brief.split().1.is_ready);
    }

    #[test]
    fn a_node_tells_its_key_by_an_annotation() {
        let told = |key: &str| {
            let node = json!({"metadata": {"name": "a", "annotations": {ANNOTATION: key, "other": "x"}}});
            let brief: Brief = serde_json::from_value(node).unwrap();
            (brief.told_key().map(str::to_owned), brief.split().1.key)
        };
        let key = PublicKey::from_bytes([7; 32]);
        assert_eq!(told(&key.to_string()), (Some(key.to_string()), Some(key)));
        assert_eq!(told("nonsense"), (Some("nonsense".to_owned()), None), "it is written anew, not taken");
    }

    #[test]
    fn a_node_that_nothing_is_known_of_yet_is_one() {
        let brief: Brief = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
        assert_eq!(brief.split(), ("new".to_owned(), Known::default()));
    }
}
