//! Sandboxes, and the scopes (network namespaces) that links belong to.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::intent::BandwidthLimits;
use crate::link::Tap;

/// Identity of a sandbox, assigned by the container runtime or `knit sandbox add`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxId(pub String);

/// An instance of a sandbox: the same id after a reboot or with a new network namespace is another instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SandboxInstance {
    /// The kernel's boot id.
    pub boot: String,
    /// Cookie of the network namespace, unique within a boot; 0 for a virtual machine.
    pub cookie: u64,
}

/// What isolates a sandbox from the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A network namespace.
    #[default]
    Netns,
    /// A virtual machine: its interfaces are taps on the host with these fields.
    VirtualMachine(Tap),
}

/// The network isolation domain of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its identity.
    pub id: SandboxId,
    /// Its current instance.
    pub instance: SandboxInstance,
    /// What isolates it.
    #[serde(default, skip_serializing_if = "Isolation::is_netns")]
    pub isolation: Isolation,
    /// Path of its network namespace; empty for a virtual machine.
    pub netns: String,
    /// PID that held the namespace at the first attach; part of interface names, never changed.
    pub number: u32,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID; a recreated sandbox keeps it.
    pub uid: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// Bandwidth limits of the first interface from the current annotations of the pod. `None` if it never had such
    /// annotations: then the limits of the attach call apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotated_limits: Option<BandwidthLimits>,
}

/// The network namespace that a link, address, route, rule, neighbour or sysctl belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The network namespace of the node, in which the agent runs.
    Host,
    /// That of a sandbox.
    Sandbox(SandboxId),
}

impl Isolation {
    /// Whether it is a network namespace.
    pub fn is_netns(&self) -> bool {
        *self == Self::Netns
    }
}

impl Sandbox {
    /// `namespace/name` of the pod.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => out.write_str("host"),
            Self::Sandbox(id) => write!(out, "sandbox {id}"),
        }
    }
}
