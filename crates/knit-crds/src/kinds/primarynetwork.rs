//! PrimaryNetwork: changes to an interface that the primary CNI plugin created.

use std::collections::BTreeMap;

use knit_model::IfName;
use knit_model::intent::{IntentSpec, LinkChangeIntent, Selector};
use knit_model::link::Attrs;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{HardwareAddr, InterfaceName, Mtu, QueueLength};
use crate::interface::{each, read_sysctls};
use crate::routing::RouteEntry;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::Translator;

const POD_LABEL: &str = "podnetwork.opdev.io/primarynetwork";

/// PrimaryNetworkSpec selects pods by the label `podnetwork.opdev.io/primarynetwork: <object name>` or by `selector`,
/// and describes the changes.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PrimaryNetwork",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "PrimaryNetwork changes the primary interface of running pods. The original values are restored when the object, the field or the label is removed.",
    shortname = "pnet"
)]
#[serde(rename_all = "camelCase")]
pub struct PrimaryNetworkSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label
    /// `podnetwork.opdev.io/primarynetwork: <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// interfaceName is the interface that the primary CNI plugin created. Defaults to `eth0`.
    #[serde(default = "first_interface")]
    #[schemars(extend("x-kubernetes-validations" = InterfaceName::rules_with(&[("self != 'lo'", LOOPBACK)])))]
    pub interface_name: InterfaceName,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub change: PrimaryFields,
}

/// PrimaryFields describes changes to an interface that Knit did not create. Fields that are not set are not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "has(self.mtu) || has(self.txQLen) || has(self.hardwareAddr) \
     || (has(self.sysctls) && size(self.sysctls) > 0) || (has(self.routes) && size(self.routes) > 0)",
    EMPTY,
)])))]
pub struct PrimaryFields {
    /// mtu is the MTU in bytes, 68 to 65535.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// txQLen is the transmit queue length in packets.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_q_len: Option<QueueLength>,
    /// hardwareAddr is the hardware address, such as `02:00:00:00:00:01`. Every selected pod gets the same address, so
    /// use it with one pod. The primary CNI plugin may drop packets from an address that it did not assign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// sysctls sets sysctls of the interface by family and name, such as `ipv4/rp_filter: "2"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::interface::sysctl_schema")]
    pub sysctls: BTreeMap<String, String>,
    /// routes lists routes to add in the pod, at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub routes: Vec<RouteEntry>,
}

const LOOPBACK: &str = "interfaceName must not be `lo`, the loopback interface";
const EMPTY: &str = "at least one of mtu, txQLen, hardwareAddr, sysctls and routes must be set";

fn first_interface() -> InterfaceName {
    InterfaceName("eth0".to_owned())
}

impl PrimaryFields {
    /// Declares the change.
    pub(crate) fn declare(&self, path: &str, name: IfName, pods: Selector, to: &mut Translator) {
        let at = |field: &str| format!("{path}.{field}");
        let problems = &mut to.problems;
        if *self == Self::default() {
            problems.invalid(path, EMPTY);
        }
        let attrs = Attrs {
            mtu: self.mtu.as_ref().and_then(|mtu| mtu.read(at("mtu"), problems)),
            mac: self.hardware_addr.as_ref().and_then(|mac| mac.read(at("hardwareAddr"), problems)),
            txqueuelen: self.tx_q_len.as_ref().and_then(|length| length.read(at("txQLen"), problems)),
            ..Attrs::default()
        };
        let sysctls = read_sysctls(&self.sysctls, &at("sysctls"), problems);
        let routes = each(&self.routes, &at("routes"), |route, at| route.read(at, problems));
        to.intent(path, IntentSpec::LinkChange(LinkChangeIntent { pods, name, attrs, sysctls, routes }));
    }
}

impl ResourceKind for PrimaryNetwork {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Interface", type_: "string", path: ".spec.interfaceName", wide: false },
        Column { name: "MTU", type_: "integer", path: ".spec.mtu", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.interface_name.read("spec.interfaceName", &mut to.problems);
        let Some(name) = name else { return };
        if name.as_str() == "lo" {
            to.problems.invalid("spec.interfaceName", LOOPBACK);
        }
        spec.change.declare("spec", name, pods, to);
    }
}
