//! veth: a pair of links, each the other's far end.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::name::IfName;
use crate::sandbox::Scope;

/// One end of a pair. The other end is a link of its own, in its own scope; both are made and go together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Veth {
    /// The other end. Observed: not known, because the kernel tells only its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
}

/// The other end of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Where it lives.
    pub scope: Scope,
    /// Its name there.
    pub name: IfName,
}

impl LinkKind for Veth {
    const NAME: &'static str = "veth";
    const RECREATE: &'static [&'static str] = &["peer"];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;
}
