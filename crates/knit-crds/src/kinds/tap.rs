//! Tap: a tap device in each selected pod, for a virtual machine or another userspace program.

use knit_model::link::{self, Kind as LinkKind, TAP_NO_OWNER};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, UserId};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/tap";

/// TapSpec selects pods by the label `podnetwork.opdev.io/tap: <object name>` or by `selector`, and describes the
/// interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Tap",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Tap adds a tap device to each selected pod, which a program in the pod opens without capabilities. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "ktap"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules_with(&[MASTER_OR_VRF])))]
pub struct TapSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/tap: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// owner is the numeric user ID that may open the device. Changing it replaces the interface. Defaults to root
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserId>,
    /// ownerGroup is the numeric group ID that may open the device. Changing it replaces the interface. Defaults to
    /// root only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_group: Option<UserId>,
    /// multiQueue lets a program open the device once per queue. Changing it replaces the interface. Defaults to false.
    #[serde(default)]
    pub multi_queue: bool,
    /// vnetHdr adds a virtio header to each packet until a program that opens the device changes it. Defaults to unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnet_hdr: Option<bool>,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl ResourceKind for Tap {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("tap", LowerLink::None, |_| Some(LinkKind::Tap(root_tap())))];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Owner", type_: "integer", path: ".spec.owner", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let id = |id: &Option<UserId>, field, to: &mut Translator| match id {
            Some(id) => id.read(field, &mut to.problems),
            None => Some(TAP_NO_OWNER),
        };
        let tap = link::Tap {
            user: id(&spec.owner, "spec.owner", to),
            user_group: id(&spec.owner_group, "spec.ownerGroup", to),
            multi_queue: Some(spec.multi_queue),
            vnet_hdr: spec.vnet_hdr,
        };
        to.interface(InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Tap(tap),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}

/// A tap that only root may open.
fn root_tap() -> link::Tap {
    let no_owner = Some(TAP_NO_OWNER);
    link::Tap { user: no_owner, user_group: no_owner, multi_queue: Some(false), vnet_hdr: None }
}
