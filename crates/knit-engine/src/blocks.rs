//! Blocks: each node leases addresses of a shared range only from blocks that it holds.
//!
//! A node claims a block by creating an object with the block's name: the API server's name uniqueness is the lock,
//! and there is no central allocator. Ranges of local objects are private to the node and have no blocks. Invariant: a
//! new address is leased only from a block that is confirmed to be this node's and is not being returned.
//!
//! In overlay networks the last quarter of each range is in no block: these addresses are for fixed requests, and each
//! is claimed individually, so that a pod keeps its address on another node.
//!
//! Held blocks are persistent, so that a node can lease addresses while the API server is down.

mod names;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{BlockLayout, Pool, overlaps};
use serde::{Deserialize, Serialize};

use crate::event::Unit;

/// How many returned blocks are remembered: more than can be returned while a list request is in flight.
const MAX_RETURNED: usize = 256;

/// A shared range of a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    /// The network's id in leases.
    pub network: String,
    /// The range.
    pub range: IpNet,
}

/// An existing block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The name of its object.
    pub name: String,
    /// The uid of its object: a name may be returned and claimed again.
    pub uid: String,
    /// The range that it belongs to, as stated in its object.
    pub pool: String,
    /// Its addresses.
    pub cidr: IpNet,
    /// The node that holds it.
    pub node: String,
    /// Whether that is this node.
    pub is_local: bool,
}

/// A change of blocks, or a result of a [`BlockRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockEvent {
    /// The complete list of blocks.
    Listed(Vec<Block>),
    /// A block exists, held by this or another node.
    Applied(Block),
    /// A block was deleted.
    Deleted {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// A block could not be claimed. The host retries.
    ClaimFailed {
        /// Its name.
        name: String,
        /// The error.
        error: String,
    },
    /// A block was returned as requested.
    Returned {
        /// Its name.
        name: String,
    },
    /// A review timer fired: blocks that were empty since the last review are returned.
    ReviewDue,
    /// The name of this node, which determines where it searches for a block after another node was faster.
    LocalNode(String),
    /// This node takes the ranges of its pods from pools, if there are any.
    UsePools {
        /// The node's name. It determines where the search for a free block starts, so that nodes do not race for the
        /// same one.
        node: String,
    },
}

/// A request to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockRequest {
    /// Create the block for this node, then report its actual holder.
    Claim {
        /// Its name.
        name: String,
        /// The range that it belongs to.
        pool: String,
        /// Its addresses.
        cidr: IpNet,
    },
    /// Delete the block if it still has this uid, then report it.
    Return {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

/// What a unit waits for in one range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockWait {
    /// The number of missing addresses.
    pub(crate) addresses: usize,
    /// Blocks that this node does not hold although the unit uses an address of them.
    pub(crate) strays: BTreeSet<u128>,
    /// Addresses reserved for fixed requests, which it cannot use.
    pub(crate) reserved: Vec<IpNet>,
    /// Fixed addresses that are claimed individually.
    pub(crate) single_addresses: BTreeSet<IpAddr>,
    /// Blocks of a pool that contain its fixed addresses.
    pub(crate) blocks: BTreeSet<IpNet>,
}

/// A claim in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingClaim {
    pub(crate) pool: PoolKey,
    /// Why it failed so far.
    pub(crate) error: Option<String>,
}

/// The state of all blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// This node's blocks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) local: BTreeMap<String, Block>,
    /// Other nodes' blocks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) remote: BTreeMap<String, Block>,
    /// Whether the block watch has synced since the start. Before that nothing is claimed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_synced: bool,
    /// This node's name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Ranges of which another node was faster to claim a block.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) contended: BTreeSet<PoolKey>,
    /// This node's name, if its pod ranges are blocks of pools. See [`crate::pools`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pool_node: Option<String>,
    /// Claims in flight, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) claims: BTreeMap<String, PendingClaim>,
    /// Names of blocks that are being returned.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) returning: BTreeSet<String>,
    /// Uids of recently returned blocks: list and watch results may be older than the return. Persistent, since a
    /// deletion may be in flight when the program ends.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) returned: VecDeque<String>,
    /// This node's blocks that were empty at the last review, and of which no address was leased since.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) idle: BTreeSet<String>,
    /// Pool blocks that were claimed for a pod, with the number of reviews for which they stay while empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) retained: BTreeMap<String, u32>,
    /// What units wait for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "knit_model::serde_pairs::nested")]
    pub(crate) waits: BTreeMap<Unit, BTreeMap<PoolKey, BlockWait>>,
}

impl Blocks {
    /// The persistent part.
    pub(crate) fn persistent(&self) -> Self {
        Self { local: self.local.clone(), returned: self.returned.clone(), ..Self::default() }
    }

    /// Remembers a returned block: later watch events for it are ignored.
    pub(crate) fn remember_returned(&mut self, uid: Option<String>) {
        self.returned.extend(uid);
        if self.returned.len() > MAX_RETURNED {
            self.returned.pop_front();
        }
    }

    /// Whether the block watch has synced since the start.
    pub fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// Whether this node holds any block.
    pub fn has_any(&self) -> bool {
        !self.local.is_empty()
    }

    /// Whether a claim of this block is in flight.
    pub fn is_claiming(&self, name: &str) -> bool {
        self.claims.contains_key(name)
    }

    /// Units that wait for claims that have not failed so far.
    pub fn units_awaiting_claim(&self) -> impl Iterator<Item = &Unit> {
        let is_claiming_all = |pool: &PoolKey| {
            let mut claims = self.claims.values().filter(|claim| claim.pool == *pool).peekable();
            claims.peek().is_some() && claims.all(|claim| claim.error.is_none())
        };
        let waiting = self.waits.iter().filter(move |(_, waits)| {
            let mut short = waits.iter().filter(|(_, wait)| wait.addresses > 0).peekable();
            short.peek().is_some() && short.all(|(pool, _)| is_claiming_all(pool))
        });
        waiting.map(|(unit, _)| unit)
    }

    /// This node's blocks of a range.
    pub fn own(&self, pool: &PoolKey) -> Vec<IpNet> {
        let title = pool.title();
        let of_pool = self.local.values().filter(|block| block.pool == title && !block.is_single_address());
        // The name decides, whatever else the object contains.
        let named = of_pool.filter(|block| block.pool_key().as_ref() == Some(pool));
        named.map(|block| block.cidr).collect()
    }

    /// Whether the block with this name is neither held, nor claimed, nor being returned.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        !self.local.contains_key(name)
            && !self.remote.contains_key(name)
            && !self.claims.contains_key(name)
            && !self.returning.contains(name)
    }

    /// Whether a block of another pool of the cluster network overlaps this one. Blocks of a deleted pool stay while pods use them, and
    /// the pool that replaces it may name the same addresses otherwise.
    pub(crate) fn overlaps_other_pool(&self, pool: &PoolKey, cidr: IpNet) -> bool {
        let title = pool.title();
        let mut others = self.local.values().chain(self.remote.values()).filter(|block| {
            knit_ipam::overlaps(block.cidr, cidr)
                && block.pool != title
                && block.pool_key().is_some_and(|other| other.is_pod_address_pool())
        });
        others.next().is_some()
    }

    /// Free blocks with usable addresses, in order.
    pub(crate) fn free(&self, pool: &PoolKey, gives: &Pool) -> impl Iterator<Item = (u128, IpNet)> {
        let remote_blocks = self.remote_blocks(pool);
        let blocks = BlockLayout::default_for(pool.range).blocks();
        blocks.filter(move |(index, block)| {
            self.is_free(&pool.block_name(*index))
                && !remote_blocks.iter().any(|remote| overlaps(*remote, *block))
                && has_any(gives, *block)
        })
    }

    /// Blocks of other nodes in the network, whose ranges may overlap.
    fn remote_blocks(&self, pool: &PoolKey) -> Vec<IpNet> {
        let is_of_network = |other: &&Block| {
            let rest = other.pool.strip_prefix(&pool.network).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| rest.parse::<IpNet>().is_ok())
        };
        self.remote.values().filter(is_of_network).map(|other| other.cidr).collect()
    }

    /// How many blocks with usable addresses other nodes hold.
    pub(crate) fn count_remote(&self, pool: &PoolKey, gives: &Pool) -> usize {
        let remote_blocks = self.remote_blocks(pool);
        let is_theirs = |(_, block): &(u128, IpNet)| {
            has_any(gives, *block) && remote_blocks.iter().any(|remote| overlaps(*remote, *block))
        };
        BlockLayout::default_for(pool.range).blocks().filter(is_theirs).count()
    }

    /// Whether this node may still get a block of this range.
    pub(crate) fn may_grow(&self, pool: &PoolKey, gives: &Pool) -> bool {
        let is_returning = || {
            let mut names =
                (0..BlockLayout::default_for(pool.range).count()).map(|index| pool.block_name(index));
            names.any(|name| self.returning.contains(&name))
        };
        !self.has_synced
            || self.claims.values().any(|claim| claim.pool == *pool)
            || self.free(pool, gives).next().is_some()
            || is_returning()
    }

    /// The part of a range from which this node can lease or claim addresses.
    pub fn reachable(&self, pool: &Pool) -> Pool {
        let key = PoolKey::of(pool);
        let mut blocks = self.own(&key);
        blocks.extend(self.free(&key, pool).map(|(_, block)| block));
        pool.clone().with_blocks(blocks)
    }
}

/// Whether a block has any usable address besides the gateway and broadcast addresses.
fn has_any(gives: &Pool, block: IpNet) -> bool {
    gives.clone().with_blocks(vec![block]).total() > 0
}
