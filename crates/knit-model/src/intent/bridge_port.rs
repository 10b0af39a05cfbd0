//! Requested VLANs of a bridge port.

use serde::{Deserialize, Serialize};

use crate::link::{PortVlans, VlanSet};

/// VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePortIntent {
    /// The untagged (native) VLAN; 0: untagged packets are dropped. `None`: the bridge's default, for a port that only
    /// passes additional tags; such a port does not turn VLAN filtering on.
    pub native: Option<u16>,
    /// Tagged VLANs.
    pub tagged: VlanSet,
}

impl BridgePortIntent {
    /// Whether the bridge must filter VLANs for this port.
    pub fn needs_filter(&self) -> bool {
        self.native.is_some()
    }

    /// VLANs of the port on a bridge with this default VLAN.
    pub fn vlans(&self, default: u16) -> PortVlans {
        PortVlans::trunk(self.tagged.clone(), self.native.unwrap_or(default))
    }
}
