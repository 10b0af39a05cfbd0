//! macvtap: a macvlan whose frames a process exchanges through a character device, such as a virtual machine monitor.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problems;

/// macvtap-specific fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Macvtap {
    /// Parent link, in the parent scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// Traffic between macvtaps and macvlans on the same parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<MacvtapMode>,
    /// In mode `source`: the hardware addresses whose frames it receives, sorted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Mac>>,
}

/// Traffic between macvtaps and macvlans on the same parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvtapMode {
    /// They are isolated.
    Private,
    /// They reach each other through an external switch in hairpin mode.
    Vepa,
    /// They reach each other directly.
    Bridge,
    /// One macvtap takes over the parent exclusively.
    Passthru,
    /// It receives only frames from listed hardware addresses.
    Source,
}

impl LinkKind for Macvtap {
    const NAME: &'static str = "macvtap";
    /// The mode changes live, but not to or from passthru.
    const IMMUTABLE: &'static [&'static str] = &["parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const SHARES_PARENT: bool = true;
    const TRANSPARENT: bool = true;

    fn samples() -> Vec<Self> {
        let sample = |mode, sources: &[u8]| Self {
            parent: IfName::new("up0").ok(),
            mode: Some(mode),
            sources: Some(sources.iter().map(|last| Mac::from_bytes([2, 0, 0, 0, 0, *last])).collect()),
        };
        vec![sample(MacvtapMode::Vepa, &[]), sample(MacvtapMode::Source, &[1, 2])]
    }

    /// In passthru it has that of its parent.
    fn has_own_mac(&self) -> bool {
        self.mode != Some(MacvtapMode::Passthru)
    }

    fn with_defaults(self) -> Self {
        Self { sources: self.sources.or(Some(Vec::new())), ..self }
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        let is_passthru = |mode: Option<MacvtapMode>| mode == Some(MacvtapMode::Passthru);
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
            problems.invalid(format!("{path}.parent"), "a macvtap needs a parent link");
        }
        let has_sources = self.sources.as_ref().is_some_and(|sources| !sources.is_empty());
        if has_sources != (self.mode == Some(MacvtapMode::Source)) {
            let message = "must be set if and only if mode is source";
            problems.invalid(format!("{path}.sources"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passthru_recreates_the_link() {
        let of = |mode| Macvtap { mode: Some(mode), ..Macvtap::default() };
        assert_eq!(of(MacvtapMode::Bridge).recreate_field(&of(MacvtapMode::Source)), None);
        assert_eq!(of(MacvtapMode::Bridge).recreate_field(&of(MacvtapMode::Passthru)), Some("mode"));
    }

    #[test]
    fn sources_belong_to_the_mode_source() {
        let problems = |mode, sources: &[Mac]| {
            let mut problems = Problems::default();
            let sources = Some(sources.to_vec());
            Macvtap { parent: IfName::new("up0").ok(), mode: Some(mode), sources }
                .check("spec", &mut problems);
            problems.to_string()
        };
        let mac = [Mac::from_bytes([2, 0, 0, 0, 0, 1])];
        assert_eq!(problems(MacvtapMode::Source, &mac), "");
        assert_eq!(problems(MacvtapMode::Bridge, &[]), "");
        for refused in [problems(MacvtapMode::Source, &[]), problems(MacvtapMode::Bridge, &mac)] {
            assert_eq!(refused, "spec.sources: must be set if and only if mode is source");
        }
    }
}
