//! All leases of a node, and the four things that happen to them: allocate, release, collect, restore.
//!
//! The lease maps are the truth; everything else here is an index that is rebuilt from them on load.

mod network;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::sandbox::Instance;
use knit_model::{IfName, SandboxId};
use network::Network;
pub use network::RESTING_MAX;
use serde::{Deserialize, Serialize};

use crate::error::AllocError;
use crate::lease::{AttachmentId, Key, Lease, Time};
use crate::number::{Family, bounds};
use crate::pool::Pool;

/// All leases of a node, by network and address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "stored::Stored")]
pub struct Leases {
    networks: BTreeMap<String, Network>,
    /// Live leases by who holds them.
    held: BTreeMap<SandboxId, BTreeSet<(IfName, Key)>>,
}

/// Which address an attachment wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaseRequest {
    /// Any free one.
    Any,
    /// The one it had before if that is free, otherwise any.
    Sticky(IpAddr),
    /// This one and no other. An attachment may hold several such addresses beside its own.
    Fixed(IpAddr),
}

/// How much of a network's address space is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Addresses that the pools may give.
    pub total: u128,
    /// Of these, how many are held.
    pub used: u128,
    /// Of these, how many can still be given.
    pub free: u128,
    /// Addresses of the network that are held and that no pool gives any longer: a range shrank, or went away.
    pub stray: u128,
}

impl Leases {
    /// Gives the attachment an address of the pool, with the prefix length of the pool's range.
    ///
    /// The lowest address that was never used comes first, then the one that was given back longest ago. An attachment that
    /// asks again gets the address that it holds; if its sandbox lives anew, the lease passes to the new life.
    pub fn allocate(
        &mut self,
        pool: &Pool,
        owner: &AttachmentId,
        instance: &Instance,
        want: LeaseRequest,
        now: Time,
    ) -> Result<IpNet, AllocError> {
        self.allocate_in_order(std::slice::from_ref(pool), owner, instance, want, now)
    }

    /// Gives the attachment one address of several pools of a network, as [`Leases::allocate`] does of one: of the first
    /// pool that has any left. What the attachment holds or had before goes before that order.
    pub fn allocate_in_order(
        &mut self,
        pools: &[Pool],
        owner: &AttachmentId,
        instance: &Instance,
        want: LeaseRequest,
        now: Time,
    ) -> Result<IpNet, AllocError> {
        let held = pools.iter().find_map(|pool| Some((pool, self.held(pool, owner, want)?)));
        let (pool, address) = match held {
            Some((pool, address)) => {
                self.renew(&pool.network, address, instance, now);
                (pool, address)
            }
            None => {
                let (pool, address) = self.choose(pools, want)?;
                let fixed = matches!(want, LeaseRequest::Fixed(_));
                let (owner, instance) = (owner.clone(), instance.clone());
                let lease = Lease { owner, instance, since: now, fixed, name: None, released: None };
                self.restore(&pool.network, address, lease);
                (pool, address)
            }
        };
        Ok(pool.with_prefix(address))
    }

    /// The address that the attachment holds already and that answers the request.
    pub fn held(&self, pool: &Pool, owner: &AttachmentId, want: LeaseRequest) -> Option<IpAddr> {
        let answers = |address: &IpAddr| match want {
            LeaseRequest::Fixed(wanted) => *address == wanted,
            LeaseRequest::Any | LeaseRequest::Sticky(_) => {
                self.get(&pool.network, *address).is_some_and(|lease| !lease.fixed)
            }
        };
        self.held_by(owner)
            .filter(|key| key.network == pool.network && pool.contains(key.address))
            // A range may have become narrower: what is its broadcast address now is no answer.
            .filter(|key| pool.withholds(key.address).is_none())
            .map(|key| key.address)
            .find(answers)
    }

    fn renew(&mut self, network: &str, address: IpAddr, instance: &Instance, now: Time) {
        let lease = self.networks.get_mut(network).and_then(|network| network.get_mut(address));
        if let Some(lease) = lease.filter(|lease| lease.instance != *instance) {
            lease.instance = instance.clone();
            lease.since = now;
        }
    }

    /// A free address of the pools, and whose it is. Nothing changes yet.
    fn choose<'a>(&self, pools: &'a [Pool], want: LeaseRequest) -> Result<(&'a Pool, IpAddr), AllocError> {
        match want {
            LeaseRequest::Fixed(address) => {
                let meant = pools.iter().find(|pool| pool.contains(address)).or(pools.first());
                if let Some(pool) = meant {
                    return self.check_free(pool, address).map(|()| (pool, address));
                }
            }
            LeaseRequest::Sticky(address) => {
                let may = |pool: &&Pool| pool.is_own(address) && self.check_free(pool, address).is_ok();
                if let Some(pool) = pools.iter().find(may) {
                    return Ok((pool, address));
                }
            }
            LeaseRequest::Any => {}
        }
        let free = pools.iter().find_map(|pool| Some((pool, self.free(pool)?)));
        free.ok_or_else(|| {
            let ranges: Vec<String> = pools.iter().map(ToString::to_string).collect();
            AllocError::Exhausted {
                network: pools.first().map(|pool| pool.network.clone()).unwrap_or_default(),
                ranges: ranges.join(", "),
                total: pools.iter().fold(0, |sum, pool| sum.saturating_add(pool.total())),
            }
        })
    }

    /// Whether this address of the pool may be given now; if not, why.
    fn check_free(&self, pool: &Pool, address: IpAddr) -> Result<(), AllocError> {
        let network = || pool.network.clone();
        if !pool.contains(address) {
            return Err(AllocError::OutsideRange { network: network(), range: pool.range, address });
        }
        if let Some(withheld) = pool.withholds(address) {
            return Err(AllocError::Withheld { network: network(), address, withheld });
        }
        match self.get(&pool.network, address).filter(|lease| lease.is_live()) {
            Some(lease) => Err(AllocError::InUse { network: network(), address, owner: lease.owner.clone() }),
            None => Ok(()),
        }
    }

    /// The address that the pool gives next.
    fn free(&self, pool: &Pool) -> Option<IpAddr> {
        let givable = pool.givable()?;
        let free = match self.networks.get(&pool.network) {
            Some(network) => network.free(pool.family(), &givable),
            None => givable.lowest_outside(&crate::runs::Runs::default()),
        };
        free.map(|free| pool.family().address(free))
    }

    /// Takes a lease back into the map as it was recorded, whatever was there.
    pub fn restore(&mut self, network: &str, address: IpAddr, lease: Lease) {
        let key = Key { network: network.to_owned(), address };
        if let Some(before) = self.get(network, address).filter(|before| before.is_live()) {
            let owner = before.owner.clone();
            self.unhold(&owner, &key);
        }
        if lease.is_live() {
            let owner = &lease.owner;
            let held = self.held.entry(owner.sandbox.clone()).or_default();
            held.insert((owner.interface.clone(), key.clone()));
        }
        self.networks.entry(key.network).or_default().put(address, lease);
    }

    fn unhold(&mut self, owner: &AttachmentId, key: &Key) {
        if let Some(held) = self.held.get_mut(&owner.sandbox) {
            held.remove(&(owner.interface.clone(), key.clone()));
            if held.is_empty() {
                self.held.remove(&owner.sandbox);
            }
        }
    }

    /// Gives back everything that the attachment holds.
    pub fn release(&mut self, owner: &AttachmentId, now: Time) -> Vec<Key> {
        let keys = self.held_by(owner).cloned().collect();
        self.release_each(keys, now)
    }

    /// Gives back everything that the sandbox holds.
    pub fn release_all(&mut self, sandbox: &SandboxId, now: Time) -> Vec<Key> {
        self.release_all_but(sandbox, &BTreeSet::new(), now)
    }

    /// Gives back everything that the sandbox holds, but for what these interfaces of it have.
    pub fn release_all_but(
        &mut self,
        sandbox: &SandboxId,
        interfaces: &BTreeSet<IfName>,
        now: Time,
    ) -> Vec<Key> {
        let held = self.held.get(sandbox).into_iter().flatten();
        let gone = held.filter(|(interface, _)| !interfaces.contains(interface));
        let keys = gone.map(|(_, key)| key.clone()).collect();
        self.release_each(keys, now)
    }

    /// Gives back one address, whoever holds it.
    pub fn release_address(&mut self, key: &Key, now: Time) -> bool {
        !self.release_each(vec![key.clone()], now).is_empty()
    }

    /// Gives back every lease that is not alive, and says which. Only the caller's word ends a lease, never its age.
    pub fn garbage_collect(&mut self, living: impl Fn(&Lease) -> bool, now: Time) -> Vec<Key> {
        let dead = |(network, address, lease): (&str, IpAddr, &Lease)| {
            let gone = lease.is_live() && !living(lease);
            gone.then(|| Key { network: network.to_owned(), address })
        };
        let keys = self.iter().filter_map(dead).collect();
        self.release_each(keys, now)
    }

    fn release_each(&mut self, keys: Vec<Key>, now: Time) -> Vec<Key> {
        let mut released = Vec::with_capacity(keys.len());
        for key in keys {
            let network = self.networks.get_mut(&key.network);
            if let Some(owner) = network.and_then(|network| network.release(key.address, now)) {
                self.unhold(&owner, &key);
                released.push(key);
            }
        }
        released
    }

    /// Drops what is remembered of a network's free addresses, once the network itself is gone. What is held stays.
    pub fn forget_network(&mut self, network: &str) {
        if let Some(known) = self.networks.get_mut(network) {
            known.forget_resting();
            if known.is_empty() {
                self.networks.remove(network);
            }
        }
    }

    /// How much is left of a network's only pool. See [`Leases::capacity_of`].
    pub fn capacity(&self, pool: &Pool) -> Capacity {
        self.capacity_of(&pool.network, std::slice::from_ref(pool))
    }

    /// How much is left of a network. Its pools must not overlap each other.
    pub fn capacity_of(&self, network: &str, pools: &[Pool]) -> Capacity {
        let known = self.networks.get(network);
        let mut capacity = Capacity::default();
        for pool in pools.iter().filter(|pool| pool.network == network) {
            let Some(givable) = pool.givable() else { continue };
            capacity.total = capacity.total.saturating_add(givable.count());
            capacity.used += known.map_or(0, |known| known.used(pool.family(), &givable));
        }
        capacity.free = capacity.total.saturating_sub(capacity.used);
        capacity.stray = known.map_or(0, Network::live).saturating_sub(capacity.used);
        capacity
    }

    /// How many addresses of a network are held in a part of it.
    pub fn live_in(&self, network: &str, part: IpNet) -> u128 {
        let (first, last) = bounds(part);
        let known = self.networks.get(network);
        known.map_or(0, |known| known.live_between(Family::of(part.addr()), first, last))
    }

    /// The lease of an address, held or resting.
    pub fn get(&self, network: &str, address: IpAddr) -> Option<&Lease> {
        self.networks.get(network)?.get(address)
    }

    /// The address of the pool that the attachment gave back last, if nobody has it since: for [`LeaseRequest::Sticky`].
    pub fn last_of(&self, pool: &Pool, owner: &AttachmentId) -> Option<IpAddr> {
        let rested = self.networks.get(&pool.network)?.rested(owner);
        let mine = rested.filter(|(address, lease)| pool.contains(*address) && !lease.fixed);
        let order = |lease: &Lease| lease.released.map(|released| released.order);
        mine.max_by_key(|(_, lease)| order(lease)).map(|(address, _)| address)
    }

    /// Keeps a held address under a name; see [`Leases::last_under`].
    pub fn keep_for(&mut self, network: &str, address: IpAddr, name: Option<String>) {
        let lease = self.networks.get_mut(network).and_then(|network| network.get_mut(address));
        if let Some(lease) = lease.filter(|lease| lease.is_live()) {
            lease.name = name;
        }
    }

    /// The address of the pool that was given back last of those kept under a name: for [`LeaseRequest::Sticky`]. Costs a look at every
    /// lease of the network.
    pub fn last_under(&self, pool: &Pool, name: &str) -> Option<IpAddr> {
        let all = self.networks.get(&pool.network)?.iter();
        let kept =
            all.filter(|(address, lease)| lease.name.as_deref() == Some(name) && pool.contains(*address));
        let rested = kept.filter_map(|(address, lease)| Some((lease.released?.order, address)));
        rested.max_by_key(|(order, _)| *order).map(|(_, address)| address)
    }

    /// What an attachment holds, in the order of networks and addresses.
    pub fn held_by(&self, owner: &AttachmentId) -> impl Iterator<Item = &Key> {
        let held = self.held.get(&owner.sandbox).into_iter().flatten();
        held.filter(|(interface, _)| *interface == owner.interface).map(|(_, key)| key)
    }

    /// Every lease, held or resting, in the order of networks and addresses.
    pub fn iter(&self) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        self.networks.iter().flat_map(|(name, network)| {
            network.iter().map(move |(address, lease)| (name.as_str(), address, lease))
        })
    }
}
