//! Knit's kinds as an API server has them.

use std::fmt::Debug;

use knit_crds::{KindInfo, Object};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde_json::Value;

/// Who Knit is in an object's managed fields.
pub const MANAGER: &str = "knit";

/// Where objects of a kind are found.
pub fn resource(kind: &KindInfo) -> ApiResource {
    ApiResource {
        group: kind.group.clone(),
        version: kind.version.clone(),
        api_version: kind.api_version(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
    }
}

/// An object as Knit knows it; `None` if it cannot be read, because a newer Knit's definition is installed. What only the
/// API server needs is left out.
pub fn object_of(kind: &KindInfo, found: &DynamicObject) -> Option<Object> {
    let mut metadata = found.metadata.clone();
    metadata.managed_fields = None;
    metadata.annotations = None;
    let mut manifest = serde_json::json!({
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "metadata": metadata,
    });
    for field in ["spec", "status"] {
        if let Some(value) = found.data.get(field) {
            manifest[field] = value.clone();
        }
    }
    let object = Object::from_manifest(&manifest);
    if object.is_none() {
        tracing::warn!(
            kind = kind.kind,
            name = found.name_any(),
            "cannot be read: is the definition of another Knit?"
        );
    }
    object
}

/// Has an object of Knit's own be as stated: made, or changed, in one request.
pub async fn apply<K>(api: &Api<K>, name: &str, manifest: &Value) -> kube::Result<K>
where
    K: Resource + Clone + serde::de::DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(manifest)).await
}
