//! The leases of one network, and which of its addresses to give next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::lease::{AttachmentId, Lease, Released, Time};
use crate::number::{Family, number};
use crate::pool::Givable;
use crate::runs::Runs;

/// At most this many released addresses of one family of a network are remembered; then the one that was released longest
/// ago counts as never used. So a network's memory is bounded while pods come and go, and an address still rests for this
/// many releases, or until nothing else is free.
pub const RESTING_MAX: usize = 1024;

/// The leases of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    leases: BTreeMap<IpAddr, Lease>,
    v4: Index,
    v6: Index,
    /// Resting addresses by who held them last.
    rested: BTreeMap<AttachmentId, BTreeSet<IpAddr>>,
}

/// What follows from the leases of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    /// Addresses that are held or resting.
    taken: Runs,
    /// Addresses that are held.
    live: Runs,
    /// Resting addresses, in the order of their release.
    resting: BTreeSet<(u64, u128)>,
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

    /// The address to give next: the lowest that was never used, then the one that rests longest.
    pub(super) fn free(&self, family: Family, givable: &Givable) -> Option<u128> {
        let index = self.family(family);
        // Several ranges may share a network: at most `RESTING_MAX` steps until one of this range is found.
        let rested = || index.resting.iter().map(|(_, value)| *value).find(|value| givable.contains(*value));
        givable.lowest_outside(&index.taken).or_else(rested)
    }

    /// How many of these are held.
    pub(super) fn used(&self, family: Family, givable: &Givable) -> u128 {
        let live = &self.family(family).live;
        let kept: u128 = givable.kept.iter().map(|(first, last)| live.count(first, last)).sum();
        live.count(givable.first, givable.last) - kept
    }

    /// How many of the addresses from first to last are held.
    pub(super) fn live_between(&self, family: Family, first: u128, last: u128) -> u128 {
        self.family(family).live.count(first, last)
    }

    /// How many addresses are held.
    pub(super) fn live(&self) -> u128 {
        [&self.v4, &self.v6].iter().map(|index| index.live.count(0, u128::MAX)).sum()
    }

    pub(super) fn put(&mut self, address: IpAddr, lease: Lease) {
        let value = number(address);
        let released = lease.released;
        if released.is_some() {
            self.rested.entry(lease.owner.clone()).or_default().insert(address);
        }
        let before = self.leases.insert(address, lease);
        if let Some(before) = before.as_ref().filter(|before| before.released.is_some()) {
            self.wake(address, &before.owner);
        }
        let index = self.family_mut(Family::of(address));
        index.taken.insert(value);
        match released {
            None => index.live.insert(value),
            Some(_) => index.live.remove(value),
        }
        if let Some(before) = before.and_then(|before| before.released) {
            index.resting.remove(&(before.order, value));
        }
        if let Some(released) = released {
            index.resting.insert((released.order, value));
        }
        while self.family_mut(Family::of(address)).resting.len() > RESTING_MAX {
            self.forget_oldest(Family::of(address));
        }
    }

    fn forget_oldest(&mut self, family: Family) {
        let index = self.family_mut(family);
        if let Some((_, value)) = index.resting.pop_first() {
            index.taken.remove(value);
            let address = family.address(value);
            if let Some(lease) = self.leases.remove(&address) {
                self.wake(address, &lease.owner);
            }
        }
    }

    /// The address rests no longer, unless this owner has just released it.
    fn wake(&mut self, address: IpAddr, owner: &AttachmentId) {
        let still =
            self.leases.get(&address).is_some_and(|now| now.owner == *owner && now.released.is_some());
        if let Some(rested) = self.rested.get_mut(owner).filter(|_| !still) {
            rested.remove(&address);
            if rested.is_empty() {
                self.rested.remove(owner);
            }
        }
    }

    /// Resting addresses that this attachment held last, each with its lease.
    pub(super) fn rested(&self, owner: &AttachmentId) -> impl Iterator<Item = (IpAddr, &Lease)> {
        let addresses = self.rested.get(owner).into_iter().flatten();
        addresses.filter_map(|address| Some((*address, self.leases.get(address)?)))
    }

    /// Ends a live lease and says whose it was.
    pub(super) fn release(&mut self, address: IpAddr, now: Time) -> Option<AttachmentId> {
        let order = [&self.v4, &self.v6]
            .iter()
            .filter_map(|index| index.resting.last())
            .map(|(order, _)| order.saturating_add(1))
            .max()
            .unwrap_or(0);
        let mut lease = self.leases.get(&address).filter(|lease| lease.is_live())?.clone();
        lease.released = Some(Released { at: now, order });
        let owner = lease.owner.clone();
        self.put(address, lease);
        Some(owner)
    }

    pub(super) fn forget_resting(&mut self) {
        for family in [Family::V4, Family::V6] {
            (0..self.family(family).resting.len()).for_each(|_| self.forget_oldest(family));
        }
    }
}
