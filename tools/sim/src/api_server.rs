//! An in-memory API server: blocks, quotas, definitions and nodes with versions, and request counters.

mod quotas;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_engine::blocks::Block;

pub(crate) use self::quotas::QuotaVersion;
use self::quotas::Quotas;
use crate::scenario::{Audience, Definition, block_audience};

/// A fault planted on purpose, to prove that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// The API server accepts a second block of the same name.
    DuplicateBlocks,
    /// The API server reports a block as deleted, and keeps it.
    IgnoredDeletes,
    /// Journals lose the record of a released block.
    LostJournalRecord,
    /// The watch of nodes loses deletions.
    LostNodeDeletions,
    /// Agents configure the cluster network without the namespaces of pools.
    OpenPools,
    /// The API server writes claims of quotas without comparing versions.
    UncheckedClaims,
    /// Agents report successful calls of extensions that they did not make.
    SkippedExtensions,
    /// Agents translate only the first network of an annotation.
    SkippedNetworks,
}

/// A watch event of a block.
#[derive(Clone, Debug)]
pub(crate) enum BlockChange {
    Applied(Arc<Block>),
    Deleted(Arc<Block>),
}

/// A watch event.
#[derive(Clone, Debug)]
pub(crate) enum ApiChange {
    Block(BlockChange),
    /// A quota of a tenant was written.
    Quota(usize, Arc<QuotaVersion>),
    /// A definition of a tenant was written, or deleted.
    Definition(usize, Definition, Option<Arc<str>>),
    /// A node joined or left.
    Node(usize, bool),
}

/// Everything that a list of one node returns.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) blocks: Vec<Arc<Block>>,
    pub(crate) quotas: Vec<(usize, Arc<QuotaVersion>)>,
    pub(crate) definitions: Vec<(usize, Definition, Arc<str>)>,
    pub(crate) nodes: BTreeSet<usize>,
    pub(crate) version: usize,
}

/// Number of requests, by verb and kind.
pub(crate) type Requests = BTreeMap<(&'static str, &'static str), u64>;

pub(crate) const BLOCKS: &str = "podaddressblocks";
pub(crate) const QUOTAS: &str = "networkquotas";
pub(crate) const POD_STATES: &str = "podnetworkstates";
pub(crate) const NODE_STATES: &str = "nodenetworks";

#[derive(Default)]
pub(crate) struct ApiServer {
    blocks: BTreeMap<String, Arc<Block>>,
    /// Names of blocks by their audience.
    block_names: BTreeMap<Audience, BTreeSet<String>>,
    pub(crate) quotas: Quotas,
    /// Existing definitions.
    definitions: BTreeMap<(usize, Definition), Arc<str>>,
    /// Existing nodes.
    pub(crate) nodes: BTreeSet<usize>,
    /// All changes so far; the resource version is its length.
    log: Vec<(Audience, ApiChange)>,
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
        let audience = block_audience(block.cidr);
        self.blocks.insert(block.name.clone(), Arc::clone(&block));
        self.block_names.entry(audience).or_default().insert(block.name.clone());
        self.log.push((audience, ApiChange::Block(BlockChange::Applied(Arc::clone(&block)))));
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
            let audience = block_audience(deleted.cidr);
            self.block_names.entry(audience).or_default().remove(name);
            self.log.push((audience, ApiChange::Block(BlockChange::Deleted(deleted))));
        }
    }

    /// Writes or deletes a definition.
    pub(crate) fn set_definition(&mut self, tenant: usize, definition: Definition, config: Option<Arc<str>>) {
        match &config {
            Some(config) => self.definitions.insert((tenant, definition), Arc::clone(config)),
            None => self.definitions.remove(&(tenant, definition)),
        };
        self.log.push((Audience::Tenant(tenant), ApiChange::Definition(tenant, definition, config)));
    }

    /// The configuration of a definition.
    pub(crate) fn definition(&self, tenant: usize, definition: Definition) -> Option<&Arc<str>> {
        self.definitions.get(&(tenant, definition))
    }

    /// A node joins or leaves.
    pub(crate) fn set_node(&mut self, node: usize, exists: bool) {
        let changes = if exists { self.nodes.insert(node) } else { self.nodes.remove(&node) };
        let is_lost = !exists && self.fault == Some(PlantedFault::LostNodeDeletions);
        if changes && !is_lost {
            self.log.push((Audience::FullView, ApiChange::Node(node, exists)));
        }
    }

    /// Logs the change of a quota.
    fn quota_changed(&mut self, tenant: usize) {
        if let Some(quota) = self.quotas.get(tenant) {
            self.log.push((Audience::Tenant(tenant), ApiChange::Quota(tenant, quota)));
        }
    }

    /// What a node with these tenants and pools receives; everything without them.
    pub(crate) fn list(&mut self, audiences: Option<&[Audience]>) -> Snapshot {
        self.count("list", BLOCKS);
        let version = self.log.len();
        let Some(audiences) = audiences else {
            return Snapshot {
                blocks: self.blocks.values().cloned().collect(),
                quotas: self.quotas.all().collect(),
                definitions: self
                    .definitions
                    .iter()
                    .map(|((tenant, definition), config)| (*tenant, *definition, Arc::clone(config)))
                    .collect(),
                nodes: self.nodes.clone(),
                version,
            };
        };
        let mut snapshot = Snapshot { version, ..Snapshot::default() };
        for audience in audiences {
            let names = self.block_names.get(audience).into_iter().flatten();
            snapshot.blocks.extend(names.filter_map(|name| self.blocks.get(name)).cloned());
            if let Audience::Tenant(tenant) = *audience {
                snapshot.quotas.extend(self.quotas.get(tenant).map(|quota| (tenant, quota)));
                for definition in Definition::ALL {
                    let config = self.definitions.get(&(tenant, definition));
                    snapshot
                        .definitions
                        .extend(config.map(|config| (tenant, definition, Arc::clone(config))));
                }
            }
        }
        snapshot
    }

    /// The current blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.values()
    }

    /// The number of current blocks.
    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The current blocks of an audience.
    pub(crate) fn blocks_of(&self, audience: Audience) -> impl Iterator<Item = &Arc<Block>> {
        let names = self.block_names.get(&audience).into_iter().flatten();
        names.filter_map(|name| self.blocks.get(name))
    }

    /// The resource version.
    pub(crate) fn version(&self) -> usize {
        self.log.len()
    }

    /// The change after this version, and its audience.
    pub(crate) fn change(&self, version: usize) -> Option<&(Audience, ApiChange)> {
        self.log.get(version)
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
            cidr: "100.64.0.0/28".parse().unwrap(),
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
        assert_eq!(api.list(None).blocks.len(), 1);
        api.delete("b-0", &first.uid);
        assert_eq!(api.create(block("two")).node, "two");
        assert_eq!((api.version(), api.conflicts, api.released), (3, 1, 1));
        assert_eq!(api.requests[&("create", BLOCKS)], 3);
    }

    #[test]
    fn a_list_has_what_concerns_its_audiences() {
        let mut api = ApiServer::default();
        api.create(block("one"));
        api.set_definition(0, Definition::Layer2, Some("{}".into()));
        api.set_node(3, true);
        let sizes = |snapshot: Snapshot| {
            (snapshot.blocks.len(), snapshot.definitions.len(), snapshot.nodes.len(), snapshot.version)
        };
        assert_eq!(sizes(api.list(None)), (1, 1, 1, 3));
        assert_eq!(sizes(api.list(Some(&[Audience::Tenant(0)]))), (1, 1, 0, 3));
        assert_eq!(sizes(api.list(Some(&[Audience::Tenant(1), Audience::Pool(0)]))), (0, 0, 0, 3));
    }
}
