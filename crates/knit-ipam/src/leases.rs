//! All leases of a node: allocation, release, garbage collection and restore.
//!
//! The lease maps are the state; everything else is an index that is rebuilt from them on load.

mod network;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, SandboxId};
pub use network::MAX_RELEASED;
use network::Network;
use serde::{Deserialize, Serialize};

use crate::error::AllocError;
use crate::lease::{AttachmentId, Lease, LeaseKey, Time};
use crate::number::{Family, bounds};
use crate::pool::Pool;

/// All leases of a node, by network and address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "stored::Stored")]
pub struct Leases {
    networks: BTreeMap<String, Network>,
    /// Live leases by holder.
    held: BTreeMap<SandboxId, BTreeSet<(IfName, LeaseKey)>>,
}

/// Which address an attachment requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaseRequest {
    /// Any free address.
    Any,
    /// This address if it is free, otherwise any.
    Sticky(IpAddr),
    /// Exactly this address. An attachment may hold several of these in addition to its dynamic address.
    Fixed(IpAddr),
}

/// Address capacity of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Allocatable addresses of the pools.
    pub total: u128,
    /// Of these, leased addresses.
    pub used: u128,
    /// Of these, free addresses.
    pub free: u128,
    /// Leased addresses of the network that no pool covers any more: a range shrank or was removed.
    pub out_of_pool: u128,
}

impl Leases {
    /// Allocates an address of the pool, with the prefix length of the pool's range.
    ///
    /// The lowest address that was never used comes first, then the one that was released longest ago. Idempotent: an
    /// attachment gets the address that it already holds; a new instance of its sandbox takes the lease over.
    pub fn allocate(
        &mut self,
        pool: &Pool,
        owner: &AttachmentId,
        instance: &SandboxInstance,
        request: LeaseRequest,
        now: Time,
    ) -> Result<IpNet, AllocError> {
        self.allocate_in_order(std::slice::from_ref(pool), owner, instance, request, now)
    }

    /// Allocates one address from several pools of a network, like [`Leases::allocate`]: from the first pool with a free
    /// address, unless the attachment holds or previously held an address of another pool.
    pub fn allocate_in_order(
        &mut self,
        pools: &[Pool],
        owner: &AttachmentId,
        instance: &SandboxInstance,
        request: LeaseRequest,
        now: Time,
    ) -> Result<IpNet, AllocError> {
        let held = pools.iter().find_map(|pool| Some((pool, self.held(pool, owner, request)?)));
        let (pool, address) = match held {
            Some((pool, address)) => {
                self.renew(&pool.network, address, instance, now);
                (pool, address)
            }
            None => {
                let (pool, address) = self.choose(pools, request)?;
                let fixed = matches!(request, LeaseRequest::Fixed(_));
                let (owner, instance) = (owner.clone(), instance.clone());
                let lease = Lease { owner, instance, since: now, fixed, name: None, released: None };
                self.restore(&pool.network, address, lease);
                (pool, address)
            }
        };
        Ok(pool.with_prefix(address))
    }

    /// The address that the attachment already holds and that satisfies the request.
    pub fn held(&self, pool: &Pool, owner: &AttachmentId, request: LeaseRequest) -> Option<IpAddr> {
        let satisfies = |address: &IpAddr| match request {
            LeaseRequest::Fixed(requested) => *address == requested,
            LeaseRequest::Any | LeaseRequest::Sticky(_) => {
                self.get(&pool.network, *address).is_some_and(|lease| !lease.fixed)
            }
        };
        self.held_by(owner)
            .filter(|key| key.network == pool.network && pool.contains(key.address))
            // The range may have changed, so that the address is now its broadcast address.
            .filter(|key| pool.unavailable_reason(key.address).is_none())
            .map(|key| key.address)
            .find(satisfies)
    }

    fn renew(&mut self, network: &str, address: IpAddr, instance: &SandboxInstance, now: Time) {
        let lease = self.networks.get_mut(network).and_then(|network| network.get_mut(address));
        if let Some(lease) = lease.filter(|lease| lease.instance != *instance) {
            lease.instance = instance.clone();
            lease.since = now;
        }
    }

    /// A free address and its pool. Does not change any lease.
    fn choose<'a>(&self, pools: &'a [Pool], request: LeaseRequest) -> Result<(&'a Pool, IpAddr), AllocError> {
        match request {
            LeaseRequest::Fixed(address) => {
                let pool = pools.iter().find(|pool| pool.contains(address)).or(pools.first());
                if let Some(pool) = pool {
                    return self.check_free(pool, address).map(|()| (pool, address));
                }
            }
            LeaseRequest::Sticky(address) => {
                let is_free = |pool: &&Pool| pool.is_local(address) && self.check_free(pool, address).is_ok();
                if let Some(pool) = pools.iter().find(is_free) {
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

    /// Whether this address of the pool can be allocated now.
    fn check_free(&self, pool: &Pool, address: IpAddr) -> Result<(), AllocError> {
        let network = || pool.network.clone();
        if !pool.contains(address) {
            return Err(AllocError::OutsideRange { network: network(), range: pool.range, address });
        }
        if let Some(reason) = pool.unavailable_reason(address) {
            return Err(AllocError::Unavailable { network: network(), address, reason });
        }
        match self.get(&pool.network, address).filter(|lease| lease.is_live()) {
            Some(lease) => Err(AllocError::InUse { network: network(), address, owner: lease.owner.clone() }),
            None => Ok(()),
        }
    }

    /// The next free address of the pool.
    fn free(&self, pool: &Pool) -> Option<IpAddr> {
        let allocatable = pool.allocatable()?;
        let free = match self.networks.get(&pool.network) {
            Some(network) => network.free(pool.family(), &allocatable),
            None => allocatable.lowest_free(&crate::interval_set::IntervalSet::default()),
        };
        free.map(|free| pool.family().address(free))
    }

    /// Inserts a recorded lease, replacing any other lease of the address.
    pub fn restore(&mut self, network: &str, address: IpAddr, lease: Lease) {
        let key = LeaseKey { network: network.to_owned(), address };
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

    fn unhold(&mut self, owner: &AttachmentId, key: &LeaseKey) {
        if let Some(held) = self.held.get_mut(&owner.sandbox) {
            held.remove(&(owner.interface.clone(), key.clone()));
            if held.is_empty() {
                self.held.remove(&owner.sandbox);
            }
        }
    }

    /// Releases all addresses of the attachment.
    pub fn release(&mut self, owner: &AttachmentId, now: Time) -> Vec<LeaseKey> {
        let keys = self.held_by(owner).cloned().collect();
        self.release_each(keys, now)
    }

    /// Releases all addresses of the sandbox.
    pub fn release_all(&mut self, sandbox: &SandboxId, now: Time) -> Vec<LeaseKey> {
        self.release_all_but(sandbox, &BTreeSet::new(), now)
    }

    /// Releases all addresses of the sandbox except those of these interfaces.
    pub fn release_all_but(
        &mut self,
        sandbox: &SandboxId,
        interfaces: &BTreeSet<IfName>,
        now: Time,
    ) -> Vec<LeaseKey> {
        let held = self.held.get(sandbox).into_iter().flatten();
        let gone = held.filter(|(interface, _)| !interfaces.contains(interface));
        let keys = gone.map(|(_, key)| key.clone()).collect();
        self.release_each(keys, now)
    }

    /// Releases one address, regardless of its holder.
    pub fn release_address(&mut self, key: &LeaseKey, now: Time) -> bool {
        !self.release_each(vec![key.clone()], now).is_empty()
    }

    /// Releases every lease for which `is_alive` is false, and returns them. Leases never expire by age.
    pub fn garbage_collect(&mut self, is_alive: impl Fn(&Lease) -> bool, now: Time) -> Vec<LeaseKey> {
        let stale = |(network, address, lease): (&str, IpAddr, &Lease)| {
            let is_stale = lease.is_live() && !is_alive(lease);
            is_stale.then(|| LeaseKey { network: network.to_owned(), address })
        };
        let keys = self.iter().filter_map(stale).collect();
        self.release_each(keys, now)
    }

    fn release_each(&mut self, keys: Vec<LeaseKey>, now: Time) -> Vec<LeaseKey> {
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

    /// Drops the released leases of a removed network. Live leases stay.
    pub fn forget_network(&mut self, network: &str) {
        if let Some(known) = self.networks.get_mut(network) {
            known.forget_released();
            if known.is_empty() {
                self.networks.remove(network);
            }
        }
    }

    /// Capacity of a network with one pool. See [`Leases::capacity_of`].
    pub fn capacity(&self, pool: &Pool) -> Capacity {
        self.capacity_of(&pool.network, std::slice::from_ref(pool))
    }

    /// Capacity of a network. Its pools must not overlap.
    pub fn capacity_of(&self, network: &str, pools: &[Pool]) -> Capacity {
        let known = self.networks.get(network);
        let mut capacity = Capacity::default();
        for pool in pools.iter().filter(|pool| pool.network == network) {
            let Some(allocatable) = pool.allocatable() else { continue };
            capacity.total = capacity.total.saturating_add(allocatable.count());
            capacity.used += known.map_or(0, |known| known.used(pool.family(), &allocatable));
        }
        capacity.free = capacity.total.saturating_sub(capacity.used);
        capacity.out_of_pool = known.map_or(0, Network::live).saturating_sub(capacity.used);
        capacity
    }

    /// Number of leased addresses of a network within a range.
    pub fn live_in(&self, network: &str, range: IpNet) -> u128 {
        let (first, last) = bounds(range);
        let known = self.networks.get(network);
        known.map_or(0, |known| known.live_between(Family::of(range.addr()), first, last))
    }

    /// The lease of an address, live or released.
    pub fn get(&self, network: &str, address: IpAddr) -> Option<&Lease> {
        self.networks.get(network)?.get(address)
    }

    /// The address of the pool that the attachment released last and that is still free, for [`LeaseRequest::Sticky`].
    pub fn last_released_by(&self, pool: &Pool, owner: &AttachmentId) -> Option<IpAddr> {
        let released = self.networks.get(&pool.network)?.released(owner);
        let candidates = released.filter(|(address, lease)| pool.contains(*address) && !lease.fixed);
        let order = |lease: &Lease| lease.released.map(|released| released.order);
        candidates.max_by_key(|(_, lease)| order(lease)).map(|(address, _)| address)
    }

    /// Sets the sticky name of a leased address; see [`Leases::last_released_under`].
    pub fn set_sticky_name(&mut self, network: &str, address: IpAddr, name: Option<String>) {
        let lease = self.networks.get_mut(network).and_then(|network| network.get_mut(address));
        if let Some(lease) = lease.filter(|lease| lease.is_live()) {
            lease.name = name;
        }
    }

    /// The address of the pool that was released last under a sticky name, for [`LeaseRequest::Sticky`]. Scans all leases of
    /// the network.
    pub fn last_released_under(&self, pool: &Pool, name: &str) -> Option<IpAddr> {
        let all = self.networks.get(&pool.network)?.iter();
        let excluded =
            all.filter(|(address, lease)| lease.name.as_deref() == Some(name) && pool.contains(*address));
        let released = excluded.filter_map(|(address, lease)| Some((lease.released?.order, address)));
        released.max_by_key(|(order, _)| *order).map(|(_, address)| address)
    }

    /// Leases of an attachment, sorted by network and address.
    pub fn held_by(&self, owner: &AttachmentId) -> impl Iterator<Item = &LeaseKey> {
        let held = self.held.get(&owner.sandbox).into_iter().flatten();
        held.filter(|(interface, _)| *interface == owner.interface).map(|(_, key)| key)
    }

    /// All leases, live or released, sorted by network and address.
    pub fn iter(&self) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        self.networks.iter().flat_map(|(name, network)| {
            network.iter().map(move |(address, lease)| (name.as_str(), address, lease))
        })
    }
}
