//! Objects that nothing on this node can need: they select pods of namespaces without a pod here.
//!
//! Only their manifests are kept. They are neither in the state's objects nor journalled, and a change of one has no effect,
//! so that a node's work and memory do not grow with the objects of tenants on other nodes only. When the first
//! pod of a namespace arrives, [`Effect::TranslateObjects`] brings its objects back, before the pod is configured.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::Kind;
use knit_model::intent::IntentSpec;
use serde::{Deserialize, Serialize};

use crate::event::Effect;
use crate::state::{ObjectKey, State, StoredObject};
use crate::step::{Effects, object_applied, object_deleted};

/// The manifests of unused objects, by namespace. Not persistent: they are listed again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedObjects {
    #[serde(with = "knit_model::serde_pairs::nested")]
    by_namespace: BTreeMap<String, BTreeMap<ObjectKey, UnusedObject>>,
    /// Namespaces whose objects are being translated.
    awaited: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UnusedObject {
    uid: Box<str>,
    generation: i64,
    manifest: Box<str>,
}

impl UnusedObjects {
    /// The number of unused objects.
    pub fn len(&self) -> usize {
        self.by_namespace.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// The uid and generation of an unused object.
    pub(crate) fn version(&self, key: &ObjectKey) -> Option<(&str, i64)> {
        let object = self.by_namespace.get(&key.namespace)?.get(key)?;
        Some((&object.uid, object.generation))
    }

    /// Whether the objects of a namespace are being translated.
    pub(crate) fn is_awaited(&self, namespace: &str) -> bool {
        self.awaited.contains(namespace)
    }

    fn insert(&mut self, object: &StoredObject) {
        let unused = UnusedObject {
            uid: object.object.uid.as_str().into(),
            generation: object.object.generation,
            manifest: object.manifest.to_string().into(),
        };
        let key = object.key();
        self.by_namespace.entry(key.namespace.clone()).or_default().insert(key, unused);
    }

    /// Removes an object that was deleted, or is used now.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        if let Some(objects) = self.by_namespace.get_mut(&key.namespace) {
            objects.remove(key);
            if objects.is_empty() {
                self.by_namespace.remove(&key.namespace);
            }
        }
    }

    /// Removes all objects of a kind that a complete list does not contain.
    pub(crate) fn retain_listed(&mut self, kind: &str, listed: &BTreeSet<ObjectKey>) {
        for objects in self.by_namespace.values_mut() {
            objects.retain(|key, _| key.kind != kind || listed.contains(key));
        }
        self.by_namespace.retain(|_, objects| !objects.is_empty());
    }
}

/// Applies an object from an API server, or keeps it as unused.
pub(crate) fn apply(state: &mut State, object: StoredObject, effects: &mut Effects) {
    let key = object.key();
    if is_used(state, &object) {
        state.unused_objects.remove(&key);
        return object_applied(state, object, effects);
    }
    if state.objects.contains_key(&key) {
        object_deleted(state, &key, effects);
    }
    state.unused_objects.insert(&object);
}

/// A pod of a namespace is on this node: the namespace's objects are translated.
pub(crate) fn use_namespace(state: &mut State, namespace: &str, effects: &mut Effects) {
    let Some(objects) = state.unused_objects.by_namespace.remove(namespace) else { return };
    state.unused_objects.awaited.insert(namespace.to_owned());
    let manifests = objects.into_values().map(|object| object.manifest.into()).collect();
    effects.list.push(Effect::TranslateObjects { namespace: namespace.to_owned(), manifests });
}

/// The objects of a namespace were translated. Those that were created first have precedence.
pub(crate) fn on_translated(
    state: &mut State,
    namespace: &str,
    mut objects: Vec<StoredObject>,
    effects: &mut Effects,
) {
    if !state.unused_objects.awaited.remove(namespace) {
        return;
    }
    sort_by_creation(&mut objects);
    objects.into_iter().for_each(|object| object_applied(state, object, effects));
}

/// Sorts objects by the time of their creation. On conflicts the first applied object wins, on every node the same.
pub(crate) fn sort_by_creation(objects: &mut [StoredObject]) {
    objects.sort_by_cached_key(|object| (created(object).to_owned(), object.key()));
}

/// The time of an object's creation in RFC 3339, in UTC; empty if it is unknown.
pub(crate) fn created(object: &StoredObject) -> &str {
    let created = object.manifest.pointer("/metadata/creationTimestamp");
    created.and_then(|created| created.as_str()).unwrap_or_default()
}

/// Keeps only the manifests of objects whose namespaces have no pod here any more.
pub(crate) fn collect(state: &mut State, effects: &mut Effects) {
    let used = state.used_namespaces();
    let is_unused = |object: &StoredObject| {
        concerns_pods_only(object) && !used.contains(object.object.namespace.as_str())
    };
    let unused = state.objects.values().filter(|object| is_unused(object)).cloned();
    for object in unused.collect::<Vec<_>>() {
        object_deleted(state, &object.key(), effects);
        state.unused_objects.insert(&object);
    }
}

impl State {
    /// Whether this node has a pod or a sandbox of the namespace.
    fn uses_namespace(&self, namespace: &str) -> bool {
        self.sandboxes.values().any(|sandbox| sandbox.namespace == namespace)
            || self.pods.has_namespace(namespace)
    }

    fn used_namespaces(&self) -> BTreeSet<String> {
        let sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.namespace);
        sandboxes.chain(self.pods.all().map(|pod| &pod.namespace)).cloned().collect()
    }
}

/// Whether the object may affect this node.
fn is_used(state: &State, object: &StoredObject) -> bool {
    !concerns_pods_only(object) || state.uses_namespace(&object.object.namespace)
}

/// Whether an API server has the object and it only adds something to pods of its own namespace, or nothing at all. Bridges, networks and
/// uplinks exist without pods; fixed addresses are reserved, and modes of ipvlans decided, for all namespaces. What
/// restricts pods, such as a quota, has to be known before they start, also after a restart without an API server.
fn concerns_pods_only(object: &StoredObject) -> bool {
    let is_of_pods = |spec: &IntentSpec| match spec {
        IntentSpec::Interface(spec) => spec.fixed.is_empty() && !matches!(spec.kind, Kind::Ipvlan(_)),
        IntentSpec::LinkChange(_)
        | IntentSpec::Routing(_)
        | IntentSpec::Socket(_)
        | IntentSpec::Segment(_)
        | IntentSpec::Rejected(_) => true,
        IntentSpec::Bridge(_)
        | IntentSpec::Uplink(_)
        | IntentSpec::Network(_)
        | IntentSpec::RequiredExtensions(_)
        | IntentSpec::Quota(_)
        | IntentSpec::NodeRoutes(_)
        | IntentSpec::AddressPool(_)
        | IntentSpec::EgressGateway(_)
        | IntentSpec::ServiceAddresses(_)
        | IntentSpec::PluginChain(_) => false,
    };
    let is_namespaced = !object.object.namespace.is_empty();
    let is_of_api = object.object.kind != crate::pod_annotations::KIND && object.is_kept_by_api_server();
    is_namespaced && is_of_api && object.intents.iter().all(|intent| is_of_pods(&intent.spec))
}
