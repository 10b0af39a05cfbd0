//! What an agent says about its node: what it has outside of pods, what its NICs are, and what its kernel offers.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppliedObject, NodeBridge, column};
use crate::info::Column;

/// Nothing is asked for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "NodeNetwork",
    status = "NodeNetworkStatus",
    derive = "PartialEq",
    doc = "What Knit has on one node outside of pods: NICs, bridges, networks with their free addresses, what its kernel offers, and what is in the way. Written by the node's agent; it goes with the node.",
    shortname = "knode"
)]
pub struct NodeNetworkSpec {}

/// What one node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeNetworkStatus {
    /// The version of the node's agent.
    pub agent: String,
    /// What the node's kernel offers.
    pub kernel: KernelState,
    /// NICs of the node, and every other link that an Uplink opens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub uplinks: Vec<UplinkState>,
    /// Bridges of Knit's on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<NodeBridge>,
    /// Objects that have something on the node outside of pods, or something in the way there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<AppliedObject>,
    /// Networks, with how many addresses pods of this node can have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub networks: Vec<NetworkCapacity>,
}

/// How much room a network has on a node, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkCapacity {
    /// The network's namespace.
    pub namespace: String,
    /// The network.
    pub name: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Addresses that pods can have.
    pub total: u64,
    /// Addresses that the next pods can have: in this node's blocks, and in those that no node holds.
    pub free: u64,
}

/// A NIC of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UplinkState {
    /// Its name on the node.
    pub name: String,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<String>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is switched on and something is at the other end of the cable.
    pub up: bool,
    /// How fast it is, in Mbit/s, if its driver says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// The Uplink that opens it to tenants; none: it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
}

/// What a node's kernel offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelState {
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// The kinds of links among those below that it does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub lacks: Vec<String>,
    /// The kinds of links that Knit can make, and whether this kernel has each. Tried when the agent began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub links: Vec<LinkSupport>,
}

/// Whether a kernel has a kind of link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinkSupport {
    /// The kernel's word for the kind.
    pub kind: String,
    /// Whether it was tried and works.
    pub present: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The columns of a list of nodes' states.
pub(crate) const COLUMNS: &[Column] = &[
    column("Agent", "string", ".status.agent"),
    column("Kernel", "string", ".status.kernel.release"),
    Column { name: "Lacks", type_: "string", path: ".status.kernel.lacks", wide: true },
    column("Age", "date", ".metadata.creationTimestamp"),
];
