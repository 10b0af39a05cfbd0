//! An in-memory API server: blocks with versions, and request counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_engine::blocks::Block;

/// A fault planted on purpose, to prove that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// The API server accepts a second block of the same name.
    DuplicateBlocks,
    /// The API server reports a block as deleted, and keeps it.
    IgnoredDeletes,
    /// Journals lose the record of a released block.
    LostJournalRecord,
}

/// A watch event of a block.
#[derive(Clone, Debug)]
pub(crate) enum BlockChange {
    Applied(Arc<Block>),
    Deleted(Arc<Block>),
}

/// Number of requests, by verb and kind.
pub(crate) type Requests = BTreeMap<(&'static str, &'static str), u64>;

pub(crate) const BLOCKS: &str = "podaddressblocks";
pub(crate) const POD_STATES: &str = "podnetworkstates";
pub(crate) const NODE_STATES: &str = "nodenetworks";

#[derive(Default)]
pub(crate) struct ApiServer {
    blocks: BTreeMap<String, Arc<Block>>,
    /// All changes so far; the resource version is its length.
    log: Vec<BlockChange>,
    /// Pods that have a PodNetworkState.
    pub(crate) pod_states: BTreeSet<u32>,
    pub(crate) requests: Requests,
    fault: Option<PlantedFault>,
    /// Creations rejected because the block existed.
    pub(crate) conflicts: u64,
    pub(crate) claimed: u64,
    pub(crate) released: u64,
}

impl ApiServer {
    pub(crate) fn new(fault: Option<PlantedFault>) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Counts a request.
    pub(crate) fn count(&mut self, verb: &'static str, kind: &'static str) {
        *self.requests.entry((verb, kind)).or_default() += 1;
    }

    /// Creates a block, unless the name exists; returns the stored block.
    pub(crate) fn create(&mut self, block: Block) -> Arc<Block> {
        self.count("create", BLOCKS);
        let allows_duplicates = self.fault == Some(PlantedFault::DuplicateBlocks);
        if let Some(existing) = self.blocks.get(&block.name).filter(|_| !allows_duplicates).cloned() {
            self.conflicts += 1;
            self.count("get", BLOCKS);
            return existing;
        }
        self.claimed += 1;
        let block = Arc::new(Block { uid: format!("block-{}", self.claimed), ..block });
        self.blocks.insert(block.name.clone(), Arc::clone(&block));
        self.log.push(BlockChange::Applied(Arc::clone(&block)));
        block
    }

    /// Deletes a block, if the UID matches.
    pub(crate) fn delete(&mut self, name: &str, uid: &str) {
        self.count("delete", BLOCKS);
        let is_ignored = self.fault == Some(PlantedFault::IgnoredDeletes);
        if !is_ignored
            && self.blocks.get(name).is_some_and(|block| block.uid == uid)
            && let Some(deleted) = self.blocks.remove(name)
        {
            self.released += 1;
            self.log.push(BlockChange::Deleted(deleted));
        }
    }

    /// All current blocks.
    pub(crate) fn list(&mut self) -> Vec<Arc<Block>> {
        self.count("list", BLOCKS);
        self.blocks.values().cloned().collect()
    }

    /// The current blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.values()
    }

    /// The resource version.
    pub(crate) fn version(&self) -> usize {
        self.log.len()
    }

    /// The change after this version.
    pub(crate) fn change(&self, version: usize) -> Option<BlockChange> {
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
            is_local: false,
        }
    }

    #[test]
    fn name_belongs_to_the_first_block_until_it_is_deleted() {
        let mut api = ApiServer::default();
        let first = api.create(block("one"));
        assert_eq!(api.create(block("two")).node, "one");
        api.delete("b-0", "another");
        assert_eq!(api.list().len(), 1);
        api.delete("b-0", &first.uid);
        assert_eq!(api.create(block("two")).node, "two");
        assert_eq!((api.version(), api.conflicts, api.released), (3, 1, 1));
        assert_eq!(api.requests[&("create", BLOCKS)], 3);
    }
}
