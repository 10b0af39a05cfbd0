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
        let is_said = |lost: &Change| differing.iter().any(|change| change.field == lost.field);
        let lost: Vec<Change> = lost_with_master(want, seen).filter(|lost| !is_said(lost)).collect();
        differing.extend(lost);
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

/// A port that leaves its bridge loses what it is as a port, also what it is to be on the next one: what it loses is part
/// of the change, so that it comes back when the change is taken back.
pub(super) fn lost_with_master(want: &Link, seen: &Link) -> impl Iterator<Item = Change> {
    let value = |link: &Link, field| link.attrs.field(field).unwrap_or_default();
    let lost = ["vlans", "hairpin"].map(|field| (field, value(seen, field), value(want, field)));
    // What a new port is anyway is not lost.
    let is_usual = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    let lost = lost.into_iter().filter(move |(_, from, to)| !is_usual(from) || !is_usual(to));
    lost.map(|(field, from, to)| Change { field: field.to_owned(), from, to })
}

/// The change that takes a link up.
pub(super) fn going_up(want: &Link, seen: &Link) -> Option<Change> {
    let goes_up = want.attrs.up == Some(true) && seen.attrs.up == Some(false);
    goes_up.then(|| Change { field: "up".to_owned(), from: Value::Bool(false), to: Value::Bool(true) })
}
