//! Which blocks of pools a node claims, and which it returns.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_ipam::BlockLayout;
use knit_model::intent::AddressPoolIntent;
use knit_model::mac::fnv1a;

use super::{addresses_per_block, block_name, is_open, key, split};
use crate::blocks::{Block, PoolKey};
use crate::cluster;
use crate::state::State;
use crate::step::Effects;
use crate::step::blocks::claim;

/// Another block is claimed below this number of free addresses. Small blocks have a lower watermark.
const LOW_WATERMARK: u128 = 8;
/// How many reviews an empty block is retained that was claimed for a pod, until the pod is attached again.
const RETAIN_REVIEWS: u32 = 24;

/// A block: its pool, its name, its addresses.
type NamedBlock = (PoolKey, String, IpNet);

/// The low watermark of a pool. Single-address blocks of a named pool are claimed only on demand: they may contain the
/// fixed address of a pod on another node.
fn low_watermark(pool: &AddressPoolIntent) -> u128 {
    let is_single = addresses_per_block(pool) <= 1 && !is_open(pool);
    if is_single { 0 } else { LOW_WATERMARK.min(addresses_per_block(pool) / 4).max(1) }
}

/// Groups of interchangeable pools: all pools without namespaces, and each of the others.
fn groups(state: &State, ipv6: bool) -> Vec<Vec<AddressPoolIntent>> {
    let (open, named): (Vec<_>, Vec<_>) = state.pools(ipv6).cloned().partition(is_open);
    let open = (!open.is_empty()).then_some(open);
    open.into_iter().chain(named.into_iter().map(|pool| vec![pool])).collect()
}

fn is_empty(state: &State, block: &Block) -> bool {
    state.leases.live_in(&cluster::network_id(), block.cidr) == 0
}

/// Whether free addresses are kept in reserve: for a pool with namespaces only if it has pods here.
fn is_in_use(state: &State, group: &[&AddressPoolIntent]) -> bool {
    group.iter().any(|pool| is_open(pool))
        || state.own_blocks_of(group).into_iter().any(|block| !is_empty(state, block))
}

/// Claims the next block below the low watermark, blocks that pods need, and lost blocks that pods still use.
pub(crate) fn reconcile(state: &mut State, effects: &mut Effects) {
    drop_used_retentions(state);
    let Some(node) = state.blocks.pool_node.clone().filter(|_| state.blocks.has_synced) else { return };
    for (pool, name, cidr) in requested_blocks(state, &node) {
        state.blocks.retained.insert(name.clone(), RETAIN_REVIEWS);
        claim(state, &pool, name, cidr, effects);
    }
    for ipv6 in [false, true] {
        // Runs on every step, and most nodes have no pools.
        if state.pools(ipv6).next().is_none() {
            continue;
        }
        for (pool, name, cidr) in lost_blocks(state, ipv6) {
            claim(state, &pool, name, cidr, effects);
        }
        for group in groups(state, ipv6) {
            let group: Vec<&AddressPoolIntent> = group.iter().collect();
            if state.is_claiming_from(&group) || !is_in_use(state, &group) {
                continue;
            }
            let free = state.free_addresses(state.own_blocks_of(&group));
            let specs = |pool: &&&AddressPoolIntent| free < low_watermark(pool);
            let next = group.iter().filter(specs).find_map(|pool| next_free(state, pool, &node));
            if let Some((pool, name, cidr)) = next {
                claim(state, &pool, name, cidr, effects);
            }
        }
    }
}

/// Blocks that pods wait for: any block of a pool, or the one with a fixed address.
fn requested_blocks(state: &State, node: &str) -> Vec<NamedBlock> {
    let mut requested: Vec<NamedBlock> = Vec::new();
    // Queued units report their needs when they are resolved.
    let settled = state.blocks.waits.iter().filter(|(unit, _)| !state.dirty.contains(*unit));
    for (of, wait) in settled.flat_map(|(_, waits)| waits).filter(|(of, _)| of.is_pod_address_pool()) {
        let by_address =
            wait.blocks.iter().filter_map(|cidr| Some((of.clone(), block_name(of, *cidr)?, *cidr)));
        requested.extend(by_address.filter(|block| is_free(state, block)));
        let mut pools = state.pools(of.range.addr().is_ipv6()).filter(|pool| key(pool) == *of);
        let is_coming = |pool: &AddressPoolIntent| {
            state.is_claiming_from(&[pool]) || requested.iter().any(|(coming, ..)| *coming == key(pool))
        };
        if wait.addresses > 0
            && let Some(pool) = pools.next().filter(|pool| !is_coming(pool))
        {
            requested.extend(next_free(state, pool, node));
        }
    }
    requested.sort();
    requested.dedup();
    requested
}

/// The first free block, starting at an index derived from the node's name.
pub(crate) fn next_free(state: &State, pool: &AddressPoolIntent, node: &str) -> Option<NamedBlock> {
    let (key, split) = (key(pool), split(pool)?);
    let count = BlockLayout::count(split);
    let start = u128::from(fnv1a(node.as_bytes())) % count;
    (0..count).find_map(|step| {
        let cidr = split.block((start + step) % count)?;
        let block = (key.clone(), block_name(&key, cidr)?, cidr);
        is_free(state, &block).then_some(block)
    })
}

/// Whether no node holds the block or any of its addresses.
fn is_free(state: &State, (pool, name, cidr): &NamedBlock) -> bool {
    state.blocks.is_free(name) && !state.blocks.overlaps_other_pool(pool, *cidr)
}

/// Blocks with addresses of local pods that this node no longer holds.
fn lost_blocks(state: &State, ipv6: bool) -> Vec<NamedBlock> {
    let network = cluster::network_id();
    let ranges = state.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
    let used = ranges.into_iter().filter(|range| state.leases.live_in(&network, *range) > 0);
    let named = used.filter_map(|range| {
        let mut pools = state.pools(ipv6);
        let pool = pools.find(|pool| pool.block == range.prefix_len() && pool.range.contains(&range))?;
        let (pool, cidr) = (key(pool), range.trunc());
        Some((pool.clone(), block_name(&pool, cidr)?, cidr))
    });
    named.filter(|block| is_free(state, block)).collect()
}

/// Empty pool blocks that must not be returned: the reserve, and blocks claimed for a pod. At most one block per group
/// is returned at a time.
pub(crate) fn retained_blocks(state: &State) -> BTreeSet<String> {
    let mut retained_blocks: BTreeSet<String> = state.blocks.retained.keys().cloned().collect();
    for group in [false, true].into_iter().flat_map(|ipv6| groups(state, ipv6)) {
        let group: Vec<&AddressPoolIntent> = group.iter().collect();
        let all = state.own_blocks_of(&group);
        let needed = match is_in_use(state, &group) {
            true => group.iter().map(|pool| low_watermark(pool)).max().map_or(0, |low| low * 2),
            false => 0,
        };
        let is_enough = |without: &Block| {
            state.free_addresses(all.iter().copied().filter(|block| block.name != without.name)) >= needed
        };
        let may_go =
            |block: &&&Block| !state.blocks.retained.contains_key(&block.name) && is_empty(state, block);
        let gone = all.iter().rev().filter(may_go).find(|block| is_enough(block)).map(|block| &block.name);
        retained_blocks
            .extend(all.iter().map(|block| &block.name).filter(|name| Some(*name) != gone).cloned());
    }
    retained_blocks
}

/// Drops retentions of blocks that are in use now.
fn drop_used_retentions(state: &mut State) {
    if state.blocks.retained.is_empty() {
        return;
    }
    let used = state.blocks.local.values().filter(|block| !is_empty(state, block));
    let used: Vec<String> = used.map(|block| block.name.clone()).collect();
    state.blocks.retained.retain(|name, _| !used.contains(name));
}

/// Counts a review: retentions expire.
pub(crate) fn count_review(state: &mut State) {
    state.blocks.retained.retain(|_, left| {
        *left = left.saturating_sub(1);
        *left > 0
    });
}
