//! Ipvlan: a link that shares the hardware address of its parent.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{DeviceName, InterfaceName, Rule};
use crate::interface::{InterfaceFields, NameFields};
use crate::link_type::{Details, LinkMode, LinkTypeInfo, LowerLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const NO_HARDWARE: Rule<'_> = (
    "!has(self.hardwareAddr)",
    "hardwareAddr must be unset: an ipvlan has the hardware address of its parent",
);
const POD_LABEL: &str = "podnetwork.opdev.io/ipvlan";

/// IpvlanSpec selects pods by the label `podnetwork.opdev.io/ipvlan: <object name>` or by `selector`, and describes the
/// interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Ipvlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Ipvlan adds an ipvlan link to each selected pod, on an Uplink or on another interface of the pod. It shares the hardware address of its parent. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kiv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::MASTER_OR_VRF, NO_HARDWARE])))]
pub struct IpvlanSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/ipvlan:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// parent is the lower link: another interface of the pod, or an Uplink that allows this namespace. Changing it
    /// replaces the interface.
    pub parent: DeviceName,
    /// mode is the ipvlan mode: `l2` switches, `l3` routes without ARP and multicast, `l3s` is l3 with the packet
    /// filter of the parent's network namespace. All ipvlans on one parent share the mode. It is updated in place.
    /// Defaults to `l2`.
    #[serde(default)]
    pub mode: IpvlanMode,
    /// flag controls traffic between ipvlans on one parent: `bridge` forwards it directly, `vepa` through an external
    /// switch, `private` drops it. All ipvlans on one parent share the flag. It is updated in place. Defaults to
    /// `bridge`.
    #[serde(default)]
    pub flag: IpvlanFlag,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// IpvlanMode is the layer at which an ipvlan forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum IpvlanMode {
    #[default]
    L2,
    L3,
    L3s,
}

/// IpvlanFlag controls traffic between ipvlans on one parent.
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

impl ResourceKind for Ipvlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[LinkTypeInfo::new("ipvlan", LowerLink::Required, listed)
        .modes(&[LinkMode::L2, LinkMode::L3, LinkMode::L3s])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        to.interface(InterfaceEntry {
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

/// The link of a list entry.
fn listed(details: &Details) -> Option<LinkKind> {
    let mode = match details.mode.unwrap_or(LinkMode::L2) {
        LinkMode::L2 => link::IpvlanMode::L2,
        LinkMode::L3 => link::IpvlanMode::L3,
        LinkMode::L3s => link::IpvlanMode::L3s,
        _ => return None,
    };
    let flag = Some(link::IpvlanFlag::Bridge);
    Some(LinkKind::Ipvlan(link::Ipvlan { parent: None, mode: Some(mode), flag }))
}
