//! dummy: a link that swallows what it is given. It holds addresses that belong to no wire.

use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind};

/// A dummy has no fields of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dummy {}

impl LinkKind for Dummy {
    const NAME: &'static str = "dummy";
    const RECREATE: &'static [&'static str] = &[];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    /// Nobody is there to answer, so that nobody is asked.
    fn habits(&self) -> Attrs {
        Attrs { arp: Some(false), multicast: Some(false), ..Attrs::default() }
    }
}
