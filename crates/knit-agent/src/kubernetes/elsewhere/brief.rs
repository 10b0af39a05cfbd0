//! What is kept of a pod of another node: its name and its addresses. The rest is dropped while it is read.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A pod, as it is watched.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Told")]
pub(super) struct Brief {
    /// Its name, and the version that the watch goes on from.
    metadata: ObjectMeta,
    node: String,
    /// Whether it has a network of its own, and has not ended.
    is_live: bool,
    addresses: Vec<IpAddr>,
}

impl Brief {
    /// Its name.
    pub(super) fn name(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    /// Its addresses, if it has any of its own on another node than this.
    pub(super) fn addresses_unless_on(&self, node: &str) -> Option<Vec<IpAddr>> {
        let is_elsewhere = self.is_live && self.node != node && !self.addresses.is_empty();
        is_elsewhere.then(|| self.addresses.clone())
    }
}

/// The part of a pod that is read.
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

impl From<Told> for Brief {
    fn from(told: Told) -> Self {
        let Metadata { name, namespace, resource_version } = told.metadata;
        let has_ended = ["Succeeded", "Failed"].contains(&told.status.phase.as_str());
        Self {
            metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() },
            node: told.spec.node_name,
            is_live: !told.spec.host_network && !has_ended,
            addresses: told.status.pod_ips.iter().filter_map(|one| one.ip.parse().ok()).collect(),
        }
    }
}

watched_as!(Brief, Pod);
