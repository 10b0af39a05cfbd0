//! Garbage collection of address blocks of deleted nodes, whose agents cannot release them.

use std::collections::BTreeSet;

use knit_crds::WatchUpdate;

use crate::state::{HeldBlock, State};
use crate::step::Effect;

/// How long blocks of a deleted node are kept, because the node may return, in milliseconds.
const RETENTION_MS: i64 = 5 * 60_000;

/// Handles updates of blocks.
pub(crate) fn handle(state: &mut State, update: WatchUpdate<(String, HeldBlock)>) {
    match update {
        WatchUpdate::Listed(all) => state.blocks = all.into_iter().collect(),
        WatchUpdate::Applied((name, block)) => {
            state.blocks.insert(name, block);
        }
        WatchUpdate::Deleted((name, block)) => {
            if state.blocks.get(&name).is_some_and(|held| held.uid == block.uid) {
                state.blocks.remove(&name);
            }
        }
    }
}

/// Deletes the blocks of nodes that were deleted long enough ago.
pub(crate) fn delete_expired(state: &mut State, now: i64) -> Vec<Effect> {
    let holders: BTreeSet<&String> = state.blocks.values().map(|block| &block.node).collect();
    let missing = holders.into_iter().filter(|node| !state.cluster_nodes.contains_key(*node));
    // A clock that was set back must not extend the retention.
    let since = |node: &String| state.missing_since.get(node).map_or(now, |since| now.min(*since));
    let missing = missing.map(|node| (node.clone(), since(node)));
    state.missing_since = missing.collect();
    let is_expired = |block: &HeldBlock| {
        state.missing_since.get(&block.node).is_some_and(|since| now - since >= RETENTION_MS)
    };
    let expired = state.blocks.iter().filter(|(_, block)| is_expired(block));
    expired.map(|(name, block)| Effect::DeleteBlock { name: name.clone(), uid: block.uid.clone() }).collect()
}
