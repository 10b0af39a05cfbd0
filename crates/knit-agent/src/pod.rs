//! A pod as reported by an API server or by a container runtime, in the same form.

use std::collections::BTreeMap;

use knit_crds::attachments;
use knit_engine::pods::Pod;

use crate::services::request::bandwidth;

/// Prefixes of labels that the kubelet and the runtime add to a pod.
const RUNTIME_LABEL_PREFIXES: [&str; 2] = ["io.kubernetes.", "io.cri-containerd."];

/// The identity of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodIdentity {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A pod with its own network namespace, and errors of its annotations.
pub(crate) fn read(
    identity: PodIdentity,
    labels: BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> (Pod, Vec<String>) {
    let PodIdentity { uid, namespace, name } = identity;
    let (limits, errors) = bandwidth::annotated(annotations);
    let networks = annotations.get(attachments::NETWORKS).cloned();
    let network_status = annotations.get(attachments::NETWORK_STATUS).cloned();
    let pod = Pod { uid, namespace, name, labels, limits, networks, network_status, ..Pod::default() };
    (pod, errors)
}

/// A pod as reported by a container runtime.
pub(crate) fn of_runtime(reported: knit_nri::PodSandbox) -> Pod {
    let knit_nri::PodSandbox { uid, namespace, name, mut labels, annotations, .. } = reported;
    labels.retain(|key, _| !RUNTIME_LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
    read(PodIdentity { uid, namespace, name }, labels, &annotations).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_runtime_are_removed() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let reported = knit_nri::PodSandbox {
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
        let pod = of_runtime(reported);
        assert_eq!(pod.labels, map(&[("podconfig", "sample"), ("app.kubernetes.io/name", "a")]));
        assert_eq!(pod.limits.egress.map(|rate| rate.bits), Some(8_000_000));
        assert_eq!((pod.networks.as_deref(), pod.network_status.as_deref()), (Some("blue"), Some("[]")));
        assert_eq!((pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str()), ("u1", "cnf", "a"));
    }
}
