//! Dummy: a link with no wire.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, NamePrefix};
use crate::interface::{InterfaceFields, read_name};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/dummy";

/// A dummy for each of the pods that are labelled `podnetwork.opdev.io/dummy: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Dummy",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A link with no wire for each pod, which holds addresses that belong to no network, such as a service's own address. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kdm"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::interface::rules_with(&[crate::rules::PORT_OF_ONE])))]
pub struct DummySpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/dummy: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

impl Kind for Dummy {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "Addresses", type_: "string", path: ".spec.addresses", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        to.interface(Entry {
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
