//! tap: an Ethernet link whose other end is a process, such as a virtual machine monitor.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};

/// The kernel's value for a tap without an owning user or group.
pub const TAP_NO_OWNER: u32 = u32::MAX;

/// tap-specific fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tap {
    /// User that may open it without `CAP_NET_ADMIN`; [`TAP_NO_OWNER`]: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Group that may open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_group: Option<u32>,
    /// Whether it supports multiple queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_queue: Option<bool>,
    /// Whether packets carry a virtio header. Set again by each process that opens the tap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vnet_hdr: Option<bool>,
}

impl Tap {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self { user: Some(1000), user_group: Some(107), multi_queue: Some(true), vnet_hdr: Some(true) }
    }
}

impl LinkKind for Tap {
    const NAME: &'static str = "tun";
    /// The kernel can change user and group, but not back to none.
    const IMMUTABLE: &'static [&'static str] = &["user", "user_group", "multi_queue"];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        vec![Self::full_for_tests()]
    }
}
