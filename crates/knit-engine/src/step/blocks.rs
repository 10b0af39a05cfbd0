//! Block events, claims and returns.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{BlockLayout, Pool};
use knit_model::mac::fnv1a;

use super::Effects;
use crate::blocks::{Block, BlockEvent, BlockRequest, BlockWait, Blocks, PendingClaim, PoolKey};
use crate::event::{Effect, Record, Unit};
use crate::pools;
use crate::state::{NewLease, State};

/// Replaces what a unit waits for.
pub(super) fn wait(state: &mut State, unit: &Unit, waits: BTreeMap<PoolKey, BlockWait>) {
    match waits.is_empty() {
        true => state.blocks.waits.remove(unit),
        false => state.blocks.waits.insert(unit.clone(), waits),
    };
}

/// Handles a block event.
pub(super) fn handle(state: &mut State, event: BlockEvent, effects: &mut Effects) {
    match event {
        BlockEvent::Listed(all) => listed(state, all, effects),
        BlockEvent::Applied(block) => applied(state, block, effects),
        BlockEvent::Deleted { name, uid } => deleted(state, &name, &uid, effects),
        BlockEvent::ClaimFailed { name, error } => {
            let Some(claim) = state.blocks.claims.get_mut(&name) else { return };
            let is_first_failure = claim.error.is_none();
            claim.error = Some(error);
            let pool = claim.pool.clone();
            if is_first_failure {
                requeue_waiting(state, &pool);
            }
        }
        BlockEvent::Returned { name } => {
            state.blocks.returning.remove(&name);
        }
        BlockEvent::ReviewDue => review(state, effects),
        BlockEvent::LocalNode(node) => state.blocks.node = Some(node),
        BlockEvent::UsePools { node } => state.blocks.pool_node = Some(node),
    }
}

fn listed(state: &mut State, all: Vec<Block>, effects: &mut Effects) {
    let there: BTreeMap<&str, &str> = all.iter().map(|block| (&*block.name, &*block.uid)).collect();
    let is_there = |block: &Block| there.get(&*block.name) == Some(&&*block.uid);
    let gone: Vec<(String, String)> = state
        .blocks
        .local
        .values()
        .filter(|block| !is_there(block))
        .map(|block| (block.name.clone(), block.uid.clone()))
        .collect();
    state.blocks.remote.retain(|_, block| is_there(block));
    state.blocks.has_synced = true;
    for (name, uid) in gone {
        deleted(state, &name, &uid, effects);
    }
    // The program may have ended before the deletion was requested or confirmed.
    let is_draining = |block: &&Block| {
        block.is_local
            && state.blocks.returned.contains(&block.uid)
            && !state.blocks.returning.contains(&block.name)
    };
    let left: Vec<Block> = all.iter().filter(is_draining).cloned().collect();
    for block in left {
        return_block(state, block, effects);
    }
    all.into_iter().for_each(|block| applied(state, block, effects));
    state.dirty.extend(state.blocks.waits.keys().cloned());
}

/// Requests the deletion of a block that this node no longer holds.
fn return_block(state: &mut State, block: Block, effects: &mut Effects) {
    state.blocks.returning.insert(block.name.clone());
    effects.list.push(Effect::Block(BlockRequest::Return { name: block.name, uid: block.uid }));
}

/// A block exists. This resolves a claim, whoever holds the block.
fn applied(state: &mut State, block: Block, effects: &mut Effects) {
    if state.blocks.returned.contains(&block.uid) {
        return;
    }
    let claim = state.blocks.claims.remove(&block.name);
    let pool = block.pool_key();
    let (name, index) = (block.name.clone(), block.index());
    let single_address = block.is_single_address().then(|| block.cidr.addr());
    if let Some(PendingClaim { pool, .. }) = &claim {
        match block.is_local {
            true => state.blocks.contended.remove(pool),
            false => state.blocks.contended.insert(pool.clone()),
        };
    }
    if block.is_local && pool.is_some() {
        state.blocks.remote.remove(&name);
        if state.blocks.local.get(&name) != Some(&block) {
            effects.record(state, Record::BlockClaimed(Box::new(block)));
        }
    } else {
        if let Some(mine) = state.blocks.local.get(&name).cloned() {
            lose_block(state, &mine, effects);
        }
        state.blocks.remote.insert(name.clone(), block);
        let is_awaited = |pool: &PoolKey| {
            is_awaited(state, pool, index) || single_address.is_some_and(|one| is_requested(state, pool, one))
        };
        if claim.is_none() && !pool.as_ref().is_some_and(is_awaited) {
            return;
        }
    }
    if let Some(pool) = claim.map(|claim| claim.pool).or(pool) {
        requeue_waiting(state, &pool);
    }
}

/// Whether a unit uses an address of this block and waits for the node to hold it.
fn is_awaited(state: &State, pool: &PoolKey, index: Option<u128>) -> bool {
    let waits = state.blocks.waits.values().filter_map(|waits| waits.get(pool));
    index.is_some_and(|index| waits.into_iter().any(|wait| wait.strays.contains(&index)))
}

/// Whether a unit waits for this fixed address.
fn is_requested(state: &State, pool: &PoolKey, address: IpAddr) -> bool {
    let mut waits = state.blocks.waits.values().filter_map(|waits| waits.get(pool));
    waits.any(|wait| wait.single_addresses.contains(&address))
}

fn deleted(state: &mut State, name: &str, uid: &str, effects: &mut Effects) {
    if state.blocks.remote.get(name).is_some_and(|other| other.uid == uid) {
        state.blocks.remote.remove(name);
    }
    if let Some(mine) = state.blocks.local.get(name).filter(|mine| mine.uid == uid).cloned() {
        lose_block(state, &mine, effects);
    }
}

/// This node no longer holds a block. Pods keep their addresses; the block is claimed again for them.
fn lose_block(state: &mut State, block: &Block, effects: &mut Effects) {
    effects.record(state, Record::BlockReleased { name: block.name.clone(), returned: None });
    state.blocks.idle.remove(&block.name);
    let Some(given) = block.pool_key().map(|pool| pool.addresses_of()) else { return };
    let leases = state.leases.iter().filter(|(network, address, lease)| {
        *network == given && lease.is_live() && block.cidr.contains(address)
    });
    let users: BTreeSet<Unit> =
        leases.map(|(_, _, lease)| Unit::Sandbox(lease.owner.sandbox.clone())).collect();
    state.dirty.extend(users);
}

/// Requeues units that wait for blocks of a range.
fn requeue_waiting(state: &mut State, pool: &PoolKey) {
    let waiting = state.blocks.waits.iter().filter(|(_, waits)| waits.contains_key(pool));
    let units: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(units);
}

/// Returns blocks that were empty since the last review. From now on this node does not use them.
fn review(state: &mut State, effects: &mut Effects) {
    if !state.blocks.has_any() {
        return;
    }
    pools::count_review(state);
    let is_empty = |block: &&Block| {
        let network = block.pool_key().map(|pool| pool.addresses_of()).unwrap_or_default();
        state.leases.live_in(&network, block.cidr) == 0
    };
    let retained_blocks = pools::retained_blocks(state);
    let empty =
        state.blocks.local.values().filter(is_empty).filter(|block| !retained_blocks.contains(&block.name));
    let empty: BTreeSet<String> = empty.map(|block| block.name.clone()).collect();
    let before = std::mem::replace(&mut state.blocks.idle, empty.clone());
    for name in empty.intersection(&before) {
        let Some(block) = state.blocks.local.get(name).cloned() else { continue };
        effects
            .record(state, Record::BlockReleased { name: name.clone(), returned: Some(block.uid.clone()) });
        state.blocks.idle.remove(name);
        return_block(state, block, effects);
    }
}

/// Addresses were leased: a block that is empty again at the next review was used in between, and stays. Otherwise objects
/// that come and go would often wait for a block that was just returned.
pub(super) fn on_leases(state: &mut State, leases: &[NewLease]) {
    let Blocks { idle, local, .. } = &mut state.blocks;
    idle.retain(|name| {
        let block = local.get(name).and_then(|block| Some((block.pool_key()?.addresses_of(), block.cidr)));
        let is_of = |lease: &NewLease, (network, cidr): &(String, IpNet)| {
            lease.network == *network && cidr.contains(&lease.address)
        };
        block.is_some_and(|block| !leases.iter().any(|lease| is_of(lease, &block)))
    });
}

/// Claims the blocks and addresses that units wait for, where they are free.
pub(super) fn claim_missing(state: &mut State, effects: &mut Effects) {
    if !state.blocks.has_synced || state.blocks.waits.is_empty() {
        return;
    }
    let mut needs: BTreeMap<PoolKey, BlockWait> = BTreeMap::new();
    // Queued units report their needs when they are resolved.
    let settled = state.blocks.waits.iter().filter(|(unit, _)| !state.dirty.contains(*unit));
    // Blocks of pools have a different size: see `pools::reconcile`.
    for (pool, wait) in settled.flat_map(|(_, waits)| waits).filter(|(pool, _)| !pool.is_pod_address_pool()) {
        let need = needs.entry(pool.clone()).or_default();
        need.addresses += wait.addresses;
        need.strays.extend(&wait.strays);
        need.single_addresses.extend(&wait.single_addresses);
        need.reserved.clone_from(&wait.reserved);
    }
    for (pool, need) in needs {
        for index in need.strays {
            let Some(cidr) = BlockLayout::default_for(pool.range).block(index) else { continue };
            if state.blocks.is_free(&pool.block_name(index)) {
                claim(state, &pool, pool.block_name(index), cidr, effects);
            }
        }
        for address in need.single_addresses {
            let name = pool.single_address_name(address).filter(|name| state.blocks.is_free(name));
            if let Some(name) = name {
                claim(state, &pool, name, address.into(), effects);
            }
        }
        let gives = Pool { reserved: need.reserved, ..pool.gives() };
        let mut coming: u128 = state
            .blocks
            .claims
            .iter()
            .filter(|(_, claim)| claim.pool == pool)
            .filter_map(|(name, _)| pool.block_named(name))
            .map(|block| gives.clone().with_blocks(vec![block]).total())
            .sum();
        let mut free: Vec<(u128, IpNet)> = state.blocks.free(&pool, &gives).collect();
        if let Some(node) = state.blocks.node.as_ref().filter(|_| state.blocks.contended.contains(&pool)) {
            // Many nodes may claim at the same time: those that lost search at different places.
            let start = fnv1a(node.as_bytes()).checked_rem(free.len() as u64);
            free.rotate_left(start.unwrap_or_default() as usize);
        }
        for (index, cidr) in free {
            if coming >= need.addresses as u128 {
                break;
            }
            coming = coming.saturating_add(gives.clone().with_blocks(vec![cidr]).total());
            claim(state, &pool, pool.block_name(index), cidr, effects);
        }
    }
}

/// Returns individually claimed addresses as soon as no local pod uses or awaits them: the pod may be on another node
/// by now.
pub(super) fn return_single_addresses(state: &mut State, effects: &mut Effects) {
    let is_unused = |block: &&Block| {
        let Some(pool) = block.pool_key().filter(|_| block.is_single_address()) else { return false };
        state.leases.live_in(&pool.network, block.cidr) == 0 && !is_requested(state, &pool, block.cidr.addr())
    };
    let unused: Vec<Block> = state.blocks.local.values().filter(is_unused).cloned().collect();
    for block in unused {
        let returned = Some(block.uid.clone());
        effects.record(state, Record::BlockReleased { name: block.name.clone(), returned });
        state.blocks.idle.remove(&block.name);
        return_block(state, block, effects);
    }
}

/// Requests the creation of a block for this node.
pub(crate) fn claim(state: &mut State, pool: &PoolKey, name: String, cidr: IpNet, effects: &mut Effects) {
    state.blocks.claims.insert(name.clone(), PendingClaim { pool: pool.clone(), error: None });
    effects.list.push(Effect::Block(BlockRequest::Claim { name, pool: pool.title(), cidr }));
}

impl PoolKey {
    /// The usable addresses of the range on all nodes.
    fn gives(&self) -> Pool {
        let is_single = self.range.prefix_len() == self.range.max_prefix_len();
        let (network, range) = (self.network.clone(), self.range);
        if is_single { Pool::new(network, range) } else { Pool::with_gateway(network, range) }
    }

    fn block_named(&self, name: &str) -> Option<IpNet> {
        let mut blocks = BlockLayout::default_for(self.range).blocks();
        blocks.find(|(index, _)| self.block_name(*index) == name).map(|(_, block)| block)
    }
}
