//! Reports: the state of an object as the engine sees it, which each dialect converts into its own status.

use std::fmt;

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
    /// What it is.
    #[serde(default)]
    pub kind: ItemKind,
    /// Human-readable description, without the kind.
    pub description: String,
    /// Interfaces that it requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<IfName>,
    /// Whether it is applied.
    pub ready: bool,
}

/// What an item is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ItemKind {
    /// A route of a pod.
    Route,
    /// A policy rule of a pod.
    Rule,
    /// A neighbour of a pod.
    Neighbour,
    /// A sysctl of a pod.
    Sysctl,
    /// A socket of a pod.
    Socket,
    /// An address of the node.
    NodeAddress,
    /// The path to the pods of another node.
    NodeRoute,
    /// The tunnel of a network to other nodes.
    NodeTunnel,
    /// Another kind, such as one of another version: the description is complete.
    #[default]
    Other,
}

impl ItemKind {
    const ALL: [Self; 9] = [
        Self::Route,
        Self::Rule,
        Self::Neighbour,
        Self::Sysctl,
        Self::Socket,
        Self::NodeAddress,
        Self::NodeRoute,
        Self::NodeTunnel,
        Self::Other,
    ];

    /// Its name in statuses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Rule => "rule",
            Self::Neighbour => "neighbour",
            Self::Sysctl => "sysctl",
            Self::Socket => "socket",
            Self::NodeAddress => "nodeAddress",
            Self::NodeRoute => "nodeRoute",
            Self::NodeTunnel => "nodeTunnel",
            Self::Other => "other",
        }
    }

    /// The kind with this name; [`Self::Other`] for one of a newer version.
    pub fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_default()
    }

    /// Whether the text of an item begins with its kind. The descriptions of node items are complete.
    fn is_in_text(self) -> bool {
        match self {
            Self::Route | Self::Rule | Self::Neighbour | Self::Sysctl | Self::Socket => true,
            Self::NodeAddress | Self::NodeRoute | Self::NodeTunnel | Self::Other => false,
        }
    }
}

impl fmt::Display for ItemReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind.is_in_text() {
            write!(out, "{} ", self.kind.name())?;
        }
        out.write_str(&self.description)
    }
}

/// One interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceReport {
    /// The field of the object that it comes from, such as `spec.networkAttachments[0]`.
    #[serde(default)]
    pub field: String,
    /// Its name in the pod.
    pub name: IfName,
    /// Its kind.
    #[serde(default)]
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
    /// The networks that policies can select it by, as `Kind/namespace/name`; none on the cluster network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Whether it is applied.
    #[serde(default)]
    pub ready: bool,
}

impl InterfaceReport {
    /// The report of an interface of which only the name is known.
    pub fn named(name: IfName) -> Self {
        Self {
            field: String::new(),
            name,
            kind: String::new(),
            addresses: Vec::new(),
            mac: None,
            mtu: None,
            peer: None,
            master: None,
            vlans: None,
            vrf: None,
            details: Vec::new(),
            limited: false,
            networks: Vec::new(),
            ready: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_kind_of_item_is_its_json_form_and_identifies_it() {
        for kind in ItemKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(ItemKind::of_name(kind.name()), kind);
        }
        assert_eq!(ItemKind::of_name("newer"), ItemKind::Other);
    }

    #[test]
    fn an_item_of_older_state_keeps_its_text() {
        let older = r#"{"field":"spec.routes[0]","description":"route 10.9.0.0/16","ready":true}"#;
        let item: ItemReport = serde_json::from_str(older).unwrap();
        assert_eq!((item.kind, item.to_string().as_str()), (ItemKind::Other, "route 10.9.0.0/16"));
    }

    #[test]
    fn a_journalled_interface_with_only_name_and_addresses_is_read_as_a_report() {
        let stored = r#"{"name":"net1","addresses":["10.1.0.2/24"]}"#;
        let report: InterfaceReport = serde_json::from_str(stored).unwrap();
        let named = InterfaceReport::named("net1".parse().unwrap());
        assert_eq!(report, InterfaceReport { addresses: vec!["10.1.0.2/24".parse().unwrap()], ..named });
    }
}
