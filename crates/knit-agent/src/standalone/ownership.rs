//! Ownership of objects while an agent runs: those of its directory and its configuration cannot be changed through the local API.
//!
//! The directory is the source of truth: a change of one of its objects would silently be reverted by the next change of any file.

use knit_engine::{ObjectKey, State, cluster};

use super::{Action, ObjectOutcome, ObjectSources};
use crate::error::{Error, Result};

/// Whether these may be applied. Unchanged objects are always allowed.
pub(super) fn check_apply(state: &State, changes: &[ObjectOutcome], sources: ObjectSources) -> Result<()> {
    let changed = changes.iter().filter(|change| change.action != Action::Unchanged);
    reject(changed.filter_map(|change| managed_by(state, &change.key, sources)))
}

/// Whether these may be deleted.
pub(super) fn check_delete(state: &State, keys: &[ObjectKey], sources: ObjectSources) -> Result<()> {
    reject(keys.iter().filter_map(|key| managed_by(state, key, sources)))
}

/// Why an object is not changed by an undo: a directory has taken it over since.
pub(super) fn kept_on_undo(state: &State, key: &ObjectKey, sources: ObjectSources) -> Option<String> {
    let file = state.objects.get(key)?.file.as_ref().filter(|_| sources.directory)?;
    Some(format!("managed by {file}, unchanged"))
}

/// The owner of an object, if it is not the local API.
fn managed_by(state: &State, key: &ObjectKey, sources: ObjectSources) -> Option<String> {
    if sources.agent && *key == cluster::key() {
        return Some(format!("{key} is managed by the agent: change clusterNetwork in its configuration"));
    }
    let file = state.objects.get(key)?.file.as_ref().filter(|_| sources.directory)?;
    Some(format!("{key} is managed by {file}, which the agent watches: change it there"))
}

fn reject(all: impl Iterator<Item = String>) -> Result<()> {
    let objects: Vec<String> = all.collect();
    if objects.is_empty() { Ok(()) } else { Err(Error::NotOwned { objects: objects.join("\n") }) }
}
