//! VirtualNetworks that show the segments of the cluster network: the whole network, each isolated namespace, each app.
//!
//! Agents isolate pods by the same annotations and labels, and do not read these objects. An object of a user that has the
//! name of a segment is neither changed nor deleted: its status and an Event report it, and the segment is not shown.

use std::collections::{BTreeMap, BTreeSet};

use knit_crds::kinds::{Segment, VirtualNetwork};
use knit_crds::{Object, Severity, WatchUpdate};
use knit_engine::{ObjectKey, cluster};
use serde_json::{Value, json};

use crate::state::{Name, State};
use crate::step::{Effect, publish_event};

/// How long a failed write of a segment waits for its repetition, in milliseconds: a quota or a policy may forbid it.
const RETRY_MS: i64 = 10_000;
/// The reason of Events about objects with the name of a segment.
const NAME_TAKEN: &str = "SegmentNameTaken";

/// Which segments are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// The namespace of the object that shows the whole cluster network.
    pub namespace: String,
    /// Whether agents isolate namespaces and apps.
    pub isolation: bool,
}

/// What segments depend on in a Namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Whether it is isolated.
    pub isolated: bool,
    /// Whether it is being deleted: nothing can be created in it.
    pub terminating: bool,
}

/// The state of segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    /// `None`: there is no cluster network of Knit.
    options: Option<SegmentOptions>,
    namespaces: BTreeMap<String, NamespaceInfo>,
    /// Pods of apps, each with its app.
    app_pods: BTreeMap<Name, String>,
    /// Namespaces to reconcile.
    dirty: BTreeSet<String>,
    /// Namespaces with a failed write, and when it failed.
    failed: BTreeMap<String, i64>,
    /// Objects of users with the name of a segment, and what the status of each reports.
    conflicts: BTreeMap<ObjectKey, String>,
}

impl State {
    /// A state that shows segments.
    pub fn with_segments(options: SegmentOptions) -> Self {
        let dirty = BTreeSet::from([options.namespace.clone()]);
        let segments = Segments { options: Some(options), dirty, ..Segments::default() };
        Self { segments, ..Self::default() }
    }

    /// Whether failed writes of segments await their repetition.
    pub fn has_failed_segments(&self) -> bool {
        !self.segments.failed.is_empty()
    }
}

impl Segments {
    /// Whether Namespaces and pods of apps have to be watched.
    pub(crate) fn needs_watches(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.isolation)
    }

    pub(crate) fn needs_reconcile(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// What the status of an object with the name of a segment reports.
    pub(crate) fn conflict(&self, key: &ObjectKey) -> Option<&String> {
        self.conflicts.get(key)
    }

    /// The segments of a namespace, by the names of their objects. `None`: nothing can be written there.
    fn desired(&self, options: &SegmentOptions, namespace: &str) -> Option<BTreeMap<String, Segment>> {
        let info = self.namespaces.get(namespace);
        if info.is_some_and(|info| info.terminating) {
            return None;
        }
        let mut segments = Vec::new();
        if namespace == options.namespace {
            segments.push(Segment::cluster());
        }
        if let Some(info) = info.filter(|_| options.isolation) {
            segments.extend(info.isolated.then(Segment::namespace));
            let first = (namespace.to_owned(), String::new());
            let pods = self.app_pods.range(first..).take_while(|(pod, _)| pod.0 == namespace);
            segments.extend(pods.map(|(_, app)| Segment::app(app.as_str())));
        }
        Some(segments.into_iter().map(|segment| (segment.object_name(namespace), segment)).collect())
    }
}

/// Handles an update of Namespaces.
pub(crate) fn on_namespaces(state: &mut State, update: WatchUpdate<(String, NamespaceInfo)>) {
    let segments = &mut state.segments;
    match update {
        WatchUpdate::Listed(all) => {
            segments.dirty.extend(segments.namespaces.keys().cloned());
            segments.namespaces = all.into_iter().collect();
            segments.dirty.extend(segments.namespaces.keys().cloned());
        }
        WatchUpdate::Applied((name, info)) => {
            if segments.namespaces.insert(name.clone(), info) != Some(info) {
                segments.dirty.insert(name);
            }
        }
        WatchUpdate::Deleted((name, _)) => {
            segments.namespaces.remove(&name);
            segments.failed.remove(&name);
        }
    }
}

/// Handles an update of pods with an app label.
pub(crate) fn on_app_pods(state: &mut State, update: WatchUpdate<(Name, String)>) {
    let segments = &mut state.segments;
    match update {
        WatchUpdate::Listed(all) => {
            segments.dirty.extend(segments.app_pods.keys().map(|pod| pod.0.clone()));
            segments.app_pods = all.into_iter().filter(|(_, app)| !app.is_empty()).collect();
            segments.dirty.extend(segments.app_pods.keys().map(|pod| pod.0.clone()));
        }
        WatchUpdate::Applied((pod, app)) if !app.is_empty() => {
            if segments.app_pods.insert(pod.clone(), app.clone()) != Some(app) {
                segments.dirty.insert(pod.0);
            }
        }
        WatchUpdate::Applied((pod, _)) | WatchUpdate::Deleted((pod, _)) => {
            if segments.app_pods.remove(&pod).is_some() {
                segments.dirty.insert(pod.0);
            }
        }
    }
}

/// Marks the namespaces whose VirtualNetworks changed.
pub(crate) fn on_objects(state: &mut State, update: &WatchUpdate<Object>) {
    let segments = &mut state.segments;
    let Some(options) = &segments.options else { return };
    let namespace = |object: &Object| object.metadata().namespace.clone().unwrap_or_default();
    match update {
        WatchUpdate::Listed(all) => {
            segments.dirty.extend(segments.namespaces.keys().cloned().chain([options.namespace.clone()]));
            segments.dirty.extend(all.iter().map(namespace));
        }
        WatchUpdate::Applied(one) | WatchUpdate::Deleted(one) => drop(segments.dirty.insert(namespace(one))),
    }
}

/// A write in this namespace failed.
pub(crate) fn on_failure(state: &mut State, namespace: String, now: i64) {
    state.segments.failed.insert(namespace, now);
}

/// Creates missing segments, and deletes those that no longer exist.
pub(crate) fn reconcile(state: &mut State, now: i64) -> Vec<Effect> {
    let Some(options) = state.segments.options.clone() else { return Vec::new() };
    let segments = &mut state.segments;
    // A clock that was set back must not delay it.
    let is_due = |_: &String, since: &mut i64| now - *since >= RETRY_MS || now < *since;
    let due: Vec<String> = segments.failed.extract_if(.., is_due).map(|(namespace, _)| namespace).collect();
    let mut namespaces = std::mem::take(&mut segments.dirty);
    namespaces.extend(due);
    let mut effects = Vec::new();
    for namespace in namespaces {
        if !state.segments.failed.contains_key(&namespace) {
            reconcile_namespace(state, &options, &namespace, &mut effects);
        }
    }
    effects
}

fn reconcile_namespace(
    state: &mut State,
    options: &SegmentOptions,
    namespace: &str,
    effects: &mut Vec<Effect>,
) {
    let Some(mut missing) = state.segments.desired(options, namespace) else { return };
    let mut conflicts = BTreeMap::new();
    for (key, object) in networks(state, namespace) {
        let desired = missing.remove(&key.name);
        match (&object.spec.segment, desired) {
            (None, None) => {}
            (None, Some(segment)) => drop(conflicts.insert(key.clone(), describe(&segment, namespace))),
            (Some(_), Some(segment)) if object.spec == segment.spec() => {}
            // It is created again once it is gone.
            (Some(_), _) if object.metadata.deletion_timestamp.is_some() => {}
            (Some(_), _) => effects.push(Effect::DeleteSegment {
                key: key.clone(),
                uid: object.metadata.uid.clone().unwrap_or_default(),
                version: object.metadata.resource_version.clone().unwrap_or_default(),
            }),
        }
    }
    effects.extend(missing.into_iter().map(|(name, segment)| {
        let key = ObjectKey { kind: cluster::KIND.to_owned(), namespace: namespace.to_owned(), name };
        Effect::CreateSegment { manifest: manifest(&key, &segment), key }
    }));
    report_conflicts(state, namespace, conflicts, effects);
}

/// The VirtualNetworks of a namespace.
fn networks<'a>(
    state: &'a State,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a ObjectKey, &'a VirtualNetwork)> {
    let (kind, own, name) = (cluster::KIND.to_owned(), namespace.to_owned(), String::new());
    let from = state.objects.range(ObjectKey { kind, namespace: own, name }..);
    from.take_while(move |(key, _)| key.kind == cluster::KIND && key.namespace == namespace).filter_map(
        |(key, tracked)| match &tracked.object {
            Object::VirtualNetwork(network) => Some((key, network)),
            _ => None,
        },
    )
}

/// Updates what the status of objects with the name of a segment reports.
fn report_conflicts(
    state: &mut State,
    namespace: &str,
    new: BTreeMap<ObjectKey, String>,
    effects: &mut Vec<Effect>,
) {
    let old: BTreeMap<ObjectKey, String> =
        state.segments.conflicts.extract_if(.., |key, _| key.namespace == namespace).collect();
    state.dirty.extend(old.keys().filter(|key| !new.contains_key(*key)).cloned());
    for (key, note) in &new {
        if old.get(key) != Some(note)
            && let Some(tracked) = state.objects.get(key)
        {
            effects.push(publish_event(&tracked.object, Severity::Warning, NAME_TAKEN, note.clone()));
            state.dirty.insert(key.clone());
        }
    }
    state.segments.conflicts.extend(new);
}

fn describe(segment: &Segment, namespace: &str) -> String {
    let of = match &segment.app {
        Some(app) => format!("app {app} of namespace {namespace}"),
        None if segment == &Segment::namespace() => format!("isolated namespace {namespace}"),
        None => "the cluster network".to_owned(),
    };
    format!(
        "metadata.name: {of} is not shown as a VirtualNetwork, because this network has the name of that segment; isolation is \
         not affected"
    )
}

fn manifest(key: &ObjectKey, segment: &Segment) -> Value {
    let api_version = Object::find_kind(&key.kind).map(knit_crds::KindInfo::api_version);
    json!({
        "apiVersion": api_version,
        "kind": key.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": segment.spec(),
    })
}
