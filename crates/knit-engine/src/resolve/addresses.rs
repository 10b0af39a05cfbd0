//! Addresses of an interface: one of each range, and those that are asked for by value.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, LeaseRequest, Pool, Split, last_quarter};
use knit_model::intent::IntentSpec;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;
use knit_model::{IfName, Sandbox};

use super::interface::{Builder, Wanted};
use crate::blocks::PoolKey;
use crate::call::{RangeWish, STICKY_BY_POD};
use crate::state::{LeaseTaken, State};

/// The kind of objects that define networks.
const DEFINITION: &str = "NetworkAttachmentDefinition";

impl Builder<'_> {
    /// One address of each range, and those that are asked for by value, at most so many. Asking again gives the same.
    pub(super) fn addresses(
        &mut self,
        wanted: &Wanted,
        name: &IfName,
        ranges: &[IpNet],
        most: usize,
    ) -> Result<Vec<IpNet>, (Reason, String)> {
        let found = self.find_addresses(wanted, name, ranges, most);
        if found.is_err() {
            self.await_all(wanted);
        }
        found
    }

    fn find_addresses(
        &mut self,
        wanted: &Wanted,
        name: &IfName,
        ranges: &[IpNet],
        most: usize,
    ) -> Result<Vec<IpNet>, (Reason, String)> {
        let network = wanted.network();
        let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: name.clone() };
        let sticky = wanted.sticky_key(self.sandbox);
        let is_shared = wanted.is_shared(self.state);
        let node_pools = self.node_pools(wanted);
        let places = wanted.places(ranges, &node_pools);
        let mut addresses = Vec::new();
        let mut waits = self.without_range(&places, &owner, &node_pools);
        for (mut pools, ask) in places.into_iter().take(most) {
            if let LeaseRequest::Fixed(address) = ask {
                self.check_fixed(address, &owner, ranges, &node_pools)?;
                self.check_alone(wanted, address, &owner)?;
            }
            let had: BTreeSet<IpAddr> = self.state.leases.held_by(&owner).map(|key| key.address).collect();
            // What goes and comes again, by `undo` or by a label, finds its address as it was.
            let leases = &self.state.leases;
            let last = pools.iter().find_map(|pool| leases.last_of(pool, &owner));
            let last =
                last.or_else(|| pools.iter().find_map(|pool| leases.last_under(pool, sticky.as_ref()?)));
            let ask = match last {
                Some(last) if ask == LeaseRequest::Any => LeaseRequest::Sticky(last),
                _ => ask,
            };
            // An address that is asked for by value is the asker's own choice, on whichever node.
            let is_shared = is_shared && !matches!(ask, LeaseRequest::Fixed(_));
            if is_shared {
                pools = pools.into_iter().map(|pool| self.own_part(pool, &owner, ask)).collect();
            }
            let ipv6 = pools.iter().any(|pool| pool.range.addr().is_ipv6());
            if !matches!(ask, LeaseRequest::Fixed(_)) {
                pools = self.for_pod(pools, &owner, ask, &node_pools);
                if pools.is_empty() && self.does_without(&owner, ipv6) {
                    continue;
                }
            }
            let instance = &self.sandbox.instance;
            let given = self.state.leases.allocate_in_order(&pools, &owner, instance, ask, self.now);
            let address = match (given, &pools[..]) {
                (Ok(address), _) => address,
                // Another block would not help one who asks for a part of the range.
                (Err(AllocError::Exhausted { total, .. }), [pool]) if is_shared && pool.part.is_none() => {
                    let why = self.wait_for_block(&PoolKey::of(pool), pool, total);
                    waits = waits.or(Some(why));
                    continue;
                }
                (Err(why @ AllocError::Exhausted { .. }), _) if !node_pools.is_empty() => {
                    return Err(self.short_of(&why, ipv6));
                }
                (Err(why), _) => return Err((why.reason(), self.in_words(&why))),
            };
            let whose = pools.iter().find(|pool| pool.range.contains(&address.addr()));
            if let Some(pool) = whose.filter(|pool| is_shared && !pool.is_own(address.addr())) {
                self.stray(wanted, &PoolKey::of(pool), name, address.addr());
            }
            if !had.contains(&address.addr()) {
                self.state.leases.keep_for(&network, address.addr(), sticky.clone());
            }
            if let Some(lease) =
                self.state.leases.get(&network, address.addr()).filter(|_| !had.contains(&address.addr()))
            {
                let taken =
                    LeaseTaken { network: network.clone(), address: address.addr(), lease: lease.clone() };
                self.resolved.leases.push(taken);
            }
            addresses.push(address);
        }
        waits.map_or(Ok(addresses), Err)
    }

    /// What of a range that nodes share is this node's to give.
    fn own_part(&self, pool: Pool, owner: &AttachmentId, ask: LeaseRequest) -> Pool {
        let key = PoolKey::of(&pool);
        let mut pool = pool.of_blocks(self.state.blocks.own(&key));
        if self.state.leases.held(&pool, owner, ask).is_none() {
            pool.reserved.extend(asked_by_value(self.state, &pool.network));
            if self.state.spanning_with(&pool.network).is_some() {
                // Those are claimed alone, by whoever asks for them by value.
                pool.reserved.extend(last_quarter(pool.range));
            }
        }
        pool
    }

    /// This node's blocks are full: another one is needed. Says what there is to say until it is there.
    fn wait_for_block(&mut self, key: &PoolKey, pool: &Pool, own: u128) -> (Reason, String) {
        let wait = self.resolved.waits.entry(key.clone()).or_default();
        wait.addresses += 1;
        wait.reserved.clone_from(&pool.reserved);
        let PoolKey { network, range } = key;
        let blocks = &self.state.blocks;
        let whole = Pool { blocks: None, ..pool.clone() };
        let others = blocks.held_by_others(key, &whole);
        if blocks.is_open(key, &whole) {
            let late =
                blocks.claims.values().filter(|claim| claim.pool == *key).find_map(|one| one.late.clone());
            let why = match late {
                Some(why) => format!(": none can be claimed so far ({why})"),
                None if !blocks.listed => ": the API server has not told yet which are taken".to_owned(),
                None => ", which is being claimed for this node".to_owned(),
            };
            return (
                Reason::NotReady,
                format!("network {network} range {range} waits for a block of addresses{why}"),
            );
        }
        let message = match (others, own) {
            (0, _) => {
                let (network, range) = (network.clone(), *range);
                AllocError::Exhausted { network, ranges: range.to_string(), total: whole.total() }.to_string()
            }
            (others, 0) => format!(
                "network {network} range {range} is exhausted: other nodes hold all of its {others} blocks"
            ),
            (others, own) => format!(
                "network {network} range {range} is exhausted: all {own} addresses of this node's blocks are in use, and other nodes hold the other {others} blocks"
            ),
        };
        (Reason::AddressesExhausted, message)
    }

    /// A running pod has an address of a block that is not this node's: it keeps it, and the block is claimed if it can be.
    fn stray(&mut self, wanted: &Wanted, key: &PoolKey, name: &IfName, address: IpAddr) {
        let Some(index) = Split::of(key.range).index_of(address) else { return };
        self.resolved.waits.entry(key.clone()).or_default().strays.insert(index);
        let block = key.block_name(index);
        if let Some(other) = self.state.blocks.others.get(&block) {
            let message = format!(
                "interface {name} of pod {} keeps {address}, but node {} holds its block (podaddressblock/{block}) and may give it to another pod",
                self.sandbox.title(),
                other.node
            );
            self.resolved.made.warnings.push((wanted.object.clone(), message));
        }
    }
}

/// Addresses of a network that objects of a cluster ask for by value, wherever their pods are: no node gives them to others.
fn asked_by_value(state: &State, network: &str) -> Vec<IpNet> {
    let mut fixed = Vec::new();
    for (object, stored) in &state.objects {
        for intent in &stored.intents {
            if let IntentSpec::Interface(want) = &intent.spec
                && !want.fixed.is_empty()
                && intent.origin.dialect == Dialect::Kubernetes
            {
                let wanted = Wanted {
                    object: object.clone(),
                    why: intent.origin.clone(),
                    want: (**want).clone(),
                    tenant: want.tenant(&object.namespace).to_owned(),
                    sets: Vec::new(),
                    sticky: String::new(),
                };
                if wanted.network() == network {
                    fixed.extend(want.fixed.iter().map(|fixed| IpNet::from(fixed.addr())));
                }
            }
        }
    }
    fixed
}

impl Wanted {
    /// Where each address is looked for, in this order: in the ranges, in the sets of a call, by value. All ranges of a family
    /// are one place where they are of pools.
    fn places(&self, ranges: &[IpNet], node_pools: &[IpNet]) -> Vec<(Vec<Pool>, LeaseRequest)> {
        let fixed = &self.want.fixed;
        let is_pooled = |ipv6: bool| node_pools.iter().any(|pool| pool.addr().is_ipv6() == ipv6);
        // In a call, an address by value stands for its range and for its set, and a set for the ranges that it is of. Ranges
        // of pools stand for each other.
        let is_meant = |range: &IpNet, fixed: &IpNet| {
            let ipv6 = range.addr().is_ipv6();
            range.contains(&fixed.addr()) || (is_pooled(ipv6) && fixed.addr().is_ipv6() == ipv6)
        };
        let is_open = |range: &&IpNet| {
            !(self.is_call() || self.want.defined.is_some())
                || (!fixed.iter().any(|fixed| is_meant(range, fixed))
                    && !self.sets.iter().flatten().any(|wish| wish.range_of(ranges) == Some(**range)))
        };
        let mut open: Vec<Vec<Pool>> = Vec::new();
        for range in ranges.iter().filter(is_open) {
            let ipv6 = range.addr().is_ipv6();
            let pool = self.pool(*range, false);
            let place =
                open.iter_mut().find(|place| place.iter().all(|one| one.range.addr().is_ipv6() == ipv6));
            match place.filter(|_| is_pooled(ipv6)) {
                Some(place) => place.push(pool),
                None => open.push(vec![pool]),
            }
        }
        let open = open.into_iter().map(|pools| (pools, LeaseRequest::Any));
        let has_fixed = |set: &&Vec<RangeWish>| {
            set.iter().any(|wish| fixed.iter().any(|fixed| wish.part().contains(fixed.addr())))
        };
        let sets = self.sets.iter().filter(|set| !has_fixed(set)).filter_map(|set| {
            let pool = |wish: &RangeWish| Some(self.pool(wish.range_of(ranges)?, false).within(wish.part()));
            let pools: Vec<Pool> = set.iter().filter_map(pool).collect();
            // What the network lost since then gives nothing any more.
            (!pools.is_empty()).then_some((pools, LeaseRequest::Any))
        });
        let by_value = fixed
            .iter()
            .map(|fixed| (vec![self.pool(fixed.trunc(), true)], LeaseRequest::Fixed(fixed.addr())));
        open.chain(sets).chain(by_value).collect()
    }

    /// A range as a pool. Where there is no bridge nobody has its address, and a single address has none for it.
    fn pool(&self, range: IpNet, by_value: bool) -> Pool {
        let has_bridge = self.want.network.is_some() || self.bridge().is_some();
        let single = range.prefix_len() == range.max_prefix_len();
        let mut pool = match single || (by_value && !has_bridge) {
            true => Pool::new(self.network(), range),
            false => Pool::with_gateway(self.network(), range),
        };
        // Whoever asks for an address by value means just that one.
        if let Some(defined) = self.want.defined.as_ref().filter(|_| !by_value) {
            pool.reserved.clone_from(&defined.reserved);
        }
        pool
    }

    /// The network that addresses come from: the one that is named, the bridge, or the object's own when there is none.
    pub(super) fn network(&self) -> String {
        let namespace = &self.tenant;
        match (&self.want.network, self.bridge(), &self.want.defined) {
            (Some(network), ..) => format!("{namespace}/network/{network}"),
            (None, Some(bridge), _) => bridge.to_string(),
            (None, None, Some(defined)) => format!("{namespace}/{DEFINITION}/{}", defined.name),
            (None, None, None) => format!("{namespace}/{}/{}", self.object.kind, self.object.name),
        }
    }

    /// The name under which the pod's addresses are kept for the next one like it: its own, or what it says.
    fn sticky_key(&self, sandbox: &Sandbox) -> Option<String> {
        let name = match self.sticky.as_str() {
            "" => return None,
            STICKY_BY_POD => &sandbox.pod,
            name => name,
        };
        Some(format!("{}/{name}", sandbox.namespace))
    }

    /// Whether nodes share its ranges: whoever states them does so for all nodes.
    fn is_shared(&self, state: &State) -> bool {
        match &self.want.network {
            Some(network) => state.is_shared_network(&self.tenant, network),
            None => {
                let is_said = self.want.defined.as_ref().is_some_and(|defined| defined.shared);
                is_said || self.why.dialect == Dialect::Kubernetes
            }
        }
    }
}
