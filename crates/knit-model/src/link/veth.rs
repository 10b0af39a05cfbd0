//! veth: a pair of connected links.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::name::IfName;
use crate::sandbox::Scope;

/// One end of a veth pair. The peer is a link in its own scope; both are created and deleted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Veth {
    /// The peer. Unset in observed state, because the kernel reports only its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<VethPeer>,
}

/// The peer of a veth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VethPeer {
    /// Its scope.
    pub scope: Scope,
    /// Its name there.
    pub name: IfName,
}

impl LinkKind for Veth {
    const NAME: &'static str = "veth";
    const IMMUTABLE: &'static [&'static str] = &["peer"];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        vec![Self::default()]
    }
}
