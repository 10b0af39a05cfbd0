//! Requests in annotations of pods: one object of kind `Pod` for each annotated pod.
//!
//! The object selects exactly that pod by its uid. It exists as long as the pod, even when the annotation becomes
//! empty, so that the status still reports the removal.
//!
//! The engine has no dialect: which annotations have to be translated is decided here, [`Effect::TranslateNetworks`]
//! translates one. A deleted definition is remembered in the objects of the pods that use it.

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::Sandbox;
use knit_model::intent::IntentSpec;
use knit_model::problem::Problem;
use knit_model::provenance::ObjectRef;
use knit_model::report::InterfaceReport;
use serde::{Deserialize, Serialize};

use crate::event::Effect;
use crate::plugin_chain::ChainedInterface;
use crate::pods;
use crate::state::{ObjectKey, State, StoredObject};
use crate::step::{Effects, object_applied, object_deleted};

/// The kind of these objects.
pub const KIND: &str = "Pod";

/// The objects of annotated pods.
pub fn objects(state: &State) -> impl Iterator<Item = (&ObjectKey, &StoredObject)> {
    let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
    state.objects.range(first..).take_while(|(key, _)| key.kind == KIND)
}

/// A definition's namespace and name.
pub type DefinitionName = (String, String);

/// A NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Its CNI configuration.
    pub config: String,
    /// Other namespaces whose pods may use it; `*` for all.
    pub shared_with: BTreeSet<String>,
}

/// A change of NetworkAttachmentDefinitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DefinitionEvent {
    /// The complete list.
    Listed(Vec<(DefinitionName, Definition)>),
    /// A definition was created or changed.
    Applied(DefinitionName, Definition),
    /// A definition was deleted. Pods that use it keep their interfaces until they end or their annotation changes.
    Deleted(DefinitionName),
    /// This node does not read definitions: annotations request nothing.
    NotRead,
}

/// A pod whose annotation has to be translated into intents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworksRequest {
    /// The pod, as the object that represents its annotation.
    pub object: ObjectRef,
    /// The annotation.
    pub networks: String,
}

/// The translation of a pod's annotation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TranslatedNetworks {
    /// The annotation as an object.
    pub object: StoredObject,
    /// The definitions that it references, existing or not.
    pub definitions: BTreeSet<DefinitionName>,
}

/// Definitions, and the pods that reference them. Not persistent: both are listed again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNetworks {
    /// The definitions; `None` until they are listed.
    definitions: Option<BTreeMap<DefinitionName, Definition>>,
    /// What the object of each pod was translated from, by the pod's uid.
    translated: BTreeMap<String, Translation>,
    /// The pods that reference a definition.
    #[serde(with = "knit_model::serde_pairs")]
    by_definition: BTreeMap<DefinitionName, BTreeSet<String>>,
    /// Pods whose translation was requested.
    awaited: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Translation {
    object: ObjectKey,
    networks: Option<String>,
    definitions: BTreeSet<DefinitionName>,
}

impl PodNetworks {
    /// The configuration of a definition, and whether pods of this namespace may use it.
    pub fn definition(&self, of: &DefinitionName, used_in: &str) -> Option<(&str, bool)> {
        let found = self.definitions.as_ref()?.get(of)?;
        let is_shared = found.shared_with.contains("*") || found.shared_with.contains(used_in);
        Some((&found.config, of.0 == used_in || is_shared))
    }

    /// Whether the translation of a pod's annotation was requested and is not available yet.
    pub(crate) fn is_awaited(&self, uid: &str) -> bool {
        self.awaited.contains(uid)
    }

    fn forget(&mut self, uid: &str) {
        let Some(translation) = self.translated.remove(uid) else { return };
        for definition in translation.definitions {
            if let Some(uids) = self.by_definition.get_mut(&definition) {
                uids.remove(uid);
                if uids.is_empty() {
                    self.by_definition.remove(&definition);
                }
            }
        }
    }

    /// Applies a change. Returns the definitions that differ; `None` if the definitions were not known before.
    fn update(&mut self, event: DefinitionEvent) -> Option<BTreeSet<DefinitionName>> {
        let known = match event {
            DefinitionEvent::NotRead => {
                self.definitions = None;
                return Some(BTreeSet::new());
            }
            DefinitionEvent::Listed(all) => {
                let new: BTreeMap<DefinitionName, Definition> = all.into_iter().collect();
                let old = self.definitions.replace(new)?;
                let new = self.definitions.as_ref()?;
                let differs = |name: &&DefinitionName| old.get(*name) != new.get(*name);
                return Some(old.keys().chain(new.keys()).filter(differs).cloned().collect());
            }
            DefinitionEvent::Applied(..) | DefinitionEvent::Deleted(_) => self.definitions.as_mut()?,
        };
        Some(match event {
            DefinitionEvent::Applied(name, definition) => {
                let old = known.insert(name.clone(), definition);
                (old.as_ref() != known.get(&name)).then_some(name).into_iter().collect()
            }
            DefinitionEvent::Deleted(name) => known.remove(&name).map(|_| name).into_iter().collect(),
            DefinitionEvent::Listed(_) | DefinitionEvent::NotRead => BTreeSet::new(),
        })
    }
}

/// Definitions changed: the annotations that reference them are translated again.
pub(crate) fn on_definitions(state: &mut State, event: DefinitionEvent, effects: &mut Effects) {
    if matches!(event, DefinitionEvent::NotRead) {
        let keys: Vec<ObjectKey> = objects(state).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| object_deleted(state, key, effects));
        state.pod_networks = PodNetworks::default();
        return;
    }
    let uids: BTreeSet<String> = match state.pod_networks.update(event) {
        None => state.pods.uids(),
        Some(names) => {
            let users = names.iter().filter_map(|name| state.pod_networks.by_definition.get(name));
            users.flatten().cloned().collect()
        }
    };
    for uid in uids {
        state.pod_networks.forget(&uid);
        on_pod_change(state, &uid, effects);
    }
}

/// A list of pods or sandboxes arrived: annotations of pods that are gone request nothing any more.
pub(crate) fn on_list(state: &mut State, effects: &mut Effects) {
    let mut uids = state.pods.uids();
    uids.extend(objects(state).map(|(_, stored)| stored.object.uid.clone()));
    uids.iter().for_each(|uid| on_pod_change(state, uid, effects));
}

/// A pod changed: its annotation is translated if it is new, and removed once the pod and its sandbox are gone.
pub(crate) fn on_pod_change(state: &mut State, uid: &str, effects: &mut Effects) {
    let Some(pod) = state.pods.get_or_announced(uid) else {
        // A sandbox may outlive its pod object, and keeps its interfaces.
        if state.pods.has_synced() && !state.pods.may_run(uid) {
            remove(state, uid, effects);
        }
        return;
    };
    let is_current =
        state.pod_networks.translated.get(uid).is_some_and(|known| known.networks == pod.networks);
    if is_current || state.pod_networks.definitions.is_none() {
        return;
    }
    let before = state.pod_annotation_object(&pod.namespace, &pod.name, uid);
    if pod.networks.is_none() && before.is_none() {
        return;
    }
    let object = ObjectRef {
        kind: KIND.to_owned(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: uid.to_owned(),
        generation: 0,
    };
    let networks = pod.networks.clone().unwrap_or_default();
    state.pod_networks.awaited.insert(uid.to_owned());
    effects.list.push(Effect::TranslateNetworks(NetworksRequest { object, networks }));
}

fn remove(state: &mut State, uid: &str, effects: &mut Effects) {
    let known = state.pod_networks.translated.get(uid).map(|known| known.object.clone());
    // After a start the annotation may not have been translated yet.
    let key = known.or_else(|| {
        let mut objects = objects(state);
        objects.find(|(_, stored)| stored.object.uid == uid).map(|(key, _)| key.clone())
    });
    state.pod_networks.forget(uid);
    if let Some(key) = key
        && state.objects.get(&key).is_some_and(|stored| stored.object.uid == uid)
    {
        object_deleted(state, &key, effects);
    }
}

/// The annotation of a pod was translated.
pub(crate) fn on_translated(
    state: &mut State,
    translated: TranslatedNetworks,
    now: Time,
    effects: &mut Effects,
) {
    let TranslatedNetworks { object, definitions } = translated;
    let (key, uid) = (object.key(), object.object.uid.clone());
    if !state.pod_networks.awaited.remove(&uid) {
        return;
    }
    let networks = state.pods.get_or_announced(&uid).and_then(|pod| pod.networks.clone());
    state.pod_networks.forget(&uid);
    for name in &definitions {
        state.pod_networks.by_definition.entry(name.clone()).or_default().insert(uid.clone());
    }
    let translation = Translation { object: key.clone(), networks, definitions };
    state.pod_networks.translated.insert(uid.clone(), translation);
    let known = state.objects.get(&key);
    if known.is_none_or(|known| StoredObject { since: object.since, ..known.clone() } != object) {
        object_applied(state, object, effects);
    }
    pods::reconcile_pod(state, &uid, now, effects);
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
    use serde_json::json;

    use super::*;
    use crate::event::{Event, Record};
    use crate::pods::{Pod, PodEvent};
    use crate::step;

    fn pod(uid: &str, networks: Option<&str>) -> PodEvent {
        PodEvent::Applied(Box::new(Pod {
            uid: uid.to_owned(),
            namespace: "shop".to_owned(),
            name: format!("pod-{uid}"),
            networks: networks.map(str::to_owned),
            ..Pod::default()
        }))
    }

    fn definition(name: &str) -> DefinitionName {
        ("shop".to_owned(), name.to_owned())
    }

    /// Handles an event and translates as a host does, with the annotation as the manifest. Returns the translated pods and
    /// the changed objects.
    fn handle(state: &mut State, event: Event) -> Vec<String> {
        let mut summary = Vec::new();
        for effect in step(state, event, Time(0)) {
            match effect {
                Effect::TranslateNetworks(NetworksRequest { object, networks }) => {
                    summary.push(format!("?{}", object.uid));
                    let names = networks.split(',').filter(|name| !name.is_empty()).map(definition);
                    let definitions: BTreeSet<DefinitionName> = names.collect();
                    let config = |name: &DefinitionName| {
                        state.pod_networks.definition(name, "shop").map(|(config, _)| config.to_owned())
                    };
                    let manifest = json!(definitions.iter().map(config).collect::<Vec<_>>());
                    let (intents, warnings) = (Vec::new(), Vec::new());
                    let object = StoredObject { object, intents, warnings, manifest, since: 0, file: None };
                    let translated = Box::new(TranslatedNetworks { object, definitions });
                    summary.extend(handle(state, Event::NetworksTranslated(translated)));
                }
                Effect::Journal(Record::ObjectApplied(object)) => {
                    summary.push(format!("+{} {}", object.object.uid, object.manifest));
                }
                Effect::Journal(Record::ObjectDeleted(key)) => summary.push(format!("-{}", key.name)),
                _ => {}
            }
        }
        summary
    }

    fn private(config: &str) -> Definition {
        Definition { config: config.to_owned(), shared_with: BTreeSet::new() }
    }

    fn definitions(state: &mut State, event: DefinitionEvent) -> Vec<String> {
        handle(state, Event::Definitions(event))
    }

    fn listed(names: &[(&str, &str)]) -> DefinitionEvent {
        let all = names.iter().map(|(name, config)| (definition(name), private(config)));
        DefinitionEvent::Listed(all.collect())
    }

    #[test]
    fn annotations_are_translated_once_both_lists_are_known_and_when_they_change() {
        let mut state = State::default();
        assert_eq!(handle(&mut state, Event::Pods(pod("1", Some("blue")))), [""; 0]);
        assert_eq!(handle(&mut state, Event::Pods(pod("2", None))), [""; 0]);
        assert_eq!(definitions(&mut state, listed(&[("blue", "b")])), ["?1", "+1 [\"b\"]"]);
        assert_eq!(handle(&mut state, Event::Pods(pod("1", Some("blue")))), [""; 0], "it is the same");
        assert_eq!(handle(&mut state, Event::Pods(pod("1", Some("red")))), ["?1", "+1 [null]"]);
        assert_eq!(handle(&mut state, Event::Pods(pod("1", None))), ["?1", "+1 []"], "its status is updated");
    }

    #[test]
    fn a_changed_definition_affects_only_the_pods_that_reference_it() {
        let mut state = State::default();
        definitions(&mut state, listed(&[("blue", "b"), ("red", "r")]));
        handle(&mut state, Event::Pods(pod("1", Some("blue"))));
        handle(&mut state, Event::Pods(pod("2", Some("red,blue"))));
        handle(&mut state, Event::Pods(pod("3", Some("green"))));
        let applied = |name: &str, config: &str| DefinitionEvent::Applied(definition(name), private(config));
        assert_eq!(definitions(&mut state, applied("red", "R")), ["?2", "+2 [\"b\",\"R\"]"]);
        assert_eq!(definitions(&mut state, applied("red", "R")), [""; 0]);
        assert_eq!(definitions(&mut state, applied("green", "g")), ["?3", "+3 [\"g\"]"], "it was missing");
        let list = listed(&[("blue", "b"), ("red", "R"), ("green", "G"), ("other", "o")]);
        assert_eq!(definitions(&mut state, list), ["?3", "+3 [\"G\"]"]);
    }

    #[test]
    fn an_annotation_counts_until_its_pod_and_its_sandbox_are_gone() {
        let mut state = State::default();
        definitions(&mut state, listed(&[("blue", "b")]));
        handle(&mut state, Event::Pods(PodEvent::Listed(Vec::new())));
        handle(&mut state, Event::Pods(pod("1", Some("blue"))));
        let deleted = || Event::Pods(PodEvent::Deleted("1".to_owned()));
        assert_eq!(handle(&mut state, deleted()), [""; 0], "the runtime was never listed");
        let none = || PodEvent::Running { sandboxes: BTreeMap::new(), requested_at: Time(0) };
        assert_eq!(handle(&mut state, Event::Pods(none())), ["-pod-1"]);
        // Also after a restart, before anything was translated.
        handle(&mut state, Event::Pods(pod("1", Some("blue"))));
        let mut restarted = state.persistent();
        assert_eq!(handle(&mut restarted, Event::Pods(none())), [""; 0], "pods are not listed yet");
        assert_eq!(handle(&mut restarted, Event::Pods(PodEvent::Listed(Vec::new()))), ["-pod-1"]);
    }

    #[test]
    fn a_node_that_does_not_read_definitions_removes_what_annotations_requested() {
        let mut state = State::default();
        definitions(&mut state, listed(&[("blue", "b")]));
        handle(&mut state, Event::Pods(pod("1", Some("blue"))));
        assert_eq!(definitions(&mut state, DefinitionEvent::NotRead), ["-pod-1"]);
        assert_eq!(handle(&mut state, Event::Pods(pod("1", Some("red")))), [""; 0]);
    }
}
