//! ipvlan: a link with addresses of its own, and the hardware address of the link that it sits on.

use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// An ipvlan's own fields. All ipvlans on one parent share mode and flag: the last one that states them decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipvlan {
    /// The link it sits on, in the scope it is born from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// At which layer packets are handed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IpvlanMode>,
    /// How links on the same parent see each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<IpvlanFlag>,
}

/// At which layer an ipvlan hands packets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// Like a switch: it does ARP and multicast.
    L2,
    /// Like a router: the parent's namespace routes, there is neither ARP nor multicast.
    L3,
    /// The same, and packets pass the filters of the parent's namespace.
    L3s,
}

/// How ipvlans on the same parent see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanFlag {
    /// Directly.
    Bridge,
    /// Not at all.
    Private,
    /// Through a switch outside that sends packets back.
    Vepa,
}

impl Ipvlan {
    /// Every field stated, for tests that go over all fields.
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
    const RECREATE: &'static [&'static str] = &["parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const FOLLOWS_MTU: bool = true;

    /// It has its parent's, and follows when that changes.
    fn has_own_mac(&self) -> bool {
        false
    }

    /// The kernel itself turns ARP off in the modes that route, and on again in the other.
    fn habits(&self) -> Attrs {
        let switches = !matches!(self.mode, Some(IpvlanMode::L3 | IpvlanMode::L3s));
        Attrs { arp: Some(switches), ..Attrs::default() }
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "an ipvlan needs the link it sits on");
        }
    }
}
