//! Validates objects before they are applied.

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, State, StoredObject};
use knit_model::provenance::Dialect;

use super::{Action, ObjectOutcome, files};
use crate::error::{Error, Invalid, Result};
use crate::node::now;

/// The previous version of each changed object.
pub(crate) type Before = Vec<(ObjectKey, Option<Box<StoredObject>>)>;

/// An object to apply.
pub(crate) struct ManifestInput {
    pub(crate) object: Object,
    /// The file of a watched directory; `None` if it comes from the local API.
    pub(crate) file: Option<String>,
}

/// Validated objects and the events that apply them.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) changes: Vec<ObjectOutcome>,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Before,
}

/// Validates all objects, so that all errors are reported at once.
pub(crate) fn prepare(state: &State, inputs: Vec<ManifestInput>) -> Result<Prepared> {
    let mut prepared = Prepared::default();
    let mut invalid = Vec::new();
    for input in inputs {
        let (change, stored) = match prepare_one(state, input) {
            Ok(one) => one,
            Err(why) => {
                invalid.push(why);
                continue;
            }
        };
        if let Some(stored) = stored {
            let before = state.objects.get(&change.key).cloned().map(Box::new);
            prepared.before.push((change.key.clone(), before));
            prepared.events.push(Event::ObjectApplied(stored));
        }
        prepared.changes.push(change);
    }
    if invalid.is_empty() { Ok(prepared) } else { Err(Error::Invalid { invalid }) }
}

/// Validates an object and sets the uid and generation that an API server would set.
fn prepare_one(
    state: &State,
    input: ManifestInput,
) -> Result<(ObjectOutcome, Option<StoredObject>), Invalid> {
    let ManifestInput { mut object, file } = input;
    let key = files::key_of(&object);
    let title = key.to_string();
    let invalid = |problems| Invalid { object: title.clone(), problems };
    let old = state.objects.get(&key);
    let generation = old.map_or(1, |old| old.object.generation + 1);
    let uid = old.map_or_else(|| format!("{}-{}", key.name, now().0), |old| old.object.uid.clone());
    if let Some(before) = old.and_then(|old| Object::from_manifest(&old.manifest)) {
        let problems = object.check_change(&before);
        if !problems.is_empty() {
            return Err(invalid(problems));
        }
    }
    files::set_identity(&mut object, &key, &uid, generation);
    let translation = object.intents(Dialect::File).map_err(invalid)?;
    let manifest = object.to_value();
    let same = old.filter(|old| files::spec_of(&old.manifest) == files::spec_of(&manifest));
    let action = match (old, same) {
        (None, _) => Action::Created,
        (Some(_), Some(_)) => Action::Unchanged,
        (Some(_), None) => Action::Configured,
    };
    let change = ObjectOutcome { key, action, warnings: translation.warnings.clone() };
    let stored = StoredObject {
        object: object.object_ref(),
        intents: translation.intents,
        warnings: translation.warnings,
        manifest,
        since: 0,
        file,
    };
    let stored = match same {
        None => Some(stored),
        // A directory takes over objects of the local API; the local API does not take over unchanged objects of a directory.
        Some(old) if stored.file.is_some() && stored.file != old.file => {
            Some(StoredObject { file: stored.file, ..old.clone() })
        }
        Some(_) => None,
    };
    Ok((change, stored))
}
