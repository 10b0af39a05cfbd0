//! From objects and sandboxes to desired, unit by unit.

mod addresses;
mod alone;
mod attachment;
mod bridge;
mod change;
mod devices;
mod interface;
mod keys;
mod limits;
mod machine;
mod nesting;
mod pooled;
mod ports;
mod quota;
mod routing;
mod seats;
mod span;
mod tunnel;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use knit_model::link::{Attrs, Kind, Limit, Master};
use knit_model::plan::{Desired, Item};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::quota::Counts;
use knit_model::{IfName, Mac, Scope};

pub(crate) use bridge::{bridge, is_left, is_needed};
pub(crate) use interface::{bridges_of, sandbox};
pub(crate) use keys::fill as fill_keys;
pub(crate) use ports::{may_stop_to_filter, needs_filter};
pub(crate) use seats::settle;
pub(crate) use tunnel::followers;
pub(crate) use ways::{close_first, given_back, hops, judge_addresses, native_ways, ranges_of_others, ways};

use crate::blocks::{PoolKey, Wait};
use crate::event::Look;
use crate::state::{LeaseTaken, Made, ObjectKey};

/// The MTU of a link when nobody says anything.
const DEFAULT_MTU: u32 = 1500;
/// The queue of a link when nobody says anything: the kernel's own default.
const DEFAULT_QUEUE: u32 = 1000;

/// What a unit should be, and what has to be looked at to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// What it should be.
    pub(crate) desired: Desired,
    /// What to look at.
    pub(crate) look: Look,
    /// What the unit has when it holds.
    pub(crate) made: Made,
    /// Addresses that were taken just now.
    pub(crate) leases: Vec<LeaseTaken>,
    /// What stands in the way, by object.
    pub(crate) problems: Vec<(ObjectKey, Problem)>,
    /// The largest MTU that links without a stated one may have, by the uplink that they sit on.
    pub(crate) largest: BTreeMap<IfName, u32>,
    /// Objects that asked for something here.
    pub(crate) askers: BTreeSet<ObjectKey>,
    /// The pod, for people.
    pub(crate) title: String,
    /// Routes, rules, neighbours and sysctls that wait for the kernel to be looked at.
    pub(crate) routing: Vec<routing::Asked>,
    /// Sysctls that Knit sets on its own interfaces by itself: whoever asks for another value gets it.
    pub(crate) habits: BTreeSet<String>,
    /// Sysctls that get their old value back.
    pub(crate) returned: BTreeSet<String>,
    /// What is new here and a quota has room for.
    pub(crate) granted: Counts,
    /// What is asked for here and a quota has no room for.
    pub(crate) refused: Counts,
    /// Blocks that are missing here.
    pub(crate) waits: BTreeMap<PoolKey, Wait>,
    /// Whether this is a first part, and the rest follows once it holds.
    pub(crate) goes_on: bool,
}

impl Resolved {
    fn because(&mut self, scope: &Scope, item: Item, why: &Provenance) {
        self.desired.why.entry((scope.clone(), item)).or_default().push(why.clone());
    }

    fn problem(
        &mut self,
        object: &ObjectKey,
        field: impl Into<String>,
        reason: Reason,
        message: impl Into<String>,
    ) {
        self.problems
            .push((object.clone(), Problem { field: field.into(), reason, message: message.into() }));
    }
}

/// Every field of a link of Knit's is stated, so that a field that is taken out of an object goes back to its default.
/// Without `mtu` it follows the link that it sits on. `seed` gives an Ethernet link its address, the same each time it is made.
fn with_defaults(kind: &Kind, asked: &Attrs, mtu: Option<u32>, master: Option<IfName>, seed: &str) -> Attrs {
    if kind.lent().is_some() {
        // A NIC keeps what it has.
        let master = Some(master.map_or(Master::Nothing, Master::Of));
        return Attrs { up: asked.up.or(Some(true)), master, ..asked.clone() };
    }
    let on_ethernet = kind.is_ethernet().then_some(true);
    let habits = kind.habits();
    Attrs {
        mtu: asked.mtu.or(habits.mtu).or(mtu),
        mac: asked.mac.or_else(|| kind.has_own_mac().then(|| Mac::derived(seed))),
        txqueuelen: asked.txqueuelen.or(Some(DEFAULT_QUEUE)),
        alias: asked.alias.clone().or(Some(String::new())),
        group: asked.group.or(Some(0)),
        up: asked.up.or(Some(true)),
        promisc: asked.promisc.or(Some(false)),
        allmulticast: asked.allmulticast.or(Some(false)),
        multicast: asked.multicast.or(habits.multicast).or(on_ethernet),
        arp: asked.arp.or(habits.arp).or(on_ethernet),
        master: Some(master.map_or(Master::Nothing, Master::Of)),
        vlans: asked.vlans.clone(),
        hairpin: asked.hairpin,
        limit: asked.limit.or(Some(Limit::Nothing)),
    }
}
