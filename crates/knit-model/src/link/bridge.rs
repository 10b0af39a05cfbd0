//! bridge: a learning Ethernet switch.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_VLAN, VlanProtocol};
use crate::problem::Problems;

/// The kernel's default VLAN of a port.
pub const DEFAULT_VLAN: u16 = 1;

/// Bridge-specific fields. All of them can be changed on an existing bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bridge {
    /// Spanning tree protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// Seconds before a new port forwards (spanning tree only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_delay: Option<u32>,
    /// Ageing time of learnt addresses, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ageing: Option<u32>,
    /// Spanning tree priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// VLAN filtering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// VLAN of a new port; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_pvid: Option<u16>,
    /// VLAN tag protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan_protocol: Option<VlanProtocol>,
    /// IGMP and MLD snooping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast_snooping: Option<bool>,
    /// Whether IP packets between its ports pass the packet filter of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_filter: Option<bool>,
}

impl LinkKind for Bridge {
    const NAME: &'static str = "bridge";
    const IMMUTABLE: &'static [&'static str] = &[];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        vec![Self {
            stp: Some(true),
            forward_delay: Some(4),
            ageing: Some(60),
            priority: Some(4096),
            vlan_filtering: Some(true),
            default_pvid: Some(7),
            vlan_protocol: Some(VlanProtocol::Dot1ad),
            multicast_snooping: Some(false),
            ip_filter: Some(true),
        }]
    }

    fn with_defaults(self) -> Self {
        Self {
            stp: self.stp.or(Some(false)),
            ageing: self.ageing.or(Some(300)),
            priority: self.priority.or(Some(32_768)),
            // A kernel without bridge VLANs does not report the next three, so they are not compared there.
            vlan_filtering: self.vlan_filtering.or(Some(false)),
            default_pvid: self.default_pvid.or(Some(DEFAULT_VLAN)),
            vlan_protocol: self.vlan_protocol.or(Some(VlanProtocol::Dot1q)),
            multicast_snooping: self.multicast_snooping.or(Some(true)),
            // The kernel's default depends on other fields.
            forward_delay: self.forward_delay,
            // No default: without `br_netfilter` it cannot be reset.
            ip_filter: self.ip_filter,
        }
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if let Some(pvid) = self.default_pvid.filter(|pvid| *pvid > MAX_VLAN) {
            let message = format!("VLAN {pvid} is outside 0 (none) to {MAX_VLAN}");
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
