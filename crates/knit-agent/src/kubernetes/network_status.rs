//! Tells pods what they have of the networks that they name, by the annotation that goes with the one by which they name them.
//!
//! What a pod says is compared with what is so whenever either changes, so that it holds after a restart and whoever else writes
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_crds::attachments::{First, NETWORK_STATUS, status};
use knit_engine::pods::{Pod, Pods};
use knit_engine::{State, Unit, annotated, cluster};
use knit_kube::MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use knit_model::Sandbox;
use knit_model::report::InterfaceReport;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Shared;
use super::attachments::{Definitions, attached};

/// Changes often come in groups: so long after the first it is looked what is so.
const GROUP: Duration = Duration::from_millis(50);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// The interface that a pod has first.
const FIRST: &str = "eth0";

/// What a pod is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    namespace: String,
    name: String,
    uid: String,
    text: String,
}

/// Has pods say what they have, for as long as it is polled.
pub(super) async fn follow(shared: Shared, definitions: Arc<Definitions>) {
    let mut version = shared.handle.version();
    loop {
        let told = shared.clone();
        let asked = shared.handle.ask(move |node| due(node.state(), &told.pods())).await;
        let mut all = true;
        for one in asked.unwrap_or_default() {
            match write(&shared, &one).await {
                Ok(()) => {}
                // It is gone, or another of the same name is there.
                Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
                Err(why) => {
                    tracing::warn!(namespace = one.namespace, pod = one.name, %why, "the pod does not say what it has; it is tried again");
                    all = false;
                }
            }
        }
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = definitions.news.notified() => {}
            () = sleep(AGAIN), if !all => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
}

/// Pods that say something else than what is so. One that is being worked on waits until it is not.
fn due(state: &State, pods: &Pods) -> Vec<Due> {
    if annotated::objects(state).next().is_none() {
        return Vec::new();
    }
    let sandboxes = state.sandboxes.values().map(|sandbox| (sandbox.uid.as_str(), sandbox));
    let sandboxes: BTreeMap<&str, &Sandbox> = sandboxes.collect();
    let unsettled: Vec<&Sandbox> = state.unsettled().collect();
    let stands: BTreeMap<String, Vec<InterfaceReport>> = state
        .pod_states()
        .into_iter()
        .filter_map(|pod| {
            let mine = pod.objects.into_iter().find(|object| object.object.kind == annotated::KIND)?;
            Some((pod.sandbox.uid, mine.interfaces))
        })
        .collect();
    let due = annotated::objects(state).filter_map(|(_, stored)| {
        let uid = &stored.object.uid;
        let pod = pods.get(uid).filter(|pod| !pod.host_network && !pod.ended)?;
        let sandbox = sandboxes.get(uid.as_str()).copied().filter(|sandbox| !unsettled.contains(sandbox))?;
        let interfaces = stands.get(uid).map_or(&[][..], Vec::as_slice);
        let text = status(first(state, pod, sandbox).as_ref(), &attached(stored), interfaces);
        let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), uid.clone());
        (!says(pod, &text)).then_some(Due { namespace, name, uid, text })
    });
    due.collect()
}

/// Whether the pod says that already, however it is written.
fn says(pod: &Pod, text: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    pod.network_status.as_deref().is_some_and(|said| said == text || read(said) == read(text))
}

/// The pod's first interface, as far as it is known: its addresses by the pod's status, its hardware address if it is Knit's.
fn first(state: &State, pod: &Pod, sandbox: &Sandbox) -> Option<First> {
    let made = state.made.get(&Unit::Sandbox(sandbox.id.clone()));
    let mut interfaces = made.into_iter().flat_map(|made| &made.interfaces).map(|(_, interface)| interface);
    let mac = interfaces.find(|interface| interface.name.as_str() == FIRST).and_then(|one| one.mac);
    let (network, mac) = (cluster::NAME.to_owned(), mac.map(|mac| mac.to_string()));
    (!pod.addresses.is_empty()).then(|| First { network, addresses: pod.addresses.clone(), mac })
}

/// Writes it, to this pod and to no other of the same name.
async fn write(shared: &Shared, due: &Due) -> kube::Result<()> {
    let api: Api<ApiPod> = Api::namespaced(shared.client.clone(), &due.namespace);
    let params = PatchParams { field_manager: Some(format!("{MANAGER}-agent")), ..PatchParams::default() };
    let patch = json!({"metadata": {"uid": due.uid, "annotations": {NETWORK_STATUS: due.text}}});
    api.patch(&due.name, &params, &Patch::Merge(&patch)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use knit_engine::{Record, StoredObject};
    use knit_model::SandboxId;
    use knit_model::provenance::ObjectRef;
    use knit_model::sandbox::Instance;

    use super::*;

    fn pod(said: Option<&str>) -> Pod {
        Pod {
            uid: "u1".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            network_status: said.map(str::to_owned),
            addresses: vec!["10.75.0.2".to_owned()],
            ..Pod::default()
        }
    }

    #[test]
    fn a_pod_is_told_once_and_only_one_that_asked() {
        let mut state = State::default();
        let mut pods = Pods::default();
        pods.list(vec![pod(None)]);
        assert_eq!(due(&state, &pods), [], "it never asked");
        let object = ObjectRef {
            kind: annotated::KIND.to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            generation: 0,
        };
        let manifest = json!({ "attachments": [] });
        let stored = StoredObject {
            object,
            intents: Vec::new(),
            warnings: Vec::new(),
            manifest,
            since: 0,
            file: None,
        };
        state.record(&Record::ObjectApplied(Box::new(stored)));
        assert_eq!(due(&state, &pods), [], "it has no sandbox yet");
        state.record(&Record::SandboxSeen(Sandbox {
            id: SandboxId("s".to_owned()),
            instance: Instance { boot: "b".to_owned(), cookie: 1 },
            isolation: Default::default(),
            netns: "/run/netns/s".to_owned(),
            number: 1,
            pod: "web".to_owned(),
            namespace: "shop".to_owned(),
            uid: "u1".to_owned(),
            labels: Default::default(),
            annotated: None,
        }));
        let told = due(&state, &pods);
        let [Due { text, .. }] = &told[..] else { panic!("{told:?}") };
        assert!(text.contains("\"10.75.0.2\"") && text.contains("\"default\":true"), "{text}");
        let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(text).unwrap()).unwrap();
        pods.apply(pod(Some(&pretty)));
        assert_eq!(due(&state, &pods), [], "however it is written");
    }
}
