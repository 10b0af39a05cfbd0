//! Macvlan: a link with its own hardware address on a parent.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{DeviceName, InterfaceName};
use crate::interface::{InterfaceFields, NameFields};
use crate::link_type::{Details, LinkMode, LinkTypeInfo, LowerLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/macvlan";

/// MacvlanSpec selects pods by the label `podnetwork.opdev.io/macvlan: <object name>` or by `selector`, and describes
/// the interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Macvlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Macvlan adds a macvlan link with its own hardware address to each selected pod, on an Uplink or on another interface of the pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kmv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::MASTER_OR_VRF])))]
pub struct MacvlanSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/macvlan:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// parent is the lower link: another interface of the pod, or an Uplink that allows this namespace. Changing it
    /// replaces the interface.
    pub parent: DeviceName,
    /// mode controls traffic between macvlans on one parent: `bridge` forwards it directly, `vepa` through an external
    /// switch, `private` drops it; `passthru` uses the parent exclusively. Changing it to or from `passthru` replaces
    /// the interface. Defaults to `bridge`.
    #[serde(default)]
    pub mode: MacvlanMode,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// MacvlanMode controls traffic between macvlans on one parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum MacvlanMode {
    #[default]
    Bridge,
    Private,
    Vepa,
    Passthru,
}

impl ResourceKind for Macvlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[LinkTypeInfo::new("macvlan", LowerLink::Required, listed)
        .modes(&[LinkMode::Bridge, LinkMode::Private, LinkMode::Vepa, LinkMode::Passthru])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let mode = match spec.mode {
            MacvlanMode::Bridge => link::MacvlanMode::Bridge,
            MacvlanMode::Private => link::MacvlanMode::Private,
            MacvlanMode::Vepa => link::MacvlanMode::Vepa,
            MacvlanMode::Passthru => link::MacvlanMode::Passthru,
        };
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        to.interface(InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Macvlan(link::Macvlan { parent: None, mode: Some(mode) }),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}

/// The link of a list entry.
fn listed(details: &Details) -> Option<LinkKind> {
    let mode = match details.mode.unwrap_or(LinkMode::Bridge) {
        LinkMode::Bridge => link::MacvlanMode::Bridge,
        LinkMode::Private => link::MacvlanMode::Private,
        LinkMode::Vepa => link::MacvlanMode::Vepa,
        LinkMode::Passthru => link::MacvlanMode::Passthru,
        _ => return None,
    };
    Some(LinkKind::Macvlan(link::Macvlan { parent: None, mode: Some(mode) }))
}
