//! Field changes between a desired and an observed link.

use serde_json::Value;

use super::FieldChange;
use crate::link::{Kind, Link, Veth, values_match};

/// Set fields that differ, except for setting the link up. Fields that are unset on either side are not compared.
pub(super) fn changes(desired: &Link, observed: &Link) -> Vec<FieldChange> {
    let sets_up = up_change(desired, observed).is_some();
    let in_attrs = desired.attrs.differences(&observed.attrs).into_iter();
    let in_attrs = in_attrs.map(|differs| FieldChange::new(differs.field, differs.observed, differs.desired));
    let mut differing: Vec<FieldChange> =
        in_attrs.filter(|change| !(sets_up && change.field == "up")).collect();
    let maps = desired.kind.map_fields();
    differing.extend(kind_changes(&desired.kind, &observed.kind).into_iter().map(|change| {
        // The original value of a foreign link is restored as a whole.
        let is_map = desired.owner.is_some() && maps.contains(&change.field.as_str());
        if is_map { change.restricted_to_entries() } else { change }
    }));
    differing.sort_by(|a, b| a.field.cmp(&b.field));
    if differing.iter().any(|change| change.field == "master") {
        let is_changed = |lost: &FieldChange| differing.iter().any(|change| change.field == lost.field);
        let lost: Vec<FieldChange> =
            lost_with_master(desired, observed).filter(|lost| !is_changed(lost)).collect();
        differing.extend(lost);
    }
    differing
}

/// Kind-specific fields that differ. The only field of a veth, its peer, is not observed.
fn kind_changes(desired: &Kind, observed: &Kind) -> Vec<FieldChange> {
    if desired == observed || matches!(observed, Kind::Veth(Veth { peer: None })) {
        return Vec::new();
    }
    let observed = observed.fields();
    let differing = desired.fields().into_iter().filter_map(|(field, to)| {
        let from = observed.get(&field)?.clone();
        (!values_match(&to, &from)).then(|| FieldChange::new(field, from, to))
    });
    differing.collect()
}

/// The kernel resets the bridge port settings of a link that leaves its bridge. They are part of the change, so that a
/// rollback restores them.
pub(super) fn lost_with_master(desired: &Link, observed: &Link) -> impl Iterator<Item = FieldChange> {
    let value = |link: &Link, field| link.attrs.field(field).unwrap_or_default();
    let lost = ["vlans", "hairpin"].map(|field| (field, value(observed, field), value(desired, field)));
    // Defaults of a new port are not lost.
    let is_default = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    let lost = lost.into_iter().filter(move |(_, from, to)| !is_default(from) || !is_default(to));
    lost.map(|(field, from, to)| FieldChange::new(field, from, to))
}

/// The change that sets a link up.
pub(super) fn up_change(desired: &Link, observed: &Link) -> Option<FieldChange> {
    let sets_up = desired.attrs.up == Some(true) && observed.attrs.up == Some(false);
    sets_up.then(|| FieldChange::new("up", false, true))
}
