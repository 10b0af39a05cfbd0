//! Blocks: of a range that nodes share, each node gives addresses of its own blocks alone.
//!
//! A block is claimed by creating an object with its name: the API server's uniqueness is the lock, and nobody hands
//! anything out. Ranges of objects from files are this node's alone and have no blocks. What always holds: an address is
//! given anew only from a block that was heard to be this node's, and that it has not begun to give back.
//!
//! Of a network that is one on all nodes, the last quarter of each range is in no block: addresses there are asked for by value, and
//! each is claimed alone, so that a pod takes its address along to another node.
//!
//! What is this node's is remembered, so that a node with room gives addresses while no API server answers.

mod names;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, Split, overlaps};
use serde::{Deserialize, Serialize};

use crate::event::Unit;

/// So many blocks that were given back are remembered, which is more than go while a list is on its way.
const MOST_RETURNED: usize = 256;

/// A range of a network that nodes share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    /// The network's id, as leases have it.
    pub network: String,
    /// The range.
    pub range: IpNet,
}

/// A block that there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The name of its object.
    pub name: String,
    /// The uid of its object: a name may be given back and taken again.
    pub uid: String,
    /// The range that it is a part of, as its object has it.
    pub pool: String,
    /// Its addresses.
    pub cidr: IpNet,
    /// The node that holds it.
    pub node: String,
    /// Whether that is this node.
    pub mine: bool,
}

/// News of blocks.
#[derive(Clone, Debug)]
pub enum News {
    /// All blocks that there are, as of one moment.
    Listed(Vec<Block>),
    /// A block is there: this node's or another's.
    Applied(Block),
    /// A block is gone.
    Deleted {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// A block cannot be claimed so far. It is tried again.
    Refused {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// A block was given back, as asked.
    Returned {
        /// Its name.
        name: String,
    },
    /// A while has passed: what is empty for so long goes back.
    Reviewed,
    /// This node takes its pods' ranges from pools, if there are any.
    Pooled {
        /// The node's name. Each node begins to look elsewhere, so that they do not race for the same block.
        node: String,
    },
}

/// What the host is asked to do with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Create it for this node, and tell whose it is then.
    Claim {
        /// Its name.
        name: String,
        /// The range that it is a part of.
        pool: String,
        /// Its addresses.
        cidr: IpNet,
    },
    /// Delete it, if it is still the one with this uid, and tell when it is gone.
    Return {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

/// What a unit waits for in one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// How many addresses it lacks.
    pub(crate) addresses: usize,
    /// Blocks that are not this node's though the unit has an address of them.
    pub(crate) strays: BTreeSet<u128>,
    /// Addresses that are asked for by value and so are of no use to it.
    pub(crate) reserved: Vec<IpNet>,
    /// Addresses that it asks for by value, each of which a node claims alone.
    pub(crate) alone: BTreeSet<IpAddr>,
    /// Blocks of a pool that it needs, because they have an address that is asked for by value.
    pub(crate) blocks: BTreeSet<IpNet>,
}

/// A claim that has not been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) pool: PoolKey,
    /// Why it takes so long.
    pub(crate) late: Option<String>,
}

/// What is known about blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// This node's, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mine: BTreeMap<String, Block>,
    /// Other nodes', by name.
    #[serde(skip)]
    pub(crate) others: BTreeMap<String, Block>,
    /// Whether all blocks were told since the program began. Before that nothing is claimed.
    #[serde(skip)]
    pub(crate) listed: bool,
    /// This node's name, where its pods' ranges are blocks of pools. See [`crate::pools`].
    #[serde(skip)]
    pub(crate) pooled: Option<String>,
    /// Claims under way, by name.
    #[serde(skip)]
    pub(crate) claims: BTreeMap<String, Claim>,
    /// Names of blocks that are being given back.
    #[serde(skip)]
    pub(crate) returning: BTreeSet<String>,
    /// Uids of blocks that were given back, the last ones: a list, and what a watch tells after it, may be older than that. It is
    /// remembered, since a deletion may be under way when the program ends.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) returned: VecDeque<String>,
    /// Blocks of this node's that were empty when it was last looked.
    #[serde(skip)]
    pub(crate) idle: BTreeSet<String>,
    /// Blocks of pools that were claimed because a pod asked, and for how many looks they stay though nobody came.
    #[serde(skip)]
    pub(crate) kept: BTreeMap<String, u32>,
    /// What units wait for.
    #[serde(skip)]
    pub(crate) waits: BTreeMap<Unit, BTreeMap<PoolKey, Wait>>,
}

impl Blocks {
    /// What is remembered.
    pub(crate) fn remembered(&self) -> Self {
        Self { mine: self.mine.clone(), returned: self.returned.clone(), ..Self::default() }
    }

    /// A block goes back, and is not this node's any more, whatever is heard of it.
    pub(crate) fn remember_returned(&mut self, uid: Option<String>) {
        self.returned.extend(uid);
        if self.returned.len() > MOST_RETURNED {
            self.returned.pop_front();
        }
    }

    /// Whether all blocks were told since the program began.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether there is anything to give back one day.
    pub fn has_any(&self) -> bool {
        !self.mine.is_empty()
    }

    /// Whether a claim of this block is under way.
    pub fn is_claiming(&self, name: &str) -> bool {
        self.claims.contains_key(name)
    }

    /// Units that wait for a block, and no reason is known why that should take long.
    pub fn soon(&self) -> impl Iterator<Item = &Unit> {
        let is_soon = |pool: &PoolKey| {
            let mut claims = self.claims.values().filter(|claim| claim.pool == *pool).peekable();
            claims.peek().is_some() && claims.all(|claim| claim.late.is_none())
        };
        let waiting = self.waits.iter().filter(move |(_, waits)| {
            let mut lacking = waits.iter().filter(|(_, wait)| wait.addresses > 0).peekable();
            lacking.peek().is_some() && lacking.all(|(pool, _)| is_soon(pool))
        });
        waiting.map(|(unit, _)| unit)
    }

    /// This node's blocks of a range.
    pub fn own(&self, pool: &PoolKey) -> Vec<IpNet> {
        let title = pool.title();
        let of_pool = self.mine.values().filter(|block| block.pool == title && !block.is_alone());
        // Whatever else an object may say: a block is the one that its name says.
        let named = of_pool.filter(|block| block.pool_key().as_ref() == Some(pool));
        named.map(|block| block.cidr).collect()
    }

    /// Whether nobody is known to hold or to want the block with this name.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        !self.mine.contains_key(name)
            && !self.others.contains_key(name)
            && !self.claims.contains_key(name)
            && !self.returning.contains(name)
    }

    /// Blocks that nobody holds and that have an address to give, in order.
    pub(crate) fn free(&self, pool: &PoolKey, gives: &Pool) -> impl Iterator<Item = (u128, IpNet)> {
        let rivals = self.rivals(pool);
        let blocks = Split::of(pool.range).blocks();
        blocks.filter(move |(index, block)| {
            self.is_free(&pool.block_name(*index))
                && !rivals.iter().any(|rival| overlaps(*rival, *block))
                && has_any(gives, *block)
        })
    }

    /// What other nodes hold of the network: its ranges may overlap each other.
    fn rivals(&self, pool: &PoolKey) -> Vec<IpNet> {
        let is_of_network = |other: &&Block| {
            let rest = other.pool.strip_prefix(&pool.network).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| rest.parse::<IpNet>().is_ok())
        };
        self.others.values().filter(is_of_network).map(|other| other.cidr).collect()
    }

    /// How many blocks with addresses to give other nodes hold.
    pub(crate) fn held_by_others(&self, pool: &PoolKey, gives: &Pool) -> usize {
        let rivals = self.rivals(pool);
        let is_theirs = |(_, block): &(u128, IpNet)| {
            has_any(gives, *block) && rivals.iter().any(|rival| overlaps(*rival, *block))
        };
        Split::of(pool.range).blocks().filter(is_theirs).count()
    }

    /// Whether a block of this range may still become this node's.
    pub(crate) fn is_open(&self, pool: &PoolKey, gives: &Pool) -> bool {
        let is_returning = || {
            let mut names = (0..Split::of(pool.range).count()).map(|index| pool.block_name(index));
            names.any(|name| self.returning.contains(&name))
        };
        !self.listed
            || self.claims.values().any(|claim| claim.pool == *pool)
            || self.free(pool, gives).next().is_some()
            || is_returning()
    }

    /// A range as this node sees it: of which it has addresses, or could claim them.
    pub fn reachable(&self, pool: &Pool) -> Pool {
        let key = PoolKey::of(pool);
        let mut blocks = self.own(&key);
        blocks.extend(self.free(&key, pool).map(|(_, block)| block));
        pool.clone().of_blocks(blocks)
    }
}

/// Whether a block has an address to give at all: the bridge's and the broadcast address may be all it has.
fn has_any(gives: &Pool, block: IpNet) -> bool {
    gives.clone().of_blocks(vec![block]).total() > 0
}
