//! HostDevice: a NIC of the node, moved into a pod.

use knit_model::link::{self, Kind as LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{DeviceName, InterfaceName};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, NO_ALIAS, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/hostdevice";

/// HostDeviceSpec selects the pod by the label `podnetwork.opdev.io/hostdevice: <object name>` or by `selector`. On
/// each node, one pod at a time owns the NIC.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "HostDevice",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "HostDevice moves the NIC of an Uplink into a running pod. The NIC returns to the node with its original settings when the object, the label or the pod is removed.",
    shortname = "khd"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct HostDeviceSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/hostdevice:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// parent is the Uplink whose NIC is moved. The `kinds` of the Uplink must contain `host-device`. Changing it moves
    /// another NIC.
    pub parent: DeviceName,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

fn rules() -> serde_json::Value {
    rules_with(&[("!has(self.alias)", NO_ALIAS), MASTER_OR_VRF])
}

impl ResourceKind for HostDevice {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("host-device", LowerLink::Required, |_| {
            Some(LinkKind::HostDevice(link::HostDevice::default()))
        })];
    const COLUMNS: &'static [Column] =
        &[Column { name: "Uplink", type_: "string", path: ".spec.parent", wide: false }];

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
            kind: LinkKind::HostDevice(link::HostDevice::default()),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}
