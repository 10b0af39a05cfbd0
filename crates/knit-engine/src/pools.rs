//! Pools: the source of pod ranges of nodes, if Knit is the cluster network and an admin created pools.
//!
//! A node claims whole blocks of a pool in the same way as [`crate::blocks`]. Each block is a range of the cluster
//! network on this node. The next block is claimed while the last one still has free addresses, so that pods rarely
//! wait; an empty block is returned while the others have enough free addresses.
//!
//! Pods of a namespace that is named by pools use only those pools. A node claims the first block of such a pool when
//! a pod needs it.

mod reconcile;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{BlockLayout, Pool};
use knit_model::intent::{AddressPoolIntent, IntentSpec};

pub(crate) use self::reconcile::{count_review, next_free, reconcile, retained_blocks};
use crate::blocks::{Block, PoolKey};
use crate::cluster;
use crate::state::{ObjectKey, State};

/// The kind of pool objects.
pub const KIND: &str = "PodAddressPool";

/// The pod ranges of the cluster network, from pools and blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRanges {
    /// This node's ranges, in the order in which they are used.
    pub own: Vec<IpNet>,
    /// The pools.
    pub pools: Vec<IpNet>,
    /// Pools from which this node has no block yet.
    pub pending_pools: Vec<String>,
}

/// The name of a pool's block; `None` if it is not a block of the pool.
pub(crate) fn block_name(pool: &PoolKey, block: IpNet) -> Option<String> {
    let split =
        BlockLayout::into_blocks(pool.range, block.prefix_len()).filter(|_| block.trunc() == block)?;
    Some(format!("{}-{:x}", pool.network, split.index_of(block.network())?))
}

/// How a pool is split into blocks.
fn split(pool: &AddressPoolIntent) -> Option<BlockLayout> {
    BlockLayout::into_blocks(pool.range, pool.block)
}

/// How many pod addresses each block of a pool has.
fn addresses_per_block(pool: &AddressPoolIntent) -> u128 {
    let first = split(pool).and_then(|split| split.block(0));
    first.map_or(0, |block| Pool::with_gateway("", block).total())
}

/// The key of a pool.
pub(crate) fn key(pool: &AddressPoolIntent) -> PoolKey {
    PoolKey { network: pool.name.clone(), range: pool.range.trunc() }
}

fn is_ipv6(range: &IpNet) -> bool {
    range.addr().is_ipv6()
}

/// Whether the pool serves all namespaces that no pool names.
fn is_open(pool: &AddressPoolIntent) -> bool {
    pool.namespaces.is_empty()
}

impl State {
    /// The pools of a family, by name.
    fn pools(&self, ipv6: bool) -> impl Iterator<Item = &AddressPoolIntent> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let objects = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        let pools = objects.flat_map(|(_, object)| &object.intents).filter_map(|intent| match &intent.spec {
            IntentSpec::AddressPool(pool) => Some(pool),
            _ => None,
        });
        pools.filter(move |pool| is_ipv6(&pool.range) == ipv6)
    }

    /// The pools of a family for pods of a namespace: those that name it, otherwise those that name no namespace.
    pub(crate) fn pools_for(&self, namespace: &str, ipv6: bool) -> Vec<&AddressPoolIntent> {
        let names_it = |pool: &&AddressPoolIntent| pool.namespaces.iter().any(|one| one == namespace);
        let named: Vec<&AddressPoolIntent> = self.pools(ipv6).filter(names_it).collect();
        if named.is_empty() { self.pools(ipv6).filter(|pool| is_open(pool)).collect() } else { named }
    }

    /// The pool and block of an address.
    pub(crate) fn pool_of(&self, address: IpAddr) -> Option<(&AddressPoolIntent, IpNet)> {
        let mut pools = self.pools(address.is_ipv6());
        let pool = pools.find(|pool| pool.range.contains(&address))?;
        Some((pool, split(pool)?.block_of(address)?))
    }

    /// Whether pods of a range are masqueraded, if its pool defines it.
    pub(crate) fn pool_masquerade(&self, range: IpNet) -> Option<bool> {
        self.pools(is_ipv6(&range)).find(|pool| pool.range.contains(&range))?.masquerade
    }

    /// This node's blocks of all pools.
    fn own_pool_blocks(&self, ipv6: bool) -> impl Iterator<Item = &Block> {
        let of_pool = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_pod_address_pool());
        self.blocks.local.values().filter(move |block| is_ipv6(&block.cidr) == ipv6).filter(of_pool)
    }

    /// This node's blocks of these pools.
    pub(crate) fn own_blocks_of(&self, pools: &[&AddressPoolIntent]) -> Vec<&Block> {
        let titles: BTreeSet<String> = pools.iter().map(|pool| key(pool).title()).collect();
        let own = self.own_pool_blocks(false).chain(self.own_pool_blocks(true));
        own.filter(|block| titles.contains(&block.pool)).collect()
    }

    /// The number of free addresses in these blocks.
    pub(crate) fn free_addresses<'a>(&self, blocks: impl IntoIterator<Item = &'a Block>) -> u128 {
        let network = cluster::network_id();
        let pools = blocks.into_iter().map(|block| Pool::with_gateway(&network, block.cidr));
        let pools: Vec<Pool> = pools.collect();
        self.leases.capacity_of(&network, &pools).free
    }

    /// The number of unclaimed addresses in pools that name no namespace.
    pub fn unclaimed(&self, ipv6: bool) -> u128 {
        let is_name_taken = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_pod_address_pool());
        let held: Vec<&Block> =
            self.blocks.remote.values().chain(self.blocks.local.values()).filter(is_name_taken).collect();
        let unclaimed = |pool: &AddressPoolIntent| {
            let title = key(pool).title();
            let taken = held.iter().filter(|block| block.pool == title).count() as u128;
            let count = split(pool).map_or(0, BlockLayout::count);
            count.saturating_sub(taken).saturating_mul(addresses_per_block(pool))
        };
        self.pools(ipv6).filter(|pool| is_open(pool)).map(unclaimed).fold(0, u128::saturating_add)
    }

    /// The pod ranges of the cluster network on this node. `given` are the node's pod CIDRs: they are used
    /// for a family without pools, or whose pools all name namespaces. A range that is no longer configured stays
    /// while a pod uses it.
    pub fn ranges(&self, given: &[IpNet]) -> PodRanges {
        let (mut own, mut pending_pools) = (Vec::new(), Vec::new());
        for ipv6 in [false, true] {
            let first = self.pools(ipv6).find(|pool| is_open(pool));
            if first.is_none() {
                own.extend(given.iter().filter(|range| is_ipv6(range) == ipv6));
            }
            let mut blocks: Vec<IpNet> = self.own_pool_blocks(ipv6).map(|block| block.cidr).collect();
            blocks.sort_unstable();
            let named: Vec<&AddressPoolIntent> = self.pools(ipv6).filter(|pool| !is_open(pool)).collect();
            if self.own_blocks_of(&named).len() == blocks.len() {
                pending_pools.extend(first.map(|pool| pool.name.clone()));
            }
            own.append(&mut blocks);
        }
        let network = cluster::network_id();
        let before = self.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
        let in_use = |range: &IpNet| self.leases.live_in(&network, *range) > 0;
        let new: Vec<IpNet> = own.clone();
        let overlaps = |range: &IpNet| new.iter().any(|one| knit_ipam::overlaps(*one, *range));
        own.extend(before.into_iter().filter(|range| !overlaps(range) && in_use(range)));
        let pools = self.pools(false).chain(self.pools(true)).map(|pool| pool.range);
        let held = self.own_pool_blocks(false).chain(self.own_pool_blocks(true));
        let pools: BTreeSet<IpNet> =
            held.filter_map(|block| Some(block.pool_key()?.range)).chain(pools).collect();
        PodRanges { own, pools: pools.into_iter().collect(), pending_pools }
    }

    /// Whether new pods of a namespace get addresses from this range: it is a block of one of their pools, or of no
    /// pool if no pool names the namespace.
    pub(crate) fn gives(&self, range: IpNet, pools: &[IpNet], namespace: &str) -> bool {
        if pools.is_empty() {
            return true;
        }
        let theirs = self.pools_for(namespace, is_ipv6(&range));
        if !pools.iter().any(|pool| pool.contains(&range)) {
            return theirs.iter().all(|pool| is_open(pool));
        }
        self.own_blocks_of(&theirs).iter().any(|block| block.cidr == range)
    }

    /// The ranges that serve namespaces that no pool names.
    pub fn shared_ranges(&self, ranges: &[IpNet]) -> Vec<IpNet> {
        let named = self.pools(false).chain(self.pools(true)).filter(|pool| !is_open(pool));
        let named: Vec<IpNet> = named.map(|pool| pool.range).collect();
        let is_theirs = |range: &&IpNet| named.iter().any(|pool| pool.contains(*range));
        ranges.iter().filter(|range| !is_theirs(range)).copied().collect()
    }

    /// Whether a claim of a block of these pools is in flight, or may be.
    pub(crate) fn is_claiming_from(&self, pools: &[&AddressPoolIntent]) -> bool {
        let is_of = |claimed: &PoolKey| pools.iter().any(|pool| key(pool) == *claimed);
        !self.blocks.has_synced || self.blocks.claims.values().any(|claim| is_of(&claim.pool))
    }
}
