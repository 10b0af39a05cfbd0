//! Uplink: a NIC of the nodes that an administrator allows tenants to use.

use knit_model::intent::{IntentSpec, UplinkIntent};
use knit_model::link::Kind as LinkKind;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, Mtu, NamespaceOrAll, VlanRange};
use crate::interface::each;
use crate::status::PlainStatus;
use crate::translate::Translator;

/// UplinkSpec sets which NIC is allowed for which namespaces and link types. Tenants reference this object, never the
/// NIC.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Uplink",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "Uplink allows tenants to use a NIC of the nodes by the name of this object. Without an Uplink, tenants cannot use links of the node.",
    shortname = "kup"
)]
#[serde(rename_all = "camelCase")]
pub struct UplinkSpec {
    /// link is the name of the NIC on the nodes, 1 to 15 bytes. Changing it replaces the links on it.
    #[schemars(extend("x-kubernetes-validations" = InterfaceName::rules_with(&[("self != 'lo'", LOOPBACK)])))]
    pub link: InterfaceName,
    /// namespaces lists the namespaces that may use the Uplink; `*` is every namespace. Removing a namespace removes
    /// its links. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<NamespaceOrAll>,
    /// kinds lists the link types that may use the NIC as parent, such as `macvlan`. `host-device` moves the NIC itself
    /// into one pod at a time. Defaults to every link type with a parent except `host-device`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "set", "items" = kind_schema()))]
    pub kinds: Vec<String>,
    /// vlans lists the allowed VLANs, such as `100` or `100-199`. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 128, "x-kubernetes-list-type" = "set"))]
    pub vlans: Vec<VlanRange>,
    /// maxMtu is the largest MTU of a link on the NIC in bytes, 68 to 65535. Defaults to the MTU of the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mtu: Option<Mtu>,
}

const LOOPBACK: &str = "link must not be `lo`, the loopback interface";

/// Link types that may have a link of the node as parent.
fn kinds_with_parent() -> Vec<&'static str> {
    LinkKind::names_on_uplink().collect()
}

fn kind_schema() -> serde_json::Value {
    serde_json::json!({ "type": "string", "enum": kinds_with_parent() })
}

impl ResourceKind for Uplink {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] = &[
        Column { name: "Link", type_: "string", path: ".spec.link", wide: false },
        Column { name: "Namespaces", type_: "string", path: ".spec.namespaces", wide: false },
        Column { name: "Kinds", type_: "string", path: ".spec.kinds", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let problems = &mut to.problems;
        for (index, kind) in spec.kinds.iter().enumerate() {
            if !kinds_with_parent().contains(&kind.as_str()) {
                let message = format!(
                    "must be one of {}, got `{}`",
                    kinds_with_parent().join(", "),
                    kind.escape_debug()
                );
                problems.invalid(format!("spec.kinds[{index}]"), message);
            }
        }
        let namespaces = each(&spec.namespaces, "spec.namespaces", |name, at| name.read(at, problems));
        let vlans = each(&spec.vlans, "spec.vlans", |range, at| range.read(at, problems));
        let max_mtu = spec.max_mtu.as_ref().and_then(|mtu| mtu.read("spec.maxMtu", problems));
        let Some(link) = spec.link.read("spec.link", problems) else { return };
        if link.as_str() == "lo" {
            problems.invalid("spec.link", LOOPBACK);
        }
        let intent = UplinkIntent {
            name: to.object_name().to_owned(),
            link,
            namespaces,
            kinds: spec.kinds.clone(),
            vlans,
            max_mtu,
        };
        to.intent("spec", IntentSpec::Uplink(intent));
    }
}
