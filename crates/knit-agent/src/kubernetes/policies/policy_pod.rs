//! The subset of a pod that policies need. Other fields are dropped while parsing.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_policy::{Labels, NamedPort, PodKey, PolicyPod, Protocol};
use serde::Deserialize;

/// A watched pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawPod")]
pub(super) struct WatchedPod {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    /// `None` if it has ended: its addresses may belong to others by now.
    pod: Option<PolicyPod>,
}

impl WatchedPod {
    /// Its name.
    pub(super) fn key(&self) -> PodKey {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        PodKey { namespace: text(&self.metadata.namespace), name: text(&self.metadata.name) }
    }

    /// What policies need of it.
    pub(super) fn into_pod(self) -> Option<PolicyPod> {
        self.pod
    }

    /// Its name, and what policies need of it.
    pub(super) fn into_member(self) -> Option<(PodKey, PolicyPod)> {
        let key = self.key();
        Some((key, self.pod?))
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
    uid: Option<String>,
    resource_version: Option<String>,
    #[serde(default)]
    labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    host_network: bool,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    ports: Vec<ContainerPort>,
    restart_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
    protocol: Option<Protocol>,
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

impl From<RawPod> for WatchedPod {
    fn from(raw: RawPod) -> Self {
        let Metadata { name, namespace, uid, resource_version, labels } = raw.metadata;
        let has_ended = ["Succeeded", "Failed"].contains(&raw.status.phase.as_str());
        let Spec { host_network, containers, init_containers } = raw.spec;
        // An init container that is restarted runs beside the others.
        let sidecars =
            init_containers.into_iter().filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let ports = containers.into_iter().chain(sidecars).flat_map(|container| container.ports);
        let named = |port: ContainerPort| {
            let protocol = port.protocol.unwrap_or(Protocol::Tcp);
            Some(NamedPort { name: port.name?, protocol, port: port.container_port })
        };
        // A pod on the host network has the addresses of its node.
        let addresses =
            raw.status.pod_ips.iter().filter(|_| !host_network).filter_map(|one| one.ip.parse().ok());
        let pod = PolicyPod {
            uid: uid.unwrap_or_default(),
            labels,
            addresses: addresses.collect(),
            ports: ports.filter_map(named).collect(),
            ..PolicyPod::default()
        };
        Self {
            metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() },
            pod: (!has_ended).then_some(pod),
        }
    }
}

impl_resource_subset!(WatchedPod, Pod);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(host_network: bool, phase: &str) -> Option<PolicyPod> {
        let port = |name: Value, port: u16| json!({"name": name, "containerPort": port});
        let udp = json!({"name": "dns", "containerPort": 53, "protocol": "UDP"});
        let pod: WatchedPod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"}},
            "spec": {
                "hostNetwork": host_network,
                "containers": [{"name": "a", "ports": [port(json!("http"), 80), port(Value::Null, 81), udp]}, {"name": "b"}],
                "initContainers": [
                    {"name": "init", "ports": [port(json!("setup"), 1)]},
                    {"name": "sidecar", "restartPolicy": "Always", "ports": [port(json!("proxy"), 15001)]},
                ],
            },
            "status": {"phase": phase, "podIPs": [{"ip": "10.1.2.3"}, {"ip": "fd01::3"}]},
        }))
        .unwrap();
        assert_eq!(pod.key(), PodKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        pod.into_pod()
    }

    #[test]
    fn policies_get_addresses_labels_and_named_ports() {
        let seen = pod(false, "Running").unwrap();
        assert_eq!(
            seen.addresses,
            ["10.1.2.3", "fd01::3"].map(|text| text.parse::<std::net::IpAddr>().unwrap())
        );
        assert_eq!((seen.uid.as_str(), seen.labels["app"].as_str()), ("u1", "web"));
        let ports: Vec<_> =
            seen.ports.iter().map(|port| (port.name.as_str(), port.protocol, port.port)).collect();
        assert_eq!(
            ports,
            [("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53), ("proxy", Protocol::Tcp, 15_001)]
        );
    }

    #[test]
    fn addresses_of_nodes_and_of_ended_pods_are_nobodys() {
        assert!(pod(true, "Running").unwrap().addresses.is_empty());
        assert_eq!(pod(false, "Succeeded"), None);
    }
}
