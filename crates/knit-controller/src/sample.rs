//! `PodConfig.sampleDeployment`: two unprivileged pods to try things with.

use knit_crds::Object;
use serde_json::{Value, json};

/// The label that says which PodConfig a sample Deployment belongs to.
pub const LABEL: &str = "podconfig.opdev.io/sample-of";

/// The Deployment that a PodConfig asks for: its name.
pub fn wanted(object: &Object) -> Option<String> {
    let Object::PodConfig(config) = object else { return None };
    let sample = config.spec.sample_deployment.as_ref().filter(|sample| sample.create)?;
    sample.name.as_ref().map(|name| name.0.clone())
}

/// The Deployment. It goes with the object, and its pods may do nothing that any pod may not.
pub fn deployment(object: &Object, name: &str, image: &str) -> Value {
    let me = object.object_ref();
    let labels = json!({"app": name, "podconfig": me.name, LABEL: me.name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": me.namespace,
            "labels": {"app": name, LABEL: me.name},
            "ownerReferences": [{
                "apiVersion": "podconfig.opdev.io/v1alpha1",
                "kind": "PodConfig",
                "name": me.name,
                "uid": me.uid,
                "controller": true,
            }],
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name, LABEL: me.name}},
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
