//! dummy: a link that drops all packets, used to hold addresses.

use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind};

/// A dummy has no kind-specific fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dummy {}

impl LinkKind for Dummy {
    const NAME: &'static str = "dummy";
    const IMMUTABLE: &'static [&'static str] = &[];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        vec![Self {}]
    }

    /// There are no neighbours to resolve.
    fn default_attrs(&self) -> Attrs {
        Attrs { arp: Some(false), multicast: Some(false), ..Attrs::default() }
    }
}
