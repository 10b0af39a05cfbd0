//! The subset of a Node that is kept. Node objects have tens of kilobytes, mostly images and conditions, and every agent watches all nodes:
//! other fields are dropped while parsing.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_engine::nodes::NodeInfo;
use knit_service::NodeFacts;
use serde::Deserialize;

use crate::kubernetes::address_capacity::{CONDITION, PublishedCapacity, TAINT};

/// The condition of a healthy node.
const READY: &str = "Ready";

/// A watched node.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawNode")]
pub(in crate::kubernetes) struct NodeSummary {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    known: NodeInfo,
    capacity: PublishedCapacity,
    /// The raw value of its key annotation.
    published_key: Option<String>,
    zone: Option<String>,
}

impl NodeSummary {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its published address capacity.
    pub(super) fn capacity(&self) -> PublishedCapacity {
        self.capacity
    }

    /// The raw value of its key annotation.
    pub(super) fn published_key(&self) -> Option<&str> {
        self.published_key.as_deref()
    }

    /// What the choice of endpoints depends on.
    pub(super) fn service_facts(&self) -> NodeFacts {
        let NodeInfo { name, addresses, .. } = &self.known;
        NodeFacts { name: name.clone(), zone: self.zone.clone(), addresses: addresses.clone() }
    }

    /// The fields that are kept; `own` is the name of this node.
    pub(super) fn into_info(self, own: &str) -> NodeInfo {
        NodeInfo { is_local: self.known.name == own, ..self.known }
    }
}

/// The fields that are parsed.
#[derive(Deserialize)]
struct RawNode {
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
    #[serde(default)]
    labels: Labels,
}

/// The label of the node's zone.
#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
}

/// The annotation that agents write.
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

impl From<RawNode> for NodeSummary {
    fn from(raw: RawNode) -> Self {
        let Metadata { name, resource_version, annotations, labels } = raw.metadata;
        let addresses = |are_internal: bool| {
            let all = raw.status.addresses.iter();
            let of_kind = all.filter(move |one| (one.kind == "InternalIP") == are_internal);
            of_kind.filter_map(|one| one.address.parse().ok()).collect()
        };
        let known = NodeInfo {
            name: name.clone().unwrap_or_default(),
            is_local: false,
            ranges: raw.spec.pod_cidrs.iter().filter_map(|range| range.parse().ok()).collect(),
            addresses: addresses(true),
            other_addresses: addresses(false),
            is_ready: raw.status.conditions.iter().any(|one| one.kind == READY && one.status == "True"),
            key: annotations.key.as_ref().and_then(|key| key.parse().ok()),
        };
        let condition = raw.status.conditions.iter().find(|condition| condition.kind == CONDITION);
        let capacity = PublishedCapacity {
            is_tainted: raw.spec.taints.iter().any(|taint| taint.key == TAINT),
            available: condition.map(|condition| condition.status == "True"),
        };
        let metadata = ObjectMeta { name, resource_version, ..ObjectMeta::default() };
        Self { metadata, known, capacity, published_key: annotations.key, zone: labels.zone }
    }
}

impl_resource_subset!(NodeSummary, Node);

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use knit_kube::kube::Resource;
    use knit_model::PublicKey;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::published_key::ANNOTATION;

    #[test]
    fn a_node_summary_has_pod_ranges_and_internal_addresses() {
        let summary: NodeSummary = serde_json::from_value(json!({
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
        assert_eq!(summary.meta().resource_version.as_deref(), Some("7"), "the watch continues from it");
        assert_eq!(summary.capacity(), PublishedCapacity::default());
        assert_eq!(NodeSummary::url_path(&(), None), "/api/v1/nodes");
        let known = summary.into_info("a");
        assert_eq!((known.name.as_str(), known.is_local), ("a", true));
        assert_eq!(known.ranges, ["10.1.0.0/24".parse::<IpNet>().unwrap(), "fd01::/64".parse().unwrap()]);
        let addresses: Vec<String> = known.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(known.other_addresses, ["203.0.113.1".parse::<std::net::IpAddr>().unwrap()]);
        assert!(!known.is_ready, "it has no Ready condition");
    }

    #[test]
    fn published_capacity_is_the_taint_and_the_condition() {
        let summary: NodeSummary = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": CONDITION, "status": "False"}]},
        }))
        .unwrap();
        assert_eq!(summary.capacity(), PublishedCapacity { is_tainted: true, available: Some(false) });
        assert!(summary.into_info("b").is_ready);
    }

    #[test]
    fn a_node_publishes_its_key_in_an_annotation() {
        let raw = |key: &str| {
            let node = json!({"metadata": {"name": "a", "annotations": {ANNOTATION: key, "other": "x"}}});
            let summary: NodeSummary = serde_json::from_value(node).unwrap();
            (summary.published_key().map(str::to_owned), summary.into_info("b").key)
        };
        let key = PublicKey::from_bytes([7; 32]);
        assert_eq!(raw(&key.to_string()), (Some(key.to_string()), Some(key)));
        assert_eq!(raw("nonsense"), (Some("nonsense".to_owned()), None), "an invalid key is overwritten");
    }

    #[test]
    fn a_node_without_status_is_valid() {
        let summary: NodeSummary = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
        assert_eq!(summary.into_info("own"), NodeInfo { name: "new".to_owned(), ..NodeInfo::default() });
    }
}
