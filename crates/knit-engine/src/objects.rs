//! Objects of an API server: which of them a list or watch result changes.

use std::collections::BTreeSet;

use knit_model::provenance::Dialect;
use serde::{Deserialize, Serialize};

use crate::state::{ObjectKey, State, StoredObject};
use crate::unused_objects::sort_by_creation;

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
    Deleted(ObjectKey),
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
            Self::Applied(object) if is_new(state, &object) => vec![ObjectChange::Applied(object)],
            Self::Applied(_) => Vec::new(),
            Self::Deleted(key) => vec![ObjectChange::Deleted(key)],
        }
    }
}

/// A spec changes only with its generation. An old list may arrive after a newer watch event.
fn is_new(state: &State, object: &StoredObject) -> bool {
    let key = object.key();
    let used = state.objects.get(&key).map(|known| (known.object.uid.as_str(), known.object.generation));
    let known = used.or_else(|| state.unused_objects.version(&key));
    known.is_none_or(|(uid, generation)| uid != object.object.uid || generation < object.object.generation)
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
}
