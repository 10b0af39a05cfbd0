//! NetworkAttachmentDefinitions and the pods that reference them.
//!
//! The CRD is not Knit's and may not be installed. Then it is looked for periodically.
//!
//! A deleted definition is remembered for the pods that use it: they keep their interfaces until they end or their annotation changes. A
//! changed definition also applies to running pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knit_crds::attachments::{self, AllowedPlugins, Attachment, GROUP, KIND, PLURAL, VERSION, translate};
use knit_engine::pod_annotations;
use knit_engine::pods::{Pod, PodIndex};
use knit_engine::{Event, State, StoredObject};
use knit_kube::WatchUpdate;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::core::ApiResource;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, Client};
use knit_model::provenance::ObjectRef;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Context;

/// How often an API server without the CRD is checked for it.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A definition's namespace and name.
type Name = (String, String);

/// The known definitions.
#[derive(Debug)]
pub(super) struct AttachmentDefinitions {
    /// The configuration of each definition; `None` until the informer has synced.
    known: Mutex<Option<BTreeMap<Name, String>>>,
    plugins: AllowedPlugins,
    /// Wakes the status annotation writer.
    pub(super) changed: Notify,
}

impl AttachmentDefinitions {
    pub(super) fn new(plugins: AllowedPlugins) -> Self {
        Self { known: Mutex::default(), plugins, changed: Notify::new() }
    }

    fn known(&self) -> MutexGuard<'_, Option<BTreeMap<Name, String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, seen: WatchUpdate<DynamicObject>) {
        let mut known = self.known();
        match seen {
            WatchUpdate::Listed(all) => *known = Some(all.iter().map(read).collect()),
            WatchUpdate::Applied(one) => known.get_or_insert_default().extend([read(&one)]),
            WatchUpdate::Deleted(one) => {
                known.get_or_insert_default().remove(&read(&one).0);
            }
        }
    }
}

fn read(found: &DynamicObject) -> (Name, String) {
    let name = (
        found.metadata.namespace.clone().unwrap_or_default(),
        found.metadata.name.clone().unwrap_or_default(),
    );
    let config = found.data.get("spec").and_then(|spec| spec.get("config")?.as_str()).unwrap_or_default();
    (name, config.to_owned())
}

/// Watches definitions.
pub(super) async fn run(context: Context, definitions: Arc<AttachmentDefinitions>) {
    let mut informer = context.informer();
    loop {
        match is_installed(&context.client).await {
            Ok(true) => break,
            Ok(false) => {
                *definitions.known() = Some(BTreeMap::new());
                context.feed_pods();
                informer.mark_synced();
                sleep(DISCOVERY_INTERVAL).await;
            }
            Err(why) => {
                tracing::debug!(error = %why, "cannot discover the NetworkAttachmentDefinition CRD");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.to_owned(),
        plural: PLURAL.to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let handle = |seen: WatchUpdate<DynamicObject>| {
        definitions.handle(seen);
        context.feed_pods();
    };
    informer.run(PLURAL, api, watcher::Config::default(), handle).await;
}

/// Whether the CRD is installed.
async fn is_installed(client: &Client) -> kube::Result<bool> {
    match client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await {
        Ok(all) => Ok(all.resources.iter().any(|one| one.name == PLURAL)),
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(false),
        Err(why) => Err(why),
    }
}

/// The events that update the attachments of annotated pods. None until pods and definitions have synced; if definitions are not read,
/// all attachments are removed.
pub(super) fn events(
    definitions: Option<&AttachmentDefinitions>,
    pods: &PodIndex,
    state: &State,
) -> Vec<Event> {
    let Some(definitions) = definitions else { return pod_annotations::events(state, Vec::new()) };
    let known = definitions.known();
    let (Some(known), Some(all)) = (&*known, pods.all()) else { return Vec::new() };
    let mut desired: Vec<StoredObject> =
        all.filter_map(|pod| object(pod, known, &definitions.plugins, state)).collect();
    // A sandbox may outlive its pod object, and keeps its interfaces.
    let outlives = |stored: &&StoredObject| {
        let uid = &stored.object.uid;
        pods.get(uid).is_none() && pods.may_run(uid)
    };
    desired.extend(pod_annotations::objects(state).map(|(_, stored)| stored).filter(outlives).cloned());
    pod_annotations::events(state, desired)
}

/// The attachments of a pod; `None` if it never had any.
fn object(
    pod: &Pod,
    known: &BTreeMap<Name, String>,
    plugins: &AllowedPlugins,
    state: &State,
) -> Option<StoredObject> {
    let before = state.pod_annotation_object(&pod.namespace, &pod.name, &pod.uid);
    if pod.networks.is_none() && before.is_none() {
        return None;
    }
    let remembered = before.map(attached).unwrap_or_default();
    let definition = |namespace: &str, name: &str| {
        let current = known.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let title = format!("{namespace}/{name}");
        current.or_else(|| remembered.iter().find(|one| one.name == title)?.config.clone())
    };
    let object = ObjectRef {
        kind: pod_annotations::KIND.to_owned(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        generation: 0,
    };
    let translated = translate(&object, pod.networks.as_deref().unwrap_or_default(), definition, plugins);
    let attachments::PodAttachments { intents, warnings, attachments } = translated;
    let manifest = json!({ "attachments": attachments });
    Some(StoredObject { object, intents, warnings, manifest, since: 0, file: None })
}

/// The recorded attachments of a pod.
pub(super) fn attached(stored: &StoredObject) -> Vec<Attachment> {
    let attached = stored.manifest.get("attachments").cloned().unwrap_or_default();
    serde_json::from_value(attached).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use knit_engine::Record;
    use knit_engine::pods::{RunningSandbox, RuntimePod};
    use knit_ipam::Time;
    use knit_model::SandboxId;
    use knit_model::intent::IntentSpec;
    use knit_model::sandbox::SandboxInstance;

    use super::*;

    fn definition(name: &str, config: &str) -> DynamicObject {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"config": config}});
        serde_json::from_value(object).unwrap()
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

    /// Applies the events to the state; returns the resulting intents of the pod.
    fn sync(
        definitions: Option<&AttachmentDefinitions>,
        pods: &PodIndex,
        state: &mut State,
    ) -> Option<Vec<String>> {
        for event in events(definitions, pods, state) {
            match event {
                Event::ObjectApplied(object) => state.record(&Record::ObjectApplied(Box::new(object))),
                Event::ObjectDeleted(key) => state.record(&Record::ObjectDeleted(key)),
                other => panic!("{other:?}"),
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

    const BLUE: &str = r#"{"type": "bridge", "bridge": "br0"}"#;

    #[test]
    fn running_pods_follow_their_annotation_and_its_definitions() {
        let definitions = AttachmentDefinitions::new(AllowedPlugins::default());
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        assert_eq!(sync(Some(&definitions), &pods, &mut state), None, "definitions have not synced");
        definitions.handle(WatchUpdate::Listed(Vec::new()));
        let missing = "NetworkAttachmentDefinition shop/blue not found".to_owned();
        assert_eq!(sync(Some(&definitions), &pods, &mut state), Some(vec![missing]));
        definitions.handle(WatchUpdate::Applied(definition("blue", BLUE)));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), Some(vec!["br0 None".to_owned()]));
        definitions.handle(WatchUpdate::Applied(definition(
            "blue",
            r#"{"type": "bridge", "bridge": "br0", "mtu": 1400}"#,
        )));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), Some(vec!["br0 Some(1400)".to_owned()]));
        pods.apply(pod(Some("")));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), Some(Vec::new()));
        pods.apply(pod(None));
        assert_eq!(
            sync(Some(&definitions), &pods, &mut state),
            Some(Vec::new()),
            "the status annotation is updated"
        );
        assert_eq!(sync(None, &pods, &mut state), None, "definitions are not read");
    }

    #[test]
    fn a_deleted_definition_is_remembered_for_the_pods_that_are_on_it() {
        let definitions = AttachmentDefinitions::new(AllowedPlugins::default());
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        definitions.handle(WatchUpdate::Listed(vec![definition("blue", BLUE)]));
        let applied = Some(vec!["br0 None".to_owned()]);
        assert_eq!(sync(Some(&definitions), &pods, &mut state), applied);
        definitions.handle(WatchUpdate::Deleted(definition("blue", BLUE)));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), applied);
        // So does an agent after a restart.
        let restarted = AttachmentDefinitions::new(AllowedPlugins::default());
        restarted.handle(WatchUpdate::Listed(Vec::new()));
        assert_eq!(sync(Some(&restarted), &pods, &mut state), applied);
        pods.apply(pod(Some("")));
        assert_eq!(sync(Some(&restarted), &pods, &mut state), Some(Vec::new()));
        pods.apply(pod(Some("blue")));
        let missing = "NetworkAttachmentDefinition shop/blue not found".to_owned();
        assert_eq!(sync(Some(&restarted), &pods, &mut state), Some(vec![missing]));
    }

    #[test]
    fn a_deleted_pod_keeps_its_attachments_until_its_sandbox_is_gone() {
        let definitions = AttachmentDefinitions::new(AllowedPlugins::default());
        definitions.handle(WatchUpdate::Listed(vec![definition("blue", BLUE)]));
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        assert!(sync(Some(&definitions), &pods, &mut state).is_some());
        pods.delete("u1");
        assert!(sync(Some(&definitions), &pods, &mut state).is_some());
        pods.set_running(BTreeMap::new(), Time(0));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), None);
    }

    #[test]
    fn a_pod_reported_by_the_runtime_gets_attachments_before_the_watch_has_it() {
        let definitions = AttachmentDefinitions::new(AllowedPlugins::default());
        definitions.handle(WatchUpdate::Listed(vec![definition("blue", BLUE)]));
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.list(Vec::new());
        let instance = SandboxInstance { boot: "boot".to_owned(), cookie: 1 };
        let running =
            RunningSandbox { uid: "u1".to_owned(), instance, netns: "/proc/7/ns/net".to_owned(), number: 7 };
        let reported = RuntimePod { pod: pod(Some("blue")), running, until: Time(10) };
        pods.add_runtime_pod(SandboxId("s1".to_owned()), reported);
        pods.set_running(BTreeMap::new(), Time(5));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), Some(vec!["br0 None".to_owned()]));
        pods.set_running(BTreeMap::new(), Time(20));
        assert_eq!(sync(Some(&definitions), &pods, &mut state), None, "the sandbox was never started");
    }
}
