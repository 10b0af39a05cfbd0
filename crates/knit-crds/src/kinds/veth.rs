//! Veth: a pair of links, one end in the pod, the other on a bridge of the node.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind, virtualnetwork};
use crate::fields::{InterfaceName, NamePrefix};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::link_type::needs_master;
use crate::port::PortVlan;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/veth";

/// A pair for each of the pods that are labelled `podnetwork.opdev.io/veth: <name of this object>`, or that `selector`
/// matches.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Veth",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A pair of links for each pod: one end in the pod, the other on a bridge of the node. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kveth"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct VethSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/veth: <name of this object>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The bridge on the node that the node's end is a port of. It is made if it is missing, with the first address of
    /// `cidr`. A new master moves the port, the interface stays. Default: the bridge of `network`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    /// The VLANs of the node's end on its bridge: `{access: 100}`, or `{trunk: ["100", 200-300], native: 1}`. The
    /// bridge then filters VLANs. It changes on the living interface. Default: on a bridge that filters, access to the
    /// bridge's default VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

fn rules() -> serde_json::Value {
    let master = (
        "has(self.master) || has(self.network)",
        "a veth needs `master`, a bridge on the node for its other end, or `network`",
    );
    rules_with(&[master])
}

impl Kind for Veth {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Master", type_: "string", path: ".spec.master", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
        Column { name: "Network", type_: "string", path: ".spec.network", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let master = match (&spec.master, &spec.interface.network) {
            (Some(master), _) => master.read("spec.master", &mut to.problems).map(String::from),
            (None, Some(network)) => Some(virtualnetwork::bridge_name(&network.0)),
            (None, None) => {
                to.problems.invalid("spec.master", needs_master("veth"));
                None
            }
        };
        let port = spec.vlan.as_ref().and_then(|vlan| vlan.read("spec.vlan", &mut to.problems));
        let entry = Entry {
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
