//! Blocks of addresses whose nodes are gone: their agents cannot give them back.

use std::collections::BTreeSet;

use knit_kube::Seen;

use crate::known::{HeldBlock, State};
use crate::step::Effect;

/// A node may come back: so long after it went its blocks go, too.
const HOLD: i64 = 5 * 60_000;

/// Hears news of blocks.
pub(crate) fn hear(state: &mut State, seen: Seen<(String, HeldBlock)>) {
    match seen {
        Seen::Listed(all) => state.blocks = all.into_iter().collect(),
        Seen::Applied((name, block)) => {
            state.blocks.insert(name, block);
        }
        Seen::Deleted((name, block)) => {
            if state.blocks.get(&name).is_some_and(|known| known.uid == block.uid) {
                state.blocks.remove(&name);
            }
        }
    }
}

/// The blocks of nodes that have been gone for long. A node that there is loses none.
pub(crate) fn of_gone_nodes(state: &mut State, now: i64) -> Vec<Effect> {
    let holders: BTreeSet<&String> = state.blocks.values().map(|block| &block.node).collect();
    let gone = holders.into_iter().filter(|node| !state.alive.contains_key(*node));
    // A clock that was put back must not keep blocks for as long again.
    let since = |node: &String| state.gone_since.get(node).map_or(now, |since| now.min(*since));
    let gone = gone.map(|node| (node.clone(), since(node)));
    state.gone_since = gone.collect();
    let is_late =
        |block: &HeldBlock| state.gone_since.get(&block.node).is_some_and(|since| now - since >= HOLD);
    let late = state.blocks.iter().filter(|(_, block)| is_late(block));
    late.map(|(name, block)| Effect::DeleteBlock { name: name.clone(), uid: block.uid.clone() }).collect()
}
