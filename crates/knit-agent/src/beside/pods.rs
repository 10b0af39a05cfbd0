//! The node's pods, from the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use knit_crds::attachments;
use knit_engine::pods::Pod;
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::Shared;
use crate::services::request::bandwidth;

/// Watches the pods of this node, and only those.
pub(super) async fn follow(shared: Shared) {
    let api: Api<ApiPod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", shared.node));
    let mut wrong = Wrong::default();
    let tell = |seen: Seen<ApiPod>| {
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
    let name = pod.metadata.name.unwrap_or_default();
    let (labels, annotations) = (pod.metadata.labels, pod.metadata.annotations);
    let (described, wrong) = described(labels.unwrap_or_default(), annotations.unwrap_or_default());
    let uid = pod.metadata.uid.unwrap_or_default();
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
        uid,
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name,
        addresses: status.pod_ips.unwrap_or_default().into_iter().map(|address| address.ip).collect(),
        host_network: spec.host_network.unwrap_or_default(),
        ended: ["Succeeded", "Failed"].contains(&phase.as_str()),
        ..described
    }
}

/// What labels and annotations say about a pod, whoever told them; and what of it cannot be read.
fn described(
    labels: BTreeMap<String, String>,
    mut annotations: BTreeMap<String, String>,
) -> (Pod, Vec<String>) {
    let (limits, wrong) = bandwidth::annotated(&annotations);
    let networks = annotations.remove(attachments::NETWORKS);
    let network_status = annotations.remove(attachments::NETWORK_STATUS);
    (Pod { labels, limits, networks, network_status, ..Pod::default() }, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_say_limits_networks_and_what_the_pod_has_of_them() {
        let word = str::to_owned;
        let annotations = BTreeMap::from([
            (word(attachments::NETWORKS), word("blue")),
            (word(attachments::NETWORK_STATUS), word("[]")),
            (word("kubernetes.io/egress-bandwidth"), word("8M")),
            (word("kubernetes.io/ingress-bandwidth"), word("much")),
        ]);
        let (pod, wrong) = described(BTreeMap::from([(word("app"), word("web"))]), annotations);
        assert_eq!((pod.networks.as_deref(), pod.network_status.as_deref()), (Some("blue"), Some("[]")));
        assert_eq!(pod.labels["app"], "web");
        assert_eq!(pod.limits.egress.map(|rate| rate.bits), Some(8_000_000));
        assert!(wrong.len() == 1 && wrong[0].contains("much"), "{wrong:?}");
    }
}
