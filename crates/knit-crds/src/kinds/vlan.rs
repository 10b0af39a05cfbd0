//! Vlan: a VLAN interface on a parent.

use knit_model::Problems;
use knit_model::link::{self, Kind as LinkKind, QosMapping};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{DeviceName, InterfaceName, SkbPriority, TagPriority, VlanId};
use crate::interface::{InterfaceFields, NameFields, each};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/vlan";

/// VlanSpec selects pods by the label `podnetwork.opdev.io/vlan: <object name>` or by `selector`, and describes the
/// interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Vlan adds a VLAN interface to each selected pod, on an Uplink or on another interface of the pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kvl"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::MASTER_OR_VRF])))]
pub struct VlanSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/vlan: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// parent is the lower link: another interface of the pod, or an Uplink that allows this namespace and this VLAN.
    /// Changing it replaces the interface.
    pub parent: DeviceName,
    /// id is the VLAN ID, 1 to 4094. Changing it replaces the interface.
    pub id: VlanId,
    /// protocol is the tag protocol: `802.1Q`, or `802.1ad` for the outer tag of QinQ. Changing it replaces the
    /// interface. Defaults to `802.1Q`.
    #[serde(default)]
    pub protocol: VlanProtocol,
    /// reorderHeader removes the tag before packets reach programs. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_header: Option<bool>,
    /// gvrp announces the VLAN to switches by GVRP. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gvrp: Option<bool>,
    /// mvrp announces the VLAN to switches by MVRP. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mvrp: Option<bool>,
    /// looseBinding keeps the interface up while its parent is down. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loose_binding: Option<bool>,
    /// ingressQos maps the priority in the tag of received packets to the packet priority. Defaults to 0 for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 8,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["from"],
    ))]
    pub ingress_qos: Vec<IngressPriority>,
    /// egressQos maps the packet priority to the priority in the tag of sent packets. Defaults to 0 for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["from"],
    ))]
    pub egress_qos: Vec<EgressPriority>,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// VlanProtocol is the protocol of a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum VlanProtocol {
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1q,
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// IngressPriority maps the priority in a received tag to a packet priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IngressPriority {
    /// from is the priority in the tag, 0 to 7.
    pub from: TagPriority,
    /// to is the packet priority (skb priority).
    pub to: SkbPriority,
}

/// EgressPriority maps a packet priority to the priority in a sent tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressPriority {
    /// from is the packet priority (skb priority).
    pub from: SkbPriority,
    /// to is the priority in the tag, 0 to 7.
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
    /// The model's VLAN with every field set, so that a field that is removed from the object returns to its default.
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
            ingress_qos: Some(sorted_qos_map(ingress, "spec.ingressQos", problems)),
            egress_qos: Some(sorted_qos_map(egress, "spec.egressQos", problems)),
        })
    }
}

/// Sorts a map and removes entries that map to the default 0.
fn sorted_qos_map(mut map: Vec<QosMapping>, field: &str, problems: &mut Problems) -> Vec<QosMapping> {
    map.sort_unstable();
    if let Some(duplicate) = map.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        problems.invalid(field, format!("priority {} must be listed only once", duplicate[0].0));
    }
    map.retain(|(_, to)| *to != 0);
    map
}

impl ResourceKind for Vlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("vlan", LowerLink::Required, |details| {
            Some(LinkKind::Vlan(plain_vlan(details.vlan_id?)))
        })
        .needs(&["vlanID"])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "VLAN", type_: "integer", path: ".spec.id", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        let Some(vlan) = spec.link(&mut to.problems) else { return };
        to.interface(InterfaceEntry {
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

/// A VLAN with the default settings.
pub(crate) fn plain_vlan(id: u16) -> link::Vlan {
    link::Vlan {
        parent: None,
        id,
        protocol: Some(link::VlanProtocol::Dot1q),
        reorder_header: Some(true),
        gvrp: Some(false),
        mvrp: Some(false),
        loose_binding: Some(false),
        ingress_qos: Some(Vec::new()),
        egress_qos: Some(Vec::new()),
    }
}
