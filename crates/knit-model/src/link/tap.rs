//! tap: an Ethernet link whose other end is a program, such as a virtual machine.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};

/// How the kernel says that no user or group in particular may open a tap.
pub const NOBODY: u32 = u32::MAX;

/// A tap's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tap {
    /// The user who may open it without a capability; [`NOBODY`]: no one in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The group that may open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_group: Option<u32>,
    /// Whether programs open it once for each of their queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_queue: Option<bool>,
    /// Whether each packet has virtio's header before it. Whoever opens the tap says it anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vnet_hdr: Option<bool>,
}

impl Tap {
    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self { user: Some(1000), user_group: Some(107), multi_queue: Some(true), vnet_hdr: Some(true) }
    }
}

impl LinkKind for Tap {
    const NAME: &'static str = "tun";
    /// The kernel would change user and group, but never back to nobody.
    const RECREATE: &'static [&'static str] = &["user", "user_group", "multi_queue"];
    const ENFORCEMENT: Enforcement = Enforcement::HostEnd;
    const ON_UPLINK: bool = false;
}
