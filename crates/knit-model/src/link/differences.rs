//! Comparison of link attributes field by field, which is cheaper than serializing whole links to compare them.

use serde::Serialize;
use serde_json::Value;

use super::{Attrs, values_match};

/// A field whose desired value differs from the observed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDifference {
    /// The field.
    pub field: &'static str,
    /// The observed value.
    pub observed: Value,
    /// The desired value.
    pub desired: Value,
}

/// Calls a macro with every field of [`Attrs`].
macro_rules! each_field {
    ($do:ident) => {
        $do!(
            mtu,
            mac,
            txqueuelen,
            alias,
            group,
            up,
            promisc,
            allmulticast,
            multicast,
            arp,
            master,
            vlans,
            hairpin,
            limit
        )
    };
}

impl Attrs {
    /// Fields that differ from `observed`. Fields that are unset on either side are not compared.
    pub fn differences(&self, observed: &Self) -> Vec<FieldDifference> {
        let mut all = Vec::new();
        macro_rules! compare {
            ($($field:ident),*) => {
                $(all.extend(difference(stringify!($field), self.$field.as_ref(), observed.$field.as_ref()));)*
            };
        }
        each_field!(compare);
        all
    }

    /// The value of a field; `None` if it is unset or kind-specific.
    pub fn field(&self, name: &str) -> Option<Value> {
        macro_rules! find {
            ($($field:ident),*) => {
                match name {
                    $(stringify!($field) => self.$field.as_ref().map(value),)*
                    _ => None,
                }
            };
        }
        each_field!(find)
    }
}

fn difference<T: PartialEq + Serialize>(
    field: &'static str,
    desired: Option<&T>,
    observed: Option<&T>,
) -> Option<FieldDifference> {
    let (desired, observed) = (desired?, observed?);
    if desired == observed {
        return None;
    }
    let (desired, observed) = (value(desired), value(observed));
    (!values_match(&desired, &observed)).then_some(FieldDifference { field, observed, desired })
}

fn value(of: &impl Serialize) -> Value {
    // Fields are plain values, which always serialize.
    serde_json::to_value(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Master, PortVlans, RateLimit, TokenBucket};
    use crate::mac::Mac;

    fn other() -> Attrs {
        Attrs {
            mtu: Some(1300),
            mac: Some(Mac::from_bytes([2, 0, 0, 0, 0, 2])),
            txqueuelen: Some(7),
            alias: Some("b".to_owned()),
            group: Some(8),
            up: Some(false),
            promisc: Some(false),
            allmulticast: Some(false),
            multicast: Some(false),
            arp: Some(false),
            master: "br0".parse().ok().map(Master::Link),
            vlans: Some(PortVlans::access(200)),
            hairpin: Some(false),
            limit: Some(RateLimit::Limited(TokenBucket { bits: 8000, burst: 1600 })),
        }
    }

    #[test]
    fn every_field_is_compared_with_its_serialized_value() {
        let (full, other) = (Attrs::full_for_tests(), other());
        let stored = full.fields();
        let mut differences = full.differences(&other);
        differences.sort_by_key(|difference| difference.field);
        assert!(differences.iter().map(|difference| difference.field).eq(stored.keys().map(String::as_str)));
        for FieldDifference { field, observed, desired } in differences {
            assert_eq!(
                (Some(&desired), Some(&observed)),
                (stored.get(field), other.fields().get(field)),
                "{field}"
            );
            assert_eq!(full.field(field), Some(desired), "{field}");
        }
        assert_eq!(full.field("vni"), None);
    }

    #[test]
    fn equal_and_unset_fields_do_not_differ() {
        let (full, nothing) = (Attrs::full_for_tests(), Attrs::default());
        for (desired, observed) in [(&full, &full), (&full, &nothing), (&nothing, &full)] {
            assert_eq!(desired.differences(observed), []);
        }
        assert_eq!(nothing.field("mtu"), None);
    }
}
