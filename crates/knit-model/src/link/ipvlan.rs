//! ipvlan: a link with its own IP addresses that shares the hardware address of its parent.

use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// ipvlan-specific fields. All ipvlans on one parent share mode and flag; the last one that is set wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipvlan {
    /// Parent link, in the parent scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// Forwarding mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IpvlanMode>,
    /// Isolation between ipvlans on the same parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<IpvlanFlag>,
}

/// Forwarding mode of an ipvlan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// Layer 2: ARP and multicast work.
    L2,
    /// Layer 3: the parent's namespace routes, no ARP or multicast.
    L3,
    /// Layer 3 with netfilter hooks of the parent's namespace.
    L3s,
}

/// Isolation between ipvlans on the same parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanFlag {
    /// They reach each other directly.
    Bridge,
    /// They are isolated.
    Private,
    /// They reach each other through an external switch in hairpin mode.
    Vepa,
}

impl Ipvlan {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            parent: Some(IfName::new("up0").expect("a valid name")),
            mode: Some(IpvlanMode::L3),
            flag: Some(IpvlanFlag::Private),
        }
    }
}

impl LinkKind for Ipvlan {
    const NAME: &'static str = "ipvlan";
    const IMMUTABLE: &'static [&'static str] = &["parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const TRANSPARENT: bool = true;
    const FOLLOWS_MTU: bool = true;

    fn samples() -> Vec<Self> {
        vec![Self::full_for_tests()]
    }

    /// It follows the hardware address of its parent.
    fn has_own_mac(&self) -> bool {
        false
    }

    /// The kernel turns ARP off in L3 modes and on in L2 mode.
    fn default_attrs(&self) -> Attrs {
        let is_l2 = !matches!(self.mode, Some(IpvlanMode::L3 | IpvlanMode::L3s));
        Attrs { arp: Some(is_l2), ..Attrs::default() }
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "an ipvlan needs a parent link");
        }
    }
}
