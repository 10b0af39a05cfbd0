//! What pods ask for by annotations of their own: one object for each such pod, of the kind of pods.
//!
//! It means that pod alone, by its uid. It stays as long as the pod is there, also when the annotation asks for nothing any more:
//! whoever was told what the pod has is told that it is gone.

use std::collections::BTreeSet;

use knit_model::Sandbox;
use knit_model::intent::IntentSpec;
use knit_model::problem::Problem;
use knit_model::report::InterfaceReport;

use crate::chain::Chained;
use crate::event::Event;
use crate::state::{ObjectKey, State, StoredObject};

/// The kind of these objects.
pub const KIND: &str = "Pod";

/// The objects of pods' own annotations.
pub fn objects(state: &State) -> impl Iterator<Item = (&ObjectKey, &StoredObject)> {
    let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
    state.objects.range(first..).take_while(|(key, _)| key.kind == KIND)
}

/// What has to be heard so that these are what pods ask for, and nothing else is.
pub fn events(state: &State, wanted: Vec<StoredObject>) -> Vec<Event> {
    let there: BTreeSet<ObjectKey> = wanted.iter().map(StoredObject::key).collect();
    let gone = objects(state).filter(|(key, _)| !there.contains(*key));
    let mut events: Vec<Event> = gone.map(|(key, _)| Event::ObjectDeleted(key.clone())).collect();
    let is_new = |object: &StoredObject| {
        let known = state.objects.get(&object.key());
        known.is_none_or(|known| StoredObject { since: object.since, ..known.clone() } != *object)
    };
    events.extend(wanted.into_iter().filter(is_new).map(Event::ObjectApplied));
    events
}

impl State {
    /// The object of a pod's own annotation.
    pub fn annotated(&self, namespace: &str, pod: &str, uid: &str) -> Option<&StoredObject> {
        let (kind, namespace, name) = (KIND.to_owned(), namespace.to_owned(), pod.to_owned());
        let stored = self.objects.get(&ObjectKey { kind, namespace, name })?;
        Some(stored).filter(|stored| stored.object.uid == uid)
    }

    /// What plugins made of what an object asks for in a pod.
    pub(crate) fn chained_for(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<InterfaceReport> {
        let stands = |there: &&Chained| {
            there.sandbox == sandbox.id && there.stands() && there.why.object.as_ref() == Some(&stored.object)
        };
        self.called.all_chained().filter(stands).map(Chained::report).collect()
    }

    /// What of an object cannot be in a pod: what was refused from the beginning, and what plugins refused.
    pub(crate) fn refused_in(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<Problem> {
        let namespace = &stored.object.namespace;
        let problems = stored.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Rejected(want) if want.pods.matches(namespace, sandbox) => Some(want.problem.clone()),
            IntentSpec::PluginChain(want) if want.pods.matches(namespace, sandbox) => {
                let failed = self.calls.failed(&(sandbox.id.clone(), want.name.clone()))?;
                Some(Problem { field: intent.origin.field.clone(), ..failed.clone() })
            }
            _ => None,
        });
        problems.collect()
    }
}

#[cfg(test)]
mod tests {
    use knit_model::provenance::ObjectRef;
    use serde_json::json;

    use super::*;
    use crate::event::Record;

    fn object(name: &str, uid: &str, says: &str) -> StoredObject {
        let object = ObjectRef {
            kind: KIND.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            generation: 0,
        };
        let manifest = json!({ "networks": says });
        StoredObject { object, intents: Vec::new(), warnings: Vec::new(), manifest, since: 0, file: None }
    }

    fn words(events: &[Event]) -> Vec<String> {
        let word = |event: &Event| match event {
            Event::ObjectApplied(object) => format!("+{}", object.object.name),
            Event::ObjectDeleted(key) => format!("-{}", key.name),
            other => format!("{other:?}"),
        };
        events.iter().map(word).collect()
    }

    #[test]
    fn only_what_is_another_than_before_is_heard() {
        let mut state = State::default();
        for known in [object("same", "1", "a"), object("edited", "2", "a"), object("gone", "3", "a")] {
            state.record(&Record::ObjectApplied(Box::new(known)));
        }
        let other = StoredObject {
            object: ObjectRef { kind: "Veth".to_owned(), ..object("x", "9", "").object },
            ..object("x", "9", "")
        };
        state.record(&Record::ObjectApplied(Box::new(other)));
        let wanted = vec![object("same", "1", "a"), object("edited", "2", "b"), object("new", "4", "")];
        assert_eq!(words(&events(&state, wanted)), ["-gone", "+edited", "+new"]);
        assert!(state.annotated("shop", "same", "1").is_some());
        assert!(state.annotated("shop", "same", "2").is_none(), "a pod of that name made again is another");
    }
}
