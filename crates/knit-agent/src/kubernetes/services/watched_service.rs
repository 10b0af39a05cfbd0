//! The subset of a Service that its translation needs. Other fields are dropped while parsing.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service as ApiService;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use knit_service::{Protocol, Service, ServiceKey, ServicePort};
use serde::Deserialize;

use super::addresses::{addresses, source_ranges};
use super::lenient::{Lenient, number};

/// The condition of a Service: whether the controller assigned its addresses.
const ADDRESS_ASSIGNED: &str = "knit.opdev.io/AddressAssigned";
/// The affinity timeout that Kubernetes defaults to.
const AFFINITY_SECONDS: u32 = 10_800;

/// A watched Service.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawService")]
pub(super) struct WatchedService {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    /// `None` if nothing of it is translated.
    service: Option<Service>,
}

impl WatchedService {
    /// Its key.
    pub(super) fn key(&self) -> ServiceKey {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        ServiceKey { namespace: of(&self.metadata.namespace), name: of(&self.metadata.name) }
    }

    /// What is translated; `None` for headless and ExternalName Services.
    pub(super) fn into_service(self) -> Option<Service> {
        self.service
    }
}

/// The fields that are parsed.
#[derive(Deserialize)]
struct RawService {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Lenient<Spec>,
    #[serde(default)]
    status: Lenient<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    load_balancer_source_ranges: Vec<String>,
    ports: Vec<Port>,
    session_affinity: Option<String>,
    session_affinity_config: AffinityConfig,
    internal_traffic_policy: Option<String>,
    external_traffic_policy: Option<String>,
    health_check_node_port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    protocol: Option<String>,
    port: i64,
    node_port: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: ClientIp,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientIp {
    timeout_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: LoadBalancer,
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    ingress: Vec<Ingress>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ingress {
    ip: Option<String>,
    ip_mode: Option<String>,
}

impl From<RawService> for WatchedService {
    fn from(raw: RawService) -> Self {
        let RawService { metadata, spec, status } = raw;
        let key = ServiceKey {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        };
        let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let spec = spec.of(&key.namespace, &key.name);
        let status = status.of(&key.namespace, &key.name);
        let service = translate(key, created, spec, status);
        let Metadata { name, namespace, resource_version, .. } = metadata;
        Self { metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }, service }
    }
}

fn translate(key: ServiceKey, created: i64, spec: Spec, status: Status) -> Option<Service> {
    let kind = spec.kind.as_deref().unwrap_or("ClusterIP");
    let cluster_ips: Vec<IpAddr> = addresses(&spec.cluster_ips);
    if kind == "ExternalName" || cluster_ips.is_empty() {
        return None;
    }
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let ingress = status.load_balancer.ingress.into_iter();
    // A load balancer in the mode `Proxy` sends to the nodes itself.
    let virtual_ips = ingress.filter(|one| one.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
    let virtual_ips: Vec<String> = virtual_ips.filter_map(|one| one.ip).collect();
    let has_affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let seconds = spec.session_affinity_config.client_ip.timeout_seconds;
    let seconds = seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(AFFINITY_SECONDS);
    let is_assigned = |one: &Condition| one.kind == ADDRESS_ASSIGNED && one.status == "True";
    let announced = kind == "LoadBalancer" && status.conditions.iter().any(is_assigned);
    Some(Service {
        key,
        created,
        cluster_ips,
        external_ips: addresses(&spec.external_ips),
        load_balancer_ips: addresses(&virtual_ips),
        announced,
        source_ranges: source_ranges(&spec.load_balancer_source_ranges),
        ports: spec.ports.into_iter().filter_map(port).collect(),
        affinity: has_affinity.then_some(seconds),
        internal_local: is_local(&spec.internal_traffic_policy),
        external_local: is_local(&spec.external_traffic_policy),
        health_check_node_port: spec.health_check_node_port.and_then(number),
    })
}

fn port(port: Port) -> Option<ServicePort> {
    Some(ServicePort {
        name: port.name,
        protocol: protocol(port.protocol.as_deref())?,
        port: number(port.port)?,
        node_port: number(port.node_port),
    })
}

/// A protocol; `None` if it is not known.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

impl_resource_subset!(WatchedService, ApiService);

#[cfg(test)]
mod tests {
    use knit_kube::kube::core::ObjectList;
    use serde_json::{Value, json};

    use super::*;

    fn watched(spec: Value, status: Value) -> WatchedService {
        let metadata = json!({
            "name": "web", "namespace": "shop", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
        });
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_service_has_its_addresses_and_policies() {
        let spec = json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd96::7"],
            "externalIPs": ["192.0.2.9"], "loadBalancerSourceRanges": ["198.51.100.7/24"],
            "ports": [{"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080}, {"port": 53, "protocol": "UDP"}],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000,
        });
        let status = json!({"loadBalancer": {"ingress": [
            {"ip": "203.0.113.1", "ipMode": "VIP"}, {"ip": "203.0.113.2", "ipMode": "Proxy"}, {"hostname": "lb.example"},
        ]}});
        let service = watched(spec, status).into_service().unwrap();
        assert_eq!(service.cluster_ips.len(), 2);
        assert_eq!(service.load_balancer_ips, ["203.0.113.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(service.source_ranges, ["198.51.100.0/24".parse().unwrap()]);
        assert_eq!(service.ports[0].node_port, Some(30_080));
        assert_eq!((service.ports[1].protocol, service.ports[1].node_port), (Protocol::Udp, None));
        assert_eq!((service.affinity, service.health_check_node_port), (Some(60), Some(31_000)));
        assert!(service.external_local && !service.internal_local);
        assert_eq!(service.created, 1_767_323_045);
    }

    #[test]
    fn invalid_services_do_not_prevent_a_list() {
        let service = |spec: Value| json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        let spec = json!({
            "clusterIPs": ["10.96.0.7"], "healthCheckNodePort": -1, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": -5}},
            "ports": [{"port": 70_000}, {"port": 80, "nodePort": 70_000}],
        });
        let list: ObjectList<WatchedService> = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ServiceList", "metadata": {"resourceVersion": "7"},
            "items": [service(spec), service(json!({"clusterIPs": "10.96.0.8"}))],
        }))
        .unwrap();
        let mut services = list.items.into_iter().map(WatchedService::into_service);
        let first = services.next().unwrap().unwrap();
        assert_eq!(first.ports.iter().map(|one| (one.port, one.node_port)).collect::<Vec<_>>(), [(80, None)]);
        assert_eq!((first.affinity, first.health_check_node_port), (Some(AFFINITY_SECONDS), None));
        assert_eq!(services.next(), Some(None), "what is not understood is not translated");
    }

    #[test]
    fn only_addresses_that_the_controller_assigned_are_announced() {
        let announced = |kind: &str, condition: &str, value: &str| {
            let status = json!({
                "loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP"}]},
                "conditions": [{"type": condition, "status": value, "reason": "x", "message": ""}],
            });
            watched(json!({"type": kind, "clusterIPs": ["10.96.0.7"]}), status)
                .into_service()
                .unwrap()
                .announced
        };
        assert!(announced("LoadBalancer", ADDRESS_ASSIGNED, "True"));
        assert!(!announced("LoadBalancer", ADDRESS_ASSIGNED, "False"));
        assert!(!announced("LoadBalancer", "example.com/Assigned", "True"));
        assert!(!announced("ClusterIP", ADDRESS_ASSIGNED, "True"));
    }

    #[test]
    fn services_without_an_address_of_their_own_are_not_translated() {
        let headless =
            watched(json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}), json!({}));
        assert_eq!(headless.key(), ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        assert!(headless.into_service().is_none());
        assert!(
            watched(json!({"type": "ExternalName", "externalName": "example.com"}), json!({}))
                .into_service()
                .is_none()
        );
    }
}
