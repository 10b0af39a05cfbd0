//! HostDevice: a NIC of the node, lent to a pod.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{DeviceName, InterfaceName, NamePrefix};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::PORT_OF_ONE;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, NO_ALIAS, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/hostdevice";

/// The NIC of an Uplink for the pod that is labelled `podnetwork.opdev.io/hostdevice: <name of this object>`, or that
/// `selector` matches. On each node one pod at a time has it.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "HostDevice",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A NIC of the node that an Uplink is open for, lent to a running pod. It goes back as it was with the object, the label or the pod.",
    shortname = "khd"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct HostDeviceSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/hostdevice: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The Uplink whose NIC it is. Its `kinds` have to name `host-device`. Another one is another NIC.
    pub parent: DeviceName,
    /// A bridge in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

fn rules() -> serde_json::Value {
    rules_with(&[("!has(self.alias)", NO_ALIAS), PORT_OF_ONE])
}

impl Kind for HostDevice {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "Uplink", type_: "string", path: ".spec.parent", wide: false }];

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
            kind: LinkKind::HostDevice(link::HostDevice::default()),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}
