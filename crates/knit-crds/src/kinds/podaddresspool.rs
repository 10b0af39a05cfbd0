//! PodAddressPool: addresses from which nodes claim blocks for pods, where Knit is the cluster network.

use ipnet::IpNet;
use knit_model::intent::{AddressPoolIntent, IntentSpec};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{NamespaceName, PrefixLength, PrefixText, Rule, rule_list};
use crate::interface::each;
use crate::status::PlainStatus;
use crate::translate::Translator;

/// A pool has at most 2^48 blocks.
const MAX_BLOCK_BITS: u8 = 48;
/// The name of a block is the name of the pool, `-` and the number of the block.
const MAX_POOL_NAME: usize = 200;

const IMMUTABLE: Rule<'_> = (
    "self.cidr == oldSelf.cidr && has(self.blockSize) == has(oldSelf.blockSize) \
     && (!has(self.blockSize) || self.blockSize == oldSelf.blockSize)",
    "cidr and blockSize are immutable, because nodes hold blocks of the pool: create another pool",
);
const BLOCK_IN_POOL: Rule<'_> = (
    "!has(self.blockSize) || !isCIDR(self.cidr) || (self.blockSize >= cidr(self.cidr).prefixLength() \
     && self.blockSize <= cidr(self.cidr).prefixLength() + 48)",
    "blockSize must be at least the prefix length of cidr and at most 48 more",
);
const BLOCK_CAPACITY: Rule<'_> = (
    "!isCIDR(self.cidr) || (has(self.blockSize) ? self.blockSize : cidr(self.cidr).prefixLength()) \
     <= (cidr(self.cidr).ip().family() == 4 ? 30 : 126)",
    "blockSize must be at most 30 for IPv4 and 126 for IPv6: a block needs addresses for pods",
);

/// PodAddressPoolSpec describes the pool and the size of its blocks.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodAddressPool",
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "PodAddressPool is a pool of pod addresses, where Knit is the cluster network: each node claims blocks of it on demand and assigns their addresses to its pods. Without a pool of an address family, a node uses its spec.podCIDRs.",
    shortname = "kip"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[IMMUTABLE, BLOCK_IN_POOL, BLOCK_CAPACITY])))]
pub struct PodAddressPoolSpec {
    /// cidr is the range of the pool, such as `10.240.0.0/16`. It must not overlap addresses of nodes, Services or
    /// other pools. Immutable.
    pub cidr: PrefixText,
    /// blockSize is the prefix length of a block, which is what a node claims at a time. Immutable. Defaults to 26 for
    /// IPv4, and for IPv6 to the prefix length of the pool plus 16, at most 122.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<PrefixLength>,
    /// namespaces lists the namespaces whose pods use this pool, and no pool of the same family that does not list
    /// them. Running pods keep their addresses. Defaults to all namespaces that no pool lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<NamespaceName>,
    /// masquerade translates (SNAT) the source address of pods with addresses of this pool to the node's address
    /// outside the cluster. The namespace label `knit.opdev.io/masquerade` takes precedence. Changes apply to new
    /// connections of running pods. Defaults to `clusterNetwork.masquerade` of the agent configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

impl ResourceKind for PodAddressPool {
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
        if name.len() > MAX_POOL_NAME {
            problems.invalid("metadata.name", format!("must be at most {MAX_POOL_NAME} bytes"));
        }
        let namespaces = each(&spec.namespaces, "spec.namespaces", |name, at| name.read(at, problems));
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
        let masquerade = spec.masquerade;
        to.intent(
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
        return Err(format!("must be at least /{prefix}, the prefix length of {range}, got /{block}"));
    }
    if block - prefix > MAX_BLOCK_BITS {
        return Err(format!("must be at most /{} for {range}, got /{block}", prefix + MAX_BLOCK_BITS));
    }
    if block > smallest {
        return Err(format!("must be at most /{smallest}: a block needs addresses for pods, got /{block}"));
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
    fn the_default_block_size_depends_on_the_pool() {
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
    fn a_block_fits_the_pool_and_has_addresses_for_pods() {
        assert_eq!(check(net("10.0.0.0/16"), 26), Ok(()));
        assert!(check(net("10.0.0.0/16"), 15).unwrap_err().contains("the prefix length of 10.0.0.0/16"));
        assert!(check(net("10.0.0.0/16"), 31).unwrap_err().contains("at most /30"));
        assert!(check(net("fd00::/32"), 112).unwrap_err().contains("at most /80"));
    }
}
