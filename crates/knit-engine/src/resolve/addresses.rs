//! Addresses of an interface: one of each range, and those that are asked for by value.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, Pool, Split, Want as Ask};
use knit_model::IfName;
use knit_model::intent::Want;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;

use super::interface::{Builder, Wanted};
use crate::blocks::PoolKey;
use crate::call::RangeWish;
use crate::state::{LeaseTaken, State};

impl Builder<'_> {
    /// One address of each range, and those that are asked for by value, at most so many. Asking again gives the same.
    pub(super) fn addresses(
        &mut self,
        wanted: &Wanted,
        name: &IfName,
        ranges: &[IpNet],
        most: usize,
    ) -> Result<Vec<IpNet>, (Reason, String)> {
        let network = wanted.network();
        let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: name.clone() };
        let is_shared = wanted.is_shared(self.state);
        let node_pools = self.node_pools(wanted);
        let mut addresses = Vec::new();
        let mut waits = None;
        for (mut pools, ask) in wanted.places(ranges, &node_pools).into_iter().take(most) {
            let had: BTreeSet<IpAddr> = self.state.leases.held_by(&owner).map(|key| key.address).collect();
            // What goes and comes again, by `undo` or by a label, finds its address as it was.
            let last = pools.iter().find_map(|pool| self.state.leases.last_of(pool, &owner));
            let ask = match last {
                Some(last) if ask == Ask::Any => Ask::Sticky(last),
                _ => ask,
            };
            // An address that is asked for by value is the asker's own choice, on whichever node.
            let is_shared = is_shared && !matches!(ask, Ask::Fixed(_));
            if is_shared {
                pools = pools.into_iter().map(|pool| self.own_part(pool, &owner, ask)).collect();
            }
            for pool in pools.iter_mut().filter(|pool| !self.state.gives(pool.range, &node_pools)) {
                pool.blocks = Some(Vec::new());
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
                (Err(why @ AllocError::Exhausted { .. }), [pool, ..])
                    if self.is_more_to_come(pool.range, &node_pools) =>
                {
                    let message = format!("{why}; another block is being claimed for this node");
                    return Err((Reason::NotReady, message));
                }
                (Err(why), _) => return Err((why.reason(), why.to_string())),
            };
            let whose = pools.iter().find(|pool| pool.range.contains(&address.addr()));
            if let Some(pool) = whose.filter(|pool| is_shared && !pool.is_own(address.addr())) {
                self.stray(wanted, &PoolKey::of(pool), name, address.addr());
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

    /// The pools that this node's ranges of the network are of.
    pub(super) fn node_pools(&self, wanted: &Wanted) -> Vec<IpNet> {
        let name = wanted.want.network.as_deref().unwrap_or_default();
        let cluster = self.state.cluster().filter(|cluster| cluster.is(&wanted.tenant, name));
        cluster.and_then(|cluster| cluster.ways).map(|ways| ways.pools.clone()).unwrap_or_default()
    }

    /// Whether this node is about to have another range like this one.
    fn is_more_to_come(&self, range: IpNet, node_pools: &[IpNet]) -> bool {
        let ipv6 = range.addr().is_ipv6();
        node_pools.iter().any(|pool| pool.addr().is_ipv6() == ipv6) && self.state.is_taking(ipv6)
    }

    /// What of a range that nodes share is this node's to give.
    fn own_part(&self, pool: Pool, owner: &AttachmentId, ask: Ask) -> Pool {
        let key = PoolKey::of(&pool);
        let mut pool = pool.of_blocks(self.state.blocks.own(&key));
        if self.state.leases.held(&pool, owner, ask).is_none() {
            pool.reserved = asked_by_value(self.state, &pool.network);
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
                "interface {name} of pod {} keeps {address}, but node {} holds its block (ipblock/{block}) and may give it to another pod",
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
            if let Want::Interface(want) = &intent.want
                && !want.fixed.is_empty()
                && intent.origin.dialect == Dialect::Kubernetes
            {
                let wanted = Wanted {
                    object: object.clone(),
                    why: intent.origin.clone(),
                    want: (**want).clone(),
                    tenant: object.namespace.clone(),
                    sets: Vec::new(),
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
    fn places(&self, ranges: &[IpNet], node_pools: &[IpNet]) -> Vec<(Vec<Pool>, Ask)> {
        let fixed = &self.want.fixed;
        // In a call, an address by value stands for its range and for its set, and a set for the ranges that it is of.
        let is_open = |range: &&IpNet| {
            !self.is_call()
                || (!fixed.iter().any(|fixed| range.contains(&fixed.addr()))
                    && !self.sets.iter().flatten().any(|wish| wish.range_of(ranges) == Some(**range)))
        };
        let mut open: Vec<Vec<Pool>> = Vec::new();
        for range in ranges.iter().filter(is_open) {
            let ipv6 = range.addr().is_ipv6();
            let pool = self.pool(*range, false);
            let is_pooled = node_pools.iter().any(|pool| pool.addr().is_ipv6() == ipv6);
            let place =
                open.iter_mut().find(|place| place.iter().all(|one| one.range.addr().is_ipv6() == ipv6));
            match place.filter(|_| is_pooled) {
                Some(place) => place.push(pool),
                None => open.push(vec![pool]),
            }
        }
        let open = open.into_iter().map(|pools| (pools, Ask::Any));
        let has_fixed = |set: &&Vec<RangeWish>| {
            set.iter().any(|wish| fixed.iter().any(|fixed| wish.part().contains(fixed.addr())))
        };
        let sets = self.sets.iter().filter(|set| !has_fixed(set)).filter_map(|set| {
            let pool = |wish: &RangeWish| Some(self.pool(wish.range_of(ranges)?, false).within(wish.part()));
            let pools: Vec<Pool> = set.iter().filter_map(pool).collect();
            // What the network lost since then gives nothing any more.
            (!pools.is_empty()).then_some((pools, Ask::Any))
        });
        let by_value =
            fixed.iter().map(|fixed| (vec![self.pool(fixed.trunc(), true)], Ask::Fixed(fixed.addr())));
        open.chain(sets).chain(by_value).collect()
    }

    /// A range as a pool. Where there is no bridge nobody has its address, and a single address has none for it.
    fn pool(&self, range: IpNet, by_value: bool) -> Pool {
        let has_bridge = self.want.network.is_some() || self.bridge().is_some();
        let single = range.prefix_len() == range.max_prefix_len();
        if single || (by_value && !has_bridge) {
            Pool::new(self.network(), range)
        } else {
            Pool::with_gateway(self.network(), range)
        }
    }

    /// The network that addresses come from: the one that is named, the bridge, or the object's own when there is none.
    fn network(&self) -> String {
        let namespace = &self.tenant;
        match (&self.want.network, self.bridge()) {
            (Some(network), _) => format!("{namespace}/network/{network}"),
            (None, Some(bridge)) => bridge.to_string(),
            (None, None) => format!("{namespace}/{}/{}", self.object.kind, self.object.name),
        }
    }

    /// Whether nodes share its ranges: whoever states them does so for all nodes.
    fn is_shared(&self, state: &State) -> bool {
        match &self.want.network {
            Some(network) => state.is_shared_network(&self.tenant, network),
            None => self.why.dialect == Dialect::Kubernetes,
        }
    }
}
