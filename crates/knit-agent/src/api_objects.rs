//! Translates objects of an API server: the dialect behind watches of objects and behind [`Effect::TranslateObjects`].
//!
//! [`Effect::TranslateObjects`]: knit_engine::Effect::TranslateObjects

use knit_crds::Object;
use knit_engine::{Event, StoredObject};
use knit_model::problem::Problems;
use knit_model::provenance::Dialect;
use serde_json::Value;

/// The parts of metadata that are recorded.
const RECORDED_METADATA: [&str; 5] = ["name", "namespace", "uid", "generation", "creationTimestamp"];

/// An object with its intents.
pub(crate) fn stored(object: &Object) -> Result<StoredObject, Problems> {
    let translation = object.intents(Dialect::Kubernetes)?;
    Ok(StoredObject {
        object: object.object_ref(),
        intents: translation.intents,
        warnings: translation.warnings,
        manifest: manifest(object),
        since: 0,
        file: None,
    })
}

/// The recorded part of an object: identity and spec. The status changes far more often.
fn manifest(object: &Object) -> Value {
    let mut manifest = object.to_value();
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = manifest.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()) {
        metadata.retain(|field, _| RECORDED_METADATA.contains(&field.as_str()));
    }
    manifest
}

/// Translates the recorded manifests of a namespace's objects. They were valid when they were recorded.
pub(crate) fn translated(namespace: String, manifests: &[String]) -> Event {
    let read = |manifest: &String| {
        let manifest: Value = serde_json::from_str(manifest).ok()?;
        stored(&Object::from_manifest(&manifest)?).ok()
    };
    let objects: Vec<StoredObject> = manifests.iter().filter_map(read).collect();
    if objects.len() < manifests.len() {
        let lost = manifests.len() - objects.len();
        tracing::error!(namespace, lost, "cannot read the manifests of objects that were valid before");
    }
    Event::ObjectsTranslated { namespace, objects }
}

#[cfg(test)]
mod tests {
    use knit_engine::objects::ObjectEvent;
    use knit_engine::pods::{Pod, PodEvent, RunningSandbox};
    use knit_engine::{Effect, Record, State, step};
    use knit_ipam::Time;
    use knit_model::SandboxId;
    use knit_model::sandbox::SandboxInstance;

    use super::*;

    const NEW: &str = "2026-01-03T00:00:00Z";

    fn veth(namespace: &str, name: &str, created: &str) -> StoredObject {
        let text = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Veth\n\
             metadata: {{ name: {name}, namespace: {namespace}, uid: u-{name}, generation: 1, creationTimestamp: \"{created}\" }}\n\
             spec: {{ interfaceName: {name}, master: br0, cidr: 10.1.2.0/24 }}\n"
        );
        stored(&Object::parse(&text).unwrap()).unwrap()
    }

    fn applied(object: StoredObject) -> Event {
        Event::Objects(Box::new(ObjectEvent::Applied(Box::new(object))))
    }

    /// Handles an event as a node does; returns the journalled objects and the units that are observed.
    fn handle(state: &mut State, event: Event) -> Vec<String> {
        let mut all = Vec::new();
        for effect in step(state, event, Time(0)) {
            match effect {
                Effect::TranslateObjects { namespace, manifests } => {
                    all.extend(handle(state, translated(namespace, &manifests)));
                }
                Effect::Journal(Record::ObjectApplied(object)) => {
                    all.push(format!("+{}", object.object.name))
                }
                Effect::Journal(Record::ObjectDeleted(key)) => all.push(format!("-{}", key.name)),
                Effect::Observe { unit, .. } => all.push(unit.to_string()),
                Effect::ObjectsChanged(_) => all.push("changed".to_owned()),
                _ => {}
            }
        }
        all
    }

    fn running() -> Event {
        let instance = SandboxInstance { boot: "b".to_owned(), cookie: 1 };
        let sandbox = RunningSandbox { uid: "u".to_owned(), instance, netns: "/n".to_owned(), number: 1 };
        let sandboxes = [(SandboxId("s".to_owned()), sandbox)].into();
        Event::Pods(PodEvent::Running { sandboxes, requested_at: Time(0) })
    }

    fn pod(namespace: &str) -> Event {
        let (uid, namespace) = ("u".to_owned(), namespace.to_owned());
        let pod = Pod { uid, namespace, name: "p".to_owned(), ..Pod::default() };
        Event::Pods(PodEvent::Applied(Box::new(pod)))
    }

    #[test]
    fn objects_of_namespaces_without_a_pod_here_have_no_effect_until_one_arrives() {
        let mut state = State::default();
        for object in [
            veth("shop", "a", "2026-01-02T00:00:00Z"),
            veth("shop", "b", "2026-01-01T00:00:00Z"),
            veth("lab", "c", NEW),
        ] {
            assert_eq!(handle(&mut state, applied(object)), [""; 0]);
        }
        assert_eq!((state.objects.len(), state.unused_objects.len()), (0, 3));
        handle(&mut state, running());
        // In the order of their creation, and before the pod is configured.
        let effects = handle(&mut state, pod("shop"));
        assert_eq!(effects[..4], ["+b", "changed", "+a", "changed"], "{effects:?}");
        assert_eq!((state.objects.len(), state.unused_objects.len()), (2, 1));
        assert_eq!(state.sandboxes.len(), 1);
    }

    #[test]
    fn an_unused_object_follows_lists_and_changes() {
        let mut state = State::default();
        handle(&mut state, applied(veth("shop", "a", NEW)));
        let mut newer = veth("shop", "a", NEW);
        newer.object.generation = 2;
        newer.manifest["spec"]["mtu"] = 1400.into();
        handle(&mut state, applied(newer));
        handle(&mut state, applied(veth("shop", "a", NEW)));
        handle(&mut state, pod("shop"));
        let [object] = &state.objects.values().collect::<Vec<_>>()[..] else { panic!("{:?}", state.objects) };
        assert_eq!(object.manifest["spec"]["mtu"], 1400, "an old version does not replace a newer one");

        let mut state = State::default();
        handle(&mut state, applied(veth("shop", "a", NEW)));
        handle(&mut state, applied(veth("shop", "b", NEW)));
        let listed =
            ObjectEvent::Listed { kind: "Veth".to_owned(), objects: Vec::new(), rejected: Vec::new() };
        let deleted = ObjectEvent::Deleted { key: veth("shop", "a", NEW).key(), uid: "u-a".to_owned() };
        handle(&mut state, Event::Objects(Box::new(deleted)));
        assert_eq!(state.unused_objects.len(), 1);
        handle(&mut state, Event::Objects(Box::new(listed)));
        assert!(state.unused_objects.is_empty());
    }

    #[test]
    fn objects_are_unused_again_once_the_last_pod_of_their_namespace_is_gone() {
        let mut state = State::default();
        handle(&mut state, running());
        handle(&mut state, pod("shop"));
        handle(&mut state, applied(veth("shop", "a", NEW)));
        assert_eq!(state.objects.len(), 1);
        handle(&mut state, Event::Pods(PodEvent::Deleted("u".to_owned())));
        handle(&mut state, Event::Resync);
        assert_eq!(state.objects.len(), 1, "its sandbox still runs");
        let none = PodEvent::Running { sandboxes: Default::default(), requested_at: Time(0) };
        handle(&mut state, Event::Pods(none));
        let effects = handle(&mut state, Event::Resync);
        assert!(effects.contains(&"-a".to_owned()), "{effects:?}");
        assert_eq!((state.objects.len(), state.unused_objects.len()), (0, 1));
    }

    #[test]
    fn an_object_that_other_namespaces_depend_on_is_always_used() {
        let text = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\n\
                    metadata: { name: b, namespace: shop, uid: u, generation: 1 }\n\
                    spec: { name: b0, cidr: 10.1.2.0/24 }\n";
        let bridge = stored(&Object::parse(text).unwrap()).unwrap();
        let mut state = State::default();
        handle(&mut state, applied(bridge));
        assert_eq!((state.objects.len(), state.unused_objects.len()), (1, 0));
    }
}
