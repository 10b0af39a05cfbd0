//! Objects of an API server: which of them a list or watch result changes.

use std::collections::BTreeSet;

use knit_model::provenance::Dialect;
use serde::{Deserialize, Serialize};

use crate::state::{ObjectKey, State, StoredObject};
use crate::unused_objects::{created, sort_by_creation};

/// A list or watch result.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ObjectEvent {
    /// The complete list of objects of a kind.
    Listed {
        /// The kind.
        kind: String,
        /// Valid objects.
        objects: Vec<StoredObject>,
        /// Existing objects that are invalid: their previous version stays in effect.
        rejected: Vec<ObjectKey>,
    },
    /// An object was created or updated.
    Applied(Box<StoredObject>),
    /// An object was deleted, or is being deleted.
    Deleted {
        /// The object.
        key: ObjectKey,
        /// Its uid. An object with this name and another uid stays.
        uid: String,
    },
}

/// A change that follows from a list or watch result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectChange {
    Applied(Box<StoredObject>),
    Deleted(ObjectKey),
    /// These are all objects of a kind.
    Listed {
        kind: String,
        keys: BTreeSet<ObjectKey>,
    },
}

impl ObjectEvent {
    /// The resulting changes. Unchanged objects give none, so that a repeated list is cheap.
    pub(crate) fn changes(self, state: &State) -> Vec<ObjectChange> {
        match self {
            Self::Listed { kind, objects, rejected } => {
                let keys: BTreeSet<ObjectKey> =
                    objects.iter().map(StoredObject::key).chain(rejected).collect();
                let known = state.objects.iter();
                let gone = known
                    .filter(|(key, object)| key.kind == kind && is_from_api(object) && !keys.contains(*key));
                let mut changes: Vec<ObjectChange> =
                    gone.map(|(key, _)| ObjectChange::Deleted(key.clone())).collect();
                let mut changed: Vec<StoredObject> =
                    objects.into_iter().filter(|object| is_new(state, object)).collect();
                sort_by_creation(&mut changed);
                changes.extend(changed.into_iter().map(|object| ObjectChange::Applied(Box::new(object))));
                changes.push(ObjectChange::Listed { kind, keys });
                changes
            }
            Self::Applied(object) if is_new(state, &object) && !is_predecessor(state, &object) => {
                vec![ObjectChange::Applied(object)]
            }
            Self::Applied(_) => Vec::new(),
            Self::Deleted { key, uid } => {
                let is_other = version(state, &key).is_some_and(|(known, _)| known != uid);
                if is_other { Vec::new() } else { vec![ObjectChange::Deleted(key)] }
            }
        }
    }
}

/// A spec changes only with its generation. An old list may arrive after a newer watch event.
fn is_new(state: &State, object: &StoredObject) -> bool {
    let known = version(state, &object.key());
    known.is_none_or(|(uid, generation)| uid != object.object.uid || generation < object.object.generation)
}

/// Whether the known object with this name was created later: an API server that replays old events reports what was deleted long ago. A
/// list has no such objects, except after the API server's data was restored; then it takes precedence.
fn is_predecessor(state: &State, object: &StoredObject) -> bool {
    let known = state.objects.get(&object.key());
    known.is_some_and(|known| known.object.uid != object.object.uid && created(known) > created(object))
}

/// The uid and generation of a known object.
fn version<'a>(state: &'a State, key: &ObjectKey) -> Option<(&'a str, i64)> {
    let used = state.objects.get(key).map(|known| (known.object.uid.as_str(), known.object.generation));
    used.or_else(|| state.unused_objects.version(key))
}

/// Whether the object belongs to the API server: the cluster network, for example, belongs to Knit.
fn is_from_api(object: &StoredObject) -> bool {
    object.intents.iter().all(|intent| intent.origin.dialect == Dialect::Kubernetes)
}

#[cfg(test)]
mod tests {
    use knit_model::provenance::ObjectRef;
    use serde_json::Value;

    use super::*;
    use crate::event::Record;

    fn object(name: &str, uid: &str, generation: i64) -> StoredObject {
        let object = ObjectRef {
            kind: "PodConfig".to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            generation,
        };
        StoredObject {
            object,
            intents: Vec::new(),
            warnings: Vec::new(),
            manifest: Value::Null,
            since: 0,
            file: None,
        }
    }

    fn changes(changes: &[ObjectChange]) -> Vec<String> {
        let change = |change: &ObjectChange| match change {
            ObjectChange::Applied(object) => format!("+{}.{}", object.object.name, object.object.generation),
            ObjectChange::Deleted(key) => format!("-{}", key.name),
            ObjectChange::Listed { keys, .. } => format!("={}", keys.len()),
        };
        changes.iter().map(change).collect()
    }

    fn listed(objects: Vec<StoredObject>, rejected: Vec<ObjectKey>) -> ObjectEvent {
        ObjectEvent::Listed { kind: "PodConfig".to_owned(), objects, rejected }
    }

    #[test]
    fn a_list_tells_only_what_is_new_and_what_is_gone() {
        let mut state = State::default();
        for known in [object("same", "1", 3), object("newer", "2", 1), object("gone", "3", 1)] {
            state.record(&Record::ObjectApplied(Box::new(known)));
        }
        let list =
            listed(vec![object("same", "1", 3), object("newer", "2", 2), object("first", "4", 1)], vec![]);
        assert_eq!(changes(&list.changes(&state)), ["-gone", "+first.1", "+newer.2", "=3"]);
    }

    #[test]
    fn an_object_that_cannot_be_used_keeps_what_it_had() {
        let mut state = State::default();
        let known = object("broken", "1", 1);
        let key = known.key();
        state.record(&Record::ObjectApplied(Box::new(known)));
        assert_eq!(changes(&listed(vec![], vec![key]).changes(&state)), ["=1"]);
    }

    #[test]
    fn old_news_are_none_and_a_name_made_again_is_new() {
        let mut state = State::default();
        state.record(&Record::ObjectApplied(Box::new(object("a", "1", 5))));
        let applied = |object| changes(&ObjectEvent::Applied(Box::new(object)).changes(&state));
        assert_eq!(applied(object("a", "1", 4)), [""; 0]);
        assert_eq!(applied(object("a", "1", 5)), [""; 0]);
        assert_eq!(applied(object("a", "2", 1)), ["+a.1"]);
    }

    #[test]
    fn replayed_events_of_an_earlier_object_with_the_same_name_change_nothing() {
        let with_creation = |uid: &str, created: &str| {
            let manifest = serde_json::json!({"metadata": {"creationTimestamp": created}});
            StoredObject { manifest, ..object("a", uid, 1) }
        };
        let (old, current) =
            (with_creation("1", "2026-01-01T00:00:00Z"), with_creation("2", "2026-01-02T00:00:00Z"));
        let mut state = State::default();
        state.record(&Record::ObjectApplied(Box::new(current.clone())));
        let deleted = |uid: &str| ObjectEvent::Deleted { key: current.key(), uid: uid.to_owned() };
        assert_eq!(changes(&ObjectEvent::Applied(Box::new(old.clone())).changes(&state)), [""; 0]);
        assert_eq!(changes(&deleted("1").changes(&state)), [""; 0]);
        assert_eq!(changes(&deleted("2").changes(&state)), ["-a"]);
        // A list is complete: the data of the API server may have been restored.
        assert_eq!(changes(&listed(vec![old], vec![]).changes(&state)), ["+a.1", "=1"]);
    }
}
