//! Veth: a veth pair, one end in the pod, the other end on a bridge of the node.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind, virtualnetwork};
use crate::fields::InterfaceName;
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{LinkTypeInfo, LowerLink, must_be_set, needs_master};
use crate::port::PortVlan;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/veth";

/// VethSpec selects pods by the label `podnetwork.opdev.io/veth: <object name>` or by `selector`, and describes the
/// interface.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Veth",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Veth adds a veth pair to each selected pod: one end in the pod, the other end on a bridge of the node. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kveth"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct VethSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/veth: <object
    /// name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// master is the bridge on the node that the host end is a port of. It is created if it does not exist, with the
    /// first address of cidr. Changing it moves the port and keeps the interface. Defaults to the bridge of network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    /// vlan is the VLAN membership of the host end on its bridge: `{access: 100}`, or `{trunk: ["100", 200-300],
    /// native: 1}`. It enables VLAN filtering on the bridge. It is updated in place. Defaults to access to the default
    /// VLAN on a bridge with VLAN filtering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

fn rules() -> serde_json::Value {
    let master = (
        "has(self.master) || has(self.network)",
        "master or network must be set: a veth needs a bridge on the node",
    );
    rules_with(&[master])
}

impl ResourceKind for Veth {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("veth", LowerLink::HostEnd, |_| Some(LinkKind::Veth(link::Veth::default())))
            .takes(&["vlan"])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Master", type_: "string", path: ".spec.master", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
        Column { name: "Network", type_: "string", path: ".spec.network", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = match (&spec.master, &spec.interface.network) {
            (Some(master), _) => master.read("spec.master", &mut to.problems).map(String::from),
            (None, Some(network)) => Some(virtualnetwork::bridge_name(&network.0)),
            (None, None) => {
                to.problems.invalid("spec.master", must_be_set(&needs_master("veth")));
                None
            }
        };
        let port = spec.vlan.as_ref().and_then(|vlan| vlan.read("spec.vlan", &mut to.problems));
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Veth(link::Veth::default()),
            parent: None,
            master,
            fields: &spec.interface,
        };
        to.port(entry, port);
    }
}
