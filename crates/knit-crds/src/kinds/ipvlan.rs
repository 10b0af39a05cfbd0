//! Ipvlan: a link with addresses of its own and its parent's hardware address.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{DeviceName, InterfaceName, NamePrefix, Rule};
use crate::interface::{InterfaceFields, read_name};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const NO_HARDWARE: Rule<'_> = ("!has(self.hardwareAddr)", "an ipvlan has no hardware address of its own");
const POD_LABEL: &str = "podnetwork.opdev.io/ipvlan";

/// An ipvlan for each of the pods that are labelled `podnetwork.opdev.io/ipvlan: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Ipvlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A link with addresses of its own for each pod, which shares the hardware address of an Uplink of the node or of another interface of the pod. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kiv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::PORT_OF_ONE, NO_HARDWARE])))]
pub struct IpvlanSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/ipvlan: <name of this object>`.
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
    /// At which layer packets are handed on: `l2` like a switch, `l3` like a router (there is neither ARP nor
    /// multicast), `l3s` the same with the filters of where the parent lives. All ipvlans on one parent share it. It
    /// changes on the living interface. Default: `l2`.
    #[serde(default)]
    pub mode: IpvlanMode,
    /// How ipvlans on the same parent see each other: `bridge` directly, `vepa` through a switch outside that sends
    /// packets back, `private` not at all. All ipvlans on one parent share it. It changes on the living interface.
    /// Default: `bridge`.
    #[serde(default)]
    pub flag: IpvlanFlag,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// At which layer packets are handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum IpvlanMode {
    #[default]
    L2,
    L3,
    L3s,
}

/// How ipvlans on the same parent see each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum IpvlanFlag {
    #[default]
    Bridge,
    Private,
    Vepa,
}

impl IpvlanSpec {
    fn link(&self) -> link::Ipvlan {
        let mode = match self.mode {
            IpvlanMode::L2 => link::IpvlanMode::L2,
            IpvlanMode::L3 => link::IpvlanMode::L3,
            IpvlanMode::L3s => link::IpvlanMode::L3s,
        };
        let flag = match self.flag {
            IpvlanFlag::Bridge => link::IpvlanFlag::Bridge,
            IpvlanFlag::Private => link::IpvlanFlag::Private,
            IpvlanFlag::Vepa => link::IpvlanFlag::Vepa,
        };
        link::Ipvlan { parent: None, mode: Some(mode), flag: Some(flag) }
    }
}

impl Kind for Ipvlan {
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
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        to.interface(Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Ipvlan(spec.link()),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}
