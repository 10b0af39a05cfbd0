//! Objects that are not a person's to change while an agent runs: what its folder and its configuration ask for.
//!
//! A folder says all there is to say about its objects. If a person could change one, the next change of any file would
//! silently take that back.

use knit_engine::{ObjectKey, State, cluster};

use super::{Change, Others, Verb};
use crate::error::{Error, Result};

/// Whether a person may apply these. What stays as it is harms nobody.
pub(super) fn may_apply(state: &State, changes: &[Change], others: Others) -> Result<()> {
    let changed = changes.iter().filter(|change| change.verb != Verb::Unchanged);
    refuse(changed.filter_map(|change| whose(state, &change.key, others)))
}

/// Whether a person may delete these.
pub(super) fn may_delete(state: &State, keys: &[ObjectKey], others: Others) -> Result<()> {
    refuse(keys.iter().filter_map(|key| whose(state, key, others)))
}

/// Why an object stays as it is when a change is taken back that was made before it came into other hands.
pub(super) fn stays(state: &State, key: &ObjectKey, others: Others) -> Option<String> {
    let file = state.objects.get(key)?.file.as_ref().filter(|_| others.folder)?;
    Some(format!("it comes from {file} by now, and stays as it is there"))
}

/// Whose an object is, in words, if it is not a person's.
fn whose(state: &State, key: &ObjectKey, others: Others) -> Option<String> {
    if others.agent && *key == cluster::key() {
        return Some(format!("{key} is the agent's own: change clusterNetwork in its configuration"));
    }
    let file = state.objects.get(key)?.file.as_ref().filter(|_| others.folder)?;
    Some(format!("{key} comes from {file}, which the agent watches: change it there"))
}

fn refuse(all: impl Iterator<Item = String>) -> Result<()> {
    let objects: Vec<String> = all.collect();
    if objects.is_empty() { Ok(()) } else { Err(Error::NotYours { objects: objects.join("\n") }) }
}
