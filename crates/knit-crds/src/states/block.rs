//! PodAddressBlock: a part of a range that nodes share, held by one of them. Agents make and remove these; nobody asks for anything
//! with them.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::column;
use crate::fields::{PrefixText, Rule, rule_list, text};
use crate::info::Column;

/// A block never changes: another node, or another part of the range, is another object.
const SAME: Rule<'_> = ("self == oldSelf", "a block never changes: it is made, and it goes");
/// A title is a network's id and a range: both parts of names that have bounds of their own.
const LONGEST_POOL: u32 = 512;

/// Which part of which range, and whose.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodAddressBlock",
    derive = "PartialEq",
    doc = "A block of addresses that one node holds of a range that nodes share: only this node gives addresses of it to pods. Its agent makes it when pods there need addresses, and removes it when it is empty. Its name is the range's and the block's number in it.",
    shortname = "kib"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[SAME])))]
pub struct PodAddressBlockSpec {
    /// The range that this is a part of, after the network that it belongs to: `default/pnobr0/192.168.100.0/24` is a bridge's
    /// in the namespace default, `default/Veth/a/...` an object's own, `default/network/blue/...` a VirtualNetwork's;
    /// `pods/10.240.0.0/16` is the PodAddressPool pods.
    #[schemars(extend("maxLength" = LONGEST_POOL))]
    pub pool: String,
    /// The block's addresses.
    pub cidr: PrefixText,
    /// The node that holds it.
    #[schemars(schema_with = "node_schema")]
    pub node: String,
}

fn node_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    text(253, &[("size(self) > 0", "a block is some node's")])
}

/// The columns of a list of blocks.
pub(crate) const COLUMNS: &[Column] = &[
    column("Node", "string", ".spec.node"),
    column("Block", "string", ".spec.cidr"),
    column("Pool", "string", ".spec.pool"),
    column("Age", "date", ".metadata.creationTimestamp"),
];
