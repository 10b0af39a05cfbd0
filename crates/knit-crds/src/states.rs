//! PodNetworkState and NodeNetwork: what Knit says about a pod and a node; PodAddressBlock: what a node holds of a range. Nobody
//! asks for anything with them.
//!
//! An agent writes both in one request each, so these kinds have no status subresource. From them the controller reads
//! what became of an object everywhere.

mod block;
mod counters;
mod node;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_model::link::PortVlans;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::ObjectRef;
use knit_model::report::{AppliedReport, BridgeReport, InterfaceReport, ItemReport, PodState};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use block::COLUMNS as BLOCK_COLUMNS;
pub use block::{PodAddressBlock, PodAddressBlockSpec};
pub use counters::{InterfaceCounters, PodCounters, WayCounters};
pub(crate) use node::COLUMNS as NODE_COLUMNS;
pub use node::{
    KernelState, LinkSupport, NetworkCapacity, NodeNetwork, NodeNetworkSpec, NodeNetworkStatus, UplinkState,
};

use crate::info::Column;
use crate::status::{attached_of, attached_schema, attached_word};

/// The label by which an agent finds the states that it wrote.
pub const NODE_LABEL: &str = "podnetwork.opdev.io/node";

/// Nothing is asked for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodNetworkState",
    namespaced,
    status = "PodNetworkStateStatus",
    derive = "PartialEq",
    doc = "Everything of Knit's that applies to one pod: who asked for it, what stands, and what is in the way. Written by the agent of the pod's node; it goes with the pod.",
    shortname = "pns"
)]
pub struct PodNetworkStateSpec {}

/// What one pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodNetworkStateStatus {
    /// The pod's node.
    pub node: String,
    /// The pod's uid.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The id of the pod's sandbox, as the container runtime gave it.
    pub sandbox: String,
    /// Whether everything that applies to the pod stands.
    pub ready: bool,
    /// How many interfaces Knit added to or changed on the pod.
    pub interfaces: u32,
    /// When the counters of interfaces were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Time>,
    /// What each object asked for, and what became of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<AppliedObject>,
}

/// What became of one object in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedObject {
    /// The object's kind; `Attachment` for what a container runtime asked for by a call, `Pod` for what the pod's own annotation
    /// asks for.
    pub kind: String,
    /// Its namespace; empty for a cluster-wide object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The generation of its spec that this is about.
    #[serde(default)]
    pub generation: i64,
    /// Whether all of it stands here.
    pub ready: bool,
    /// When the pod got it: `BeforeContainers` (the container runtime told of the pod by NRI, and waited), `WhileRunning` (Knit
    /// saw the pod in the API, when containers may have run already) or `ByCall` (a runtime asked for it through CNI, or a
    /// client of KNI). Nothing on a node, and while the pod has nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "attached_schema")]
    pub attached: Option<String>,
    /// Interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub interfaces: Vec<InterfaceState>,
    /// Routes, rules, neighbours and sysctls; of the cluster's network, how pods of other nodes are reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub items: Vec<ItemState>,
    /// Bridges on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<NodeBridge>,
    /// What is in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<ProblemState>,
    /// What works, but not as one might expect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
}

/// One interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceState {
    /// The object's field that asked for it.
    pub field: String,
    /// Its name in the pod.
    pub name: String,
    /// Its kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_type: String,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<String>,
    /// Its MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The end on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What it, or its end on the node, is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// The VRF of the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// What else there is to know, such as VLANs or a tunnel's public key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub details: Vec<Detail>,
    /// What went through it since it was made, when it was last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<InterfaceCounters>,
    /// Whether it stands.
    pub ready: bool,
}

/// One thing to know of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// What.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A route, rule, neighbour or sysctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemState {
    /// The object's field that asked for it.
    pub field: String,
    /// What it is.
    pub what: String,
    /// Whether it stands.
    pub ready: bool,
}

/// A bridge on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBridge {
    /// The namespace of those who asked for it, where that is not said elsewhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name that was asked for.
    pub asked: String,
    /// The name that it has.
    pub name: String,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
}

/// Something in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemState {
    /// The object's field that it is about; empty if it is the whole object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// A stable word.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl PodNetworkStateStatus {
    /// What there is to say about a pod.
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
    /// What became of an object, as an API server keeps it.
    pub fn of(applied: &AppliedReport) -> Self {
        let ObjectRef { kind, namespace, name, uid, generation } = applied.object.clone();
        Self {
            kind,
            namespace,
            name,
            uid,
            generation,
            ready: applied.ready,
            attached: applied.attached.map(attached_word),
            interfaces: applied.interfaces.iter().map(InterfaceState::of).collect(),
            items: applied.items.iter().map(ItemState::of).collect(),
            bridges: applied.bridges.iter().map(NodeBridge::of).collect(),
            problems: applied.problems.iter().map(ProblemState::of).collect(),
            warnings: applied.warnings.clone(),
        }
    }

    /// The same in the model's words. What cannot be read, because a newer agent wrote it, is left out.
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
            attached: self.attached.as_deref().and_then(attached_of),
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
        let text = |name: &knit_model::IfName| name.to_string();
        let vlans =
            link.vlans.iter().flat_map(PortVlans::shown).map(|(name, value)| (name.to_owned(), value));
        let shown = link.shown.iter().map(|(name, value)| (name.clone(), value.clone()));
        Self {
            field: link.field.clone(),
            name: link.name.to_string(),
            link_type: link.kind.clone(),
            addresses: link.addresses.iter().map(ToString::to_string).collect(),
            hardware_addr: link.mac.as_ref().map(ToString::to_string),
            mtu: link.mtu,
            peer: link.peer.as_ref().map(text),
            master: link.master.as_ref().map(text),
            vrf: link.vrf.as_ref().map(text),
            details: vlans.chain(shown).map(|(name, value)| Detail { name, value }).collect(),
            counters: None,
            ready: link.ready,
        }
    }

    fn report(&self) -> Option<InterfaceReport> {
        let name = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        Some(InterfaceReport {
            field: self.field.clone(),
            name: self.name.parse().ok()?,
            kind: self.link_type.clone(),
            addresses: self.addresses.iter().filter_map(|text| text.parse().ok()).collect(),
            mac: self.hardware_addr.as_ref().and_then(|text| text.parse().ok()),
            mtu: self.mtu,
            peer: name(&self.peer),
            master: name(&self.master),
            // They are among the details, in words.
            vlans: None,
            vrf: name(&self.vrf),
            shown: self.details.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
            limited: false,
            ready: self.ready,
        })
    }
}

impl ItemState {
    fn of(item: &ItemReport) -> Self {
        Self { field: item.field.clone(), what: item.what.clone(), ready: item.ready }
    }

    fn report(&self) -> ItemReport {
        let Self { field, what, ready } = self.clone();
        ItemReport { field, what, links: Vec::new(), ready }
    }
}

impl NodeBridge {
    /// A bridge, as an API server keeps it.
    pub fn of(bridge: &BridgeReport) -> Self {
        let addresses = bridge.addresses.iter().map(ToString::to_string).collect();
        Self {
            namespace: String::new(),
            asked: bridge.asked.clone(),
            name: bridge.name.to_string(),
            addresses,
        }
    }

    fn report(&self) -> Option<BridgeReport> {
        let addresses = self.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let name = self.name.parse().ok()?;
        Some(BridgeReport { asked: self.asked.clone(), name, addresses, default_vlan: None })
    }
}

impl ProblemState {
    fn of(problem: &Problem) -> Self {
        let Problem { field, reason, message } = problem.clone();
        Self { field, reason: format!("{reason:?}"), message }
    }

    fn report(&self) -> Problem {
        let reason = serde_json::from_value(serde_json::Value::String(self.reason.clone()));
        Problem {
            field: self.field.clone(),
            reason: reason.unwrap_or(Reason::KernelRefused),
            message: self.message.clone(),
        }
    }
}

pub(crate) const fn column(name: &'static str, type_: &'static str, path: &'static str) -> Column {
    Column { name, type_, path, wide: false }
}

/// The columns of a list of pods' states.
pub(crate) const POD_COLUMNS: &[Column] = &[
    column("Node", "string", ".status.node"),
    column("Interfaces", "integer", ".status.interfaces"),
    column("Ready", "boolean", ".status.ready"),
    column("Age", "date", ".metadata.creationTimestamp"),
];
