//! What every link has.

use serde::{Deserialize, Serialize};

use super::{Limit, PortVlans};
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problems;

/// The smallest MTU that an IPv4 link may have.
pub const MIN_MTU: u32 = 68;
/// The largest MTU that a link may have.
pub const MAX_MTU: u32 = 65_535;
/// The kernel keeps at most this many bytes of an alias.
pub const MAX_ALIAS_BYTES: usize = 255;

/// The fields of every link. A field that is `None` is not stated: desired leaves it alone, observed did not see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attrs {
    /// The largest packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// How many packets may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txqueuelen: Option<u32>,
    /// A text for people; empty takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The link group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Whether it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Whether it takes packets for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// Whether it takes all multicast packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulticast: Option<bool>,
    /// Whether it does multicast at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// Whether it does ARP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// The bridge or VRF it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<Master>,
    /// The VLANs of a bridge's port, or of a bridge itself. They go when the master does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<PortVlans>,
    /// Whether a bridge's port sends back what came in by it: so a pod reaches itself through a Service. It goes when the
    /// master does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hairpin: Option<bool>,
    /// How fast packets may leave it. Observed of Knit's own links alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

/// A link's master. That it has none is a statement of its own, different from not saying anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Master {
    /// A port of this link.
    Of(IfName),
    /// A port of nothing: written as `""`.
    #[serde(with = "empty")]
    Nothing,
}

impl Attrs {
    /// Checks every stated value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        if let Some(mtu) = self.mtu
            && !(MIN_MTU..=MAX_MTU).contains(&mtu)
        {
            problems.invalid(format!("{path}.mtu"), format!("MTU {mtu} is outside {MIN_MTU} to {MAX_MTU}"));
        }
        if let Some(alias) = &self.alias {
            if alias.len() > MAX_ALIAS_BYTES {
                let bytes = alias.len();
                problems.invalid(
                    format!("{path}.alias"),
                    format!("an alias has at most {MAX_ALIAS_BYTES} bytes, this has {bytes}"),
                );
            }
            if alias.contains('\0') {
                problems.invalid(format!("{path}.alias"), "an alias must not contain a NUL");
            }
        }
        if let Some(group) = self.group
            && matches!(group, crate::marks::BIRTH_GROUP | crate::marks::REAP_GROUP)
        {
            problems.invalid(format!("{path}.group"), format!("link group {group} is Knit's own"));
        }
        if let Some(vlans) = &self.vlans {
            vlans.check(path, problems);
        }
    }

    /// These fields, and those of `other` where nothing is stated.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            mtu: self.mtu.or(other.mtu),
            mac: self.mac.or(other.mac),
            txqueuelen: self.txqueuelen.or(other.txqueuelen),
            alias: self.alias.or_else(|| other.alias.clone()),
            group: self.group.or(other.group),
            up: self.up.or(other.up),
            promisc: self.promisc.or(other.promisc),
            allmulticast: self.allmulticast.or(other.allmulticast),
            multicast: self.multicast.or(other.multicast),
            arp: self.arp.or(other.arp),
            master: self.master.or_else(|| other.master.clone()),
            vlans: self.vlans.or_else(|| other.vlans.clone()),
            hairpin: self.hairpin.or(other.hairpin),
            limit: self.limit.or(other.limit),
        }
    }

    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            mtu: Some(1400),
            mac: Some(Mac::from_bytes([2, 0, 0, 0, 0, 1])),
            txqueuelen: Some(500),
            alias: Some("a".to_owned()),
            group: Some(7),
            up: Some(true),
            promisc: Some(true),
            allmulticast: Some(true),
            multicast: Some(true),
            arp: Some(true),
            master: Some(Master::Nothing),
            vlans: Some(PortVlans::access(100)),
            hairpin: Some(true),
            limit: Some(Limit::Nothing),
        }
    }
}

impl Master {
    /// The master's name, if there is one.
    pub fn name(&self) -> Option<&IfName> {
        match self {
            Self::Of(name) => Some(name),
            Self::Nothing => None,
        }
    }
}

/// `""` on the wire for [`Master::Nothing`] and the like; an empty text is no value otherwise, so the two never meet.
pub(super) mod empty {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::link) fn serialize<S: Serializer>(to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("")
    }

    pub(in crate::link) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
        if String::deserialize(from)?.is_empty() {
            Ok(())
        } else {
            Err(D::Error::custom("not a value that is known here"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_master_is_a_statement_and_survives_storing() {
        let attrs = Attrs { master: Some(Master::Nothing), ..Attrs::default() };
        let text = serde_json::to_string(&attrs).unwrap();
        assert_eq!(text, r#"{"master":""}"#);
        assert_eq!(serde_json::from_str::<Attrs>(&text).unwrap(), attrs);
        let named: Attrs = serde_json::from_str(r#"{"master":"br0"}"#).unwrap();
        assert_eq!(named.master.unwrap().name().unwrap().as_str(), "br0");
        assert!(serde_json::from_str::<Attrs>(r#"{"master":"not/a/name"}"#).is_err());
    }

    #[test]
    fn what_is_stated_first_wins_field_by_field() {
        let (nothing, all) = (Attrs::default(), Attrs::full_for_tests());
        assert_eq!(nothing.clone().or(&all), all);
        assert_eq!(all.clone().or(&nothing), all);
        let one = Attrs { mtu: Some(9000), ..nothing };
        assert_eq!(one.or(&all), Attrs { mtu: Some(9000), ..all });
    }

    #[test]
    fn values_that_no_kernel_takes_are_named_with_their_field() {
        let mut problems = Problems::default();
        let attrs = Attrs { mtu: Some(67), alias: Some("x".repeat(256)), ..Attrs::default() };
        attrs.check("spec.links[0]", &mut problems);
        Attrs { mtu: Some(70_000), ..Attrs::default() }.check("spec", &mut problems);
        assert_eq!(
            problems.to_string(),
            "spec.links[0].mtu: MTU 67 is outside 68 to 65535\n\
             spec.links[0].alias: an alias has at most 255 bytes, this has 256\n\
             spec.mtu: MTU 70000 is outside 68 to 65535"
        );
    }
}
