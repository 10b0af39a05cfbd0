//! Leases of one network, and the choice of the next address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::interval_set::IntervalSet;
use crate::lease::{AttachmentId, Lease, Release, Time};
use crate::number::{Family, number};
use crate::pool::Allocatable;

/// Maximum number of released leases that are kept per family of a network; beyond it the oldest counts as never used. So
/// memory is bounded, and an address is not reused before this many other releases, unless no other address is free.
pub const MAX_RELEASED: usize = 1024;

/// Leases of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    leases: BTreeMap<IpAddr, Lease>,
    v4: Index,
    v6: Index,
    /// Released addresses by their last holder.
    released: BTreeMap<AttachmentId, BTreeSet<IpAddr>>,
}

/// Index of the leases of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    /// Addresses of all leases, live or released.
    taken: IntervalSet,
    /// Addresses of live leases.
    live: IntervalSet,
    /// Released addresses in the order of release.
    released_order: BTreeSet<(u64, u128)>,
}

impl Network {
    pub(super) fn get(&self, address: IpAddr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    pub(super) fn get_mut(&mut self, address: IpAddr) -> Option<&mut Lease> {
        self.leases.get_mut(&address)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Lease)> {
        self.leases.iter().map(|(address, lease)| (*address, lease))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn family(&self, family: Family) -> &Index {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn family_mut(&mut self, family: Family) -> &mut Index {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// The next address: the lowest that was never used, then the one that was released longest ago.
    pub(super) fn free(&self, family: Family, allocatable: &Allocatable) -> Option<u128> {
        let index = self.family(family);
        // Several ranges may share a network: at most `MAX_RELEASED` steps until one of this range is found.
        let released = || {
            index.released_order.iter().map(|(_, value)| *value).find(|value| allocatable.contains(*value))
        };
        allocatable.lowest_free(&index.taken).or_else(released)
    }

    /// Number of leased addresses of these.
    pub(super) fn used(&self, family: Family, allocatable: &Allocatable) -> u128 {
        let live = &self.family(family).live;
        let excluded: u128 = allocatable.excluded.iter().map(|(first, last)| live.count(first, last)).sum();
        live.count(allocatable.first, allocatable.last) - excluded
    }

    /// Number of leased addresses from first to last.
    pub(super) fn live_between(&self, family: Family, first: u128, last: u128) -> u128 {
        self.family(family).live.count(first, last)
    }

    /// Number of leased addresses.
    pub(super) fn live(&self) -> u128 {
        [&self.v4, &self.v6].iter().map(|index| index.live.count(0, u128::MAX)).sum()
    }

    pub(super) fn put(&mut self, address: IpAddr, lease: Lease) {
        let value = number(address);
        let released = lease.released;
        if released.is_some() {
            self.released.entry(lease.owner.clone()).or_default().insert(address);
        }
        let before = self.leases.insert(address, lease);
        if let Some(before) = before.as_ref().filter(|before| before.released.is_some()) {
            self.unlist_released(address, &before.owner);
        }
        let index = self.family_mut(Family::of(address));
        index.taken.insert(value);
        match released {
            None => index.live.insert(value),
            Some(_) => index.live.remove(value),
        }
        if let Some(before) = before.and_then(|before| before.released) {
            index.released_order.remove(&(before.order, value));
        }
        if let Some(released) = released {
            index.released_order.insert((released.order, value));
        }
        while self.family_mut(Family::of(address)).released_order.len() > MAX_RELEASED {
            self.forget_oldest(Family::of(address));
        }
    }

    fn forget_oldest(&mut self, family: Family) {
        let index = self.family_mut(family);
        if let Some((_, value)) = index.released_order.pop_first() {
            index.taken.remove(value);
            let address = family.address(value);
            if let Some(lease) = self.leases.remove(&address) {
                self.unlist_released(address, &lease.owner);
            }
        }
    }

    /// Removes an address from the released addresses of an owner, unless the owner has just released it.
    fn unlist_released(&mut self, address: IpAddr, owner: &AttachmentId) {
        let is_released_by_owner =
            self.leases.get(&address).is_some_and(|now| now.owner == *owner && now.released.is_some());
        if let Some(released) = self.released.get_mut(owner).filter(|_| !is_released_by_owner) {
            released.remove(&address);
            if released.is_empty() {
                self.released.remove(owner);
            }
        }
    }

    /// Released addresses that this attachment held last, with their leases.
    pub(super) fn released(&self, owner: &AttachmentId) -> impl Iterator<Item = (IpAddr, &Lease)> {
        let addresses = self.released.get(owner).into_iter().flatten();
        addresses.filter_map(|address| Some((*address, self.leases.get(address)?)))
    }

    /// Ends a live lease and returns its holder.
    pub(super) fn release(&mut self, address: IpAddr, now: Time) -> Option<AttachmentId> {
        let order = [&self.v4, &self.v6]
            .iter()
            .filter_map(|index| index.released_order.last())
            .map(|(order, _)| order.saturating_add(1))
            .max()
            .unwrap_or(0);
        let mut lease = self.leases.get(&address).filter(|lease| lease.is_live())?.clone();
        lease.released = Some(Release { at: now, order });
        let owner = lease.owner.clone();
        self.put(address, lease);
        Some(owner)
    }

    pub(super) fn forget_released(&mut self) {
        for family in [Family::V4, Family::V6] {
            (0..self.family(family).released_order.len()).for_each(|_| self.forget_oldest(family));
        }
    }
}
