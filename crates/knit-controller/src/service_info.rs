//! What load balancer addresses depend on in Services and Nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service, ServiceSpec, ServiceStatus};
use knit_controller_engine::{AddressCondition, CONDITION, NodeAddresses, ServiceInfo};
use knit_kube::kube::ResourceExt;

/// The addresses that a Service requests, at most one of each family, separated by commas.
const ADDRESSES: &str = "knit.opdev.io/addresses";
/// The pool that a Service requests.
const POOL: &str = "knit.opdev.io/address-pool";

/// The label of Services that other programs than Knit translate.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// A Service by its namespace and name.
pub(crate) fn of_service(service: Service) -> ((String, String), ServiceInfo) {
    let name = (service.namespace().unwrap_or_default(), service.name_any());
    let annotation = |name: &str| service.annotations().get(name).cloned();
    let spec = service.spec.clone().unwrap_or_default();
    let status = service.status.clone().unwrap_or_default();
    let ingress = status.load_balancer.clone().and_then(|status: LoadBalancerStatus| status.ingress);
    let ingress = ingress.unwrap_or_default();
    // Agents do not translate such Services.
    let is_left_to_others = service.labels().contains_key(PROXY_NAME);
    let info = ServiceInfo {
        uid: service.uid().unwrap_or_default(),
        version: service.resource_version().unwrap_or_default(),
        created: service.creation_timestamp().map_or(0, |time| time.0.as_second()),
        labels: service.labels().clone(),
        is_load_balancer: spec.type_.as_deref() == Some("LoadBalancer") && !is_left_to_others,
        families: families(&spec),
        needs_all_families: spec.ip_family_policy.as_deref() == Some("RequireDualStack"),
        requested: annotation(ADDRESSES).or_else(|| spec.load_balancer_ip.filter(|text| !text.is_empty())),
        pool: annotation(POOL),
        class: spec.load_balancer_class,
        cluster_ips: parsed(spec.cluster_ips.unwrap_or_default()),
        external_ips: parsed(spec.external_ips.unwrap_or_default()),
        has_host_name: ingress.iter().any(|one| one.ip.is_none()),
        ingress: parsed(ingress.into_iter().filter_map(|one| one.ip).collect()),
        condition: condition(status),
    };
    (name, info)
}

/// The addresses that a node and its pods use.
pub(crate) fn of_node(node: Node) -> (String, NodeAddresses) {
    let addresses = node.status.clone().and_then(|status| status.addresses).unwrap_or_default();
    let pod_ranges = node.spec.clone().and_then(|spec| spec.pod_cidrs).unwrap_or_default();
    let found = NodeAddresses {
        addresses: parsed(addresses.into_iter().map(|one| one.address).collect()),
        pod_ranges: pod_ranges.iter().filter_map(|text| text.parse().ok()).collect(),
    };
    (node.name_any(), found)
}

/// For each family, in order, whether it is IPv6.
fn families(spec: &ServiceSpec) -> Vec<bool> {
    spec.ip_families.iter().flatten().map(|family| family == "IPv6").collect()
}

/// Host names, and the `None` of headless Services, are left out.
fn parsed(texts: Vec<String>) -> BTreeSet<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn condition(status: ServiceStatus) -> Option<AddressCondition> {
    let mut conditions = status.conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition.type_ == CONDITION)?;
    Some(AddressCondition {
        is_assigned: found.status == "True",
        reason: found.reason,
        message: found.message,
        since: found.last_transition_time.0.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_service_has_its_request_and_what_knit_wrote() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {"knit.opdev.io/address-pool": "lan"}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "knit.opdev.io/load-balancer", "loadBalancerIP": "192.0.2.9",
                "clusterIPs": ["10.96.0.7", "fd96::7"], "externalIPs": ["192.0.2.1"], "ipFamilies": ["IPv6", "IPv4"],
                "ipFamilyPolicy": "RequireDualStack"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}, "conditions": [
                {"type": "other", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
                {"type": "knit.opdev.io/AddressAssigned", "status": "True", "reason": "AddressAssigned", "message": "m",
                    "lastTransitionTime": "2026-01-02T03:04:06Z"},
            ]},
        }))
        .unwrap();
        let (name, info) = of_service(service);
        assert_eq!(name, ("shop".to_owned(), "web".to_owned()));
        assert_eq!((info.uid.as_str(), info.version.as_str(), info.created), ("u", "7", 1_767_323_045));
        assert_eq!(info.class.as_deref(), Some("knit.opdev.io/load-balancer"));
        assert_eq!((info.families, info.needs_all_families), (vec![true, false], true));
        assert_eq!((info.requested.as_deref(), info.pool.as_deref()), (Some("192.0.2.9"), Some("lan")));
        assert_eq!(info.cluster_ips, addresses(&["10.96.0.7", "fd96::7"]));
        assert_eq!(info.external_ips, addresses(&["192.0.2.1"]));
        assert_eq!((info.ingress, info.has_host_name), (addresses(&["192.0.2.9"]), false));
        let condition = info.condition.unwrap();
        assert!(condition.is_assigned && condition.since.starts_with("2026-01-02T03:04:06"), "{condition:?}");
    }

    #[test]
    fn the_annotation_takes_precedence_over_the_deprecated_field_and_a_host_name_is_no_address() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": {"knit.opdev.io/addresses": "192.0.2.7,2001:db8::7"}},
            "spec": {"type": "ClusterIP", "clusterIPs": ["None"], "loadBalancerIP": "192.0.2.9"},
            "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example"}]}},
        }))
        .unwrap();
        let (_, info) = of_service(service);
        assert_eq!(info.requested.as_deref(), Some("192.0.2.7,2001:db8::7"));
        assert!(info.has_host_name && info.ingress.is_empty() && !info.is_load_balancer);
        assert!(info.cluster_ips.is_empty() && info.condition.is_none());
    }

    #[test]
    fn a_node_has_its_addresses_and_pod_ranges() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"podCIDRs": ["10.1.0.0/24", "fd01::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "a"}]},
        }))
        .unwrap();
        let (name, found) = of_node(node);
        assert_eq!((name.as_str(), found.addresses), ("a", addresses(&["192.0.2.1"])));
        assert_eq!(found.pod_ranges, ["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()]);
    }
}
