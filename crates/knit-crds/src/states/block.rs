//! PodAddressBlock: a block of a shared range, held by one node. Agents create and delete these objects; they contain
//! no intents.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::column;
use crate::fields::{PrefixText, Rule, rule_list, text};
use crate::info::Column;

/// A block is immutable: another node or another part of the range is another object.
const IMMUTABLE: Rule<'_> = ("self == oldSelf", "spec is immutable");
/// A pool is a network ID and a range, both of limited length.
const MAX_POOL_LENGTH: u32 = 512;

/// PodAddressBlockSpec describes the block and its holder.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodAddressBlock",
    derive = "PartialEq",
    doc = "PodAddressBlock is a block of addresses of a range that nodes share: only the node that holds it assigns its addresses to pods. The node's agent creates it on demand and deletes it when it is empty. Its name is the name of the range and the number of the block.",
    shortname = "kib"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[IMMUTABLE])))]
pub struct PodAddressBlockSpec {
    /// pool is the network and range that the block belongs to: `default/pnobr0/192.168.100.0/24` for a bridge in the
    /// namespace default, `default/Veth/a/...` for an object, `default/network/blue/...` for a VirtualNetwork, and
    /// `pods/10.240.0.0/16` for the PodAddressPool pods.
    #[schemars(extend("maxLength" = MAX_POOL_LENGTH))]
    pub pool: String,
    /// cidr is the range of the block.
    pub cidr: PrefixText,
    /// node is the node that holds the block.
    #[schemars(schema_with = "node_schema")]
    pub node: String,
}

fn node_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    text(253, &[("size(self) > 0", "node must be set")])
}

/// Printer columns of PodAddressBlock.
pub(crate) const COLUMNS: &[Column] = &[
    column("Node", "string", ".spec.node"),
    column("Block", "string", ".spec.cidr"),
    column("Pool", "string", ".spec.pool"),
    column("Age", "date", ".metadata.creationTimestamp"),
];
