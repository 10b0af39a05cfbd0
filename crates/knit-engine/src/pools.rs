//! Pools: where nodes take their pods' ranges from, when the cluster's network is Knit's and its admin made pools.
//!
//! A node claims whole blocks of a pool, as [`crate::blocks`] are claimed: by creating an object with the block's name. Each block
//! is a range of the cluster's network on this node. The next one is claimed while there still is room in the last, so that a
//! pod seldom waits for it; a block without pods goes back while the others have room enough.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use knit_ipam::{Pool, bounds};
use knit_model::intent::{PoolWant, Want};
use knit_model::mac::fnv1a;

use crate::blocks::{Block, PoolKey};
use crate::cluster;
use crate::state::{ObjectKey, State};
use crate::step::Effects;
use crate::step::blocks::claim;

/// The kind of a pool's object.
pub const KIND: &str = "IpPool";
/// With fewer free addresses than this another block is claimed. Small blocks have a smaller mark.
const LOW: u128 = 8;

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
    let index = index_of(pool.range, block)?;
    Some(format!("{}-{index:x}", pool.network))
}

fn index_of(range: IpNet, block: IpNet) -> Option<u128> {
    let is_block = range.contains(&block) && block.trunc() == block;
    let bits = block.max_prefix_len() - block.prefix_len();
    is_block.then(|| (bounds(block).0 - bounds(range).0) >> bits.min(127))
}

/// The block with this index.
fn block_at(pool: &PoolWant, index: u128) -> Option<IpNet> {
    let bits = pool.range.max_prefix_len() - pool.block;
    let first = bounds(pool.range).0 + (index << bits.min(127));
    let address = match pool.range {
        IpNet::V4(_) => std::net::Ipv4Addr::from(u32::try_from(first).ok()?).into(),
        IpNet::V6(_) => std::net::Ipv6Addr::from(first).into(),
    };
    IpNet::new(address, pool.block).ok()
}

fn count(pool: &PoolWant) -> u128 {
    1 << (pool.block - pool.range.prefix_len())
}

fn key(pool: &PoolWant) -> PoolKey {
    PoolKey { network: pool.name.clone(), range: pool.range.trunc() }
}

fn is_ipv6(range: &IpNet) -> bool {
    range.addr().is_ipv6()
}

impl State {
    /// The pools of a family, by name.
    fn pools(&self, ipv6: bool) -> impl Iterator<Item = &PoolWant> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let objects = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        let pools = objects.flat_map(|(_, object)| &object.intents).filter_map(|intent| match &intent.want {
            Want::Pool(pool) => Some(pool),
            _ => None,
        });
        pools.filter(move |pool| is_ipv6(&pool.range) == ipv6)
    }

    /// This node's blocks of pools.
    fn own_pool_blocks(&self, ipv6: bool) -> impl Iterator<Item = &Block> {
        let of_pool = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_ip_pool());
        self.blocks.mine.values().filter(move |block| is_ipv6(&block.cidr) == ipv6).filter(of_pool)
    }

    /// How many addresses these blocks still have.
    fn room<'a>(&self, blocks: impl Iterator<Item = &'a Block>) -> u128 {
        let network = cluster::network_id();
        let pools: Vec<Pool> = blocks.map(|block| Pool::with_gateway(&network, block.cidr)).collect();
        self.leases.capacity_of(&network, &pools).free
    }

    /// How many addresses of pools no node has taken yet.
    pub fn untaken(&self, ipv6: bool) -> u128 {
        let is_taken = |block: &&Block| block.pool_key().is_some_and(|pool| pool.is_ip_pool());
        let held: Vec<&Block> =
            self.blocks.others.values().chain(self.blocks.mine.values()).filter(is_taken).collect();
        let untaken = |pool: &PoolWant| {
            let title = key(pool).title();
            let taken = held.iter().filter(|block| block.pool == title).count() as u128;
            let each = Pool::with_gateway("", block_at(pool, 0).unwrap_or(pool.range)).total();
            count(pool).saturating_sub(taken).saturating_mul(each)
        };
        self.pools(ipv6).map(untaken).fold(0, u128::saturating_add)
    }

    /// The ranges of the cluster's network, on this node and on others. `given` are those that the cluster gave the node: they
    /// count in a family without pools. A range that is neither any more stays while a pod has an address of it.
    pub fn ranges(&self, given: &[IpNet]) -> Ranges {
        let (mut own, mut waits) = (Vec::new(), Vec::new());
        for ipv6 in [false, true] {
            if self.pools(ipv6).next().is_none() {
                own.extend(given.iter().filter(|range| is_ipv6(range) == ipv6));
            }
            let mut blocks: Vec<IpNet> = self.own_pool_blocks(ipv6).map(|block| block.cidr).collect();
            blocks.sort_unstable();
            if blocks.is_empty() {
                waits.extend(self.pools(ipv6).next().map(|pool| pool.name.clone()));
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
            if block.pool_key().is_some_and(|pool| pool.is_ip_pool()) {
                others.entry(block.node.clone()).or_default().push(block.cidr);
            }
        }
        let pools = self.pools(false).chain(self.pools(true)).map(|pool| pool.range);
        let held = self.own_pool_blocks(false).chain(self.own_pool_blocks(true));
        let pools: BTreeSet<IpNet> =
            held.filter_map(|block| Some(block.pool_key()?.range)).chain(pools).collect();
        Ranges { own, others, pools: pools.into_iter().collect(), waits }
    }

    /// Whether a range of the cluster's network gives addresses to new pods: it is a block that this node holds, or of no pool.
    pub(crate) fn gives(&self, range: IpNet, pools: &[IpNet]) -> bool {
        !pools.iter().any(|pool| pool.contains(&range))
            || self.own_pool_blocks(is_ipv6(&range)).any(|block| block.cidr == range)
    }

    /// Whether a block of this family is about to become this node's.
    pub(crate) fn is_taking(&self, ipv6: bool) -> bool {
        let of_pool = |pool: &PoolKey| pool.is_ip_pool() && is_ipv6(&pool.range) == ipv6;
        !self.blocks.listed || self.blocks.claims.values().any(|claim| of_pool(&claim.pool))
    }
}

/// With less room than this a node takes another block of the pool.
fn low(pool: &PoolWant) -> u128 {
    let each = block_at(pool, 0).map_or(0, |block| Pool::with_gateway("", block).total());
    LOW.min(each / 4).max(1)
}

/// Claims the next block where there is little room, and blocks that pods have addresses of though they are nobody's.
pub(crate) fn keep(state: &mut State, effects: &mut Effects) {
    let Some(node) = state.blocks.pooled.clone().filter(|_| state.blocks.listed) else { return };
    for ipv6 in [false, true] {
        let pools: Vec<PoolWant> = state.pools(ipv6).cloned().collect();
        if pools.is_empty() {
            continue;
        }
        for (pool, name, cidr) in lost(state, &pools) {
            claim(state, &pool, name, cidr, effects);
        }
        let room = state.room(state.own_pool_blocks(ipv6));
        let wants = |pool: &&PoolWant| room < low(pool);
        if state.is_taking(ipv6) {
            continue;
        }
        let next = pools.iter().filter(wants).find_map(|pool| next_free(state, pool, &node));
        if let Some((pool, name, cidr)) = next {
            claim(state, &pool, name, cidr, effects);
        }
    }
}

/// The first block that nobody holds, from where this node begins to look.
fn next_free(state: &State, pool: &PoolWant, node: &str) -> Option<(PoolKey, String, IpNet)> {
    let (key, count) = (key(pool), count(pool));
    let start = u128::from(fnv1a(node.as_bytes())) % count;
    (0..count).find_map(|step| {
        let cidr = block_at(pool, (start + step) % count)?;
        let name = block_name(&key, cidr)?;
        state.blocks.is_free(&name).then(|| (key.clone(), name, cidr))
    })
}

/// Blocks that pods of this node have addresses of, and that somebody took away.
fn lost(state: &State, pools: &[PoolWant]) -> Vec<(PoolKey, String, IpNet)> {
    let network = cluster::network_id();
    let ranges = state.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
    let used = ranges.into_iter().filter(|range| state.leases.live_in(&network, *range) > 0);
    let named = used.filter_map(|range| {
        let pool =
            pools.iter().find(|pool| pool.block == range.prefix_len() && pool.range.contains(&range))?;
        let (pool, cidr) = (key(pool), range.trunc());
        Some((pool.clone(), block_name(&pool, cidr)?, cidr))
    });
    named.filter(|(_, name, _)| state.blocks.is_free(name)).collect()
}

/// Blocks of pools that stay though they are empty: the room that pods to come need. Of each family at most one is let go at a
/// time.
pub(crate) fn spared(state: &State) -> BTreeSet<String> {
    let mut spared = BTreeSet::new();
    for ipv6 in [false, true] {
        let all: Vec<&Block> = state.own_pool_blocks(ipv6).collect();
        let needed = state.pools(ipv6).map(low).max().map_or(0, |low| low * 2);
        let is_empty = |block: &Block| state.leases.live_in(&cluster::network_id(), block.cidr) == 0;
        let is_enough = |without: &Block| {
            state.room(all.iter().copied().filter(|block| block.name != without.name)) >= needed
        };
        let gone =
            all.iter().rev().find(|block| is_empty(block) && is_enough(block)).map(|block| &block.name);
        spared.extend(all.iter().map(|block| &block.name).filter(|name| Some(*name) != gone).cloned());
    }
    spared
}
