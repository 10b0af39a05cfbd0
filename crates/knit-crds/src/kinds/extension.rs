//! Extension: programs that must be registered on a node before pods may come to it.

use knit_model::intent::{IntentSpec, RequiredExtensionsIntent};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::status::PlainStatus;
use crate::translate::Translator;

/// Which extensions a node needs. Several objects add up.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Extension",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "Extensions that take part in every attach and that a node must have: until each is registered there, the node takes no new pods. Running pods stay.",
    shortname = "kext"
)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionSpec {
    /// The names under which they register, 1 to 63 small letters, digits and `-`. A node where one of them is not
    /// registered is not ready for pods, and refuses every attach with the reason `NotReady`.
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

impl Kind for Extension {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] =
        &[Column { name: "Required", type_: "string", path: ".spec.required", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let required = &self.spec.required;
        if required.is_empty() {
            to.problems.invalid("spec.required", "name at least one extension");
        }
        for (index, name) in required.iter().enumerate() {
            let field = format!("spec.required[{index}]");
            if !is_name(name) {
                let message = format!(
                    "`{}` is no extension's name: 1 to 63 small letters, digits and `-`",
                    name.escape_debug()
                );
                to.problems.invalid(field, message);
            } else if required[..index].contains(name) {
                to.problems.invalid(field, format!("{name} is required twice"));
            }
        }
        to.want(
            "spec.required",
            IntentSpec::RequiredExtensions(RequiredExtensionsIntent { required: required.clone() }),
        );
    }
}
