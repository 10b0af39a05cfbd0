//! Tenants: a namespace on some nodes with a range that they share, two NetworkAttachmentDefinitions, and for some a
//! quota or an address pool.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use knit_engine::ObjectKey;
use knit_engine::pod_annotations::DefinitionName;
use serde_json::{Value, json};

use super::{Audience, pod_range};

/// Addresses of a tenant: the first half for its network, the second for its definition.
const TENANT_ADDRESSES: u32 = 8_192;
/// Addresses of a pool.
const POOL_ADDRESSES: u32 = 4_096;
/// One pool for this many tenants, of which every tenth uses it.
const TENANTS_PER_POOL: usize = 100;
/// A quota that is smaller than the requests of most tenants, and one that is never reached.
const TIGHT_QUOTA: u64 = 6;
const AMPLE_QUOTA: u64 = 10_000;

/// A NetworkAttachmentDefinition of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Definition {
    /// A bridge with addresses that nodes share.
    Shared,
    /// A bridge without addresses.
    Layer2,
}

/// A tenant.
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    /// Its network, as written by its author.
    pub(crate) network: Value,
    /// Its quota.
    pub(crate) quota: Option<Quota>,
    /// The pool of its pods' addresses.
    pub(crate) pool: Option<usize>,
    first: usize,
    width: usize,
}

/// A quota of a tenant.
pub(crate) struct Quota {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) interfaces: u64,
    pub(crate) manifest: Value,
}

impl Definition {
    pub(crate) const ALL: [Self; 2] = [Self::Shared, Self::Layer2];

    /// Its name in annotations.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Layer2 => "layer2",
        }
    }

    /// Its namespace and name.
    pub(crate) fn name(self, tenant: usize) -> DefinitionName {
        (namespace(tenant), self.title().to_owned())
    }

    /// Its CNI configuration.
    pub(crate) fn config(self, tenant: usize, mtu: u32) -> String {
        let config = match self {
            Self::Shared => {
                let range = range(tenant_start(tenant) + TENANT_ADDRESSES / 2, 24);
                let ipam = json!({"type": "whereabouts", "range": range});
                json!({"type": "bridge", "bridge": format!("nadbr{tenant}"), "mtu": mtu, "ipam": ipam})
            }
            Self::Layer2 => json!({"type": "bridge", "bridge": format!("l2br{tenant}"), "mtu": mtu}),
        };
        config.to_string()
    }
}

impl Tenant {
    /// Tenants for a cluster of this size. Some have more nodes than blocks, some more pods than addresses.
    pub(crate) fn all(count: usize, nodes: usize) -> Vec<Self> {
        let tenant = |index: usize| {
            let namespace = namespace(index);
            let (prefix, width) = match index % 4 {
                0 => (24, 20),
                1 => (27, 12),
                _ => (20, 12),
            };
            let network = json!({
                "apiVersion": "podnetwork.opdev.io/v1alpha1",
                "kind": "Veth",
                "metadata": {"name": "net", "namespace": namespace, "uid": format!("net-{index}"), "generation": 1},
                "spec": {
                    "selector": {"matchLabels": {"net": "yes"}},
                    "interfaceName": "net0",
                    "master": format!("tbr{index}"),
                    "cidr": range(tenant_start(index), prefix),
                },
            });
            let quota = index.is_multiple_of(3).then(|| Quota::new(index));
            let pool = (index % 10 == 5).then_some(index / TENANTS_PER_POOL);
            let first = index * nodes / count;
            Self { namespace, network, quota, pool, first, width: width.min(nodes) }
        };
        (0..count).map(tenant).collect()
    }

    /// The nodes that its pods may run on.
    pub(crate) fn nodes(&self, nodes: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.first;
        (0..self.width).map(move |offset| (first + offset) % nodes)
    }

    /// Whether an address of the primary interface of its pods on a node is right.
    pub(crate) fn allows(&self, address: IpAddr, node: usize) -> bool {
        self.pool.map_or_else(|| pod_range(node), pool_range).contains(&address)
    }
}

impl Quota {
    fn new(tenant: usize) -> Self {
        let (namespace, name, uid) = (namespace(tenant), "limit".to_owned(), format!("quota-{tenant}"));
        let interfaces = if tenant.is_multiple_of(6) { TIGHT_QUOTA } else { AMPLE_QUOTA };
        let manifest = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "NetworkQuota",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": 1},
            "spec": {"interfaces": interfaces},
        });
        let key = ObjectKey { kind: "NetworkQuota".to_owned(), namespace, name };
        Self { key, uid, interfaces, manifest }
    }
}

/// The manifests of the pools of these tenants.
pub(crate) fn pools(tenants: &[Tenant]) -> Vec<Value> {
    let count = tenants.iter().filter_map(|tenant| tenant.pool).max().map_or(0, |last| last + 1);
    let pool = |index: usize| {
        let users = tenants.iter().filter(|tenant| tenant.pool == Some(index));
        let namespaces: Vec<&str> = users.map(|tenant| tenant.namespace.as_str()).collect();
        json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "PodAddressPool",
            "metadata": {"name": format!("pool-{index}"), "uid": format!("pool-{index}"), "generation": 1},
            "spec": {"cidr": pool_range(index), "blockSize": 28, "namespaces": namespaces},
        })
    };
    (0..count).map(pool).collect()
}

/// The range of a pool.
pub(crate) fn pool_range(pool: usize) -> IpNet {
    range(pools_start() + pool as u32 * POOL_ADDRESSES, 20)
}

/// Who receives changes of a block: the tenant or the pool that has its addresses.
pub(crate) fn block_audience(cidr: IpNet) -> Audience {
    let IpAddr::V4(address) = cidr.addr() else { return Audience::FullView };
    let address = u32::from(address);
    match address.checked_sub(pools_start()) {
        Some(offset) => Audience::Pool((offset / POOL_ADDRESSES) as usize),
        None => {
            let offset = address.saturating_sub(tenant_start(0));
            Audience::Tenant((offset / TENANT_ADDRESSES) as usize)
        }
    }
}

fn namespace(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

fn tenant_start(tenant: usize) -> u32 {
    u32::from(Ipv4Addr::new(100, 64, 0, 0)) + tenant as u32 * TENANT_ADDRESSES
}

fn pools_start() -> u32 {
    u32::from(Ipv4Addr::new(172, 32, 0, 0))
}

fn range(start: u32, prefix: u8) -> IpNet {
    IpNet::new(IpAddr::from(Ipv4Addr::from(start)), prefix).expect("the prefix length is valid")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::stored;

    #[test]
    fn every_tenant_has_nodes_and_its_own_range() {
        for nodes in [1, 7, 50, 5_000] {
            let tenants = Tenant::all(nodes, nodes);
            for (index, tenant) in tenants.iter().enumerate() {
                assert!(tenant.nodes(nodes).next().is_some(), "{}", tenant.namespace);
                assert_eq!(stored(&tenant.network).intents.len(), 1);
                let cidr: IpNet = tenant.network["spec"]["cidr"].as_str().unwrap().parse().unwrap();
                assert_eq!(block_audience(cidr), Audience::Tenant(index));
            }
            let ranges: BTreeSet<String> =
                tenants.iter().map(|tenant| tenant.network["spec"]["cidr"].to_string()).collect();
            assert_eq!(ranges.len(), tenants.len());
        }
    }

    #[test]
    fn pools_name_the_tenants_that_use_them() {
        let tenants = Tenant::all(250, 50);
        let pools = pools(&tenants);
        assert_eq!(pools.len(), 3);
        assert_eq!(
            pools[2]["spec"]["namespaces"],
            json!(["tenant-205", "tenant-215", "tenant-225", "tenant-235", "tenant-245"])
        );
        assert_eq!(stored(&pools[0]).intents.len(), 1);
        assert_eq!(block_audience(pool_range(2)), Audience::Pool(2));
    }
}
