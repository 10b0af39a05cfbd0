//! What definitions of networks ask for that objects of Knit's own kinds do not: a NetworkAttachmentDefinition, say.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Selector;
use crate::name::IfName;
use crate::problem::Problem;

/// What the definition of a network says of an interface on it, beside what an object of Knit's kinds could.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defined {
    /// The namespace of the definition: its bridge and its addresses are that namespace's.
    pub namespace: String,
    /// The definition's name: all that are on it share its addresses.
    pub name: String,
    /// A NIC of the node by the name it has there, in place of a parent. An uplink of it has to be open to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<IfName>,
    /// All nodes share its ranges: no two give one address.
    #[serde(default)]
    pub shared: bool,
    /// Addresses of its ranges that no pod is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
    /// The bridge has the first address of each range.
    #[serde(default)]
    pub gateway: bool,
    /// What comes from the pod may go back to it by the same port of the bridge.
    #[serde(default)]
    pub hairpin: bool,
}

/// An interface that CNI plugins make, in each pod that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginChainIntent {
    /// Which pods of the object's namespace.
    pub pods: Selector,
    /// The interface's name.
    pub name: IfName,
    /// The network's name, for people.
    pub network: String,
    /// The configuration list, as JSON.
    pub conflist: String,
    /// Where plugins are looked for.
    pub plugin_dirs: Vec<String>,
    /// How long one plugin may take.
    pub timeout_seconds: u64,
}

/// Something that is asked for in words and cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedIntent {
    /// Which pods of the object's namespace.
    pub pods: Selector,
    /// Why not.
    pub problem: Problem,
}
