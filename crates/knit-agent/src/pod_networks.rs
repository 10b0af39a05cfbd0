//! Translates the networks in a pod's annotation: the dialect behind [`Effect::TranslateNetworks`].
//!
//! [`Effect::TranslateNetworks`]: knit_engine::Effect::TranslateNetworks

use std::cell::RefCell;
use std::collections::BTreeSet;

use knit_crds::attachments::{AllowedPlugins, Attachment, Definition, PodAttachments, translate};
use knit_engine::pod_annotations::{NetworksRequest, TranslatedNetworks};
use knit_engine::{Event, State, StoredObject};
use serde_json::json;

/// Translates an annotation with the definitions of the state. A deleted definition is remembered for the pods that use it:
/// they keep their interfaces until they end or their annotation changes.
pub(crate) fn translated(state: &State, request: NetworksRequest, plugins: &AllowedPlugins) -> Event {
    let NetworksRequest { object, networks } = request;
    let before = state.pod_annotation_object(&object.namespace, &object.name, &object.uid);
    let remembered = before.map(attached).unwrap_or_default();
    let referenced = RefCell::new(BTreeSet::new());
    let definition = |namespace: &str, name: &str| {
        let of = (namespace.to_owned(), name.to_owned());
        referenced.borrow_mut().insert(of.clone());
        let current = state.pod_networks.definition(&of, &object.namespace);
        Definition::find(current, &remembered, namespace, name)
    };
    let PodAttachments { intents, warnings, attachments } =
        translate(&object, &networks, definition, plugins);
    let manifest = json!({ "attachments": attachments });
    let object = StoredObject { object, intents, warnings, manifest, since: 0, file: None };
    let definitions = referenced.into_inner();
    Event::NetworksTranslated(Box::new(TranslatedNetworks { object, definitions }))
}

/// The recorded attachments of a pod.
pub(crate) fn attached(stored: &StoredObject) -> Vec<Attachment> {
    let attached = stored.manifest.get("attachments").cloned().unwrap_or_default();
    serde_json::from_value(attached).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use knit_engine::pod_annotations::{DefinitionEvent, DefinitionName};
    use knit_engine::pod_start::{PodStart, StartingSandbox};
    use knit_engine::pods::{Pod, PodEvent, RunningSandbox, RuntimePod};
    use knit_engine::{CallId, Effect, step};
    use knit_ipam::Time;
    use knit_model::SandboxId;
    use knit_model::intent::IntentSpec;
    use knit_model::sandbox::SandboxInstance;

    use super::*;

    const BLUE: &str = r#"{"type": "bridge", "bridge": "br0"}"#;

    fn blue() -> DefinitionName {
        ("shop".to_owned(), "blue".to_owned())
    }

    fn pod(networks: Option<&str>) -> Pod {
        Pod {
            uid: "u1".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            networks: networks.map(str::to_owned),
            ..Pod::default()
        }
    }

    fn annotated(networks: Option<&str>) -> Event {
        Event::Pods(PodEvent::Applied(Box::new(pod(networks))))
    }

    fn defined(config: &str, shared_with: &[&str]) -> knit_engine::pod_annotations::Definition {
        let shared_with = shared_with.iter().map(|name| (*name).to_owned()).collect();
        knit_engine::pod_annotations::Definition { config: config.to_owned(), shared_with }
    }

    fn definitions(all: &[(DefinitionName, &str)]) -> Event {
        let all = all.iter().map(|(name, config)| (name.clone(), defined(config, &[])));
        Event::Definitions(DefinitionEvent::Listed(all.collect()))
    }

    /// Handles an event with all translations; returns the intents of the pod, `None` if it has no object.
    fn handle(state: &mut State, event: Event) -> Option<Vec<String>> {
        for effect in step(state, event, Time(0)) {
            if let Effect::TranslateNetworks(request) = effect {
                let event = translated(state, request, &AllowedPlugins::default());
                handle(state, event);
            }
        }
        let describe = |intent: &IntentSpec| match intent {
            IntentSpec::Interface(intent) => {
                format!("{} {:?}", intent.master.clone().unwrap_or_default(), intent.attrs.mtu)
            }
            IntentSpec::Rejected(intent) => intent.problem.message.clone(),
            other => format!("{other:?}"),
        };
        let stored = state.pod_annotation_object("shop", "web", "u1")?;
        Some(stored.intents.iter().map(|intent| describe(&intent.spec)).collect())
    }

    fn intents(texts: &[&str]) -> Option<Vec<String>> {
        Some(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn running_pods_follow_their_annotation_and_its_definitions() {
        let mut state = State::default();
        assert_eq!(handle(&mut state, annotated(Some("blue"))), None, "definitions have not synced");
        let missing = intents(&["NetworkAttachmentDefinition shop/blue not found"]);
        assert_eq!(handle(&mut state, definitions(&[])), missing);
        let apply = |config: &str| Event::Definitions(DefinitionEvent::Applied(blue(), defined(config, &[])));
        assert_eq!(handle(&mut state, apply(BLUE)), intents(&["br0 None"]));
        let with_mtu = apply(r#"{"type": "bridge", "bridge": "br0", "mtu": 1400}"#);
        assert_eq!(handle(&mut state, with_mtu), intents(&["br0 Some(1400)"]));
        assert_eq!(handle(&mut state, annotated(Some(""))), intents(&[]));
        assert_eq!(handle(&mut state, annotated(None)), intents(&[]), "the status annotation is updated");
        assert_eq!(handle(&mut state, Event::Definitions(DefinitionEvent::NotRead)), None);
    }

    #[test]
    fn a_deleted_definition_is_remembered_for_the_pods_that_use_it() {
        let mut state = State::default();
        handle(&mut state, annotated(Some("blue")));
        assert_eq!(handle(&mut state, definitions(&[(blue(), BLUE)])), intents(&["br0 None"]));
        let delete = Event::Definitions(DefinitionEvent::Deleted(blue()));
        assert_eq!(handle(&mut state, delete), intents(&["br0 None"]));
        // Also after a restart.
        let mut state = state.persistent();
        handle(&mut state, annotated(Some("blue")));
        assert_eq!(handle(&mut state, definitions(&[])), intents(&["br0 None"]));
        assert_eq!(handle(&mut state, annotated(Some(""))), intents(&[]));
        let missing = intents(&["NetworkAttachmentDefinition shop/blue not found"]);
        assert_eq!(handle(&mut state, annotated(Some("blue"))), missing);
    }

    #[test]
    fn a_definition_of_another_namespace_is_used_only_while_it_is_shared() {
        let mut state = State::default();
        let red = || ("lab".to_owned(), "red".to_owned());
        let apply = |shared_with: &[&str]| {
            Event::Definitions(DefinitionEvent::Applied(red(), defined(BLUE, shared_with)))
        };
        handle(&mut state, definitions(&[(red(), BLUE)]));
        let rejected = handle(&mut state, annotated(Some("lab/red"))).unwrap();
        assert!(rejected[0].contains("lab/red is not shared with namespace shop"), "{rejected:?}");
        assert_eq!(handle(&mut state, apply(&["other"])), Some(rejected.clone()));
        assert_eq!(handle(&mut state, apply(&["other", "shop"])), intents(&["br0 None"]));
        assert_eq!(handle(&mut state, apply(&[])), Some(rejected), "a running pod loses it");
        // A definition that was not shared when it was deleted is not remembered.
        let delete = || Event::Definitions(DefinitionEvent::Deleted(red()));
        let missing = intents(&["NetworkAttachmentDefinition lab/red not found"]);
        assert_eq!(handle(&mut state, delete()), missing);
        assert_eq!(handle(&mut state, apply(&["*"])), intents(&["br0 None"]));
        assert_eq!(handle(&mut state, delete()), intents(&["br0 None"]));
    }

    #[test]
    fn a_pod_reported_by_the_runtime_gets_its_networks_before_the_watch_has_it() {
        let mut state = State::default();
        handle(&mut state, definitions(&[(blue(), BLUE)]));
        handle(&mut state, Event::Pods(PodEvent::Listed(Vec::new())));
        let instance = SandboxInstance { boot: "boot".to_owned(), cookie: 1 };
        let running =
            RunningSandbox { uid: "u1".to_owned(), instance, netns: "/proc/7/ns/net".to_owned(), number: 7 };
        let id = SandboxId("s1".to_owned());
        let announced = RuntimePod { pod: pod(Some("blue")), running, until: Time(10) };
        let sandbox = StartingSandbox::Announced(announced);
        let start = PodStart { call: CallId("c".to_owned()), id: id.clone(), sandbox };
        let start = Event::PodStarting(Box::new(start));
        assert_eq!(handle(&mut state, start), intents(&["br0 None"]));
        assert!(state.sandboxes.contains_key(&id), "it is added with its networks");
        let listed =
            |at| Event::Pods(PodEvent::Running { sandboxes: Default::default(), requested_at: Time(at) });
        assert_eq!(handle(&mut state, listed(5)), intents(&["br0 None"]));
        assert_eq!(handle(&mut state, listed(20)), None, "the sandbox was never started");
    }
}
