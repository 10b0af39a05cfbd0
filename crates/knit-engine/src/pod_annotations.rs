//! Requests in annotations of pods: one object of kind `Pod` for each annotated pod.
//!
//! The object selects exactly that pod by its uid. It exists as long as the pod, even when the annotation becomes
//! empty, so that the status still reports the removal.

use std::collections::BTreeSet;

use knit_model::Sandbox;
use knit_model::intent::IntentSpec;
use knit_model::problem::Problem;
use knit_model::report::InterfaceReport;

use crate::event::Event;
use crate::plugin_chain::ChainedInterface;
use crate::state::{ObjectKey, State, StoredObject};

/// The kind of these objects.
pub const KIND: &str = "Pod";

/// The objects of annotated pods.
pub fn objects(state: &State) -> impl Iterator<Item = (&ObjectKey, &StoredObject)> {
    let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
    state.objects.range(first..).take_while(|(key, _)| key.kind == KIND)
}

/// The events that make these the only objects of annotated pods.
pub fn events(state: &State, desired: Vec<StoredObject>) -> Vec<Event> {
    let keys: BTreeSet<ObjectKey> = desired.iter().map(StoredObject::key).collect();
    let gone = objects(state).filter(|(key, _)| !keys.contains(*key));
    let mut events: Vec<Event> = gone.map(|(key, _)| Event::ObjectDeleted(key.clone())).collect();
    let is_new = |object: &StoredObject| {
        let known = state.objects.get(&object.key());
        known.is_none_or(|known| StoredObject { since: object.since, ..known.clone() } != *object)
    };
    events.extend(desired.into_iter().filter(is_new).map(Event::ObjectApplied));
    events
}

impl State {
    /// The object of a pod's annotation.
    pub fn pod_annotation_object(&self, namespace: &str, pod: &str, uid: &str) -> Option<&StoredObject> {
        let (kind, namespace, name) = (KIND.to_owned(), namespace.to_owned(), pod.to_owned());
        let stored = self.objects.get(&ObjectKey { kind, namespace, name })?;
        Some(stored).filter(|stored| stored.object.uid == uid)
    }

    /// The interfaces that plugin chains created for an object in a pod.
    pub(crate) fn chained_for(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<InterfaceReport> {
        let is_ready = |chained: &&ChainedInterface| {
            chained.sandbox == sandbox.id
                && chained.is_ready()
                && chained.origin.object.as_ref() == Some(&stored.object)
        };
        self.attachments.all_chained().filter(is_ready).map(ChainedInterface::report).collect()
    }

    /// Rejected parts of an object in a pod: by validation, or by plugins.
    pub(crate) fn rejections_in(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<Problem> {
        let namespace = &stored.object.namespace;
        let problems = stored.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Rejected(spec) if spec.pods.matches(namespace, sandbox) => Some(spec.problem.clone()),
            IntentSpec::PluginChain(spec) if spec.pods.matches(namespace, sandbox) => {
                let failed = self.pending_calls.failed(&(sandbox.id.clone(), spec.name.clone()))?;
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

    fn object(name: &str, uid: &str, networks: &str) -> StoredObject {
        let object = ObjectRef {
            kind: KIND.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            generation: 0,
        };
        let manifest = json!({ "networks": networks });
        StoredObject { object, intents: Vec::new(), warnings: Vec::new(), manifest, since: 0, file: None }
    }

    fn changes(events: &[Event]) -> Vec<String> {
        let change = |event: &Event| match event {
            Event::ObjectApplied(object) => format!("+{}", object.object.name),
            Event::ObjectDeleted(key) => format!("-{}", key.name),
            other => format!("{other:?}"),
        };
        events.iter().map(change).collect()
    }

    #[test]
    fn only_changed_annotations_are_applied() {
        let mut state = State::default();
        for known in [object("same", "1", "a"), object("edited", "2", "a"), object("gone", "3", "a")] {
            state.record(&Record::ObjectApplied(Box::new(known)));
        }
        let other = StoredObject {
            object: ObjectRef { kind: "Veth".to_owned(), ..object("x", "9", "").object },
            ..object("x", "9", "")
        };
        state.record(&Record::ObjectApplied(Box::new(other)));
        let desired = vec![object("same", "1", "a"), object("edited", "2", "b"), object("new", "4", "")];
        assert_eq!(changes(&events(&state, desired)), ["-gone", "+edited", "+new"]);
        assert!(state.pod_annotation_object("shop", "same", "1").is_some());
        assert!(
            state.pod_annotation_object("shop", "same", "2").is_none(),
            "a pod of that name made again is another"
        );
    }
}
