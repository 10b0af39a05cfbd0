//! Addresses of an interface: one of each range, and fixed ones.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, BlockLayout, Lease, LeaseRequest, Pool, last_quarter};
use knit_model::intent::IntentSpec;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;
use knit_model::{IfName, Sandbox};

use super::interface::{Builder, RequestedInterface};
use crate::Unit;
use crate::blocks::PoolKey;
use crate::call::{RangeRequest, STICKY_BY_POD};
use crate::object_index::Feature;
use crate::state::{NewLease, State};

/// The kind of objects that define networks.
const NAD_KIND: &str = "NetworkAttachmentDefinition";

impl Builder<'_> {
    /// One address of each range and the fixed ones, at most `max`. Idempotent.
    pub(super) fn addresses(
        &mut self,
        requested: &RequestedInterface,
        name: &IfName,
        ranges: &[IpNet],
        max: usize,
    ) -> Result<Vec<IpNet>, (Reason, String)> {
        let found = self.find_addresses(requested, name, ranges, max);
        if found.is_err() {
            self.await_fixed_addresses(requested);
        }
        found
    }

    fn find_addresses(
        &mut self,
        requested: &RequestedInterface,
        name: &IfName,
        ranges: &[IpNet],
        max: usize,
    ) -> Result<Vec<IpNet>, (Reason, String)> {
        let network = requested.network();
        let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: name.clone() };
        let sticky = requested.sticky_key(self.sandbox);
        let is_shared = requested.is_shared(self.state);
        let node_pools = self.node_pools(requested);
        let places = requested.places(ranges, &node_pools);
        let mut addresses = Vec::new();
        let mut waits = self.without_range(&places, &owner, &node_pools);
        for (mut pools, ask) in places.into_iter().take(max) {
            if let LeaseRequest::Fixed(address) = ask {
                self.check_fixed(address, &owner, ranges, &node_pools)?;
                self.check_single_address_claim(requested, address, &owner)?;
            }
            let had: BTreeSet<IpAddr> = self.state.leases.held_by(&owner).map(|key| key.address).collect();
            // An interface that is removed and added again (by `undo`, or by a label) gets its last address.
            let leases = &self.state.leases;
            let last = pools.iter().find_map(|pool| leases.last_released_by(pool, &owner));
            let last = last
                .or_else(|| pools.iter().find_map(|pool| leases.last_released_under(pool, sticky.as_ref()?)));
            let ask = match last {
                Some(last) if ask == LeaseRequest::Any => LeaseRequest::Sticky(last),
                _ => ask,
            };
            // A fixed address does not depend on the node's blocks.
            let is_shared = is_shared && !matches!(ask, LeaseRequest::Fixed(_));
            if is_shared {
                pools = pools.into_iter().map(|pool| self.local_part(pool, &owner, ask)).collect();
            }
            let ipv6 = pools.iter().any(|pool| pool.range.addr().is_ipv6());
            if !matches!(ask, LeaseRequest::Fixed(_)) {
                pools = self.ranges_for_pod(pools, &owner, ask, &node_pools);
                if pools.is_empty() && self.may_skip_family(&owner, ipv6) {
                    continue;
                }
            }
            let instance = &self.sandbox.instance;
            let given = self.state.leases.allocate_in_order(&pools, &owner, instance, ask, self.now);
            let address = match (given, &pools[..]) {
                (Ok(address), _) => address,
                // Another block does not help a request for a part of the range.
                (Err(AllocError::Exhausted { total, .. }), [pool])
                    if is_shared && pool.sub_range.is_none() =>
                {
                    let error = self.wait_for_block(&PoolKey::of(pool), pool, total);
                    match self.keep_live_address(requested, name, ipv6, &error.1) {
                        Some(kept) => addresses.push(kept),
                        None => waits = waits.or(Some(error)),
                    }
                    continue;
                }
                (Err(error @ AllocError::Exhausted { .. }), _) if !matches!(ask, LeaseRequest::Fixed(_)) => {
                    let error = match node_pools.is_empty() {
                        true => (error.reason(), self.describe(&error)),
                        false => self.short_of(&error, ipv6),
                    };
                    addresses.push(self.keep_live_address(requested, name, ipv6, &error.1).ok_or(error)?);
                    continue;
                }
                (Err(error), _) => return Err((error.reason(), self.describe(&error))),
            };
            let owner_pool = pools.iter().find(|pool| pool.range.contains(&address.addr()));
            if let Some(pool) = owner_pool.filter(|pool| is_shared && !pool.is_local(address.addr())) {
                self.claim_stray(requested, &PoolKey::of(pool), name, address.addr());
            }
            if !had.contains(&address.addr()) {
                self.state.leases.set_sticky_name(&network, address.addr(), sticky.clone());
            }
            if let Some(lease) =
                self.state.leases.get(&network, address.addr()).filter(|_| !had.contains(&address.addr()))
            {
                let taken =
                    NewLease { network: network.clone(), address: address.addr(), lease: lease.clone() };
                self.resolved.leases.push(taken);
            }
            addresses.push(address);
        }
        waits.map_or(Ok(addresses), Err)
    }

    /// The address that the interface has and that its ranges do not cover any more: it stays while they have no other.
    fn keep_live_address(
        &mut self,
        requested: &RequestedInterface,
        name: &IfName,
        ipv6: bool,
        error: &str,
    ) -> Option<IpNet> {
        let network = requested.network();
        let unit = self.state.units.get(&Unit::Sandbox(self.sandbox.id.clone()))?;
        let existing = unit.interfaces.iter().map(|(_, interface)| interface);
        let existing = existing.filter(|interface| interface.name == *name && interface.ready);
        let is_live = |address: &&IpNet| {
            let lease = self.state.leases.get(&network, address.addr());
            let is_own = |lease: &&Lease| {
                lease.is_live()
                    && !lease.fixed
                    && lease.owner.sandbox == self.sandbox.id
                    && lease.owner.interface == *name
                    && lease.instance == self.sandbox.instance
            };
            lease.as_ref().is_some_and(is_own)
        };
        let mut of_family = existing.flat_map(|interface| &interface.addresses);
        let kept = *of_family.find(|address| address.addr().is_ipv6() == ipv6 && is_live(address))?;
        let title = self.sandbox.title();
        let warning = format!("interface {name} of pod {title} keeps {}: {error}", kept.addr());
        self.resolved.unit_state.warnings.push((requested.object.clone(), warning));
        Some(kept)
    }

    /// The part of a shared range from which this node may lease.
    fn local_part(&self, pool: Pool, owner: &AttachmentId, ask: LeaseRequest) -> Pool {
        let key = PoolKey::of(&pool);
        let mut pool = pool.with_blocks(self.state.blocks.own(&key));
        if self.state.leases.held(&pool, owner, ask).is_none() {
            pool.reserved.extend(fixed_addresses(self.state, &pool.network));
            if self.state.overlay_by_id(&pool.network).is_some() {
                // Reserved for fixed requests, which are claimed individually.
                pool.reserved.extend(last_quarter(pool.range));
            }
        }
        pool
    }

    /// All blocks of this node are full: requests another one. Returns the error until it is available.
    fn wait_for_block(&mut self, key: &PoolKey, pool: &Pool, own: u128) -> (Reason, String) {
        let wait = self.resolved.waits.entry(key.clone()).or_default();
        wait.addresses += 1;
        wait.reserved.clone_from(&pool.reserved);
        let PoolKey { network, range } = key;
        let blocks = &self.state.blocks;
        let whole = Pool { blocks: None, ..pool.clone() };
        let others = blocks.count_remote(key, &whole);
        if blocks.may_grow(key, &whole) {
            let late =
                blocks.claims.values().filter(|claim| claim.pool == *key).find_map(|one| one.error.clone());
            let error = match late {
                Some(error) => format!(": none can be claimed so far ({error})"),
                None if !blocks.has_synced => ": the block watch has not synced yet".to_owned(),
                None => ", which is being claimed for this node".to_owned(),
            };
            return (
                Reason::NotReady,
                format!("network {network} range {range} waits for a block of addresses{error}"),
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

    /// A running pod keeps an address of a block that this node does not hold; the block is claimed if it is free.
    fn claim_stray(&mut self, requested: &RequestedInterface, key: &PoolKey, name: &IfName, address: IpAddr) {
        let Some(index) = BlockLayout::default_for(key.range).index_of(address) else { return };
        self.resolved.waits.entry(key.clone()).or_default().strays.insert(index);
        let block = key.block_name(index);
        if let Some(other) = self.state.blocks.remote.get(&block) {
            let message = format!(
                "interface {name} of pod {} keeps {address}, but node {} holds its block (podaddressblock/{block}) and may give it to another pod",
                self.sandbox.title(),
                other.node
            );
            self.resolved.unit_state.warnings.push((requested.object.clone(), message));
        }
    }
}

/// Addresses of a network that cluster objects request by value, on any node: they are not leased to others.
fn fixed_addresses(state: &State, network: &str) -> Vec<IpNet> {
    let mut fixed = Vec::new();
    for (object, stored) in state.objects.with(Feature::FixedAddresses) {
        for intent in &stored.intents {
            if let IntentSpec::Interface(spec) = &intent.spec
                && !spec.fixed.is_empty()
                && intent.origin.dialect == Dialect::Kubernetes
            {
                let requested = RequestedInterface {
                    object: object.clone(),
                    origin: intent.origin.clone(),
                    spec: (**spec).clone(),
                    tenant: spec.tenant(&object.namespace).to_owned(),
                    sets: Vec::new(),
                    sticky: String::new(),
                };
                if requested.network() == network {
                    fixed.extend(spec.fixed.iter().map(|fixed| IpNet::from(fixed.addr())));
                }
            }
        }
    }
    fixed
}

impl RequestedInterface {
    /// Where to lease each address, in order: ranges, address sets of a call, fixed addresses. All pool ranges of a
    /// family are alternatives.
    fn places(&self, ranges: &[IpNet], node_pools: &[IpNet]) -> Vec<(Vec<Pool>, LeaseRequest)> {
        let fixed = &self.spec.fixed;
        let is_pooled = |ipv6: bool| node_pools.iter().any(|pool| pool.addr().is_ipv6() == ipv6);
        // In a call, a fixed address replaces its range and its set, and a set replaces its ranges. Pool ranges
        // replace each other.
        let is_replaced = |range: &IpNet, fixed: &IpNet| {
            let ipv6 = range.addr().is_ipv6();
            range.contains(&fixed.addr()) || (is_pooled(ipv6) && fixed.addr().is_ipv6() == ipv6)
        };
        let is_open = |range: &&IpNet| {
            !(self.is_call() || self.spec.definition.is_some())
                || (!fixed.iter().any(|fixed| is_replaced(range, fixed))
                    && !self.sets.iter().flatten().any(|request| request.range_of(ranges) == Some(**range)))
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
        let has_fixed = |set: &&Vec<RangeRequest>| {
            set.iter().any(|request| fixed.iter().any(|fixed| request.part().contains(fixed.addr())))
        };
        let sets = self.sets.iter().filter(|set| !has_fixed(set)).filter_map(|set| {
            let pool = |request: &RangeRequest| {
                Some(self.pool(request.range_of(ranges)?, false).within(request.part()))
            };
            let pools: Vec<Pool> = set.iter().filter_map(pool).collect();
            // Ranges that the network lost meanwhile give nothing.
            (!pools.is_empty()).then_some((pools, LeaseRequest::Any))
        });
        let by_value = fixed
            .iter()
            .map(|fixed| (vec![self.pool(fixed.trunc(), true)], LeaseRequest::Fixed(fixed.addr())));
        open.chain(sets).chain(by_value).collect()
    }

    /// A range as a pool. Without a bridge there is no gateway address, nor in a single-address range.
    fn pool(&self, range: IpNet, by_value: bool) -> Pool {
        let has_bridge = self.spec.network.is_some() || self.bridge().is_some();
        let single = range.prefix_len() == range.max_prefix_len();
        let mut pool = match single || (by_value && !has_bridge) {
            true => Pool::new(self.network(), range),
            false => Pool::with_gateway(self.network(), range),
        };
        // Reserved addresses can be requested by value.
        if let Some(defined) = self.spec.definition.as_ref().filter(|_| !by_value) {
            pool.reserved.clone_from(&defined.reserved);
        }
        pool
    }

    /// The network of the leases: the named network, the bridge, or the object itself.
    pub(super) fn network(&self) -> String {
        let namespace = &self.tenant;
        match (&self.spec.network, self.bridge(), &self.spec.definition) {
            (Some(network), ..) => format!("{namespace}/network/{network}"),
            (None, Some(bridge), _) => bridge.to_string(),
            (None, None, Some(defined)) => format!("{namespace}/{NAD_KIND}/{}", defined.name),
            (None, None, None) => format!("{namespace}/{}/{}", self.object.kind, self.object.name),
        }
    }

    /// The key of sticky addresses: the pod's name, or an explicit one.
    fn sticky_key(&self, sandbox: &Sandbox) -> Option<String> {
        let name = match self.sticky.as_str() {
            "" => return None,
            STICKY_BY_POD => &sandbox.pod,
            name => name,
        };
        Some(format!("{}/{name}", sandbox.namespace))
    }

    /// Whether its ranges are shared by all nodes, because they come from an API server.
    fn is_shared(&self, state: &State) -> bool {
        match &self.spec.network {
            Some(network) => state.is_shared_network(&self.tenant, network),
            None => {
                let is_shared = self.spec.definition.as_ref().is_some_and(|defined| defined.shared);
                is_shared || self.origin.dialect == Dialect::Kubernetes
            }
        }
    }
}
