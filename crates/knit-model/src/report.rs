//! What became of an object: the engine's answer, which each dialect shows in its own way.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::link::PortVlans;
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problem;
use crate::provenance::ObjectRef;
use crate::sandbox::{Sandbox, SandboxId};

/// What became of one object on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The object, and the generation that this is about.
    pub object: ObjectRef,
    /// How far it is.
    pub phase: Phase,
    /// Bridges that it has on the node, by the name they really got.
    pub bridges: Vec<BridgeReport>,
    /// Its pods, by name.
    pub pods: Vec<PodReport>,
    /// What it has on nodes beside bridges, by the node's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeReport>,
    /// What stands in the way.
    pub problems: Vec<Problem>,
    /// What works, but not as a person would expect.
    pub warnings: Vec<String>,
}

/// How far an object is. The words are the predecessors'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing was done yet, or nothing matches.
    #[default]
    Unset,
    /// Some of it stands.
    Configuring,
    /// All of it stands.
    Configured,
}

/// A bridge on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeReport {
    /// The name that was asked for.
    pub asked: String,
    /// The name that it has.
    pub name: IfName,
    /// Its addresses; none if another tenant's bridge has the same.
    pub addresses: Vec<IpNet>,
    /// Of a bridge that filters VLANs: the one that a port is in when nobody says anything; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_vlan: Option<u16>,
}

/// When a pod got what an object asks for, and who said that the pod is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attached {
    /// Before its first container was started: the container runtime told of the pod, and waited.
    BeforeContainers,
    /// Once the API server had told of the pod: its containers may have run already.
    WhileRunning,
    /// When someone called for it: a container runtime through CNI, or a client of KNI.
    ByCall,
}

/// What one pod has of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// The pod's name.
    pub pod: String,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// When it got them; `None` while it has nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// Its interfaces, in the object's order.
    pub interfaces: Vec<InterfaceReport>,
    /// What it has beside interfaces, in the object's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ItemReport>,
}

/// What one node has of an object outside of pods, beside bridges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name.
    pub node: String,
    /// What it has, in the object's order.
    pub items: Vec<ItemReport>,
}

/// Everything that applies to one pod, by the object that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// The pod's sandbox.
    pub sandbox: Sandbox,
    /// What each object has there.
    pub objects: Vec<AppliedReport>,
}

/// What became of one object in one pod, or on one node outside of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedReport {
    /// The object, and the generation that this is about.
    pub object: ObjectRef,
    /// Whether all of it stands there.
    pub ready: bool,
    /// When the pod got it; `None` on a node, and while it has nothing.
    pub attached: Option<Attached>,
    /// Interfaces, in the object's order.
    pub interfaces: Vec<InterfaceReport>,
    /// What there is beside interfaces, in the object's order.
    pub items: Vec<ItemReport>,
    /// Bridges of the node.
    pub bridges: Vec<BridgeReport>,
    /// What stands in the way.
    pub problems: Vec<Problem>,
    /// What works, but not as a person would expect.
    pub warnings: Vec<String>,
}

/// A route, rule, neighbour or sysctl of a pod that an object asked for by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemReport {
    /// The entry of the object that it comes from, such as `spec.routes[0]`.
    pub field: String,
    /// What it is, as people write it.
    pub what: String,
    /// The interfaces that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<IfName>,
    /// Whether it stands.
    pub ready: bool,
}

/// One interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// The entry of the object that it comes from, such as `spec.networkAttachments[0]`.
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
    /// The end on the host.
    pub peer: Option<IfName>,
    /// What it is a port of, or its end on the host is.
    pub master: Option<IfName>,
    /// The VLANs of the end on the host that were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<PortVlans>,
    /// The VRF of the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<IfName>,
    /// What others have to know of its kind, by name: a tunnel's public key.
    #[serde(default)]
    pub shown: Vec<(String, String)>,
    /// Whether there is a limit to how fast packets come or go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
    /// Whether it stands.
    pub ready: bool,
}
