//! The node's pods, from the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_engine::pods::Pod;
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::Shared;

/// Watches the pods of this node, and only those.
pub(super) async fn follow(shared: Shared) {
    let api: Api<ApiPod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", shared.node));
    let tell = |seen: Seen<ApiPod>| {
        match seen {
            Seen::Listed(pods) => shared.pods().list(pods.into_iter().map(read).collect()),
            Seen::Applied(pod) => shared.pods().apply(read(pod)),
            Seen::Deleted(pod) => shared.pods().delete(&pod.metadata.uid.unwrap_or_default()),
        }
        shared.feed_pods();
        shared.look.notify_one();
    };
    shared.teller().follow("pods", api, config, tell).await;
}

fn read(pod: ApiPod) -> Pod {
    let spec = pod.spec.unwrap_or_default();
    let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
    let labels: BTreeMap<String, String> = pod.metadata.labels.unwrap_or_default();
    Pod {
        uid: pod.metadata.uid.unwrap_or_default(),
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name: pod.metadata.name.unwrap_or_default(),
        labels,
        host_network: spec.host_network.unwrap_or_default(),
        ended: ["Succeeded", "Failed"].contains(&phase.as_str()),
    }
}
