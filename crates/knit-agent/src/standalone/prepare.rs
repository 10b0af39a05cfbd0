//! Objects from files, checked and ready to be applied.

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, State, StoredObject};
use knit_model::provenance::Dialect;

use super::{Change, Verb, files};
use crate::error::{Error, Invalid, Result};
use crate::node::now;

/// Objects that were checked, and what applying them means.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) changes: Vec<Change>,
    pub(crate) events: Vec<Event>,
    pub(crate) before: Vec<(ObjectKey, Option<Box<StoredObject>>)>,
}

/// Checks objects. All of them are looked at, so that a person sees everything that is wrong at once.
pub(crate) fn prepare(state: &State, objects: Vec<Object>) -> Result<Prepared> {
    let mut prepared = Prepared::default();
    let mut invalid = Vec::new();
    for object in objects {
        let (change, stored) = match prepare_one(state, object) {
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
fn prepare_one(state: &State, mut object: Object) -> Result<(Change, Option<StoredObject>), Invalid> {
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
    let same = old.is_some_and(|old| files::spec_of(&old.manifest) == files::spec_of(&manifest));
    let verb = match (old, same) {
        (None, _) => Verb::Created,
        (Some(_), true) => Verb::Unchanged,
        (Some(_), false) => Verb::Configured,
    };
    let change = Change { key, verb, warnings: translation.warnings.clone() };
    let stored = StoredObject {
        object: object.object_ref(),
        intents: translation.intents,
        warnings: translation.warnings,
        manifest,
        since: 0,
    };
    Ok((change, (!same).then_some(stored)))
}
