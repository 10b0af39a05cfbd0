//! The subset of an EndpointSlice that the translation of Services needs. Other fields are dropped while parsing.

use k8s_openapi::api::discovery::v1::EndpointSlice as ApiSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_model::filter::field::IpFamily;
use knit_service::{Endpoint, EndpointSlice, ServiceKey, SliceKey, SlicePort};
use serde::Deserialize;

use super::addresses::addresses;
use super::lenient::{Lenient, number};
use super::watched_service::protocol;

/// A watched EndpointSlice.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawSlice")]
pub(super) struct WatchedSlice {
    /// Its name, and the resource version that the watch continues from.
    metadata: ObjectMeta,
    /// `None` if it belongs to no Service, or has no addresses.
    slice: Option<EndpointSlice>,
}

impl WatchedSlice {
    /// Its key.
    pub(super) fn key(&self) -> SliceKey {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        SliceKey { namespace: of(&self.metadata.namespace), name: of(&self.metadata.name) }
    }

    /// Its endpoints.
    pub(super) fn into_slice(self) -> Option<EndpointSlice> {
        self.slice
    }
}

/// The fields that are parsed. Tenants write them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSlice {
    metadata: Metadata,
    address_type: String,
    endpoints: Lenient<Option<Vec<RawEndpoint>>>,
    ports: Lenient<Option<Vec<Port>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    labels: Labels,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "kubernetes.io/service-name")]
    service: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawEndpoint {
    addresses: Vec<String>,
    conditions: Option<Conditions>,
    node_name: Option<String>,
    hints: Option<Hints>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    for_zones: Option<Vec<Hint>>,
    for_nodes: Option<Vec<Hint>>,
}

#[derive(Deserialize)]
struct Hint {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<i64>,
}

impl From<RawSlice> for WatchedSlice {
    fn from(raw: RawSlice) -> Self {
        let Metadata { name, namespace, resource_version, labels } = raw.metadata;
        let key = SliceKey {
            namespace: namespace.clone().unwrap_or_default(),
            name: name.clone().unwrap_or_default(),
        };
        let family = match raw.address_type.as_str() {
            "IPv4" => Some(IpFamily::V4),
            "IPv6" => Some(IpFamily::V6),
            _ => None,
        };
        let ports = raw.ports.of(&key.namespace, &key.name);
        let endpoints = raw.endpoints.of(&key.namespace, &key.name);
        let slice = labels.service.zip(family).map(|(service, family)| EndpointSlice {
            service: ServiceKey { namespace: key.namespace.clone(), name: service },
            key,
            family,
            ports: ports.unwrap_or_default().into_iter().filter_map(port).collect(),
            endpoints: endpoints.unwrap_or_default().into_iter().map(endpoint).collect(),
        });
        Self { metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }, slice }
    }
}

/// A port; `None` if it has no valid number. The API server accepts any.
fn port(port: Port) -> Option<SlicePort> {
    Some(SlicePort {
        name: port.name.unwrap_or_default(),
        protocol: protocol(port.protocol.as_deref())?,
        port: number(port.port?)?,
    })
}

/// A condition that is not set is that of a ready endpoint.
fn endpoint(raw: RawEndpoint) -> Endpoint {
    let conditions = raw.conditions.unwrap_or_default();
    let hints = raw.hints.unwrap_or_default();
    let names =
        |hints: Option<Vec<Hint>>| hints.unwrap_or_default().into_iter().map(|hint| hint.name).collect();
    let ready = conditions.ready.unwrap_or(true);
    Endpoint {
        addresses: addresses(&raw.addresses),
        ready,
        serving: conditions.serving.unwrap_or(ready),
        terminating: conditions.terminating.unwrap_or(false),
        node: raw.node_name,
        zone_hints: names(hints.for_zones),
        node_hints: names(hints.for_nodes),
    }
}

impl_resource_subset!(WatchedSlice, ApiSlice);

#[cfg(test)]
mod tests {
    use knit_kube::kube::core::ObjectList;
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_slices_do_not_prevent_a_list() {
        let slice = |name: &str, port: serde_json::Value, address: serde_json::Value| {
            json!({
                "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4",
                "ports": [{"name": "bad", "port": port}, {"name": "good", "port": 8080}],
                "endpoints": [{"addresses": [address], "nodeName": null}],
            })
        };
        let list: ObjectList<WatchedSlice> = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": {"resourceVersion": "7"},
            "items": [
                slice("a", json!(70_000), json!("10.1.0.2")),
                slice("b", json!(-1), json!("10.1.0.2")),
                slice("c", json!(0), json!("10.1.0.2")),
                slice("d", json!("text"), json!("10.1.0.2")),
                slice("e", json!(80), json!(7)),
            ],
        }))
        .unwrap();
        let slices = list.items.into_iter().map(|one| one.into_slice().unwrap());
        let found: Vec<(Vec<u16>, usize)> = slices
            .map(|one| (one.ports.iter().map(|port| port.port).collect(), one.endpoints.len()))
            .collect();
        let good = (vec![8080], 1);
        assert_eq!(found, [good.clone(), good.clone(), good, (vec![], 1), (vec![80, 8080], 0)]);
    }

    #[test]
    fn a_slice_has_the_endpoints_of_its_service() {
        let slice: WatchedSlice = serde_json::from_value(json!({
            "metadata": {"name": "web-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}, {"name": "sync"}, {"name": "dns", "protocol": "UDP", "port": 5353}],
            "endpoints": [
                {"addresses": ["10.1.0.2"], "conditions": {}, "nodeName": "a", "hints": {"forZones": [{"name": "z"}]}},
                {"addresses": ["10.1.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.1.0.4"], "conditions": {"ready": false}},
            ],
        }))
        .unwrap();
        let slice = slice.into_slice().unwrap();
        assert_eq!(slice.service, ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        assert_eq!(slice.ports.len(), 2, "a port without a number is left out");
        let conditions = slice.endpoints.iter().map(|one| (one.ready, one.serving, one.terminating));
        let expected = [(true, true, false), (false, true, true), (false, false, false)];
        assert_eq!(conditions.collect::<Vec<_>>(), expected);
        assert_eq!(slice.endpoints[0].zone_hints, ["z"]);
    }

    #[test]
    fn slices_without_a_service_or_addresses_do_not_count() {
        let slice = |labels: serde_json::Value, kind: &str| -> WatchedSlice {
            let metadata = json!({"name": "x", "namespace": "shop", "labels": labels});
            serde_json::from_value(
                json!({"metadata": metadata, "addressType": kind, "endpoints": null, "ports": null}),
            )
            .unwrap()
        };
        assert!(slice(json!({}), "IPv4").into_slice().is_none());
        assert!(slice(json!({"kubernetes.io/service-name": "web"}), "FQDN").into_slice().is_none());
        assert!(slice(json!({"kubernetes.io/service-name": "web"}), "IPv6").into_slice().is_some());
    }
}
