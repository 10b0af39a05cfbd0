//! Vrf: a VRF in each selected pod.

use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::VrfTable;
use crate::interface::{InterfaceFields, NameFields};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const NO_NESTED_VRF: &str = "vrf must be unset: a VRF cannot be a port of another VRF";
const POD_LABEL: &str = "podnetwork.opdev.io/vrf";

/// VrfSpec selects pods by the label `podnetwork.opdev.io/vrf: <object name>` or by `selector`, and describes the VRF.
/// Other interfaces of the pod join it with their field `vrf`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vrf",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Vrf adds a VRF to each selected pod: interfaces that reference it by `vrf` have their routes in its table, isolated from the other routes of the pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kvrf"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[("!has(self.vrf)", NO_NESTED_VRF)])))]
pub struct VrfSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/vrf: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// table is the routing table of the VRF, 1 to 4294967295 except 253 to 255, which are the pod's own. Changing it
    /// replaces the VRF and keeps its ports.
    pub table: VrfTable,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl ResourceKind for Vrf {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[LinkTypeInfo::new("vrf", LowerLink::None, |details| {
        Some(LinkKind::Vrf(link::Vrf { table: details.table? }))
    })
    .needs(&["table"])];
    const COLUMNS: &'static [Column] =
        &[Column { name: "Table", type_: "integer", path: ".spec.table", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        if spec.interface.vrf.is_some() {
            to.problems.invalid("spec.vrf", NO_NESTED_VRF);
        }
        let Some(table) = spec.table.read("spec.table", &mut to.problems) else { return };
        let vrf = link::Vrf { table };
        vrf.check("spec", &mut to.problems);
        to.interface(InterfaceEntry {
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
