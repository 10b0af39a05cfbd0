//! bridge: a switch in the kernel.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_VLAN, VlanProtocol};
use crate::problem::Problems;

/// The VLAN of a port when nobody says anything: the kernel's own default.
pub const DEFAULT_VLAN: u16 = 1;

/// A bridge's own fields. All of them change on a living bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bridge {
    /// Spanning tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// Seconds before a new port forwards (spanning tree only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_delay: Option<u32>,
    /// Seconds after which a silent address is forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ageing: Option<u32>,
    /// Spanning tree priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// Whether ports are members of VLANs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// The VLAN that a new port is in; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_pvid: Option<u16>,
    /// The kind of tag that it looks at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_protocol: Option<VlanProtocol>,
    /// Whether multicast goes only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_snooping: Option<bool>,
}

impl LinkKind for Bridge {
    const NAME: &'static str = "bridge";
    const RECREATE: &'static [&'static str] = &[];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;

    fn with_defaults(self) -> Self {
        Self {
            stp: self.stp.or(Some(false)),
            ageing: self.ageing.or(Some(300)),
            priority: self.priority.or(Some(32_768)),
            // A kernel without VLANs of bridges does not tell the next three, so that they are not compared there.
            vlan_filtering: self.vlan_filtering.or(Some(false)),
            default_pvid: self.default_pvid.or(Some(DEFAULT_VLAN)),
            vlan_protocol: self.vlan_protocol.or(Some(VlanProtocol::Dot1q)),
            multicast_snooping: self.multicast_snooping.or(Some(true)),
            // The kernel's own value depends on others.
            forward_delay: self.forward_delay,
        }
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if let Some(pvid) = self.default_pvid.filter(|pvid| *pvid > MAX_VLAN) {
            let message = format!("VLAN {pvid} is outside 0 to {MAX_VLAN}: 0 is none");
            problems.invalid(format!("{path}.defaultPvid"), message);
        }
        if let Some(delay) = self.forward_delay
            && !(2..=30).contains(&delay)
            && self.stp == Some(true)
        {
            problems.invalid(
                format!("{path}.forwardDelay"),
                format!("forward delay {delay} s is outside 2 to 30 while spanning tree is on"),
            );
        }
    }
}
