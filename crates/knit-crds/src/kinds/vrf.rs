//! Vrf: a routing domain of its own inside the pod.

use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, NamePrefix, VrfTable};
use crate::interface::{InterfaceFields, read_name};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const NO_PORT: &str = "a VRF is no port of another";
const POD_LABEL: &str = "podnetwork.opdev.io/vrf";

/// A VRF for each of the pods that are labelled `podnetwork.opdev.io/vrf: <name of this object>`, or that `selector`
/// matches. Other interfaces of the pod join it with their field `vrf`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vrf",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A routing domain of its own inside each pod: interfaces that name it as `vrf` have their routes in its table, and reach nothing outside of it. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kvrf"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[("!has(self.vrf)", NO_PORT)])))]
pub struct VrfSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/vrf: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The routing table of its routes, 1 to 4294967295, but none of the pod's own (253 to 255). Another table makes the
    /// VRF again; its ports stay.
    pub table: VrfTable,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl Kind for Vrf {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "Table", type_: "integer", path: ".spec.table", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        if spec.interface.vrf.is_some() {
            to.problems.invalid("spec.vrf", NO_PORT);
        }
        let Some(table) = spec.table.read("spec.table", &mut to.problems) else { return };
        let vrf = link::Vrf { table };
        vrf.check("spec", &mut to.problems);
        to.interface(Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Vrf(vrf),
            parent: None,
            master: None,
            fields: &spec.interface,
        });
    }
}
