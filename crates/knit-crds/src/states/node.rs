//! NodeNetwork: the observed state of a node outside of pods: its NICs, bridges and networks, and the features of its
//! kernel.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppliedObject, NodeBridge, column};
use crate::info::Column;

/// NodeNetworkSpec is empty: the object only reports state.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "NodeNetwork",
    status = "NodeNetworkStatus",
    derive = "PartialEq",
    doc = "NodeNetwork is the observed state of Knit on one node outside of pods: NICs, bridges, networks with their free addresses, kernel features, and problems. It is written by the node's agent and deleted with the node.",
    shortname = "knode"
)]
pub struct NodeNetworkSpec {}

/// NodeNetworkStatus is the observed state of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkStatus {
    /// agent is the version of the node's agent.
    pub agent: String,
    /// kernel lists the features of the node's kernel.
    pub kernel: KernelState,
    /// uplinks lists the NICs of the node, and other links that an Uplink allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub uplinks: Vec<UplinkState>,
    /// bridges lists Knit's bridges on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<NodeBridge>,
    /// objects lists the objects that are applied on the node outside of pods, or have problems there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<AppliedObject>,
    /// networks lists networks with their address capacity for pods of this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub networks: Vec<NetworkCapacity>,
}

/// NetworkCapacity is the address capacity of a network on a node, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkCapacity {
    /// namespace is the namespace of the network.
    pub namespace: String,
    /// name is the name of the network.
    pub name: String,
    /// family is `IPv4` or `IPv6`.
    pub family: String,
    /// total is the number of addresses for pods.
    pub total: u64,
    /// free is the number of free addresses: in the blocks of this node, and in blocks that no node holds.
    pub free: u64,
}

/// UplinkState is the observed state of a NIC of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UplinkState {
    /// name is the name of the NIC on the node.
    pub name: String,
    /// hardwareAddr is its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<String>,
    /// mtu is its MTU in bytes.
    pub mtu: u32,
    /// up is true if the NIC is up and has a carrier.
    pub up: bool,
    /// speed is the link speed in Mbit/s, if its driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// openedBy is the Uplink that allows tenants to use it; unset if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
}

/// KernelState lists the features of a node's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelState {
    /// release is the kernel release, as printed by `uname -r`.
    pub release: String,
    /// lacks lists the link types that the kernel does not support.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lacks: Vec<String>,
    /// links lists the link types that Knit can create, and whether the kernel supports each. They are probed when the
    /// agent starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub links: Vec<LinkSupport>,
}

/// LinkSupport tells whether a kernel supports a link type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkSupport {
    /// kind is the kernel's name of the link type.
    pub kind: String,
    /// present is true if the link type was probed and works.
    pub present: bool,
    /// why is the reason if it does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Printer columns of NodeNetwork.
pub(crate) const COLUMNS: &[Column] = &[
    column("Agent", "string", ".status.agent"),
    column("Kernel", "string", ".status.kernel.release"),
    Column { name: "Lacks", type_: "string", path: ".status.kernel.lacks", wide: true },
    column("Age", "date", ".metadata.creationTimestamp"),
];
