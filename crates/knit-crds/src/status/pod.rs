//! What is applied to one pod: the status lines of the pod-network-operator, and the same facts as fields.

use knit_model::link::PortVlans;
use knit_model::report::{AttachTiming, InterfaceReport, ItemReport, PodReport, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MAX_LISTED_PODS;
use crate::states::Detail;

/// PodConfiguration is what is applied to one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodConfiguration {
    /// podName is the name of the pod.
    pub pod_name: String,
    /// attached is when it was applied: `BeforeContainers` (before the containers started, by NRI) or `WhileRunning`
    /// (containers may have been running). Unset while nothing is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "attached_schema")]
    pub attached: Option<String>,
    /// configList has one line for each applied interface, route, rule, neighbour and sysctl. The fields interfaces and
    /// items contain the same facts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub config_list: Vec<String>,
    /// interfaces lists the applied interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub interfaces: Vec<InterfaceStatus>,
    /// items lists the applied routes, rules, neighbours and sysctls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub items: Vec<ItemStatus>,
}

/// InterfaceStatus is an applied interface of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// name is the name of the interface in the pod.
    pub name: String,
    /// linkType is the type of the interface; unset for an interface that Knit did not create.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_type: String,
    /// addresses lists its addresses with prefix length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// mtu is its MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// peer is the name of the host end of a veth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// master is the bridge that the interface or its host end is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// vrf is the VRF in the pod that the interface is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// details lists further properties, such as VLANs or the public key of a tunnel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub details: Vec<Detail>,
}

/// ItemStatus is an applied route, rule, neighbour or sysctl of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemStatus {
    /// type is `route`, `rule`, `neighbour`, `sysctl`, `socket` or another type of item.
    #[serde(rename = "type")]
    pub type_: String,
    /// value describes the item, such as `10.9.0.0/16 via 10.1.0.1 dev net1`.
    pub value: String,
}

impl InterfaceStatus {
    pub(crate) fn of(link: &InterfaceReport) -> Self {
        let details = properties(link).map(|(name, value)| Detail { name, value });
        Self {
            name: link.name.to_string(),
            link_type: link.kind.clone(),
            addresses: link.addresses.iter().map(ToString::to_string).collect(),
            mtu: link.mtu,
            peer: link.peer.as_ref().map(ToString::to_string),
            master: link.master.as_ref().map(ToString::to_string),
            vrf: link.vrf.as_ref().map(ToString::to_string),
            details: details.collect(),
        }
    }
}

impl ItemStatus {
    fn of(item: &ItemReport) -> Self {
        Self { type_: item.kind.name().to_owned(), value: item.description.clone() }
    }
}

/// Properties of an interface beyond its common fields.
fn properties(link: &InterfaceReport) -> impl Iterator<Item = (String, String)> {
    let vlans = link.vlans.iter().flat_map(PortVlans::details).map(|(name, value)| (name.to_owned(), value));
    vlans.chain(link.details.iter().map(|(name, value)| (name.clone(), value.clone())))
}

/// The first pods of a report, each with its applied interfaces and items.
pub(super) fn pod_configurations(report: &Report) -> Vec<PodConfiguration> {
    let configuration = |pod: &PodReport| {
        let interfaces: Vec<&InterfaceReport> = pod.interfaces.iter().filter(|link| link.ready).collect();
        let items: Vec<&ItemReport> = pod.items.iter().filter(|item| item.ready).collect();
        let lines =
            interfaces.iter().map(|link| config_line(link)).chain(items.iter().map(|item| item_line(item)));
        PodConfiguration {
            pod_name: pod.pod.clone(),
            attached: pod.attached.map(attached_name),
            config_list: lines.collect(),
            interfaces: interfaces.iter().map(|link| InterfaceStatus::of(link)).collect(),
            items: items.iter().map(|item| ItemStatus::of(item)).collect(),
        }
    };
    report.pods.iter().take(MAX_LISTED_PODS).map(configuration).collect()
}

/// An interface as a line of `configList`. The keys of a veth are those of the pod-network-operator; other link types
/// add `linkType`.
pub fn config_line(link: &InterfaceReport) -> String {
    let mut parts = match &link.peer {
        Some(_) => vec![format!("podVethName:{}", link.name)],
        None => vec![format!("podLinkName:{}", link.name)],
    };
    // The link type of an interface that Knit did not create is not known.
    if link.peer.is_none() && !link.kind.is_empty() {
        parts.push(format!("linkType:{}", link.kind));
    }
    if !link.addresses.is_empty() {
        let addresses: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
        parts.push(format!("podIPAddr:{}", addresses.join(",")));
    }
    if let Some(peer) = &link.peer {
        parts.push(format!("peerVethName:{peer}"));
    } else if let Some(mtu) = link.mtu {
        parts.push(format!("mtu:{mtu}"));
    }
    if let Some(master) = &link.master {
        parts.push(format!("bridge:{master}"));
    }
    if let Some(vrf) = &link.vrf {
        parts.push(format!("vrf:{vrf}"));
    }
    parts.extend(properties(link).map(|(name, value)| format!("{name}:{value}")));
    format!("{{{}}}", parts.join(" "))
}

/// A route, rule, neighbour or sysctl as a line of `configList`: `{route:10.9.0.0/16 via 10.1.0.1 dev net1}`.
pub fn item_line(item: &ItemReport) -> String {
    format!("{{{}:{}}}", item.kind.name(), item.description)
}

/// The `attached` value of a status.
pub(crate) fn attached_name(attached: AttachTiming) -> String {
    format!("{attached:?}")
}

/// Parses an `attached` value; `None` for one of a newer agent.
pub(crate) fn parse_attached(name: &str) -> Option<AttachTiming> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

pub(crate) fn attached_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["BeforeContainers", "WhileRunning", "ByCall"] })
}
