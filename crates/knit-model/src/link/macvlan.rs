//! macvlan: a link with its own hardware address on top of a parent link.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// macvlan-specific fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Macvlan {
    /// Parent link, in the parent scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// Isolation between macvlans on the same parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MacvlanMode>,
}

/// Isolation between macvlans on the same parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// They are isolated.
    Private,
    /// They reach each other through an external switch in hairpin mode.
    Vepa,
    /// They reach each other directly.
    Bridge,
    /// One macvlan takes over the parent exclusively.
    Passthru,
}

impl Macvlan {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self { parent: Some(IfName::new("up0").expect("a valid name")), mode: Some(MacvlanMode::Bridge) }
    }
}

impl LinkKind for Macvlan {
    const NAME: &'static str = "macvlan";
    /// The mode changes live between private, vepa and bridge, but not to or from passthru.
    const IMMUTABLE: &'static [&'static str] = &["parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const SHARES_PARENT: bool = true;
    const TRANSPARENT: bool = true;

    fn samples() -> Vec<Self> {
        vec![Self::full_for_tests()]
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        let is_passthru = |mode: Option<MacvlanMode>| mode == Some(MacvlanMode::Passthru);
        let both_known = self.mode.is_some() && desired.mode.is_some();
        (both_known && is_passthru(self.mode) != is_passthru(desired.mode)).then_some("mode")
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "a macvlan needs a parent link");
        }
    }
}
