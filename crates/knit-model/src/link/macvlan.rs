//! macvlan: a link with a hardware address of its own on top of another link.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// A macvlan's own fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Macvlan {
    /// The link it sits on, in the scope it is born from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// How links on the same parent see each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MacvlanMode>,
}

/// How macvlans on the same parent see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// Not at all.
    Private,
    /// Through a switch outside that sends packets back.
    Vepa,
    /// Directly.
    Bridge,
    /// One link takes all of the parent.
    Passthru,
}

impl Macvlan {
    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self { parent: Some(IfName::new("up0").expect("a valid name")), mode: Some(MacvlanMode::Bridge) }
    }
}

impl LinkKind for Macvlan {
    const NAME: &'static str = "macvlan";
    /// The mode changes between private, vepa and bridge live; to and from passthru it does not.
    const RECREATE: &'static [&'static str] = &["parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn cannot_become(&self, wanted: &Self) -> Option<&'static str> {
        let is_passthru = |mode: Option<MacvlanMode>| mode == Some(MacvlanMode::Passthru);
        let both_known = self.mode.is_some() && wanted.mode.is_some();
        (both_known && is_passthru(self.mode) != is_passthru(wanted.mode)).then_some("mode")
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "a macvlan needs the link it sits on");
        }
    }
}
