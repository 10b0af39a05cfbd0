//! Which blocks of pools a node takes, and which it lets go.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_ipam::Split;
use knit_model::intent::AddressPoolIntent;
use knit_model::mac::fnv1a;

use super::{block_name, each, is_open, key, split};
use crate::blocks::{Block, PoolKey};
use crate::cluster;
use crate::state::State;
use crate::step::Effects;
use crate::step::blocks::claim;

/// With fewer free addresses than this another block is claimed. Small blocks have a smaller mark.
const LOW: u128 = 8;
/// A block that was claimed because a pod asked stays for so many looks: whoever asked is told to come again.
const KEPT: u32 = 24;

/// A block: its pool, its name, its addresses.
type Named = (PoolKey, String, IpNet);

/// With less room than this a node takes another block of the pool. Where a block is for one pod of some namespace, none is taken
/// before a pod asks: it may be the one with the address of a pod to come elsewhere.
fn low(pool: &AddressPoolIntent) -> u128 {
    let is_single = each(pool) <= 1 && !is_open(pool);
    if is_single { 0 } else { LOW.min(each(pool) / 4).max(1) }
}

/// Pools among which pods choose alike: all that name no namespace, and each of the others by itself.
fn groups(state: &State, ipv6: bool) -> Vec<Vec<AddressPoolIntent>> {
    let (open, named): (Vec<_>, Vec<_>) = state.pools(ipv6).cloned().partition(is_open);
    let open = (!open.is_empty()).then_some(open);
    open.into_iter().chain(named.into_iter().map(|pool| vec![pool])).collect()
}

fn is_empty(state: &State, block: &Block) -> bool {
    state.leases.live_in(&cluster::network_id(), block.cidr) == 0
}

/// Whether room is to be had before anyone asks: of a pool for some namespaces only where there are such pods.
fn is_in_use(state: &State, group: &[&AddressPoolIntent]) -> bool {
    group.iter().any(|pool| is_open(pool))
        || state.own_blocks_of(group).into_iter().any(|block| !is_empty(state, block))
}

/// Claims the next block where there is little room, what pods ask for, and blocks that pods have addresses of though they are
/// nobody's.
pub(crate) fn keep(state: &mut State, effects: &mut Effects) {
    forget_used(state);
    let Some(node) = state.blocks.pooled.clone().filter(|_| state.blocks.listed) else { return };
    for (pool, name, cidr) in asked(state, &node) {
        state.blocks.kept.insert(name.clone(), KEPT);
        claim(state, &pool, name, cidr, effects);
    }
    for ipv6 in [false, true] {
        // Every step comes by here, and most nodes have ranges of their own instead.
        if state.pools(ipv6).next().is_none() {
            continue;
        }
        for (pool, name, cidr) in lost(state, ipv6) {
            claim(state, &pool, name, cidr, effects);
        }
        for group in groups(state, ipv6) {
            let group: Vec<&AddressPoolIntent> = group.iter().collect();
            if state.is_taking(&group) || !is_in_use(state, &group) {
                continue;
            }
            let room = state.room(state.own_blocks_of(&group));
            let wants = |pool: &&&AddressPoolIntent| room < low(pool);
            let next = group.iter().filter(wants).find_map(|pool| next_free(state, pool, &node));
            if let Some((pool, name, cidr)) = next {
                claim(state, &pool, name, cidr, effects);
            }
        }
    }
}

/// What pods ask for and this node does not have: any block of a pool, or the one that has an address.
fn asked(state: &State, node: &str) -> Vec<Named> {
    let mut asked: Vec<Named> = Vec::new();
    // What is about to be looked at again says then what it needs.
    let settled = state.blocks.waits.iter().filter(|(unit, _)| !state.dirty.contains(*unit));
    for (of, wait) in settled.flat_map(|(_, waits)| waits).filter(|(of, _)| of.is_pod_address_pool()) {
        let by_address =
            wait.blocks.iter().filter_map(|cidr| Some((of.clone(), block_name(of, *cidr)?, *cidr)));
        asked.extend(by_address.filter(|(_, name, _)| state.blocks.is_free(name)));
        let mut pools = state.pools(of.range.addr().is_ipv6()).filter(|pool| key(pool) == *of);
        let is_coming = |pool: &AddressPoolIntent| {
            state.is_taking(&[pool]) || asked.iter().any(|(coming, ..)| *coming == key(pool))
        };
        if wait.addresses > 0
            && let Some(pool) = pools.next().filter(|pool| !is_coming(pool))
        {
            asked.extend(next_free(state, pool, node));
        }
    }
    asked.sort();
    asked.dedup();
    asked
}

/// The first block that nobody holds, from where this node begins to look.
pub(crate) fn next_free(state: &State, pool: &AddressPoolIntent, node: &str) -> Option<Named> {
    let (key, split) = (key(pool), split(pool)?);
    let count = Split::count(split);
    let start = u128::from(fnv1a(node.as_bytes())) % count;
    (0..count).find_map(|step| {
        let cidr = split.block((start + step) % count)?;
        let name = block_name(&key, cidr)?;
        state.blocks.is_free(&name).then(|| (key.clone(), name, cidr))
    })
}

/// Blocks that pods of this node have addresses of, and that somebody took away.
fn lost(state: &State, ipv6: bool) -> Vec<Named> {
    let network = cluster::network_id();
    let ranges = state.cluster().map(|cluster| cluster.network.ranges.clone()).unwrap_or_default();
    let used = ranges.into_iter().filter(|range| state.leases.live_in(&network, *range) > 0);
    let named = used.filter_map(|range| {
        let mut pools = state.pools(ipv6);
        let pool = pools.find(|pool| pool.block == range.prefix_len() && pool.range.contains(&range))?;
        let (pool, cidr) = (key(pool), range.trunc());
        Some((pool.clone(), block_name(&pool, cidr)?, cidr))
    });
    named.filter(|(_, name, _)| state.blocks.is_free(name)).collect()
}

/// Blocks of pools that stay though they are empty: the room that pods to come need, and what a pod asked for. Of each group of
/// pools at most one is let go at a time.
pub(crate) fn spared(state: &State) -> BTreeSet<String> {
    let mut spared: BTreeSet<String> = state.blocks.kept.keys().cloned().collect();
    for group in [false, true].into_iter().flat_map(|ipv6| groups(state, ipv6)) {
        let group: Vec<&AddressPoolIntent> = group.iter().collect();
        let all = state.own_blocks_of(&group);
        let needed = match is_in_use(state, &group) {
            true => group.iter().map(|pool| low(pool)).max().map_or(0, |low| low * 2),
            false => 0,
        };
        let is_enough = |without: &Block| {
            state.room(all.iter().copied().filter(|block| block.name != without.name)) >= needed
        };
        let may_go = |block: &&&Block| !state.blocks.kept.contains_key(&block.name) && is_empty(state, block);
        let gone = all.iter().rev().filter(may_go).find(|block| is_enough(block)).map(|block| &block.name);
        spared.extend(all.iter().map(|block| &block.name).filter(|name| Some(*name) != gone).cloned());
    }
    spared
}

/// Whoever asked has come: from here on the block stays for as long as any other.
fn forget_used(state: &mut State) {
    if state.blocks.kept.is_empty() {
        return;
    }
    let used = state.blocks.mine.values().filter(|block| !is_empty(state, block));
    let used: Vec<String> = used.map(|block| block.name.clone()).collect();
    state.blocks.kept.retain(|name, _| !used.contains(name));
}

/// Another look: what nobody came for stays no longer.
pub(crate) fn looked(state: &mut State) {
    state.blocks.kept.retain(|_, left| {
        *left = left.saturating_sub(1);
        *left > 0
    });
}
