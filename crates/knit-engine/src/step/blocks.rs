//! Blocks: what is heard of them, which are claimed, and which go back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, Split};

use super::Effects;
use crate::blocks::{Block, Claim, News, Order, PoolKey, Wait};
use crate::event::{Effect, Record, Unit};
use crate::pools;
use crate::state::State;

/// Remembers what a unit waits for, instead of what it waited for before.
pub(super) fn wait(state: &mut State, unit: &Unit, waits: BTreeMap<PoolKey, Wait>) {
    match waits.is_empty() {
        true => state.blocks.waits.remove(unit),
        false => state.blocks.waits.insert(unit.clone(), waits),
    };
}

/// Hears news of blocks.
pub(super) fn hear(state: &mut State, news: News, effects: &mut Effects) {
    match news {
        News::Listed(all) => listed(state, all, effects),
        News::Applied(block) => applied(state, block, effects),
        News::Deleted { name, uid } => deleted(state, &name, &uid, effects),
        News::Refused { name, why } => {
            let Some(claim) = state.blocks.claims.get_mut(&name) else { return };
            let is_news = claim.late.is_none();
            claim.late = Some(why);
            let pool = claim.pool.clone();
            if is_news {
                look_again(state, &pool);
            }
        }
        News::Returned { name } => {
            state.blocks.returning.remove(&name);
        }
        News::Reviewed => review(state, effects),
        News::Pooled { node } => state.blocks.pooled = Some(node),
    }
}

fn listed(state: &mut State, all: Vec<Block>, effects: &mut Effects) {
    let there: BTreeMap<&str, &str> = all.iter().map(|block| (&*block.name, &*block.uid)).collect();
    let is_there = |block: &Block| there.get(&*block.name) == Some(&&*block.uid);
    let gone: Vec<(String, String)> = state
        .blocks
        .mine
        .values()
        .filter(|block| !is_there(block))
        .map(|block| (block.name.clone(), block.uid.clone()))
        .collect();
    state.blocks.others.retain(|_, block| is_there(block));
    state.blocks.listed = true;
    for (name, uid) in gone {
        deleted(state, &name, &uid, effects);
    }
    // The program may have ended before it asked for the deletion, or before it was told of it.
    let is_left = |block: &&Block| {
        block.mine
            && state.blocks.returned.contains(&block.uid)
            && !state.blocks.returning.contains(&block.name)
    };
    let left: Vec<Block> = all.iter().filter(is_left).cloned().collect();
    for block in left {
        give_back(state, block, effects);
    }
    all.into_iter().for_each(|block| applied(state, block, effects));
    state.dirty.extend(state.blocks.waits.keys().cloned());
}

/// Has the host delete a block that is this node's no longer.
fn give_back(state: &mut State, block: Block, effects: &mut Effects) {
    state.blocks.returning.insert(block.name.clone());
    effects.list.push(Effect::Block(Order::Return { name: block.name, uid: block.uid }));
}

/// A block is there. Whoever tried to claim it knows whose it is now.
fn applied(state: &mut State, block: Block, effects: &mut Effects) {
    if state.blocks.returned.contains(&block.uid) {
        return;
    }
    let claim = state.blocks.claims.remove(&block.name);
    let pool = block.pool_key();
    let (name, index) = (block.name.clone(), block.index());
    let alone = block.is_alone().then(|| block.cidr.addr());
    if block.mine && pool.is_some() {
        state.blocks.others.remove(&name);
        if state.blocks.mine.get(&name) != Some(&block) {
            effects.record(state, Record::BlockClaimed(Box::new(block)));
        }
    } else {
        if let Some(mine) = state.blocks.mine.get(&name).cloned() {
            lose(state, &mine, effects);
        }
        state.blocks.others.insert(name.clone(), block);
        let is_awaited = |pool: &PoolKey| {
            is_awaited(state, pool, index) || alone.is_some_and(|one| is_asked(state, pool, one))
        };
        if claim.is_none() && !pool.as_ref().is_some_and(is_awaited) {
            return;
        }
    }
    if let Some(pool) = claim.map(|claim| claim.pool).or(pool) {
        look_again(state, &pool);
    }
}

/// Whether a unit has an address of this block and waits for it to become this node's.
fn is_awaited(state: &State, pool: &PoolKey, index: Option<u128>) -> bool {
    let waits = state.blocks.waits.values().filter_map(|waits| waits.get(pool));
    index.is_some_and(|index| waits.into_iter().any(|wait| wait.strays.contains(&index)))
}

/// Whether a unit waits for this address, which it asks for by value.
fn is_asked(state: &State, pool: &PoolKey, address: IpAddr) -> bool {
    let mut waits = state.blocks.waits.values().filter_map(|waits| waits.get(pool));
    waits.any(|wait| wait.alone.contains(&address))
}

fn deleted(state: &mut State, name: &str, uid: &str, effects: &mut Effects) {
    if state.blocks.others.get(name).is_some_and(|other| other.uid == uid) {
        state.blocks.others.remove(name);
    }
    if let Some(mine) = state.blocks.mine.get(name).filter(|mine| mine.uid == uid).cloned() {
        lose(state, &mine, effects);
    }
}

/// A block is not this node's any more, whoever took it away. Pods keep what they have; the block is claimed for them again.
fn lose(state: &mut State, block: &Block, effects: &mut Effects) {
    effects.record(state, Record::BlockGone { name: block.name.clone(), returned: None });
    state.blocks.idle.remove(&block.name);
    let Some(given) = block.pool_key().map(|pool| pool.addresses_of()) else { return };
    let leases = state.leases.iter().filter(|(network, address, lease)| {
        *network == given && lease.is_live() && block.cidr.contains(address)
    });
    let users: BTreeSet<Unit> =
        leases.map(|(_, _, lease)| Unit::Sandbox(lease.owner.sandbox.clone())).collect();
    state.dirty.extend(users);
}

/// Units that wait for blocks of a range are resolved again.
fn look_again(state: &mut State, pool: &PoolKey) {
    let waiting = state.blocks.waits.iter().filter(|(_, waits)| waits.contains_key(pool));
    let units: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(units);
}

/// What was empty when it was last looked, and still is, goes back. It is not this node's from this moment on.
fn review(state: &mut State, effects: &mut Effects) {
    pools::looked(state);
    let is_empty = |block: &&Block| {
        let network = block.pool_key().map(|pool| pool.addresses_of()).unwrap_or_default();
        state.leases.live_in(&network, block.cidr) == 0
    };
    let spared = pools::spared(state);
    let empty = state.blocks.mine.values().filter(is_empty).filter(|block| !spared.contains(&block.name));
    let empty: BTreeSet<String> = empty.map(|block| block.name.clone()).collect();
    let before = std::mem::replace(&mut state.blocks.idle, empty.clone());
    for name in empty.intersection(&before) {
        let Some(block) = state.blocks.mine.get(name).cloned() else { continue };
        effects.record(state, Record::BlockGone { name: name.clone(), returned: Some(block.uid.clone()) });
        state.blocks.idle.remove(name);
        give_back(state, block, effects);
    }
}

/// Claims what units wait for, as far as somebody may have it.
pub(super) fn claim_missing(state: &mut State, effects: &mut Effects) {
    if !state.blocks.listed || state.blocks.waits.is_empty() {
        return;
    }
    let mut needs: BTreeMap<PoolKey, Wait> = BTreeMap::new();
    // What is about to be looked at again says then what it needs.
    let settled = state.blocks.waits.iter().filter(|(unit, _)| !state.dirty.contains(*unit));
    // Pools have blocks of another size: see `pools::keep`.
    for (pool, wait) in settled.flat_map(|(_, waits)| waits).filter(|(pool, _)| !pool.is_pod_address_pool()) {
        let need = needs.entry(pool.clone()).or_default();
        need.addresses += wait.addresses;
        need.strays.extend(&wait.strays);
        need.alone.extend(&wait.alone);
        need.reserved.clone_from(&wait.reserved);
    }
    for (pool, need) in needs {
        for index in need.strays {
            let Some(cidr) = Split::of(pool.range).block(index) else { continue };
            if state.blocks.is_free(&pool.block_name(index)) {
                claim(state, &pool, pool.block_name(index), cidr, effects);
            }
        }
        for address in need.alone {
            let name = pool.alone_name(address).filter(|name| state.blocks.is_free(name));
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
            .map(|block| gives.clone().of_blocks(vec![block]).total())
            .sum();
        let free: Vec<(u128, IpNet)> = state.blocks.free(&pool, &gives).collect();
        for (index, cidr) in free {
            if coming >= need.addresses as u128 {
                break;
            }
            coming = coming.saturating_add(gives.clone().of_blocks(vec![cidr]).total());
            claim(state, &pool, pool.block_name(index), cidr, effects);
        }
    }
}

/// Addresses that were claimed alone, and that no pod here has or waits for any more, go back at once: the pod may be on
/// another node by now.
pub(super) fn return_alone(state: &mut State, effects: &mut Effects) {
    let is_unused = |block: &&Block| {
        let Some(pool) = block.pool_key().filter(|_| block.is_alone()) else { return false };
        state.leases.live_in(&pool.network, block.cidr) == 0 && !is_asked(state, &pool, block.cidr.addr())
    };
    let unused: Vec<Block> = state.blocks.mine.values().filter(is_unused).cloned().collect();
    for block in unused {
        let returned = Some(block.uid.clone());
        effects.record(state, Record::BlockGone { name: block.name.clone(), returned });
        state.blocks.idle.remove(&block.name);
        give_back(state, block, effects);
    }
}

/// Has the host create a block for this node.
pub(crate) fn claim(state: &mut State, pool: &PoolKey, name: String, cidr: IpNet, effects: &mut Effects) {
    state.blocks.claims.insert(name.clone(), Claim { pool: pool.clone(), late: None });
    effects.list.push(Effect::Block(Order::Claim { name, pool: pool.title(), cidr }));
}

impl PoolKey {
    /// What the range has to give on all nodes together.
    fn gives(&self) -> Pool {
        let is_single = self.range.prefix_len() == self.range.max_prefix_len();
        let (network, range) = (self.network.clone(), self.range);
        if is_single { Pool::new(network, range) } else { Pool::with_gateway(network, range) }
    }

    fn block_named(&self, name: &str) -> Option<IpNet> {
        let mut blocks = Split::of(self.range).blocks();
        blocks.find(|(index, _)| self.block_name(*index) == name).map(|(_, block)| block)
    }
}
