//! NetworkAttachmentDefinitions, and what the node's pods ask for by naming them.
//!
//! Their definition is not Knit's: a cluster may not have it. Then no pod can name one, and it is looked for now and then.
//!
//! A definition that is deleted is remembered for the pods that are on it: they keep what they have until they go, or until
//! their annotation is edited. What it says anew holds for running pods, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knit_crds::attachments::{self, Attachment, GROUP, KIND, PLURAL, Plugins, VERSION, translate};
use knit_engine::annotated;
use knit_engine::pods::{Pod, Pods};
use knit_engine::{Event, State, StoredObject};
use knit_kube::Seen;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::core::ApiResource;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, Client};
use knit_model::provenance::ObjectRef;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Shared;

/// How often a cluster without such definitions is asked whether it has them now.
const LOOK: Duration = Duration::from_secs(10);
/// What could not be asked is asked again after this long.
const AGAIN: Duration = Duration::from_secs(2);

/// A definition by namespace and name.
type Name = (String, String);

/// The definitions that there are.
#[derive(Debug)]
pub(super) struct Definitions {
    /// The configuration of each; `None` until all of them were told once.
    known: Mutex<Option<BTreeMap<Name, String>>>,
    plugins: Plugins,
    /// What pods have may be another.
    pub(super) news: Notify,
}

impl Definitions {
    pub(super) fn new(plugins: Plugins) -> Self {
        Self { known: Mutex::default(), plugins, news: Notify::new() }
    }

    fn known(&self) -> MutexGuard<'_, Option<BTreeMap<Name, String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, seen: Seen<DynamicObject>) {
        let mut known = self.known();
        match seen {
            Seen::Listed(all) => *known = Some(all.iter().map(read).collect()),
            Seen::Applied(one) => known.get_or_insert_default().extend([read(&one)]),
            Seen::Deleted(one) => {
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

/// Watches definitions for as long as it is polled.
pub(super) async fn follow(shared: Shared, definitions: Arc<Definitions>) {
    let mut teller = shared.teller();
    loop {
        match are_there(&shared.client).await {
            Ok(true) => break,
            Ok(false) => {
                *definitions.known() = Some(BTreeMap::new());
                shared.feed_pods();
                teller.told_all();
                sleep(LOOK).await;
            }
            Err(why) => {
                tracing::debug!(%why, "whether there are NetworkAttachmentDefinitions could not be asked");
                sleep(AGAIN).await;
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
    let api: Api<DynamicObject> = Api::all_with(shared.client.clone(), &resource);
    let tell = |seen: Seen<DynamicObject>| {
        definitions.hear(seen);
        shared.feed_pods();
    };
    teller.follow(PLURAL, api, watcher::Config::default(), tell).await;
}

/// Whether the cluster has the definition of definitions.
async fn are_there(client: &Client) -> kube::Result<bool> {
    match client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await {
        Ok(all) => Ok(all.resources.iter().any(|one| one.name == PLURAL)),
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(false),
        Err(why) => Err(why),
    }
}

/// What has to be heard so that what pods name is what they ask for. Nothing, until pods and definitions were told once; where
/// definitions are not read, nobody asks for anything.
pub(super) fn events(definitions: Option<&Definitions>, pods: &Pods, state: &State) -> Vec<Event> {
    let Some(definitions) = definitions else { return annotated::events(state, Vec::new()) };
    let known = definitions.known();
    let (Some(known), Some(all)) = (&*known, pods.all()) else { return Vec::new() };
    let mut wanted: Vec<StoredObject> =
        all.filter_map(|pod| object(pod, known, &definitions.plugins, state)).collect();
    // A sandbox outlives its pod's object for a moment, and keeps what it has.
    let outlives = |stored: &&StoredObject| {
        let uid = &stored.object.uid;
        pods.get(uid).is_none() && pods.may_run(uid)
    };
    wanted.extend(annotated::objects(state).map(|(_, stored)| stored).filter(outlives).cloned());
    annotated::events(state, wanted)
}

/// What a pod asks for; `None` if it never asked for anything.
fn object(
    pod: &Pod,
    known: &BTreeMap<Name, String>,
    plugins: &Plugins,
    state: &State,
) -> Option<StoredObject> {
    let before = state.annotated(&pod.namespace, &pod.name, &pod.uid);
    if pod.networks.is_none() && before.is_none() {
        return None;
    }
    let remembered = before.map(attached).unwrap_or_default();
    let definition = |namespace: &str, name: &str| {
        let there = known.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let title = format!("{namespace}/{name}");
        there.or_else(|| remembered.iter().find(|one| one.name == title)?.config.clone())
    };
    let object = ObjectRef {
        kind: annotated::KIND.to_owned(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        generation: 0,
    };
    let asked = translate(&object, pod.networks.as_deref().unwrap_or_default(), definition, plugins);
    let attachments::Networks { intents, warnings, attachments } = asked;
    let manifest = json!({ "attachments": attachments });
    Some(StoredObject { object, intents, warnings, manifest, since: 0, file: None })
}

/// The networks that a pod named, as they are remembered.
pub(super) fn attached(stored: &StoredObject) -> Vec<Attachment> {
    let attached = stored.manifest.get("attachments").cloned().unwrap_or_default();
    serde_json::from_value(attached).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use knit_engine::Record;
    use knit_engine::pods::{Running, Told};
    use knit_ipam::Time;
    use knit_model::SandboxId;
    use knit_model::intent::IntentSpec;
    use knit_model::sandbox::Instance;

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

    /// Has the state follow; what the pod asks for then.
    fn hear(definitions: Option<&Definitions>, pods: &Pods, state: &mut State) -> Option<Vec<String>> {
        for event in events(definitions, pods, state) {
            match event {
                Event::ObjectApplied(object) => state.record(&Record::ObjectApplied(Box::new(object))),
                Event::ObjectDeleted(key) => state.record(&Record::ObjectDeleted(key)),
                other => panic!("{other:?}"),
            }
        }
        let word = |want: &IntentSpec| match want {
            IntentSpec::Interface(want) => {
                format!("{} {:?}", want.master.clone().unwrap_or_default(), want.attrs.mtu)
            }
            IntentSpec::Rejected(want) => want.problem.message.clone(),
            other => format!("{other:?}"),
        };
        let stored = state.annotated("shop", "web", "u1")?;
        Some(stored.intents.iter().map(|intent| word(&intent.spec)).collect())
    }

    const BLUE: &str = r#"{"type": "bridge", "bridge": "br0"}"#;

    #[test]
    fn running_pods_follow_their_annotation_and_its_definitions() {
        let definitions = Definitions::new(Plugins::default());
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        assert_eq!(hear(Some(&definitions), &pods, &mut state), None, "definitions were not told yet");
        definitions.hear(Seen::Listed(Vec::new()));
        let missing = "there is no NetworkAttachmentDefinition shop/blue".to_owned();
        assert_eq!(hear(Some(&definitions), &pods, &mut state), Some(vec![missing]));
        definitions.hear(Seen::Applied(definition("blue", BLUE)));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), Some(vec!["br0 None".to_owned()]));
        definitions
            .hear(Seen::Applied(definition("blue", r#"{"type": "bridge", "bridge": "br0", "mtu": 1400}"#)));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), Some(vec!["br0 Some(1400)".to_owned()]));
        pods.apply(pod(Some("")));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), Some(Vec::new()));
        pods.apply(pod(None));
        assert_eq!(
            hear(Some(&definitions), &pods, &mut state),
            Some(Vec::new()),
            "it is told that it has none"
        );
        assert_eq!(hear(None, &pods, &mut state), None, "nothing is read any more");
    }

    #[test]
    fn a_deleted_definition_is_remembered_for_the_pods_that_are_on_it() {
        let definitions = Definitions::new(Plugins::default());
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        definitions.hear(Seen::Listed(vec![definition("blue", BLUE)]));
        let stands = Some(vec!["br0 None".to_owned()]);
        assert_eq!(hear(Some(&definitions), &pods, &mut state), stands);
        definitions.hear(Seen::Deleted(definition("blue", BLUE)));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), stands);
        // An agent that begins anew remembers it, too.
        let anew = Definitions::new(Plugins::default());
        anew.hear(Seen::Listed(Vec::new()));
        assert_eq!(hear(Some(&anew), &pods, &mut state), stands);
        pods.apply(pod(Some("")));
        assert_eq!(hear(Some(&anew), &pods, &mut state), Some(Vec::new()));
        pods.apply(pod(Some("blue")));
        let missing = "there is no NetworkAttachmentDefinition shop/blue".to_owned();
        assert_eq!(hear(Some(&anew), &pods, &mut state), Some(vec![missing]));
    }

    #[test]
    fn a_pod_that_is_gone_from_the_api_keeps_what_it_has_until_its_sandbox_is() {
        let definitions = Definitions::new(Plugins::default());
        definitions.hear(Seen::Listed(vec![definition("blue", BLUE)]));
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.list(vec![pod(Some("blue"))]);
        assert!(hear(Some(&definitions), &pods, &mut state).is_some());
        pods.delete("u1");
        assert!(hear(Some(&definitions), &pods, &mut state).is_some());
        pods.run(BTreeMap::new(), Time(0));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), None);
    }

    #[test]
    fn a_pod_asks_before_the_api_server_has_told_of_it() {
        let definitions = Definitions::new(Plugins::default());
        definitions.hear(Seen::Listed(vec![definition("blue", BLUE)]));
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.list(Vec::new());
        let instance = Instance { boot: "boot".to_owned(), cookie: 1 };
        let running =
            Running { uid: "u1".to_owned(), instance, netns: "/proc/7/ns/net".to_owned(), number: 7 };
        let told = Told { pod: pod(Some("blue")), running, until: Time(10) };
        pods.tell(SandboxId("s1".to_owned()), told);
        pods.run(BTreeMap::new(), Time(5));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), Some(vec!["br0 None".to_owned()]));
        pods.run(BTreeMap::new(), Time(20));
        assert_eq!(hear(Some(&definitions), &pods, &mut state), None, "it never came to be");
    }
}
