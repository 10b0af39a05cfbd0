//! Reports: the state of an object as the engine sees it, which each dialect converts into its own status.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::link::PortVlans;
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problem;
use crate::provenance::ObjectRef;
use crate::sandbox::{Sandbox, SandboxId};

/// State of one object on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The object and its reported generation.
    pub object: ObjectRef,
    /// Progress.
    pub phase: Phase,
    /// Its bridges on the node, with their actual names.
    pub bridges: Vec<BridgeReport>,
    /// Its pods, by name.
    pub pods: Vec<PodReport>,
    /// Its items on nodes other than bridges, sorted by node name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeReport>,
    /// Problems.
    pub problems: Vec<Problem>,
    /// Warnings about surprising but working configuration.
    pub warnings: Vec<String>,
}

/// Progress of an object. The serialized values are part of the seed API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing is applied yet, or no pod matches.
    #[default]
    Unset,
    /// Partially applied.
    Configuring,
    /// Fully applied.
    Configured,
}

/// A bridge on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeReport {
    /// The requested name.
    pub requested: String,
    /// The actual name.
    pub name: IfName,
    /// Its addresses; empty if a bridge of another tenant has the same.
    pub addresses: Vec<IpNet>,
    /// Default VLAN of ports of a VLAN-filtering bridge; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_vlan: Option<u16>,
}

/// When an object was applied to a pod, relative to the start of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachTiming {
    /// Before its first container started: the container runtime waited (NRI).
    BeforeContainers,
    /// After the pod was seen on the API server: its containers may have been running.
    WhileRunning,
    /// By a call of the container runtime (CNI) or a KNI client.
    ByCall,
}

/// State of an object in one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// The pod's name.
    pub pod: String,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// When the object was applied; `None` while nothing is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<AttachTiming>,
    /// Its interfaces, in the order of the object.
    pub interfaces: Vec<InterfaceReport>,
    /// Its items other than interfaces, in the order of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ItemReport>,
}

/// Items of an object on one node outside of pods, other than bridges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name.
    pub node: String,
    /// The items, in the order of the object.
    pub items: Vec<ItemReport>,
}

/// All objects that apply to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// The pod's sandbox.
    pub sandbox: Sandbox,
    /// State of each object in the pod.
    pub objects: Vec<AppliedReport>,
}

/// State of one object in one pod, or on one node outside of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedReport {
    /// The object and its reported generation.
    pub object: ObjectRef,
    /// Whether it is fully applied.
    pub ready: bool,
    /// When it was applied to the pod; `None` on a node and while nothing is applied.
    pub attached: Option<AttachTiming>,
    /// Interfaces, in the order of the object.
    pub interfaces: Vec<InterfaceReport>,
    /// Items other than interfaces, in the order of the object.
    pub items: Vec<ItemReport>,
    /// Bridges of the node.
    pub bridges: Vec<BridgeReport>,
    /// Problems.
    pub problems: Vec<Problem>,
    /// Warnings about surprising but working configuration.
    pub warnings: Vec<String>,
}

/// A route, rule, neighbour, sysctl or socket of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemReport {
    /// The field of the object that it comes from, such as `spec.routes[0]`.
    pub field: String,
    /// Human-readable description.
    pub description: String,
    /// Interfaces that it requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<IfName>,
    /// Whether it is applied.
    pub ready: bool,
}

/// One interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// The field of the object that it comes from, such as `spec.networkAttachments[0]`.
    pub field: String,
    /// Its name in the pod.
    pub name: IfName,
    /// Its kind.
    pub kind: String,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// The host end.
    pub peer: Option<IfName>,
    /// Master of the interface or of its host end.
    pub master: Option<IfName>,
    /// Requested VLANs of the host end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<PortVlans>,
    /// VRF of the pod that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<IfName>,
    /// Kind-specific details by name, such as the public key of a tunnel.
    #[serde(default)]
    pub details: Vec<(String, String)>,
    /// Whether it has a bandwidth limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
    /// Whether it is applied.
    pub ready: bool,
}
