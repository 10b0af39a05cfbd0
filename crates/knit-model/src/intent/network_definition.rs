//! What network definitions of others (NetworkAttachmentDefinition) request beyond Knit's own kinds.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Selector;
use crate::name::IfName;
use crate::problem::Problem;

/// Settings of an interface that only a network definition can state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDefinition {
    /// Namespace of the definition, which owns the bridge and the addresses.
    pub namespace: String,
    /// Name of the definition; all its interfaces allocate from the same addresses.
    pub name: String,
    /// NIC of the node by its host name, in place of a parent. An Uplink of this NIC must be open to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<IfName>,
    /// Whether all nodes share the ranges, so that an address is allocated once in the cluster.
    #[serde(default)]
    pub shared: bool,
    /// Addresses of its ranges that are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
    /// Whether the bridge has the first address of each range.
    #[serde(default)]
    pub gateway: bool,
    /// Whether the bridge port is in hairpin mode.
    #[serde(default)]
    pub hairpin: bool,
}

/// An interface that a chain of CNI plugins creates in each selected pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginChainIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// The interface's name.
    pub name: IfName,
    /// Name of the network, for display.
    pub network: String,
    /// The CNI configuration list, as JSON.
    pub conflist: String,
    /// Directories that are searched for plugins.
    pub plugin_dirs: Vec<String>,
    /// Timeout of one plugin.
    pub timeout_seconds: u64,
}

/// A request that was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// Why it was rejected.
    pub problem: Problem,
}
