//! VLAN membership of a bridge port.

use knit_model::Problems;
use knit_model::intent::BridgePortIntent;
use knit_model::link::VlanSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{Rule, VlanId, VlanRange, rule_list};
use crate::interface::each;

/// PortVlan is the VLAN membership of a bridge port: exactly one of access and trunk must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rule_list(&RULES)))]
pub struct PortVlan {
    /// access is the only VLAN of the port, 1 to 4094. Its packets are untagged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<VlanId>,
    /// trunk lists the VLANs whose packets are tagged, such as `"100"` or `200-300`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 128, "x-kubernetes-list-type" = "set"))]
    pub trunk: Vec<VlanRange>,
    /// native is the VLAN of untagged packets of a trunk. Defaults to none: untagged packets are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<VlanId>,
}

const ACCESS_OR_TRUNK: &str = "exactly one of access and trunk must be set";
const NATIVE_NEEDS_TRUNK: &str = "native must be unset if access is set";
const RULES: [Rule<'_>; 2] = [
    ("has(self.access) != (has(self.trunk) && self.trunk.size() > 0)", ACCESS_OR_TRUNK),
    ("!has(self.native) || !has(self.access)", NATIVE_NEEDS_TRUNK),
];

impl PortVlan {
    pub(crate) fn read(&self, field: &str, problems: &mut Problems) -> Option<BridgePortIntent> {
        let at = |inner: &str| format!("{field}.{inner}");
        let tagged = each(&self.trunk, &at("trunk"), |range, at| range.read(at, problems));
        let native = self.native.as_ref().and_then(|id| id.read(at("native"), problems));
        match (&self.access, self.trunk.is_empty()) {
            (Some(id), true) => {
                if self.native.is_some() {
                    problems.invalid(at("native"), NATIVE_NEEDS_TRUNK);
                }
                let id = id.read(at("access"), problems)?;
                Some(BridgePortIntent { native: Some(id), tagged: VlanSet::default() })
            }
            (None, false) => {
                Some(BridgePortIntent { native: Some(native.unwrap_or(0)), tagged: VlanSet::new(tagged) })
            }
            _ => {
                problems.invalid(field, ACCESS_OR_TRUNK);
                None
            }
        }
    }
}
