//! Macvlan: a link with a hardware address of its own on another link.

use knit_model::link::{self, Kind as LinkKind, MacvlanMode};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{DeviceName, InterfaceName, NamePrefix};
use crate::interface::{InterfaceFields, read_name};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/macvlan";

/// A macvlan for each of the pods that are labelled `podnetwork.opdev.io/macvlan: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Macvlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A link with a hardware address of its own for each pod, on an Uplink of the node or on another interface of the pod. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kmv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::PORT_OF_ONE])))]
pub struct MacvlanSpec {
    /// Which pods of this namespace. Default: those with the label
    /// `podnetwork.opdev.io/macvlan: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// What it sits on: another interface of the pod, or an Uplink that is open to this namespace. A new parent makes
    /// the interface again.
    pub parent: DeviceName,
    /// How macvlans on the same parent see each other: `bridge` directly, `vepa` through a switch outside that sends
    /// packets back, `private` not at all; `passthru` takes all of the parent. To and from `passthru` the interface is
    /// made again. Default: `bridge`.
    #[serde(default)]
    pub mode: Mode,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// How macvlans on the same parent see each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Mode {
    #[default]
    Bridge,
    Private,
    Vepa,
    Passthru,
}

impl Kind for Macvlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let mode = match spec.mode {
            Mode::Bridge => MacvlanMode::Bridge,
            Mode::Private => MacvlanMode::Private,
            Mode::Vepa => MacvlanMode::Vepa,
            Mode::Passthru => MacvlanMode::Passthru,
        };
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        to.interface(Entry {
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
