//! The node's pods, from the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_engine::pods::Pod;
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::Shared;
use crate::pod::Named;

/// Watches the pods of this node, and only those.
pub(super) async fn follow(shared: Shared) {
    let api: Api<ApiPod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", shared.node));
    let mut wrong = Wrong::default();
    let tell = |seen: Seen<ApiPod>| {
        shared.gates.hear(&seen);
        match seen {
            Seen::Listed(pods) => {
                let pods = pods.into_iter().map(|pod| read(pod, &mut wrong)).collect();
                shared.pods().list(pods);
            }
            Seen::Applied(pod) => shared.pods().apply(read(pod, &mut wrong)),
            Seen::Deleted(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                wrong.remove(&uid);
                shared.pods().delete(&uid);
            }
        }
        shared.feed_pods();
        shared.look.notify_one();
    };
    shared.teller().follow("pods", api, config, tell).await;
}

/// Annotations that cannot be read, by the pod's uid: a pod is told of often, and this is said once.
type Wrong = BTreeMap<String, Vec<String>>;

fn read(pod: ApiPod, known: &mut Wrong) -> Pod {
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    let metadata = pod.metadata;
    let (uid, name) = (metadata.uid.unwrap_or_default(), metadata.name.unwrap_or_default());
    let namespace = metadata.namespace.unwrap_or_default();
    let named = Named { uid: uid.clone(), namespace, name: name.clone() };
    let annotations = metadata.annotations.unwrap_or_default();
    let (pod, wrong) = crate::pod::read(named, metadata.labels.unwrap_or_default(), &annotations);
    let before = known.insert(uid.clone(), wrong.clone()).unwrap_or_default();
    for why in wrong.iter().filter(|why| !before.contains(why)) {
        tracing::warn!(
            pod = name,
            why,
            "an annotation of a pod's bandwidth cannot be read, and limits nothing"
        );
    }
    if wrong.is_empty() {
        known.remove(&uid);
    }
    Pod {
        addresses: status.pod_ips.unwrap_or_default().into_iter().map(|address| address.ip).collect(),
        host_network: spec.host_network.unwrap_or_default(),
        ended: ["Succeeded", "Failed"].contains(&phase.as_str()),
        ..pod
    }
}
