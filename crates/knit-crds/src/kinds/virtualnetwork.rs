//! VirtualNetwork: a named network of a tenant, or a view of the cluster network.

mod segment;

pub use segment::{CLUSTER_SEGMENT, Segment, SegmentScope};

use ipnet::IpNet;
use knit_model::Problems;
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent};
use knit_model::provenance::Dialect;
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{Cidr, Mtu, Vni};
use crate::status::{CommonStatus, MAX_LISTED_PODS, Status};
use crate::translate::Translator;

/// VirtualNetworkSpec describes the network. Interfaces reference it with `network: <object name>`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "VirtualNetwork",
    namespaced,
    status = "VirtualNetworkStatus",
    derive = "PartialEq",
    doc = "VirtualNetwork is a network of this namespace: its subnets, its MTU, its isolation, and whether it is an overlay across nodes. Veth, Macvlan and Vxlan objects reference it by name. Objects with a segment show the cluster network and are written by Knit.",
    shortname = "vn"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.vni) || (has(self.transport) && self.transport == 'vxlan')",
    VNI_NEEDS_VXLAN,
), (
    "!has(self.transport) || self.transport != 'vxlan' || (has(oldSelf.transport) && oldSelf.transport == 'vxlan')",
    STAYS_LOCAL,
), (
    "has(self.subnets) != has(self.segment)",
    segment::EITHER,
), (
    "!has(self.segment) || !has(self.mtu) && !has(self.vni) && (!has(self.transport) || self.transport == 'local')",
    segment::NO_SETTINGS,
), (
    "!has(self.segment) || (self.segment.scope == 'cluster') == (!has(self.isolation) || self.isolation == 'open')",
    segment::ITS_ISOLATION,
), (
    "has(self.segment) ? has(oldSelf.segment) && self.segment == oldSelf.segment : !has(oldSelf.segment)",
    segment::IMMUTABLE,
)])))]
pub struct VirtualNetworkSpec {
    /// subnets lists the subnets, such as `10.20.0.0/16` and `fd00:20::/64`. An interface gets one address of each. The
    /// first address of each belongs to the bridge. Removing a subnet stops new allocations; addresses in use are kept.
    /// Must be set, except in a segment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 8,
        "x-kubernetes-list-type" = "set",
        "x-kubernetes-validations" = crate::fields::rule_list(&[(
            "self.all(a, self.filter(b, isCIDR(a) && isCIDR(b) && cidr(a).containsCIDR(b)).size() <= 1)",
            "subnets must not overlap",
        )]),
    ))]
    pub subnets: Vec<Cidr>,
    /// isolation controls the node's access. `open`: the node has the first address of each subnet. `isolated`: the
    /// node has no address, and pods on the network reach only each other. It is updated in place. In a segment,
    /// `isolated`: pods that are not in the segment reach its pods through Services only. Defaults to `open`.
    #[serde(default)]
    pub isolation: Isolation,
    /// mtu is the MTU in bytes of interfaces that set none, 68 to 65535. It is updated in place. Defaults to the
    /// kernel's default for the link type, or to the MTU inside the tunnels if transport is `vxlan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// transport connects the network across nodes. `local`: each node has its own network with these subnets;
    /// addresses are unique across nodes. `vxlan`: one overlay network across all nodes that have pods on it. It
    /// applies to the network's own bridge, which interfaces without a `master` use. It may change from `vxlan` to
    /// `local`, but not back. Defaults to `local`.
    #[serde(default)]
    pub transport: Transport,
    /// vni is the virtual network identifier of the overlay, 0 to 16777215. If two networks of the cluster have the
    /// same VNI, the older one uses it. Only valid if transport is `vxlan`. Defaults to a VNI derived from namespace
    /// and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// segment marks a view of the cluster network, or of a part of it: it has no bridge and no addresses, and no
    /// interface can be attached to it. Knit's controller creates and deletes these objects; the API server rejects
    /// those of others. It is immutable. Defaults to none, a network of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
}

const VNI_NEEDS_VXLAN: &str = "vni must be unset unless transport is vxlan";
const STAYS_LOCAL: &str = "transport must not change from local to vxlan: create another VirtualNetwork";

/// Isolation controls the node's access to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Isolation {
    #[default]
    Open,
    Isolated,
}

/// Transport connects the network across nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Transport {
    #[default]
    Local,
    Vxlan,
}

/// VirtualNetworkStatus is the observed state of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualNetworkStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    /// nodes lists the nodes of an overlay network that have pods on it, at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<NetworkNode>,
}

/// NetworkNode is the state of an overlay network on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkNode {
    /// node is the name of the node; empty outside a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// transport describes how the node reaches the other nodes.
    pub transport: String,
}

impl Status for VirtualNetworkStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let nodes = report.nodes.iter().flat_map(|of| {
            let items = of.items.iter().filter(|item| item.ready && item.field == TRANSPORT);
            items.map(|item| NetworkNode { node: of.node.clone(), transport: item.description.clone() })
        });
        Self { common, nodes: nodes.take(MAX_LISTED_PODS).collect() }
    }
}

const TRANSPORT: &str = "spec.transport";

/// The bridge on the node for the veth pairs of a network.
pub(crate) fn bridge_name(network: &str) -> String {
    NetworkIntent::bridge_name(network)
}

impl ResourceKind for VirtualNetwork {
    const COLUMNS: &'static [Column] = &[
        Column { name: "Subnets", type_: "string", path: ".spec.subnets", wide: false },
        Column { name: "Isolation", type_: "string", path: ".spec.isolation", wide: false },
        Column { name: "Segment", type_: "string", path: ".spec.segment.scope", wide: false },
        Column { name: "Transport", type_: "string", path: ".spec.transport", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        if let Some(segment) = &spec.segment {
            return segment.declare(spec, to);
        }
        let problems = &mut to.problems;
        if spec.subnets.is_empty() {
            problems.invalid("spec.subnets", "must list at least one subnet");
        }
        let mut ranges: Vec<IpNet> = Vec::new();
        for (index, subnet) in spec.subnets.iter().enumerate() {
            let field = format!("spec.subnets[{index}]");
            let Some(range) = subnet.read(&field, problems) else { continue };
            match ranges.iter().find(|other| other.contains(&range) || range.contains(*other)) {
                Some(other) => {
                    let message = format!("subnets must not overlap: {range} overlaps {other}");
                    problems.invalid(&field, message);
                }
                None => ranges.push(range),
            }
        }
        let mtu = spec.mtu.as_ref().and_then(|mtu| mtu.read("spec.mtu", problems));
        let vni = spec.vni.as_ref().and_then(|vni| vni.read("spec.vni", problems));
        if vni.is_some() && spec.transport == Transport::Local {
            problems.invalid("spec.vni", VNI_NEEDS_VXLAN);
        }
        let is_overlay = spec.transport == Transport::Vxlan;
        if is_overlay && to.dialect() != Dialect::Kubernetes {
            to.warn(TRANSPORT, "the network is local to this machine: an overlay needs a cluster");
        }
        let created = self.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
        let created = created.unwrap_or_default();
        let intent = NetworkIntent {
            name: to.object_name().to_owned(),
            ranges,
            isolated: spec.isolation == Isolation::Isolated,
            mtu,
            overlay: is_overlay.then_some(OverlayIntent { vni, created }),
        };
        to.intent("spec", IntentSpec::Network(intent));
    }

    fn check_change(&self, old: &Self, problems: &mut Problems) {
        if self.spec.transport == Transport::Vxlan && old.spec.transport == Transport::Local {
            problems.invalid(TRANSPORT, STAYS_LOCAL);
        }
        if self.spec.segment != old.spec.segment {
            problems.invalid("spec.segment", segment::IMMUTABLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use knit_model::IfName;

    use super::*;

    #[test]
    fn a_bridge_is_named_after_its_network_if_the_name_fits() {
        assert_eq!(bridge_name("blue"), "vn-blue");
        let derived = bridge_name("a-rather-long-network-name");
        assert!(IfName::new(derived.as_str()).is_ok(), "{derived}");
        assert_eq!(derived, bridge_name("a-rather-long-network-name"));
    }

    fn network(transport: &str) -> VirtualNetwork {
        let manifest = format!(
            r#"{{"apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "VirtualNetwork",
                "metadata": {{"name": "blue", "creationTimestamp": "2026-01-02T03:04:05Z"}},
                "spec": {{"subnets": ["10.60.0.0/24"]{transport}}}}}"#
        );
        serde_json::from_str(&manifest).unwrap()
    }

    fn overlay(network: &VirtualNetwork) -> Result<Option<OverlayIntent>, String> {
        let translation = network.intents(Dialect::Kubernetes).map_err(|problems| problems.to_string())?;
        let [intent] = &translation.intents[..] else { panic!("{translation:?}") };
        let IntentSpec::Network(network) = &intent.spec else { panic!("{intent:?}") };
        Ok(network.overlay.clone())
    }

    #[test]
    fn a_vxlan_network_is_an_overlay_with_its_creation_time() {
        assert_eq!(overlay(&network("")), Ok(None));
        let created = "2026-01-02T03:04:05Z".to_owned();
        let expected = OverlayIntent { vni: Some(42), created };
        assert_eq!(overlay(&network(r#", "transport": "vxlan", "vni": 42"#)), Ok(Some(expected)));
        assert!(overlay(&network(r#", "vni": 42"#)).unwrap_err().contains(VNI_NEEDS_VXLAN));
    }

    #[test]
    fn transport_changes_from_vxlan_to_local_only() {
        let (local, vxlan) = (network(""), network(r#", "transport": "vxlan""#));
        let check = |new: &VirtualNetwork, old: &VirtualNetwork| {
            let mut problems = Problems::default();
            new.check_change(old, &mut problems);
            problems.is_empty()
        };
        assert!(check(&local, &vxlan) && check(&vxlan, &vxlan));
        assert!(!check(&vxlan, &local));
    }
}
