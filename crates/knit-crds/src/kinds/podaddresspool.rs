//! PodAddressPool: addresses that nodes take their pods' ranges from, where Knit is the cluster's network.

use ipnet::IpNet;
use knit_model::intent::{AddressPoolIntent, IntentSpec};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{PrefixLength, PrefixText, Rule, is_object_name, rule_list};
use crate::status::PlainStatus;
use crate::translate::Translator;

/// A pool has at most 2 to the power of this many blocks.
const MOST_BITS: u8 = 48;
/// A name of a block ends in `-` and the number of the block.
const LONGEST_NAME: usize = 200;

const SAME: Rule<'_> = (
    "self.cidr == oldSelf.cidr && has(self.blockSize) == has(oldSelf.blockSize) \
     && (!has(self.blockSize) || self.blockSize == oldSelf.blockSize)",
    "a pool's addresses and blocks never change, since nodes hold blocks of it: make another one beside it",
);
const FITS: Rule<'_> = (
    "!has(self.blockSize) || !isCIDR(self.cidr) || (self.blockSize >= cidr(self.cidr).prefixLength() \
     && self.blockSize <= cidr(self.cidr).prefixLength() + 48)",
    "a block is a part of the pool, at most 48 bits longer",
);
const ROOM: Rule<'_> = (
    "!isCIDR(self.cidr) || (has(self.blockSize) ? self.blockSize : cidr(self.cidr).prefixLength()) \
     <= (cidr(self.cidr).ip().family() == 4 ? 30 : 126)",
    "a block needs room for pods: at most /30, or /126 for IPv6",
);

/// Which addresses, and in parts of which size.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodAddressPool",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "Addresses for pods, where Knit is the cluster's network: each node claims blocks of it as it needs them, and pods there get addresses of those. Without a pool of a family, a node's range is what the cluster gave it (spec.podCIDRs).",
    shortname = "kip"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[SAME, FITS, ROOM])))]
pub struct PodAddressPoolSpec {
    /// All of its addresses, such as `10.240.0.0/16`. No node, Service or other pool may have addresses of it.
    pub cidr: PrefixText,
    /// The prefix length of a block, which is what a node takes at a time. Default: 26 for IPv4; for IPv6 sixteen bits more than
    /// the pool has, at most 122.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<PrefixLength>,
    /// Namespaces whose pods take from it, and from no pool of its family that does not name them. Running pods keep what they
    /// have. Default: pods of all namespaces that no pool names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "set", "items" = namespace_schema()))]
    pub namespaces: Vec<String>,
    /// Whether pods with addresses of it have their node's address outside of the cluster. Default: as the agents' configuration
    /// says (`clusterNetwork.masquerade`). A label of a namespace (`knit.opdev.io/masquerade`) comes first. A change holds for
    /// new connections of running pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

const NAMESPACE: &str = "a namespace's name has 1 to 63 lower case letters, digits and `-`";

fn namespace_schema() -> serde_json::Value {
    crate::fields::text(63, &[("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", NAMESPACE)]).to_value()
}

impl Kind for PodAddressPool {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] = &[
        Column { name: "Cidr", type_: "string", path: ".spec.cidr", wide: false },
        Column { name: "Block", type_: "integer", path: ".spec.blockSize", wide: false },
        Column { name: "Namespaces", type_: "string", path: ".spec.namespaces", wide: true },
        Column { name: "Masquerade", type_: "boolean", path: ".spec.masquerade", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let name = to.object_name().to_owned();
        let problems = &mut to.problems;
        if name.len() > LONGEST_NAME {
            problems.invalid("metadata.name", format!("a pool's name has at most {LONGEST_NAME} bytes"));
        }
        for (index, namespace) in spec.namespaces.iter().enumerate() {
            if namespace.len() > 63 || namespace.contains('.') || !is_object_name(namespace) {
                let message = format!("`{}` is none: {NAMESPACE}", namespace.escape_debug());
                problems.invalid(format!("spec.namespaces[{index}]"), message);
            }
        }
        let size = spec.block_size.as_ref().map(|size| size.read("spec.blockSize", problems));
        let Some(range) = spec.cidr.read("spec.cidr", problems) else { return };
        let block = match size {
            None => default_size(range),
            Some(Some(block)) => block,
            Some(None) => return,
        };
        if let Err(why) = check(range, block) {
            problems.invalid("spec.blockSize", why);
            return;
        }
        let (namespaces, masquerade) = (spec.namespaces.clone(), spec.masquerade);
        to.want(
            "spec",
            IntentSpec::AddressPool(AddressPoolIntent { name, range, block, namespaces, masquerade }),
        );
    }
}

fn default_size(range: IpNet) -> u8 {
    let prefix = range.prefix_len();
    if range.addr().is_ipv4() { prefix.max(26) } else { prefix.max((prefix.saturating_add(16)).min(122)) }
}

fn check(range: IpNet, block: u8) -> Result<(), String> {
    let (prefix, smallest) = (range.prefix_len(), if range.addr().is_ipv4() { 30 } else { 126 });
    if block < prefix {
        return Err(format!("a block of /{block} is no part of {range}"));
    }
    if block - prefix > MOST_BITS {
        return Err(format!(
            "blocks of /{block} are too many: {range} has at most blocks of /{}",
            prefix + MOST_BITS
        ));
    }
    if block > smallest {
        return Err(format!("a block of /{block} has no room for pods: at most /{smallest}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn blocks_have_a_size_that_follows_from_the_pool() {
        for (range, size) in [
            ("10.0.0.0/8", 26),
            ("10.0.0.0/28", 28),
            ("fd00::/48", 64),
            ("fd00::/112", 122),
            ("fd00::/124", 124),
        ] {
            assert_eq!(default_size(net(range)), size, "{range}");
        }
    }

    #[test]
    fn a_block_is_a_part_of_the_pool_with_room_for_pods() {
        assert_eq!(check(net("10.0.0.0/16"), 26), Ok(()));
        assert!(check(net("10.0.0.0/16"), 15).unwrap_err().contains("no part of 10.0.0.0/16"));
        assert!(check(net("10.0.0.0/16"), 31).unwrap_err().contains("no room"));
        assert!(check(net("fd00::/32"), 112).unwrap_err().contains("at most blocks of /80"));
    }
}
