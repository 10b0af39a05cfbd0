//! Objects from files, checked and ready to be applied.

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, State, StoredObject};
use knit_model::provenance::Dialect;

use super::{Change, Verb, files};
use crate::error::{Error, Invalid, Result};
use crate::node::now;

/// Each object that changes, as it was before.
pub(crate) type Before = Vec<(ObjectKey, Option<Box<StoredObject>>)>;

/// An object as someone asks for it.
pub(crate) struct Asked {
    pub(crate) object: Object,
    /// The file of a watched folder that has it; `None` if a person gives it by hand.
    pub(crate) file: Option<String>,
}

/// Objects that were checked, and what applying them means.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) changes: Vec<Change>,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Before,
}

/// Checks objects. All of them are looked at, so that a person sees everything that is wrong at once.
pub(crate) fn prepare(state: &State, asked: Vec<Asked>) -> Result<Prepared> {
    let mut prepared = Prepared::default();
    let mut invalid = Vec::new();
    for asked in asked {
        let (change, stored) = match prepare_one(state, asked) {
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

/// Checks an object and gives it what an API server would: a uid and a generation.
fn prepare_one(state: &State, asked: Asked) -> Result<(Change, Option<StoredObject>), Invalid> {
    let Asked { mut object, file } = asked;
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
    let verb = match (old, same) {
        (None, _) => Verb::Created,
        (Some(_), Some(_)) => Verb::Unchanged,
        (Some(_), None) => Verb::Configured,
    };
    let change = Change { key, verb, warnings: translation.warnings.clone() };
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
        // A folder takes over what a person gave before; a person who repeats what a folder says changes nothing.
        Some(old) if stored.file.is_some() && stored.file != old.file => {
            Some(StoredObject { file: stored.file, ..old.clone() })
        }
        Some(_) => None,
    };
    Ok((change, stored))
}
