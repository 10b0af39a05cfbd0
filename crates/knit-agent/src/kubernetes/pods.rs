//! Watches the pods of this node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_engine::pods::{Pod, PodEvent};
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::{Context, readiness_gates};
use crate::pod::PodIdentity;

/// Watches the pods of this node.
pub(super) async fn run(context: Context) {
    let api: Api<ApiPod> = Api::all(context.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", context.node));
    let mut invalid = InvalidAnnotations::default();
    let handle = |seen: WatchUpdate<ApiPod>| {
        context.submit_pods(match seen {
            WatchUpdate::Listed(pods) => {
                PodEvent::Listed(pods.into_iter().map(|pod| read(pod, &mut invalid)).collect())
            }
            WatchUpdate::Applied(pod) => PodEvent::Applied(Box::new(read(pod, &mut invalid))),
            WatchUpdate::Deleted(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                invalid.remove(&uid);
                PodEvent::Deleted(uid)
            }
        });
        context.sandboxes_changed.notify_one();
    };
    context.informer().run("pods", api, config, handle).await;
}

/// Invalid annotations by pod uid, so that each is logged once.
type InvalidAnnotations = BTreeMap<String, Vec<String>>;

fn read(pod: ApiPod, known: &mut InvalidAnnotations) -> Pod {
    let has_readiness_gate = readiness_gates::has_gate(&pod);
    let published_gate = readiness_gates::published(&pod);
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    let metadata = pod.metadata;
    let (uid, name) = (metadata.uid.unwrap_or_default(), metadata.name.unwrap_or_default());
    let namespace = metadata.namespace.unwrap_or_default();
    let identity = PodIdentity { uid: uid.clone(), namespace, name: name.clone() };
    let annotations = metadata.annotations.unwrap_or_default();
    let (pod, invalid) = crate::pod::read(identity, metadata.labels.unwrap_or_default(), &annotations);
    let before = known.insert(uid.clone(), invalid.clone()).unwrap_or_default();
    for why in invalid.iter().filter(|why| !before.contains(why)) {
        tracing::warn!(pod = name, why, "ignoring an invalid bandwidth annotation");
    }
    if invalid.is_empty() {
        known.remove(&uid);
    }
    Pod {
        addresses: status.pod_ips.unwrap_or_default().into_iter().map(|address| address.ip).collect(),
        host_network: spec.host_network.unwrap_or_default(),
        ended: ["Succeeded", "Failed"].contains(&phase.as_str()),
        has_readiness_gate,
        published_gate,
        ..pod
    }
}
