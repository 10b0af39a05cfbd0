//! VLANs of a bridge port.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::problem::Problems;

/// Largest VLAN ID; 0 and 4095 are reserved.
pub const MAX_VLAN: u16 = 4094;

/// VLANs of a port of a VLAN-filtering bridge, or of the bridge itself (the host's port).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortVlans {
    /// VLAN of untagged ingress packets (PVID); 0: they are dropped.
    pub pvid: u16,
    /// VLANs that egress tagged.
    pub tagged: VlanSet,
    /// VLANs that egress untagged.
    pub untagged: VlanSet,
}

impl PortVlans {
    /// An access port of one VLAN; 0: a port that passes nothing.
    pub fn access(id: u16) -> Self {
        Self::trunk(VlanSet::default(), id)
    }

    /// A trunk port: these VLANs tagged, `native` untagged; 0: no native VLAN.
    pub fn trunk(tagged: VlanSet, native: u16) -> Self {
        let untagged = VlanSet::new((native != 0).then_some((native, native)));
        Self { pvid: native, tagged: tagged.without(&untagged), untagged }
    }

    /// All VLANs of the port.
    pub fn all(&self) -> VlanSet {
        self.tagged.union(&self.untagged)
    }

    /// Checks the VLAN IDs.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        let native = VlanSet::new((self.pvid != 0).then_some((self.pvid, self.pvid)));
        if !self.all().without(&VlanSet::all()).is_empty() || !native.without(&self.all()).is_empty() {
            problems.invalid(
                format!("{path}.vlans"),
                format!("VLANs are from 1 to {MAX_VLAN}, and the PVID must be a VLAN of the port"),
            );
        }
    }

    /// Details for the status of an interface.
    pub fn details(&self) -> Vec<(&'static str, String)> {
        if self.tagged.is_empty() {
            return vec![("vlan", self.pvid.to_string())];
        }
        let native = (self.pvid != 0).then(|| ("native", self.pvid.to_string()));
        std::iter::once(("trunk", self.tagged.to_string())).chain(native).collect()
    }
}

/// A set of VLANs as a minimal sorted list of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanSet(Vec<(u16, u16)>);

impl VlanSet {
    /// The VLANs of these inclusive ranges, which may overlap and be in any order.
    pub fn new(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ranges: Vec<(u16, u16)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// All valid VLANs.
    pub fn all() -> Self {
        Self(vec![(1, MAX_VLAN)])
    }

    /// The ranges in order; no two are adjacent.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains this VLAN.
    pub fn contains(&self, id: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&id))
    }

    /// Set union.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// Set difference.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = self.0.clone();
        for (first, last) in &other.0 {
            let around = |(from, to): (u16, u16)| {
                let before = (from < *first).then(|| (from, to.min(*first - 1)));
                let after = (to > *last).then(|| (from.max(*last + 1), to));
                [before, after].into_iter().flatten()
            };
            left = left.into_iter().flat_map(around).collect();
        }
        Self(left)
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            out.write_str(if index == 0 { "" } else { "," })?;
            if first == last { write!(out, "{first}")? } else { write!(out, "{first}-{last}")? }
        }
        Ok(())
    }
}

/// A text that is not a list of VLANs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of VLANs such as 100,200-300")]
pub struct ParseVlansError(String);

impl FromStr for VlanSet {
    type Err = ParseVlansError;

    fn from_str(text: &str) -> Result<Self, ParseVlansError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges: Option<Vec<(u16, u16)>> =
            text.split(',').filter(|part| !part.is_empty()).map(range).collect();
        ranges.map(Self::new).ok_or_else(|| ParseVlansError(text.to_owned()))
    }
}

impl Serialize for VlanSet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VlanSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> VlanSet {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_minimal_and_round_trip() {
        assert_eq!(set("300,100,101-200,150-250").to_string(), "100-250,300");
        assert_eq!(set("").to_string(), "");
        assert!("1-x".parse::<VlanSet>().is_err() && "-1".parse::<VlanSet>().is_err());
        let port = PortVlans::trunk(set("1,100,200-300"), 1);
        let text = serde_json::to_string(&port).unwrap();
        assert_eq!(text, r#"{"pvid":1,"tagged":"100,200-300","untagged":"1"}"#);
        assert_eq!(serde_json::from_str::<PortVlans>(&text).unwrap(), port);
    }

    #[test]
    fn invalid_vlans_are_reported() {
        let message = |port: &PortVlans| {
            let mut problems = Problems::default();
            port.check("spec", &mut problems);
            problems.to_string()
        };
        assert_eq!(message(&PortVlans::access(100)), "");
        assert_eq!(message(&PortVlans::access(0)), "");
        assert!(message(&PortVlans::access(4095)).starts_with("spec.vlans: VLANs are from 1 to 4094"));
        assert_ne!(message(&PortVlans { pvid: 7, ..PortVlans::access(8) }), "");
    }

    #[test]
    fn details_show_access_or_trunk() {
        assert_eq!(PortVlans::access(100).details(), [("vlan", "100".to_owned())]);
        let trunk = PortVlans::trunk(set("100,200-300"), 1);
        assert_eq!(trunk.details(), [("trunk", "100,200-300".to_owned()), ("native", "1".to_owned())]);
    }

    proptest! {
        #[test]
        fn set_operations_are_correct(
            a in prop::collection::vec((1u16..60, 1u16..60), 0..6),
            b in prop::collection::vec((1u16..60, 1u16..60), 0..6),
        ) {
            let (a, b) = (VlanSet::new(a), VlanSet::new(b));
            let (both, rest) = (a.union(&b), a.without(&b));
            for id in 0..70 {
                prop_assert_eq!(both.contains(id), a.contains(id) || b.contains(id));
                prop_assert_eq!(rest.contains(id), a.contains(id) && !b.contains(id));
            }
            prop_assert!(both.ranges().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            prop_assert_eq!(both.to_string().parse::<VlanSet>().unwrap(), both);
        }
    }
}
