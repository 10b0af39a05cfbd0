//! Pools: where nodes take their pods' ranges from, when the cluster's network is Knit's and its admin made pools.
//!
//! A node claims whole blocks of a pool, as [`crate::blocks`] are claimed: by creating an object with the block's name. Each block
//! is a range of the cluster's network on this node. The next one is claimed while there still is room in the last, so that a
//! pod seldom waits for it; a block without pods goes back while the others have room enough.
//!
//! Pods of a namespace that pools name take from those alone. A node takes a first block of such a pool when a pod asks for it.

mod keep;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, Split};
use knit_model::intent::{AddressPoolIntent, IntentSpec};

pub(crate) use self::keep::{keep, looked, next_free, spared};
use crate::blocks::{Block, PoolKey};
use crate::cluster;
use crate::state::{ObjectKey, State};

/// The kind of a pool's object.
pub const KIND: &str = "PodAddressPool";

/// The ranges of the cluster's network, as pools and blocks are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// This node's, those that give addresses first.
    pub own: Vec<IpNet>,
    /// Those of other nodes, by their names.
    pub others: BTreeMap<String, Vec<IpNet>>,
    /// The pools.
    pub pools: Vec<IpNet>,
    /// Pools of a family that this node has no block of yet.
    pub waits: Vec<String>,
}

/// The name of a pool's block; `None` if this is none of its blocks.
pub(crate) fn block_name(pool: &PoolKey, block: IpNet) -> Option<String> {
    let split = Split::into_blocks(pool.range, block.prefix_len()).filter(|_| block.trunc() == block)?;
    Some(format!("{}-{:x}", pool.network, split.index_of(block.network())?))
}

/// How a pool is split.
fn split(pool: &AddressPoolIntent) -> Option<Split> {
    Split::into_blocks(pool.range, pool.block)
}

/// How many addresses for pods each block of a pool has.
fn each(pool: &AddressPoolIntent) -> u128 {
    let first = split(pool).and_then(|split| split.block(0));
    first.map_or(0, |block| Pool::with_gateway("", block).total())
}

/// The pool as blocks are of it.
pub(crate) fn key(pool: &AddressPoolIntent) -> PoolKey {
    PoolKey { network: pool.name.clone(), range: pool.range.trunc() }
}

fn is_ipv6(range: &IpNet) -> bool {
    range.addr().is_ipv6()
}

/// Whether pods of every namespace that no pool names take from it.
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

    /// The pools of a family that pods of a namespace take from: those that name it, and if there are none, those that name
    /// no namespace at all.
    pub(crate) fn pools_for(&self, namespace: &str, ipv6: bool) -> Vec<&AddressPoolIntent> {
        let names_it = |pool: &&AddressPoolIntent| pool.namespaces.iter().any(|one| one == namespace);
        let named: Vec<&AddressPoolIntent> = self.pools(ipv6).filter(names_it).collect();
        if named.is_empty() { self.pools(ipv6).filter(|pool| is_open(pool)).collect() } else { named }
    }

    /// The pool that has this address, and which of its blocks.
    pub(crate) fn pool_of(&self, address: IpAddr) -> Option<(&AddressPoolIntent, IpNet)> {
        let mut pools = self.pools(address.is_ipv6());
        let pool = pools.find(|pool| pool.range.contains(&address))?;
        Some((pool, split(pool)?.block_of(address)?))
    }

    /// Whether pods of a range have their node's address outside of the cluster, if the range's pool says so.
    pub(crate) fn pool_masquerades(&self, range: IpNet) -> Option<bool> {
        self.pools(is_ipv6(&range)).find(|pool| pool.range.contains(&range))?.masquerade
    }

    /// This node's blocks of pools.
    fn own_pool_blocks(&self, ipv6: bool) -> impl Iterator<Item = &Block> {
        let of_pool = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_pod_address_pool());
        self.blocks.mine.values().filter(move |block| is_ipv6(&block.cidr) == ipv6).filter(of_pool)
    }

    /// This node's blocks of these pools.
    pub(crate) fn own_blocks_of(&self, pools: &[&AddressPoolIntent]) -> Vec<&Block> {
        let titles: BTreeSet<String> = pools.iter().map(|pool| key(pool).title()).collect();
        let own = self.own_pool_blocks(false).chain(self.own_pool_blocks(true));
        own.filter(|block| titles.contains(&block.pool)).collect()
    }

    /// How many addresses these blocks still have.
    pub(crate) fn room<'a>(&self, blocks: impl IntoIterator<Item = &'a Block>) -> u128 {
        let network = cluster::network_id();
        let pools = blocks.into_iter().map(|block| Pool::with_gateway(&network, block.cidr));
        let pools: Vec<Pool> = pools.collect();
        self.leases.capacity_of(&network, &pools).free
    }

    /// How many addresses no node has taken yet, of pools that name no namespace.
    pub fn untaken(&self, ipv6: bool) -> u128 {
        let is_taken = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_pod_address_pool());
        let held: Vec<&Block> =
            self.blocks.others.values().chain(self.blocks.mine.values()).filter(is_taken).collect();
        let untaken = |pool: &AddressPoolIntent| {
            let title = key(pool).title();
            let taken = held.iter().filter(|block| block.pool == title).count() as u128;
            let count = split(pool).map_or(0, Split::count);
            count.saturating_sub(taken).saturating_mul(each(pool))
        };
        self.pools(ipv6).filter(|pool| is_open(pool)).map(untaken).fold(0, u128::saturating_add)
    }

    /// The ranges of the cluster's network, on this node and on others. `given` are those that the cluster gave the node: they
    /// count in a family where every pool names namespaces, or that has none. A range that is neither any more stays while a
    /// pod has an address of it.
    pub fn ranges(&self, given: &[IpNet]) -> Ranges {
        let (mut own, mut waits) = (Vec::new(), Vec::new());
        for ipv6 in [false, true] {
            let first = self.pools(ipv6).find(|pool| is_open(pool));
            if first.is_none() {
                own.extend(given.iter().filter(|range| is_ipv6(range) == ipv6));
            }
            let mut blocks: Vec<IpNet> = self.own_pool_blocks(ipv6).map(|block| block.cidr).collect();
            blocks.sort_unstable();
            let named: Vec<&AddressPoolIntent> = self.pools(ipv6).filter(|pool| !is_open(pool)).collect();
            if self.own_blocks_of(&named).len() == blocks.len() {
                waits.extend(first.map(|pool| pool.name.clone()));
            }
            own.append(&mut blocks);
        }
        let network = cluster::network_id();
        let before = self.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
        let in_use = |range: &IpNet| self.leases.live_in(&network, *range) > 0;
        let new: Vec<IpNet> = own.clone();
        let overlaps = |range: &IpNet| new.iter().any(|one| knit_ipam::overlaps(*one, *range));
        own.extend(before.into_iter().filter(|range| !overlaps(range) && in_use(range)));
        let mut others: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        for block in self.blocks.others.values() {
            if block.pool_key().is_some_and(|pool| pool.is_pod_address_pool()) {
                others.entry(block.node.clone()).or_default().push(block.cidr);
            }
        }
        let pools = self.pools(false).chain(self.pools(true)).map(|pool| pool.range);
        let held = self.own_pool_blocks(false).chain(self.own_pool_blocks(true));
        let pools: BTreeSet<IpNet> =
            held.filter_map(|block| Some(block.pool_key()?.range)).chain(pools).collect();
        Ranges { own, others, pools: pools.into_iter().collect(), waits }
    }

    /// Whether a range of the cluster's network gives addresses to new pods of a namespace: it is a block that this node holds
    /// of a pool of theirs, or of no pool where no pool is theirs alone.
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

    /// Of these ranges of the cluster's network, those that give addresses to pods of namespaces that no pool names.
    pub fn open_ranges(&self, ranges: &[IpNet]) -> Vec<IpNet> {
        let named = self.pools(false).chain(self.pools(true)).filter(|pool| !is_open(pool));
        let named: Vec<IpNet> = named.map(|pool| pool.range).collect();
        let is_theirs = |range: &&IpNet| named.iter().any(|pool| pool.contains(*range));
        ranges.iter().filter(|range| !is_theirs(range)).copied().collect()
    }

    /// Whether a block of these pools is about to become this node's.
    pub(crate) fn is_taking(&self, pools: &[&AddressPoolIntent]) -> bool {
        let is_of = |claimed: &PoolKey| pools.iter().any(|pool| key(pool) == *claimed);
        !self.blocks.listed || self.blocks.claims.values().any(|claim| is_of(&claim.pool))
    }
}
