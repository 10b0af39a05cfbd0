//! Knit's kinds as API resources.

use std::fmt::Debug;

use knit_crds::{KindInfo, Object};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde_json::Value;

/// The field manager of server-side apply.
pub const FIELD_MANAGER: &str = "knit";

/// The API resource of a kind.
pub fn api_resource(kind: &KindInfo) -> ApiResource {
    ApiResource {
        group: kind.group.clone(),
        version: kind.version.clone(),
        api_version: kind.api_version(),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
    }
}

/// Parses an object; `None` if it cannot be parsed because a newer definition is installed. Managed fields and
/// annotations are dropped.
pub fn parse_object(kind: &KindInfo, found: &DynamicObject) -> Option<Object> {
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
            "cannot parse the object: is the CRD from another version of Knit?"
        );
    }
    object
}

/// Creates or updates an object by server-side apply.
pub async fn apply<K>(api: &Api<K>, name: &str, manifest: &Value) -> kube::Result<K>
where
    K: Resource + Clone + serde::de::DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(manifest)).await
}
