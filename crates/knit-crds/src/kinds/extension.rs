//! Extension: extensions that must be registered on a node before it accepts pods.

use knit_model::intent::{IntentSpec, RequiredExtensionsIntent};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::status::PlainStatus;
use crate::translate::Translator;

/// ExtensionSpec lists the required extensions. The requirements of several objects add up.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Extension",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "Extension requires extensions that take part in every attach: a node rejects new pods until each of them is registered there. Running pods are not affected.",
    shortname = "kext"
)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionSpec {
    /// required lists the names under which the extensions register, each 1 to 63 lower case letters, digits and `-`. A
    /// node where one of them is not registered is not ready for pods and rejects every attach with the reason
    /// `NotReady`.
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 64,
        "x-kubernetes-list-type" = "set",
        "items" = name_schema(),
    ))]
    pub required: Vec<String>,
}

fn name_schema() -> serde_json::Value {
    serde_json::json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 63,
        "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
    })
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-')
}

impl ResourceKind for Extension {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] =
        &[Column { name: "Required", type_: "string", path: ".spec.required", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let required = &self.spec.required;
        if required.is_empty() {
            to.problems.invalid("spec.required", "must list at least one extension");
        }
        for (index, name) in required.iter().enumerate() {
            let field = format!("spec.required[{index}]");
            if !is_name(name) {
                let message = format!(
                    "must be the name of an extension: 1 to 63 lower case letters, digits and `-`, got `{}`",
                    name.escape_debug()
                );
                to.problems.invalid(field, message);
            } else if required[..index].contains(name) {
                to.problems.invalid(field, format!("{name} must be listed only once"));
            }
        }
        to.intent(
            "spec.required",
            IntentSpec::RequiredExtensions(RequiredExtensionsIntent { required: required.clone() }),
        );
    }
}
