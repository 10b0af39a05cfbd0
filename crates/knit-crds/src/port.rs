//! VLANs of a port of a bridge, as objects say them.

use knit_model::Problems;
use knit_model::intent::BridgePortIntent;
use knit_model::link::VlanSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{Rule, VlanId, VlanRange, rule_list};
use crate::interface::each;

/// VLANs of a port: `access` for one that knows nothing of tags, or `trunk` for one that carries several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rule_list(&RULES)))]
pub struct PortVlan {
    /// The one VLAN of the port, 1 to 4094. Its packets have no tag on this side of the bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<VlanId>,
    /// In place of `access`: the VLANs whose packets pass with a tag, such as `"100"` or `200-300`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 128, "x-kubernetes-list-type" = "set"))]
    pub trunk: Vec<VlanRange>,
    /// Beside `trunk`: the VLAN of packets without a tag. Default: they are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<VlanId>,
}

const ONE: &str = "state exactly one of `access` and `trunk`";
const BESIDE: &str = "`native` stands beside `trunk`: a port with `access` has one VLAN only";
const RULES: [Rule<'_>; 2] = [
    ("has(self.access) != (has(self.trunk) && self.trunk.size() > 0)", ONE),
    ("!has(self.native) || !has(self.access)", BESIDE),
];

impl PortVlan {
    pub(crate) fn read(&self, field: &str, problems: &mut Problems) -> Option<BridgePortIntent> {
        let at = |inner: &str| format!("{field}.{inner}");
        let tagged = each(&self.trunk, &at("trunk"), |range, at| range.read(at, problems));
        let native = self.native.as_ref().and_then(|id| id.read(at("native"), problems));
        match (&self.access, self.trunk.is_empty()) {
            (Some(id), true) => {
                if self.native.is_some() {
                    problems.invalid(at("native"), BESIDE);
                }
                let id = id.read(at("access"), problems)?;
                Some(BridgePortIntent { native: Some(id), tagged: VlanSet::default() })
            }
            (None, false) => {
                Some(BridgePortIntent { native: Some(native.unwrap_or(0)), tagged: VlanSet::new(tagged) })
            }
            _ => {
                problems.invalid(field, ONE);
                None
            }
        }
    }
}
