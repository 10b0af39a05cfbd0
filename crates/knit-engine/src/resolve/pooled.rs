//! Addresses of the cluster's network where its ranges are blocks of pools: which ranges are for a pod, and what is said to one
//! that finds no address there.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, LeaseRequest, Pool};
use knit_model::intent::AddressPoolIntent;
use knit_model::problem::Reason;

use super::interface::{Builder, Wanted};
use crate::cluster;
use crate::pools::{block_name, key, next_free};

/// Why there is no address.
type Why = (Reason, String);

impl Builder<'_> {
    /// The pools that this node's ranges of the network are of.
    pub(super) fn node_pools(&self, wanted: &Wanted) -> Vec<IpNet> {
        let name = wanted.want.network.as_deref().unwrap_or_default();
        let cluster = self.state.cluster().filter(|cluster| cluster.is(&wanted.tenant, name));
        cluster.and_then(|cluster| cluster.ways).map(|ways| ways.pools.clone()).unwrap_or_default()
    }

    /// Of these ranges, those that are for the pod. Of another it keeps what it has.
    pub(super) fn for_pod(
        &self,
        pools: Vec<Pool>,
        owner: &AttachmentId,
        ask: LeaseRequest,
        node_pools: &[IpNet],
    ) -> Vec<Pool> {
        let narrowed = pools.into_iter().filter_map(|pool| {
            let gives = self.state.gives(pool.range, node_pools, &self.sandbox.namespace);
            let is_held = || self.state.leases.held(&pool, owner, ask).is_some();
            match gives {
                true => Some(pool),
                false if is_held() => Some(pool.of_blocks(Vec::new())),
                false => None,
            }
        });
        narrowed.collect()
    }

    /// Whether a pod for which there is no range of a family has no address of it: it is for no such pool, or it was there
    /// before the pool.
    pub(super) fn does_without(&self, owner: &AttachmentId, ipv6: bool) -> bool {
        self.state.pools_for(&self.sandbox.namespace, ipv6).is_empty() || self.has_any(owner)
    }

    fn has_any(&self, owner: &AttachmentId) -> bool {
        let network = cluster::network_id();
        self.state.leases.held_by(owner).any(|key| key.network == network)
    }

    /// Why a new pod waits, if this node has no range at all yet in a family that there are pools for it in.
    pub(super) fn without_range(
        &mut self,
        places: &[(Vec<Pool>, LeaseRequest)],
        owner: &AttachmentId,
        node_pools: &[IpNet],
    ) -> Option<Why> {
        let has_range = |ipv6: bool| {
            let mut ranges = places.iter().flat_map(|(pools, _)| pools).map(|pool| pool.range);
            ranges.any(|range| range.addr().is_ipv6() == ipv6)
        };
        let is_new = !node_pools.is_empty() && !self.has_any(owner);
        let missing = |ipv6: &bool| !has_range(*ipv6) && !self.does_without(owner, *ipv6);
        let missing: Vec<bool> = [false, true].into_iter().filter(|ipv6| is_new && missing(ipv6)).collect();
        let why = missing.into_iter().map(|ipv6| self.short_of_pools(ipv6));
        why.collect::<Vec<_>>().into_iter().next()
    }

    /// No range for the pod has an address left. Says what there is to say until there is one.
    pub(super) fn short_of(&mut self, why: &AllocError, ipv6: bool) -> Why {
        match self.state.pools_for(&self.sandbox.namespace, ipv6).is_empty() {
            true => (why.reason(), why.to_string()),
            false => self.short_of_pools(ipv6),
        }
    }

    fn short_of_pools(&mut self, ipv6: bool) -> Why {
        let pools = self.state.pools_for(&self.sandbox.namespace, ipv6);
        let titles: Vec<String> = pools.iter().map(|pool| title(pool)).collect();
        let not_ready = |why: &str| {
            let message = format!("network {}: {} {why}", cluster::NAME, titles.join(" and "));
            (Reason::NotReady, message)
        };
        if self.state.room(self.state.own_blocks_of(&pools)) > 0 {
            return not_ready("gave this node a block, which is not ready yet");
        }
        if !self.state.blocks.listed {
            return not_ready(
                "has no address left here: the API server has not told yet which blocks are taken",
            );
        }
        let claims = self.state.blocks.claims.values();
        let mut late = claims.filter(|claim| pools.iter().any(|pool| key(pool) == claim.pool));
        if let Some(why) = late.find_map(|claim| claim.late.clone()) {
            return not_ready(&format!(
                "has no address left here: another block cannot be claimed so far ({why})"
            ));
        }
        let coming = not_ready("has no address left here; another block is being claimed for this node");
        if self.state.is_taking(&pools) {
            return coming;
        }
        if let Some(pool) = pools.iter().find(|pool| next_free(self.state, pool, "").is_some()) {
            let key = key(pool);
            self.resolved.waits.entry(key).or_default().addresses += 1;
            return coming;
        }
        let used_up: Vec<String> = pools.iter().map(|pool| self.used_up(pool)).collect();
        (Reason::AddressesExhausted, format!("network {}: {}", cluster::NAME, used_up.join("; ")))
    }

    /// How a pool came to have nothing left for this node.
    fn used_up(&self, pool: &AddressPoolIntent) -> String {
        let title = title(pool);
        let own = self.state.own_blocks_of(&[pool]);
        let total: u128 = own.iter().map(|block| Pool::with_gateway("", block.cidr).total()).sum();
        let of = key(pool).title();
        let others = self.state.blocks.others.values().filter(|block| block.pool == of).count();
        match (total, others) {
            (0, others) => format!("{title} is exhausted: other nodes hold all of its {others} blocks"),
            (total, 0) => format!("{title} is exhausted: all {total} addresses are in use"),
            (total, others) => format!(
                "{title} is exhausted: all {total} addresses of this node's blocks are in use, and other nodes hold the other {others} blocks"
            ),
        }
    }

    /// An address that is asked for by value is given where its block is held; a block that nobody holds is claimed for it.
    pub(super) fn check_fixed(
        &mut self,
        address: IpAddr,
        owner: &AttachmentId,
        ranges: &[IpNet],
        node_pools: &[IpNet],
    ) -> Result<(), Why> {
        let is_held = self.state.leases.held_by(owner).any(|key| key.address == address);
        let of_pool = self.state.pool_of(address).filter(|_| !node_pools.is_empty() && !is_held);
        let Some((pool, block)) = of_pool else { return Ok(()) };
        let of = key(pool);
        let Some(name) = block_name(&of, block) else { return Ok(()) };
        let title = format!("network {}: {address} of {}", cluster::NAME, title(pool));
        let blocks = &self.state.blocks;
        if blocks.mine.contains_key(&name) {
            return match ranges.contains(&block) {
                true => Ok(()),
                false => Err((
                    Reason::NotReady,
                    format!("{title} is in podaddressblock/{name}, which is not ready yet"),
                )),
            };
        }
        if let Some(other) = blocks.others.get(&name) {
            let message = format!(
                "{title} is in podaddressblock/{name} ({block}), which node {} holds: pods can have it there alone",
                other.node
            );
            return Err((Reason::Conflict, message));
        }
        let why = match blocks.claims.get(&name).and_then(|claim| claim.late.clone()) {
            Some(why) => format!("which cannot be claimed so far ({why})"),
            None => "which is being claimed for this node".to_owned(),
        };
        self.resolved.waits.entry(of).or_default().blocks.insert(block);
        Err((Reason::NotReady, format!("{title} waits for podaddressblock/{name}, {why}")))
    }

    /// Why an address was not given; who has it is said by the pod's name.
    pub(super) fn in_words(&self, why: &AllocError) -> String {
        if let AllocError::InUse { network, address, owner } = why
            && let Some(holder) = self.state.sandboxes.get(&owner.sandbox)
        {
            return format!(
                "network {network}: {address} is in use by interface {} of pod {}",
                owner.interface,
                holder.title()
            );
        }
        why.to_string()
    }
}

fn title(pool: &AddressPoolIntent) -> String {
    format!("pool {} ({})", pool.name, pool.range)
}
