//! What differs between a link as it is wanted and as it is.

use serde_json::Value;

use super::Change;
use crate::link::{Kind, Link, Veth, agrees};

/// Stated fields that differ, but for going up. What either side does not state is left alone.
pub(super) fn changes(want: &Link, seen: &Link) -> Vec<Change> {
    let goes_up = going_up(want, seen).is_some();
    let of_attrs = want.attrs.differences(&seen.attrs).into_iter().map(|differs| Change {
        field: differs.field.to_owned(),
        from: differs.seen,
        to: differs.want,
    });
    let mut differing: Vec<Change> = of_attrs.filter(|change| !(goes_up && change.field == "up")).collect();
    differing.extend(changes_of_kind(&want.kind, &seen.kind));
    differing.sort_by(|a, b| a.field.cmp(&b.field));
    if differing.iter().any(|change| change.field == "master") {
        differing.extend(lost_vlans(want, seen).filter(|_| !differing.iter().any(is_of_vlans)));
    }
    differing
}

/// The same of the kind's own fields. Of a pair the kernel does not tell the far end, which is the only field it has.
fn changes_of_kind(want: &Kind, seen: &Kind) -> Vec<Change> {
    if want == seen || matches!(seen, Kind::Veth(Veth { peer: None })) {
        return Vec::new();
    }
    let seen = seen.fields();
    let differing = want.fields().into_iter().filter_map(|(field, to)| {
        let from = seen.get(&field)?.clone();
        (!agrees(&to, &from)).then_some(Change { field, from, to })
    });
    differing.collect()
}

/// A port that leaves its bridge loses its VLANs, also those that it is to have on the next one: what it loses is part of
/// the change, so that it comes back when the change is taken back.
pub(super) fn lost_vlans(want: &Link, seen: &Link) -> Option<Change> {
    let value = |link: &Link| serde_json::to_value(&link.attrs.vlans).unwrap_or_default();
    let (from, to) = (value(seen), value(want));
    (!from.is_null() || !to.is_null()).then(|| Change { field: "vlans".to_owned(), from, to })
}

fn is_of_vlans(change: &Change) -> bool {
    change.field == "vlans"
}

/// The change that takes a link up.
pub(super) fn going_up(want: &Link, seen: &Link) -> Option<Change> {
    let goes_up = want.attrs.up == Some(true) && seen.attrs.up == Some(false);
    goes_up.then(|| Change { field: "up".to_owned(), from: Value::Bool(false), to: Value::Bool(true) })
}
