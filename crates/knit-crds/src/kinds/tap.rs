//! Tap: an Ethernet link whose other end is a program in the pod, such as a virtual machine.

use knit_model::link::{self, Kind as LinkKind, TAP_NOBODY};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, NamePrefix, UserId};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::PORT_OF_ONE;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/tap";

/// A tap for each of the pods that are labelled `podnetwork.opdev.io/tap: <name of this object>`, or that `selector`
/// matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Tap",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A tap for each pod: an interface whose other end is a program in the pod, which opens it without any capability. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "ktap"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules_with(&[PORT_OF_ONE])))]
pub struct TapSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/tap: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The user who may open it, by number. Another one makes the interface again. Default: only root may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserId>,
    /// The group that may open it, by number. Another one makes the interface again. Default: only root may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_group: Option<UserId>,
    /// Whether a program opens it once for each of its queues. Another value makes the interface again. Default: false.
    #[serde(default)]
    pub multi_queue: bool,
    /// Whether each packet has virtio's header before it, until a program that opens it says something else.
    /// Default: nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnet_hdr: Option<bool>,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl Kind for Tap {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Owner", type_: "integer", path: ".spec.owner", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let id = |id: &Option<UserId>, field, to: &mut Translator| match id {
            Some(id) => id.read(field, &mut to.problems),
            None => Some(TAP_NOBODY),
        };
        let tap = link::Tap {
            user: id(&spec.owner, "spec.owner", to),
            user_group: id(&spec.owner_group, "spec.ownerGroup", to),
            multi_queue: Some(spec.multi_queue),
            vnet_hdr: spec.vnet_hdr,
        };
        to.interface(Entry {
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
