//! Writes the `network-status` annotation of pods that reference NetworkAttachmentDefinitions.
//!
//! The published annotation is compared with the desired one whenever either changes, so it survives restarts and writes by others.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_crds::attachments::{NETWORK_STATUS, PrimaryInterfaceInfo, network_status};
use knit_engine::pods::Pod;
use knit_engine::{State, Unit, cluster, pod_annotations};
use knit_kube::FIELD_MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use knit_model::Sandbox;
use knit_model::report::InterfaceReport;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Context;
use super::state_follower::{StateFollower, notified};
use crate::pod_networks::attached;

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// A pod's first interface.
const FIRST_INTERFACE: &str = "eth0";

/// An annotation to write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StatusUpdate {
    namespace: String,
    name: String,
    uid: String,
    text: String,
}

/// Keeps the annotations up to date.
pub(super) async fn run(context: Context) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    loop {
        let due = context.handle.query(|node| due(node.state())).await;
        let mut succeeded = true;
        for one in due.unwrap_or_default() {
            match write(&context, &one).await {
                Ok(()) => {}
                // The pod is gone, or replaced by another of the same name.
                Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
                Err(why) => {
                    tracing::warn!(namespace = one.namespace, pod = one.name, error = %why, "cannot write the pod's network status; retrying");
                    succeeded = false;
                }
            }
        }
        let retry = (!succeeded).then(|| Instant::now() + RETRY_INTERVAL);
        if state.changed(notified(&context.networks_changed), retry).await.is_err() {
            return;
        }
    }
}

/// The annotations that differ. Pods with a change in flight are skipped.
fn due(state: &State) -> Vec<StatusUpdate> {
    if pod_annotations::objects(state).next().is_none() {
        return Vec::new();
    }
    let sandboxes = state.sandboxes.values().map(|sandbox| (sandbox.uid.as_str(), sandbox));
    let sandboxes: BTreeMap<&str, &Sandbox> = sandboxes.collect();
    let unsettled: Vec<&Sandbox> = state.unsettled().collect();
    let configured: BTreeMap<String, Vec<InterfaceReport>> = state
        .pod_states()
        .into_iter()
        .filter_map(|pod| {
            let mine = pod.objects.into_iter().find(|object| object.object.kind == pod_annotations::KIND)?;
            Some((pod.sandbox.uid, mine.interfaces))
        })
        .collect();
    let due = pod_annotations::objects(state).filter_map(|(_, stored)| {
        let uid = &stored.object.uid;
        let pod = state.pods.get(uid).filter(|pod| !pod.host_network && !pod.ended)?;
        let sandbox = sandboxes.get(uid.as_str()).copied().filter(|sandbox| !unsettled.contains(sandbox))?;
        let interfaces = configured.get(uid).map_or(&[][..], Vec::as_slice);
        let text = network_status(first(state, pod, sandbox).as_ref(), &attached(stored), interfaces);
        let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), uid.clone());
        (!has_status(pod, &text)).then_some(StatusUpdate { namespace, name, uid, text })
    });
    due.collect()
}

/// Whether the pod has this annotation, in any JSON formatting.
fn has_status(pod: &Pod, text: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    pod.network_status.as_deref().is_some_and(|published| published == text || read(published) == read(text))
}

/// The pod's first interface: its addresses from the pod's status, its MAC address if Knit created it.
fn first(state: &State, pod: &Pod, sandbox: &Sandbox) -> Option<PrimaryInterfaceInfo> {
    let unit_state = state.units.get(&Unit::Sandbox(sandbox.id.clone()));
    let mut interfaces =
        unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces).map(|(_, interface)| interface);
    let mac = interfaces.find(|interface| interface.name.as_str() == FIRST_INTERFACE).and_then(|one| one.mac);
    let (network, mac) = (cluster::NAME.to_owned(), mac.map(|mac| mac.to_string()));
    (!pod.addresses.is_empty()).then(|| PrimaryInterfaceInfo {
        network,
        addresses: pod.addresses.clone(),
        mac,
    })
}

/// Writes the annotation, unless the pod was replaced by another of the same name.
async fn write(context: &Context, due: &StatusUpdate) -> kube::Result<()> {
    let api: Api<ApiPod> = Api::namespaced(context.client.clone(), &due.namespace);
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    let patch = json!({"metadata": {"uid": due.uid, "annotations": {NETWORK_STATUS: due.text}}});
    api.patch(&due.name, &params, &Patch::Merge(&patch)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use knit_engine::pods::PodEvent;
    use knit_engine::{Event, Record, StoredObject};
    use knit_model::SandboxId;
    use knit_model::provenance::ObjectRef;
    use knit_model::sandbox::SandboxInstance;

    use super::*;

    fn pod(published: Option<&str>) -> Pod {
        Pod {
            uid: "u1".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            network_status: published.map(str::to_owned),
            addresses: vec!["10.75.0.2".to_owned()],
            ..Pod::default()
        }
    }

    #[test]
    fn the_status_is_written_once_and_only_for_annotated_pods() {
        let mut state = State::default();
        let apply = |state: &mut State, pod: Pod| {
            knit_engine::step(state, Event::Pods(PodEvent::Applied(Box::new(pod))), knit_ipam::Time(0));
        };
        apply(&mut state, pod(None));
        assert_eq!(due(&state), [], "it has no annotation");
        let object = ObjectRef {
            kind: pod_annotations::KIND.to_owned(),
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
        assert_eq!(due(&state), [], "it has no sandbox yet");
        state.record(&Record::SandboxUpdated(Sandbox {
            id: SandboxId("s".to_owned()),
            instance: SandboxInstance { boot: "b".to_owned(), cookie: 1 },
            isolation: Default::default(),
            netns: "/run/netns/s".to_owned(),
            number: 1,
            pod: "web".to_owned(),
            namespace: "shop".to_owned(),
            uid: "u1".to_owned(),
            labels: Default::default(),
            annotated_limits: None,
        }));
        let updates = due(&state);
        let [StatusUpdate { text, .. }] = &updates[..] else { panic!("{updates:?}") };
        assert!(text.contains("\"10.75.0.2\"") && text.contains("\"default\":true"), "{text}");
        let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(text).unwrap()).unwrap();
        apply(&mut state, pod(Some(&pretty)));
        assert_eq!(due(&state), [], "in any formatting");
    }
}
