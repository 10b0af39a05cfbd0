//! Attributes that every link has.

use serde::{Deserialize, Serialize};

use super::{PortVlans, RateLimit};
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problems;

/// Smallest MTU of an IPv4 link.
pub const MIN_MTU: u32 = 68;
/// Largest MTU of a link.
pub const MAX_MTU: u32 = 65_535;
/// Maximum length of a link alias in the kernel.
pub const MAX_ALIAS_BYTES: usize = 255;

/// Attributes of a link. `None` is unset: not managed in desired state, not known in observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attrs {
    /// MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Transmit queue length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txqueuelen: Option<u32>,
    /// Alias (`ifalias`); empty removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Link group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Administrative state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Promiscuous mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// Whether it receives all multicast packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulticast: Option<bool>,
    /// Whether multicast is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// Whether ARP is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// The bridge or VRF that it is a port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<Master>,
    /// VLANs of a bridge port, or of a bridge itself. The kernel drops them when the port leaves its bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<PortVlans>,
    /// Hairpin mode of a bridge port, which lets a pod reach itself through a Service. The kernel drops it when the port
    /// leaves its bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hairpin: Option<bool>,
    /// Egress rate limit. Observed only on links that Knit owns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<RateLimit>,
}

/// The master of a link. "No master" is a value, distinct from unset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Master {
    /// Port of this link.
    Link(IfName),
    /// No master, serialized as `""`.
    #[serde(with = "empty")]
    None,
}

impl Attrs {
    /// Checks every set value.
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
                    format!("alias has {bytes} bytes, the maximum is {MAX_ALIAS_BYTES}"),
                );
            }
            if alias.contains('\0') {
                problems.invalid(format!("{path}.alias"), "an alias must not contain a NUL");
            }
        }
        if let Some(group) = self.group
            && matches!(group, crate::kernel_ids::NEW_LINK_GROUP | crate::kernel_ids::DEFERRED_DELETE_GROUP)
        {
            problems.invalid(format!("{path}.group"), format!("link group {group} is reserved for Knit"));
        }
        if let Some(vlans) = &self.vlans {
            vlans.check(path, problems);
        }
    }

    /// These attributes, with those of `other` for unset ones.
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

    /// Every field set, for tests that cover all fields.
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
            master: Some(Master::None),
            vlans: Some(PortVlans::access(100)),
            hairpin: Some(true),
            limit: Some(RateLimit::Unlimited),
        }
    }
}

impl Master {
    /// The master's name, if there is one.
    pub fn name(&self) -> Option<&IfName> {
        match self {
            Self::Link(name) => Some(name),
            Self::None => None,
        }
    }
}

/// Serializes [`Master::None`] and the like as `""`, which is not a valid value otherwise.
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
            Err(D::Error::custom("expected an empty string"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_master_is_a_value_and_round_trips() {
        let attrs = Attrs { master: Some(Master::None), ..Attrs::default() };
        let text = serde_json::to_string(&attrs).unwrap();
        assert_eq!(text, r#"{"master":""}"#);
        assert_eq!(serde_json::from_str::<Attrs>(&text).unwrap(), attrs);
        let named: Attrs = serde_json::from_str(r#"{"master":"br0"}"#).unwrap();
        assert_eq!(named.master.unwrap().name().unwrap().as_str(), "br0");
        assert!(serde_json::from_str::<Attrs>(r#"{"master":"not/a/name"}"#).is_err());
    }

    #[test]
    fn or_keeps_set_attributes() {
        let (nothing, all) = (Attrs::default(), Attrs::full_for_tests());
        assert_eq!(nothing.clone().or(&all), all);
        assert_eq!(all.clone().or(&nothing), all);
        let one = Attrs { mtu: Some(9000), ..nothing };
        assert_eq!(one.or(&all), Attrs { mtu: Some(9000), ..all });
    }

    #[test]
    fn invalid_values_are_reported_with_their_field() {
        let mut problems = Problems::default();
        let attrs = Attrs { mtu: Some(67), alias: Some("x".repeat(256)), ..Attrs::default() };
        attrs.check("spec.links[0]", &mut problems);
        Attrs { mtu: Some(70_000), ..Attrs::default() }.check("spec", &mut problems);
        assert_eq!(
            problems.to_string(),
            "spec.links[0].mtu: MTU 67 is outside 68 to 65535\n\
             spec.links[0].alias: alias has 256 bytes, the maximum is 255\n\
             spec.mtu: MTU 70000 is outside 68 to 65535"
        );
    }
}
