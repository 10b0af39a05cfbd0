//! PodNetworkState and NodeNetwork: the observed state of a pod and of a node; PodAddressBlock: a block of addresses
//! held by a node. Agents write these kinds; they contain no intents.
//!
//! An agent writes PodNetworkState and NodeNetwork in one request each, so these kinds have no status subresource. The
//! controller aggregates the status of objects from them.

mod block;
mod counters;
mod node;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::ObjectRef;
use knit_model::report::{AppliedReport, BridgeReport, InterfaceReport, ItemKind, ItemReport, PodState};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use block::COLUMNS as BLOCK_COLUMNS;
pub use block::{PodAddressBlock, PodAddressBlockSpec};
pub use counters::{DirectionCounters, InterfaceCounters, PodCounters};
pub(crate) use node::COLUMNS as NODE_COLUMNS;
pub use node::{
    KernelState, LinkSupport, NetworkCapacity, NodeNetwork, NodeNetworkSpec, NodeNetworkStatus, UplinkState,
};

use crate::info::Column;
use crate::status::{InterfaceStatus, attached_name, attached_schema, parse_attached};

/// The label by which an agent finds the states that it wrote.
pub const NODE_LABEL: &str = "podnetwork.opdev.io/node";
/// The label of PodNetworkStates of pods with interfaces on additional networks.
pub const ADDITIONAL_NETWORKS_LABEL: &str = "podnetwork.opdev.io/additional-networks";

/// PodNetworkStateSpec is empty: the object only reports state.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodNetworkState",
    namespaced,
    status = "PodNetworkStateStatus",
    derive = "PartialEq",
    doc = "PodNetworkState is the observed state of Knit's networks in one pod: the objects that apply to it, what is applied, and problems. It is written by the agent of the pod's node and deleted with the pod.",
    shortname = "pns"
)]
pub struct PodNetworkStateSpec {}

/// PodNetworkStateStatus is the observed state of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodNetworkStateStatus {
    /// node is the name of the pod's node.
    pub node: String,
    /// podUID is the UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// sandbox is the ID of the pod's sandbox, as assigned by the container runtime.
    pub sandbox: String,
    /// ready is true if everything that applies to the pod is applied.
    pub ready: bool,
    /// interfaces is the number of interfaces that Knit added to or changed in the pod.
    pub interfaces: u32,
    /// countedAt is the time at which the interface counters were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Time>,
    /// objects lists the objects that apply to the pod, each with what is applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<AppliedObject>,
}

/// AppliedObject is the state of one object in a pod or on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedObject {
    /// kind is the kind of the object; `Attachment` for a request of the container runtime, `Pod` for the pod's own
    /// annotation.
    pub kind: String,
    /// namespace is the namespace of the object; empty for a cluster-scoped object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// name is the name of the object.
    pub name: String,
    /// uid is the UID of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// generation is the generation of the spec that is applied.
    #[serde(default)]
    pub generation: i64,
    /// ready is true if the object is completely applied here.
    pub ready: bool,
    /// attached is when it was applied to the pod: `BeforeContainers` (before the containers started, by NRI),
    /// `WhileRunning` (containers may have been running) or `ByCall` (by a CNI or KNI call). Unset on a node, and while
    /// nothing is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "attached_schema")]
    pub attached: Option<String>,
    /// interfaces lists the interfaces of the object in the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub interfaces: Vec<InterfaceState>,
    /// items lists routes, rules, neighbours and sysctls; for the cluster network, how pods on other nodes are reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub items: Vec<ItemState>,
    /// bridges lists the bridges of the object on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<NodeBridge>,
    /// problems lists what prevents the object from being applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ProblemState>,
    /// warnings lists fields that are ignored or behave unexpectedly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
}

/// InterfaceState is the observed state of one interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceState {
    /// field is the field of the object that the interface is from.
    pub field: String,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceStatus,
    /// hardwareAddr is its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<String>,
    /// networks lists the additional networks that a MultiNetworkPolicy can select the interface by, each as
    /// `Kind/namespace/name`. Policies about it are enforced in the pod: containers with the capability NET_ADMIN or
    /// NET_RAW can get around them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub networks: Vec<String>,
    /// counters are the traffic counters since the interface was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<InterfaceCounters>,
    /// ready is true if the interface is completely applied.
    pub ready: bool,
}

/// Detail is a property of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// name is the name of the property.
    pub name: String,
    /// value is the value of the property.
    pub value: String,
}

/// ItemState is the observed state of a route, rule, neighbour or sysctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemState {
    /// field is the field of the object that the item is from.
    pub field: String,
    /// type is `route`, `rule`, `neighbour`, `sysctl`, `socket` or another type of item.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// value describes the item without its type, such as `10.9.0.0/16 via 10.1.0.1 dev net1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// what describes the item, such as `route 10.9.0.0/16 via 10.1.0.1 dev net1`.
    pub what: String,
    /// ready is true if the item is applied.
    pub ready: bool,
}

/// NodeBridge is the observed state of a bridge on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBridge {
    /// namespace is the namespace that the bridge belongs to; empty if the enclosing object has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// requested is the requested name of the bridge.
    pub requested: String,
    /// name is the actual name of the bridge.
    pub name: String,
    /// addresses lists its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
}

/// ProblemState is a problem that prevents an object from being applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemState {
    /// field is the field of the object; empty for the whole object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// reason is a stable CamelCase identifier.
    pub reason: String,
    /// message is a human-readable description.
    pub message: String,
}

impl PodNetworkStateStatus {
    /// Whether the pod has an interface on an additional network.
    pub fn has_additional_networks(&self) -> bool {
        let mut interfaces = self.objects.iter().flat_map(|object| &object.interfaces);
        interfaces.any(|interface| !interface.networks.is_empty())
    }

    /// The status of a pod.
    pub fn of(state: &PodState, node: &str) -> Self {
        let objects: Vec<AppliedObject> = state.objects.iter().map(AppliedObject::of).collect();
        let interfaces = objects.iter().map(|object| object.interfaces.len()).sum::<usize>();
        Self {
            node: node.to_owned(),
            pod_uid: state.sandbox.uid.clone(),
            sandbox: state.sandbox.id.0.clone(),
            ready: objects.iter().all(|object| object.ready),
            interfaces: u32::try_from(interfaces).unwrap_or(u32::MAX),
            counted_at: None,
            objects,
        }
    }
}

impl AppliedObject {
    /// Converts a report.
    pub fn of(applied: &AppliedReport) -> Self {
        let ObjectRef { kind, namespace, name, uid, generation } = applied.object.clone();
        Self {
            kind,
            namespace,
            name,
            uid,
            generation,
            ready: applied.ready,
            attached: applied.attached.map(attached_name),
            interfaces: applied.interfaces.iter().map(InterfaceState::of).collect(),
            items: applied.items.iter().map(ItemState::of).collect(),
            bridges: applied.bridges.iter().map(NodeBridge::of).collect(),
            problems: applied.problems.iter().map(ProblemState::of).collect(),
            warnings: applied.warnings.clone(),
        }
    }

    /// Converts to a report. Values of a newer agent that cannot be parsed are left out.
    pub fn report(&self) -> AppliedReport {
        AppliedReport {
            object: ObjectRef {
                kind: self.kind.clone(),
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                uid: self.uid.clone(),
                generation: self.generation,
            },
            ready: self.ready,
            attached: self.attached.as_deref().and_then(parse_attached),
            interfaces: self.interfaces.iter().filter_map(InterfaceState::report).collect(),
            items: self.items.iter().map(ItemState::report).collect(),
            bridges: self.bridges.iter().filter_map(NodeBridge::report).collect(),
            problems: self.problems.iter().map(ProblemState::report).collect(),
            warnings: self.warnings.clone(),
        }
    }
}

impl InterfaceState {
    fn of(link: &InterfaceReport) -> Self {
        Self {
            field: link.field.clone(),
            interface: InterfaceStatus::of(link),
            hardware_addr: link.mac.as_ref().map(ToString::to_string),
            networks: link.networks.clone(),
            counters: None,
            ready: link.ready,
        }
    }

    fn report(&self) -> Option<InterfaceReport> {
        let link = &self.interface;
        let name = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        Some(InterfaceReport {
            field: self.field.clone(),
            name: link.name.parse().ok()?,
            kind: link.link_type.clone(),
            addresses: link.addresses.iter().filter_map(|text| text.parse().ok()).collect(),
            mac: self.hardware_addr.as_ref().and_then(|text| text.parse().ok()),
            mtu: link.mtu,
            peer: name(&link.peer),
            master: name(&link.master),
            // VLANs are among the details, as text.
            vlans: None,
            vrf: name(&link.vrf),
            details: link.details.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
            limited: false,
            networks: self.networks.clone(),
            ready: self.ready,
        })
    }
}

impl ItemState {
    fn of(item: &ItemReport) -> Self {
        Self {
            field: item.field.clone(),
            type_: item.kind.name().to_owned(),
            value: item.description.clone(),
            what: item.to_string(),
            ready: item.ready,
        }
    }

    fn report(&self) -> ItemReport {
        let Self { field, type_, value, what, ready } = self.clone();
        // An older agent writes only the text, a newer one may have other types.
        let (kind, description) = match ItemKind::of_name(&type_) {
            ItemKind::Other => (ItemKind::Other, what),
            kind => (kind, value),
        };
        ItemReport { field, kind, description, links: Vec::new(), ready }
    }
}

impl NodeBridge {
    /// Converts a report.
    pub fn of(bridge: &BridgeReport) -> Self {
        let addresses = bridge.addresses.iter().map(ToString::to_string).collect();
        Self {
            namespace: String::new(),
            requested: bridge.requested.clone(),
            name: bridge.name.to_string(),
            addresses,
        }
    }

    fn report(&self) -> Option<BridgeReport> {
        let addresses = self.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let name = self.name.parse().ok()?;
        Some(BridgeReport { requested: self.requested.clone(), name, addresses, default_vlan: None })
    }
}

impl ProblemState {
    fn of(problem: &Problem) -> Self {
        let Problem { field, reason, message, subject: _ } = problem.clone();
        Self { field, reason: reason.name().to_owned(), message }
    }

    fn report(&self) -> Problem {
        let reason = serde_json::from_value(serde_json::Value::String(self.reason.clone()));
        Problem::new(self.field.clone(), reason.unwrap_or(Reason::KernelError), self.message.clone())
    }
}

pub(crate) const fn column(name: &'static str, type_: &'static str, path: &'static str) -> Column {
    Column { name, type_, path, wide: false }
}

/// Printer columns of PodNetworkState.
pub(crate) const POD_COLUMNS: &[Column] = &[
    column("Node", "string", ".status.node"),
    column("Interfaces", "integer", ".status.interfaces"),
    column("Ready", "boolean", ".status.ready"),
    column("Age", "date", ".metadata.creationTimestamp"),
];
