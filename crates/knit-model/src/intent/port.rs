//! VLANs that are asked for on a port of a bridge.

use serde::{Deserialize, Serialize};

use crate::link::{PortVlans, VlanSet};

/// VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePortIntent {
    /// The VLAN without a tag; 0: none, packets without a tag are dropped. `None`: the bridge's default, which is all that
    /// is said of a port that only has to let some tags through. Such a port makes no bridge filter.
    pub native: Option<u16>,
    /// VLANs with a tag.
    pub tagged: VlanSet,
}

impl BridgePortIntent {
    /// Whether the bridge has to filter for it.
    pub fn needs_filter(&self) -> bool {
        self.native.is_some()
    }

    /// The port's VLANs on a bridge with this default.
    pub fn vlans(&self, default: u16) -> PortVlans {
        PortVlans::trunk(self.tagged.clone(), self.native.unwrap_or(default))
    }
}
