//! The subset of a remote pod that is kept: its name and its addresses. Other fields are dropped while parsing.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A watched pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawPod")]
pub(super) struct PodSummary {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    node: String,
    /// Whether it has its own network namespace and has not ended.
    is_live: bool,
    addresses: Vec<IpAddr>,
}

impl PodSummary {
    /// Its name.
    pub(super) fn name(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    /// Its addresses, if it is live and on another node.
    pub(super) fn addresses_unless_on(&self, node: &str) -> Option<Vec<IpAddr>> {
        let is_remote = self.is_live && self.node != node && !self.addresses.is_empty();
        is_remote.then(|| self.addresses.clone())
    }
}

/// The fields that are parsed.
#[derive(Deserialize)]
struct RawPod {
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
    namespace: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    host_network: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Deserialize)]
struct PodIp {
    #[serde(default)]
    ip: String,
}

impl From<RawPod> for PodSummary {
    fn from(raw: RawPod) -> Self {
        let Metadata { name, namespace, resource_version } = raw.metadata;
        let has_ended = ["Succeeded", "Failed"].contains(&raw.status.phase.as_str());
        Self {
            metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() },
            node: raw.spec.node_name,
            is_live: !raw.spec.host_network && !has_ended,
            addresses: raw.status.pod_ips.iter().filter_map(|one| one.ip.parse().ok()).collect(),
        }
    }
}

impl_resource_subset!(PodSummary, Pod);
