//! Sandboxes, and the places where a link can live.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::intent::Limits;
use crate::link::Tap;

/// A sandbox's identity, as the runtime (or `knit sandbox add`) gave it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxId(pub String);

/// Which life of a sandbox this is: the same id after a reboot, or with a new namespace, is another instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The kernel's boot id.
    pub boot: String,
    /// The network namespace's cookie, never reused within a boot; 0 for a virtual machine.
    pub cookie: u64,
}

/// What isolates a sandbox from the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A network namespace.
    #[default]
    Netns,
    /// A virtual machine: its interfaces are taps on the host, each made so.
    Machine(Tap),
}

/// A pod's network isolation domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its identity.
    pub id: SandboxId,
    /// Which life of it.
    pub instance: Instance,
    /// What isolates it.
    #[serde(default, skip_serializing_if = "Isolation::is_netns")]
    pub isolation: Isolation,
    /// Where its network namespace is found; empty for a virtual machine, which has none.
    pub netns: String,
    /// The process that held the namespace at the first attach; part of the names of interfaces, never changed.
    pub number: u32,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid; a recreated sandbox keeps it.
    pub uid: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// What the pod's annotations say about the bandwidth of its first interface, as the API server has them now. `None`
    /// where they never said anything: then the call that attached it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotated: Option<Limits>,
}

/// Where a link, address, route, rule, neighbour or sysctl lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The node's own network namespace: the one the agent runs in.
    Host,
    /// A sandbox's.
    Sandbox(SandboxId),
}

impl Isolation {
    /// Whether it is a network namespace.
    pub fn is_netns(&self) -> bool {
        *self == Self::Netns
    }
}

impl Sandbox {
    /// `namespace/name` of the pod, as people write it.
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
