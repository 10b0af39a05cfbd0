//! A pod as it is told of: by an API server, or by a container runtime. Both ways say the same of the same pod.

use std::collections::BTreeMap;

use knit_crds::attachments;
use knit_engine::pods::Pod;

use crate::services::request::bandwidth;

/// What the kubelet and the runtime add to a pod's labels: no author of a pod wrote these.
const ADDED: [&str; 2] = ["io.kubernetes.", "io.cri-containerd."];

/// Who a pod is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A pod that runs in a network of its own, and which of its annotations cannot be read, in words.
pub(crate) fn read(
    named: Named,
    labels: BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> (Pod, Vec<String>) {
    let Named { uid, namespace, name } = named;
    let (limits, wrong) = bandwidth::annotated(annotations);
    let networks = annotations.get(attachments::NETWORKS).cloned();
    let network_status = annotations.get(attachments::NETWORK_STATUS).cloned();
    let pod = Pod { uid, namespace, name, labels, limits, networks, network_status, ..Pod::default() };
    (pod, wrong)
}

/// A pod as a container runtime tells of it.
pub(crate) fn of_runtime(told: knit_nri::Pod) -> Pod {
    let knit_nri::Pod { uid, namespace, name, mut labels, annotations, .. } = told;
    labels.retain(|key, _| !ADDED.iter().any(|added| key.starts_with(added)));
    read(Named { uid, namespace, name }, labels, &annotations).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_tells_the_pods_own_labels_and_annotations() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let told = knit_nri::Pod {
            id: "s1".to_owned(),
            uid: "u1".to_owned(),
            namespace: "cnf".to_owned(),
            name: "a".to_owned(),
            labels: map(&[
                ("podconfig", "sample"),
                ("app.kubernetes.io/name", "a"),
                ("io.kubernetes.pod.name", "a"),
                ("io.kubernetes.pod.uid", "u1"),
                ("io.cri-containerd.kind", "sandbox"),
            ]),
            annotations: map(&[
                ("kubernetes.io/egress-bandwidth", "8M"),
                ("io.kubernetes.cri.x", "y"),
                (attachments::NETWORKS, "blue"),
                (attachments::NETWORK_STATUS, "[]"),
            ]),
            pid: 7,
        };
        let pod = of_runtime(told);
        assert_eq!(pod.labels, map(&[("podconfig", "sample"), ("app.kubernetes.io/name", "a")]));
        assert_eq!(pod.limits.egress.map(|rate| rate.bits), Some(8_000_000));
        assert_eq!((pod.networks.as_deref(), pod.network_status.as_deref()), (Some("blue"), Some("[]")));
        assert_eq!((pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str()), ("u1", "cnf", "a"));
    }
}
