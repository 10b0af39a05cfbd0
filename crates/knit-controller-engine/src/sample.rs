//! `PodConfig.sampleDeployment`: a Deployment of two unprivileged pods.

use knit_crds::Object;
use serde_json::{Value, json};

/// The label with the PodConfig of a sample Deployment.
pub const OWNER_LABEL: &str = "podconfig.opdev.io/sample-of";

/// The name of the Deployment that a PodConfig requests.
pub fn desired_name(object: &Object) -> Option<String> {
    let Object::PodConfig(config) = object else { return None };
    let sample = config.spec.sample_deployment.as_ref().filter(|sample| sample.create)?;
    sample.name.as_ref().map(|name| name.0.clone())
}

/// The Deployment. The object owns it, and its pods are unprivileged.
pub fn deployment(object: &Object, name: &str, image: &str) -> Value {
    let owner = object.object_ref();
    let labels = json!({"app": name, "podconfig": owner.name, OWNER_LABEL: owner.name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {"app": name, OWNER_LABEL: owner.name},
            "ownerReferences": [{
                "apiVersion": "podconfig.opdev.io/v1alpha1",
                "kind": "PodConfig",
                "name": owner.name,
                "uid": owner.uid,
                "controller": true,
            }],
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name, OWNER_LABEL: owner.name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": "sample",
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "args": ["pause"],
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}
