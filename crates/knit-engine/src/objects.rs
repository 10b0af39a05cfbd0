//! Objects that someone else keeps: what their news mean depends on what is known.

use std::collections::BTreeSet;

use knit_model::provenance::Dialect;

use crate::event::Event;
use crate::state::{ObjectKey, State, StoredObject};

/// News of objects from an API server.
#[derive(Clone, Debug)]
pub enum News {
    /// All objects of a kind, as of one moment.
    Listed {
        /// The kind.
        kind: String,
        /// Those that can be used.
        objects: Vec<StoredObject>,
        /// Those that are there and cannot be used: what they asked for before stays.
        refused: Vec<ObjectKey>,
    },
    /// An object was written.
    Applied(Box<StoredObject>),
    /// An object is gone, or is about to go.
    Deleted(ObjectKey),
}

impl News {
    /// What has to be heard. News that tell nothing new give no event, so that a repeated list costs nothing.
    pub fn events(self, state: &State) -> Vec<Event> {
        match self {
            Self::Listed { kind, objects, refused } => {
                let there: BTreeSet<ObjectKey> =
                    objects.iter().map(StoredObject::key).chain(refused).collect();
                let known = state.objects.iter();
                let gone = known.filter(|(key, object)| {
                    key.kind == kind && is_from_the_api(object) && !there.contains(*key)
                });
                let mut events: Vec<Event> = gone.map(|(key, _)| Event::ObjectDeleted(key.clone())).collect();
                let news = objects.into_iter().filter(|object| is_new(state, object));
                events.extend(news.map(Event::ObjectApplied));
                events
            }
            Self::Applied(object) if is_new(state, &object) => vec![Event::ObjectApplied(*object)],
            Self::Applied(_) => Vec::new(),
            Self::Deleted(key) if state.objects.contains_key(&key) => vec![Event::ObjectDeleted(key)],
            Self::Deleted(_) => Vec::new(),
        }
    }
}

/// The spec of an object changes with its generation only. An old list may come after a newer change.
fn is_new(state: &State, object: &StoredObject) -> bool {
    state.objects.get(&object.key()).is_none_or(|known| {
        known.object.uid != object.object.uid || known.object.generation < object.object.generation
    })
}

/// Whether an object is the API server's to take away: the cluster's network, say, is Knit's own.
fn is_from_the_api(object: &StoredObject) -> bool {
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

    fn words(events: &[Event]) -> Vec<String> {
        let word = |event: &Event| match event {
            Event::ObjectApplied(object) => format!("+{}.{}", object.object.name, object.object.generation),
            Event::ObjectDeleted(key) => format!("-{}", key.name),
            other => format!("{other:?}"),
        };
        events.iter().map(word).collect()
    }

    fn listed(objects: Vec<StoredObject>, refused: Vec<ObjectKey>) -> News {
        News::Listed { kind: "PodConfig".to_owned(), objects, refused }
    }

    #[test]
    fn a_list_tells_only_what_is_new_and_what_is_gone() {
        let mut state = State::default();
        for known in [object("same", "1", 3), object("newer", "2", 1), object("gone", "3", 1)] {
            state.record(&Record::ObjectApplied(Box::new(known)));
        }
        let list =
            listed(vec![object("same", "1", 3), object("newer", "2", 2), object("first", "4", 1)], vec![]);
        assert_eq!(words(&list.events(&state)), ["-gone", "+newer.2", "+first.1"]);
    }

    #[test]
    fn an_object_that_cannot_be_used_keeps_what_it_had() {
        let mut state = State::default();
        let known = object("broken", "1", 1);
        let key = known.key();
        state.record(&Record::ObjectApplied(Box::new(known)));
        assert_eq!(words(&listed(vec![], vec![key]).events(&state)), [""; 0]);
    }

    #[test]
    fn old_news_are_none_and_a_name_made_again_is_new() {
        let mut state = State::default();
        state.record(&Record::ObjectApplied(Box::new(object("a", "1", 5))));
        let applied = |object| words(&News::Applied(Box::new(object)).events(&state));
        assert_eq!(applied(object("a", "1", 4)), [""; 0]);
        assert_eq!(applied(object("a", "1", 5)), [""; 0]);
        assert_eq!(applied(object("a", "2", 1)), ["+a.1"]);
        assert_eq!(words(&News::Deleted(object("b", "1", 1).key()).events(&state)), [""; 0]);
    }
}
