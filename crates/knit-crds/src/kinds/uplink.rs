//! Uplink: a host NIC that an admin has opened to tenants.

use knit_model::intent::{IntentSpec, UplinkIntent};
use knit_model::link::Kind as LinkKind;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, Mtu, VlanRange, is_object_name};
use crate::interface::each;
use crate::status::PlainStatus;
use crate::translate::Translator;

/// Which NIC is open, to whom, and for what. Tenants name this object, never the NIC.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Uplink",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "A NIC of the nodes that tenants may put links on, by the name of this object. Without one they can name nothing of the host's.",
    shortname = "kup"
)]
#[serde(rename_all = "camelCase")]
pub struct UplinkSpec {
    /// The NIC's name on the nodes, 1 to 15 bytes. With another NIC, links on it are made again.
    #[schemars(extend("x-kubernetes-validations" = InterfaceName::rules_with(&[("self != 'lo'", LOOPBACK)])))]
    pub link: InterfaceName,
    /// Namespaces that may use it; `*` is every namespace. Links of a namespace that is taken away go away.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "set", "items" = namespace_schema()))]
    pub namespaces: Vec<String>,
    /// Kinds of links that may sit on it, such as `macvlan`. `host-device` lends the NIC itself, to one pod at a time.
    /// Default: every kind that has a parent, but not `host-device`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "set", "items" = kind_schema()))]
    pub kinds: Vec<String>,
    /// VLANs that may be used on it, such as `100` or `100-199`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 128, "x-kubernetes-list-type" = "set"))]
    pub vlans: Vec<VlanRange>,
    /// The largest MTU of a link on it, in bytes, 68 to 65535. Default: the NIC's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mtu: Option<Mtu>,
}

const LOOPBACK: &str = "`lo` is the node's loopback, not a NIC";
const NAMESPACE: &str =
    "a namespace's name has 1 to 63 lower case letters, digits and `-`, and `*` is every namespace";

fn namespace_schema() -> serde_json::Value {
    let rule = ("self == '*' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", NAMESPACE);
    crate::fields::text(63, &[rule]).to_value()
}

/// Kinds that may sit on a link of the node.
fn kinds_with_parent() -> Vec<&'static str> {
    LinkKind::names_on_uplink().collect()
}

fn kind_schema() -> serde_json::Value {
    serde_json::json!({ "type": "string", "enum": kinds_with_parent() })
}

impl Kind for Uplink {
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
                    "link type `{}` does not sit on a NIC, those that do are {}",
                    kind.escape_debug(),
                    kinds_with_parent().join(", ")
                );
                problems.invalid(format!("spec.kinds[{index}]"), message);
            }
        }
        for (index, namespace) in spec.namespaces.iter().enumerate() {
            let is_name = namespace.len() <= 63 && !namespace.contains('.') && is_object_name(namespace);
            if namespace != "*" && !is_name {
                let message = format!("`{}` is none: {NAMESPACE}", namespace.escape_debug());
                problems.invalid(format!("spec.namespaces[{index}]"), message);
            }
        }
        let vlans = each(&spec.vlans, "spec.vlans", |range, at| range.read(at, problems));
        let max_mtu = spec.max_mtu.as_ref().and_then(|mtu| mtu.read("spec.maxMtu", problems));
        let Some(link) = spec.link.read("spec.link", problems) else { return };
        if link.as_str() == "lo" {
            problems.invalid("spec.link", LOOPBACK);
        }
        let want = UplinkIntent {
            name: to.object_name().to_owned(),
            link,
            namespaces: spec.namespaces.clone(),
            kinds: spec.kinds.clone(),
            vlans,
            max_mtu,
        };
        to.want("spec", IntentSpec::Uplink(want));
    }
}
