//! What differs between a link as it is wanted and as it is.

use serde_json::Value;

use super::Change;
use crate::link::{Attrs, Link, agrees};

/// Stated fields that differ, but for going up. What either side does not state is left alone.
pub(super) fn changes(want: &Link, seen: &Link) -> Vec<Change> {
    let goes_up = going_up(want, seen).is_some();
    // Most links are as they should be, and a newborn one is but for going up: fields are costly to compare by name.
    let up = if goes_up { seen.attrs.up } else { want.attrs.up };
    if want.kind == seen.kind && (Attrs { up, ..want.attrs.clone() }) == seen.attrs {
        return Vec::new();
    }
    let seen_fields = seen.fields();
    let differing = want.fields().into_iter().filter_map(|(field, to)| {
        let from = seen_fields.get(&field)?.clone();
        let is_left = agrees(&to, &from) || (goes_up && field == "up");
        (!is_left).then_some(Change { field, from, to })
    });
    let mut differing: Vec<Change> = differing.collect();
    if differing.iter().any(|change| change.field == "master") {
        differing.extend(lost_vlans(want, seen).filter(|_| !differing.iter().any(is_of_vlans)));
    }
    differing
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
