//! An API server made of plain data: blocks with their versions, and a count of everything that is asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_engine::blocks::Block;

/// Something that is wrong on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server takes a second block of the same name.
    TakesASecondBlock,
    /// The API server says that it deleted a block, and did not.
    KeepsBlocks,
    /// Journals lose the record that a block is not the node's any more.
    LosesBlockGone,
}

/// What happened to a block.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Applied(Arc<Block>),
    Deleted(Arc<Block>),
}

/// How many requests there were, by verb and kind.
pub(crate) type Requests = BTreeMap<(&'static str, &'static str), u64>;

pub(crate) const BLOCKS: &str = "podaddressblocks";
pub(crate) const POD_STATES: &str = "podnetworkstates";
pub(crate) const NODE_STATES: &str = "nodenetworks";

#[derive(Default)]
pub(crate) struct Api {
    blocks: BTreeMap<String, Arc<Block>>,
    /// Every change there ever was: the version of the store is how many there are.
    log: Vec<Change>,
    /// Pods of which there is a PodNetworkState.
    pub(crate) pod_states: BTreeSet<u32>,
    pub(crate) requests: Requests,
    fault: Option<Fault>,
    /// How many creations were refused, because somebody was first.
    pub(crate) conflicts: u64,
    pub(crate) claimed: u64,
    pub(crate) given_back: u64,
}

impl Api {
    pub(crate) fn with(fault: Option<Fault>) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Counts a request.
    pub(crate) fn count(&mut self, verb: &'static str, kind: &'static str) {
        *self.requests.entry((verb, kind)).or_default() += 1;
    }

    /// Creates a block, unless there is one of its name; says which there is then.
    pub(crate) fn create(&mut self, block: Block) -> Arc<Block> {
        self.count("create", BLOCKS);
        let second = self.fault == Some(Fault::TakesASecondBlock);
        if let Some(there) = self.blocks.get(&block.name).filter(|_| !second).cloned() {
            self.conflicts += 1;
            self.count("get", BLOCKS);
            return there;
        }
        self.claimed += 1;
        let block = Arc::new(Block { uid: format!("block-{}", self.claimed), ..block });
        self.blocks.insert(block.name.clone(), Arc::clone(&block));
        self.log.push(Change::Applied(Arc::clone(&block)));
        block
    }

    /// Deletes a block, if its name is still this block's.
    pub(crate) fn delete(&mut self, name: &str, uid: &str) {
        self.count("delete", BLOCKS);
        let is_kept = self.fault == Some(Fault::KeepsBlocks);
        if !is_kept
            && self.blocks.get(name).is_some_and(|there| there.uid == uid)
            && let Some(gone) = self.blocks.remove(name)
        {
            self.given_back += 1;
            self.log.push(Change::Deleted(gone));
        }
    }

    /// All blocks, as of now.
    pub(crate) fn list(&mut self) -> Vec<Arc<Block>> {
        self.count("list", BLOCKS);
        self.blocks.values().cloned().collect()
    }

    /// Blocks that there are.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.values()
    }

    /// The version of the store.
    pub(crate) fn version(&self) -> usize {
        self.log.len()
    }

    /// The change that made this version the next one.
    pub(crate) fn change(&self, version: usize) -> Option<Change> {
        self.log.get(version).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(node: &str) -> Block {
        Block {
            name: "b-0".to_owned(),
            uid: String::new(),
            pool: "b".to_owned(),
            cidr: "10.0.0.0/28".parse().unwrap(),
            node: node.to_owned(),
            mine: false,
        }
    }

    #[test]
    fn a_name_is_the_first_one_s_until_that_block_is_deleted() {
        let mut api = Api::default();
        let first = api.create(block("one"));
        assert_eq!(api.create(block("two")).node, "one");
        api.delete("b-0", "another");
        assert_eq!(api.list().len(), 1);
        api.delete("b-0", &first.uid);
        assert_eq!(api.create(block("two")).node, "two");
        assert_eq!((api.version(), api.conflicts, api.given_back), (3, 1, 1));
        assert_eq!(api.requests[&("create", BLOCKS)], 3);
    }
}
