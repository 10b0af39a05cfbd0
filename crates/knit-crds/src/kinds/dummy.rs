//! Dummy: a dummy link in each selected pod.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::InterfaceName;
use crate::interface::{InterfaceFields, NameFields};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/dummy";

/// DummySpec selects pods by the label `podnetwork.opdev.io/dummy: <object name>` or by `selector`, and describes the
/// interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Dummy",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Dummy adds a dummy link to each selected pod, for addresses that are not bound to a network, such as a service VIP. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kdm"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::MASTER_OR_VRF])))]
pub struct DummySpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/dummy: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl ResourceKind for Dummy {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("dummy", LowerLink::None, |_| Some(LinkKind::Dummy(link::Dummy {})))];
    const COLUMNS: &'static [Column] =
        &[Column { name: "Addresses", type_: "string", path: ".spec.addresses", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        to.interface(InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Dummy(link::Dummy {}),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}
