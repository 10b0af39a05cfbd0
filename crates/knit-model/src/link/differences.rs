//! Fields of links, compared one by one. Turning a whole link into named values to find the one that differs costs more
//! than the change itself.

use serde::Serialize;
use serde_json::Value;

use super::{Attrs, agrees};

/// A stated field that is not what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field.
    pub field: &'static str,
    /// What is seen.
    pub seen: Value,
    /// What is wanted.
    pub want: Value,
}

/// Does something with every field of [`Attrs`].
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
    /// Stated fields that are not what was seen. What either side does not state is not compared.
    pub fn differences(&self, seen: &Self) -> Vec<Difference> {
        let mut all = Vec::new();
        macro_rules! compare {
            ($($field:ident),*) => {
                $(all.extend(difference(stringify!($field), self.$field.as_ref(), seen.$field.as_ref()));)*
            };
        }
        each_field!(compare);
        all
    }

    /// The value of a stated field; `None` for one that is not stated, or that only a kind has.
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
    want: Option<&T>,
    seen: Option<&T>,
) -> Option<Difference> {
    let (want, seen) = (want?, seen?);
    if want == seen {
        return None;
    }
    let (want, seen) = (value(want), value(seen));
    (!agrees(&want, &seen)).then_some(Difference { field, seen, want })
}

fn value(of: &impl Serialize) -> Value {
    // Fields are plain values, which always serialise.
    serde_json::to_value(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Limit, Master, PortVlans, Rate};
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
            master: "br0".parse().ok().map(Master::Of),
            vlans: Some(PortVlans::access(200)),
            hairpin: Some(false),
            limit: Some(Limit::To(Rate { bits: 8000, burst: 1600 })),
        }
    }

    #[test]
    fn every_field_is_compared_and_has_the_value_that_it_is_stored_with() {
        let (full, other) = (Attrs::full_for_tests(), other());
        let stored = full.fields();
        let mut differences = full.differences(&other);
        differences.sort_by_key(|difference| difference.field);
        assert!(differences.iter().map(|difference| difference.field).eq(stored.keys().map(String::as_str)));
        for Difference { field, seen, want } in differences {
            assert_eq!((Some(&want), Some(&seen)), (stored.get(field), other.fields().get(field)), "{field}");
            assert_eq!(full.field(field), Some(want), "{field}");
        }
        assert_eq!(full.field("vni"), None);
    }

    #[test]
    fn what_is_equal_or_not_stated_does_not_differ() {
        let (full, nothing) = (Attrs::full_for_tests(), Attrs::default());
        for (want, seen) in [(&full, &full), (&full, &nothing), (&nothing, &full)] {
            assert_eq!(want.differences(seen), []);
        }
        assert_eq!(nothing.field("mtu"), None);
    }
}
