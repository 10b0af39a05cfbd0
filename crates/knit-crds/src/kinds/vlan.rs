//! Vlan: the packets of one VLAN on another link.

use knit_model::Problems;
use knit_model::link::{self, Kind as LinkKind, QosMapping};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{DeviceName, InterfaceName, NamePrefix, SkbPriority, TagPriority, VlanId};
use crate::interface::{InterfaceFields, each, read_name};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/vlan";

/// A VLAN for each of the pods that are labelled `podnetwork.opdev.io/vlan: <name of this object>`, or that `selector`
/// matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A link for each pod that carries the packets of one VLAN of an Uplink of the node or of another interface of the pod. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kvl"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::PORT_OF_ONE])))]
pub struct VlanSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/vlan: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// What it sits on: another interface of the pod, or an Uplink that is open to this namespace and has this VLAN
    /// among its `vlans`. A new parent makes the interface again.
    pub parent: DeviceName,
    /// The number of the VLAN, 1 to 4094. Another number makes the interface again.
    pub id: VlanId,
    /// The kind of tag: `802.1Q`, or `802.1ad` for the outer of two tags. Another one makes the interface again.
    /// Default: `802.1Q`.
    #[serde(default)]
    pub protocol: VlanProtocol,
    /// Whether the tag is taken out of packets before programs see them. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_header: Option<bool>,
    /// Whether switches are told of the VLAN by GVRP. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gvrp: Option<bool>,
    /// Whether switches are told of the VLAN by MVRP. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mvrp: Option<bool>,
    /// Whether the interface stays up while its parent is down. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loose_binding: Option<bool>,
    /// What the priority in the tag of a packet that comes in becomes inside. Default: 0 for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 8,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["from"],
    ))]
    pub ingress_qos: Vec<IngressPriority>,
    /// What the priority of a packet that goes out becomes in its tag. Default: 0 for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["from"],
    ))]
    pub egress_qos: Vec<EgressPriority>,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// The kind of tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum VlanProtocol {
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1q,
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// What a priority in a tag becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IngressPriority {
    /// The priority in the tag, 0 to 7.
    pub from: TagPriority,
    /// The priority inside.
    pub to: SkbPriority,
}

/// What a priority becomes in a tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressPriority {
    /// The priority inside.
    pub from: SkbPriority,
    /// The priority in the tag, 0 to 7.
    pub to: TagPriority,
}

impl VlanProtocol {
    pub(super) fn model(self) -> link::VlanProtocol {
        match self {
            Self::Dot1q => link::VlanProtocol::Dot1q,
            Self::Dot1ad => link::VlanProtocol::Dot1ad,
        }
    }
}

impl VlanSpec {
    /// The model's VLAN, with every field stated, so that one that is taken out of the object goes back.
    fn link(&self, problems: &mut Problems) -> Option<link::Vlan> {
        let ingress = each(&self.ingress_qos, "spec.ingressQos", |entry, at| {
            Some((
                entry.from.read(format!("{at}.from"), problems)?,
                entry.to.read(format!("{at}.to"), problems)?,
            ))
        });
        let egress = each(&self.egress_qos, "spec.egressQos", |entry, at| {
            Some((
                entry.from.read(format!("{at}.from"), problems)?,
                entry.to.read(format!("{at}.to"), problems)?,
            ))
        });
        Some(link::Vlan {
            parent: None,
            id: self.id.read("spec.id", problems)?,
            protocol: Some(self.protocol.model()),
            reorder_header: self.reorder_header.or(Some(true)),
            gvrp: self.gvrp.or(Some(false)),
            mvrp: self.mvrp.or(Some(false)),
            loose_binding: self.loose_binding.or(Some(false)),
            ingress_qos: Some(in_order(ingress, "spec.ingressQos", problems)),
            egress_qos: Some(in_order(egress, "spec.egressQos", problems)),
        })
    }
}

/// A map as the model has it: in order, without what becomes 0 anyway.
fn in_order(mut map: Vec<QosMapping>, field: &str, problems: &mut Problems) -> Vec<QosMapping> {
    map.sort_unstable();
    if let Some(twice) = map.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        problems.invalid(field, format!("priority {} is said twice", twice[0].0));
    }
    map.retain(|(_, to)| *to != 0);
    map
}

impl Kind for Vlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "VLAN", type_: "integer", path: ".spec.id", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        let Some(vlan) = spec.link(&mut to.problems) else { return };
        to.interface(Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Vlan(vlan),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}
