//! VLANs of a bridge's port: which packets pass, and which of them carry a tag.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::problem::Problems;

/// The largest number in a tag; 0 and 4095 are reserved.
pub const MAX_VLAN: u16 = 4094;

/// The VLANs of a port of a bridge that filters, or of such a bridge itself, which is the node's own port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortVlans {
    /// The VLAN of packets that come in without a tag; 0: they are dropped.
    pub pvid: u16,
    /// VLANs whose packets leave with their tag.
    pub tagged: VlanSet,
    /// VLANs whose packets leave without it.
    pub untagged: VlanSet,
}

impl PortVlans {
    /// A port of one VLAN, which knows nothing of tags; of 0, a port through which nothing passes.
    pub fn access(id: u16) -> Self {
        Self::trunk(VlanSet::default(), id)
    }

    /// A port that carries these VLANs with tags, and `native` without; 0: nothing without a tag.
    pub fn trunk(tagged: VlanSet, native: u16) -> Self {
        let untagged = VlanSet::new((native != 0).then_some((native, native)));
        Self { pvid: native, tagged: tagged.without(&untagged), untagged }
    }

    /// All VLANs that pass.
    pub fn all(&self) -> VlanSet {
        self.tagged.union(&self.untagged)
    }

    /// Values that no kernel takes.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        let native = VlanSet::new((self.pvid != 0).then_some((self.pvid, self.pvid)));
        if !self.all().without(&VlanSet::all()).is_empty() || !native.without(&self.all()).is_empty() {
            problems.invalid(
                format!("{path}.vlans"),
                format!(
                    "VLANs are from 1 to {MAX_VLAN}, and that of packets without a tag is one that passes"
                ),
            );
        }
    }

    /// The VLANs in the words of a status.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        if self.tagged.is_empty() {
            return vec![("vlan", self.pvid.to_string())];
        }
        let native = (self.pvid != 0).then(|| ("native", self.pvid.to_string()));
        std::iter::once(("trunk", self.tagged.to_string())).chain(native).collect()
    }
}

/// Some VLANs, as few ranges as possible, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanSet(Vec<(u16, u16)>);

impl VlanSet {
    /// The VLANs of these ranges, both ends included. They may overlap, in any order.
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

    /// Every VLAN that there is.
    pub fn all() -> Self {
        Self(vec![(1, MAX_VLAN)])
    }

    /// The ranges, in order; no two of them touch.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this VLAN is among them.
    pub fn contains(&self, id: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&id))
    }

    /// These and those.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// These but for those.
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

/// A text that names no VLANs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of VLANs such as 100,200-300")]
pub struct NotVlans(String);

impl FromStr for VlanSet {
    type Err = NotVlans;

    fn from_str(text: &str) -> Result<Self, NotVlans> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges: Option<Vec<(u16, u16)>> =
            text.split(',').filter(|part| !part.is_empty()).map(range).collect();
        ranges.map(Self::new).ok_or_else(|| NotVlans(text.to_owned()))
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
    fn ranges_are_as_few_as_possible_and_survive_storing() {
        assert_eq!(set("300,100,101-200,150-250").to_string(), "100-250,300");
        assert_eq!(set("").to_string(), "");
        assert!("1-x".parse::<VlanSet>().is_err() && "-1".parse::<VlanSet>().is_err());
        let port = PortVlans::trunk(set("1,100,200-300"), 1);
        let text = serde_json::to_string(&port).unwrap();
        assert_eq!(text, r#"{"pvid":1,"tagged":"100,200-300","untagged":"1"}"#);
        assert_eq!(serde_json::from_str::<PortVlans>(&text).unwrap(), port);
    }

    #[test]
    fn what_no_kernel_takes_is_said() {
        let said = |port: &PortVlans| {
            let mut problems = Problems::default();
            port.check("spec", &mut problems);
            problems.to_string()
        };
        assert_eq!(said(&PortVlans::access(100)), "");
        assert_eq!(said(&PortVlans::access(0)), "");
        assert!(said(&PortVlans::access(4095)).starts_with("spec.vlans: VLANs are from 1 to 4094"));
        assert_ne!(said(&PortVlans { pvid: 7, ..PortVlans::access(8) }), "");
    }

    #[test]
    fn a_status_says_access_or_trunk() {
        assert_eq!(PortVlans::access(100).shown(), [("vlan", "100".to_owned())]);
        let trunk = PortVlans::trunk(set("100,200-300"), 1);
        assert_eq!(trunk.shown(), [("trunk", "100,200-300".to_owned()), ("native", "1".to_owned())]);
    }

    proptest! {
        #[test]
        fn sets_do_what_sets_do(
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
