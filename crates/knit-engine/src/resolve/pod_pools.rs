//! Addresses of the cluster network from pools: which ranges a pod may use, and the errors while none is available.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AllocError, AttachmentId, LeaseRequest, Pool};
use knit_model::intent::AddressPoolIntent;
use knit_model::problem::Reason;

use super::interface::{Builder, RequestedInterface};
use crate::cluster;
use crate::pools::{block_name, key, next_free};

/// Why there is no address.
type Rejection = (Reason, String);

impl Builder<'_> {
    /// The pools of this node's ranges.
    pub(super) fn node_pools(&self, requested: &RequestedInterface) -> Vec<IpNet> {
        let name = requested.spec.network.as_deref().unwrap_or_default();
        let cluster = self.state.cluster().filter(|cluster| cluster.is(&requested.tenant, name));
        cluster
            .and_then(|cluster| cluster.node_routes)
            .map(|node_routes| node_routes.pools.clone())
            .unwrap_or_default()
    }

    /// Restricts ranges to those for the pod. From other ranges it only keeps existing leases.
    pub(super) fn ranges_for_pod(
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
                false if is_held() => Some(pool.with_blocks(Vec::new())),
                false => None,
            }
        });
        narrowed.collect()
    }

    /// Whether the pod may have no address of a family: no pool serves it, or the pod is older than the pool.
    pub(super) fn may_skip_family(&self, owner: &AttachmentId, ipv6: bool) -> bool {
        self.state.pools_for(&self.sandbox.namespace, ipv6).is_empty() || self.has_any(owner)
    }

    fn has_any(&self, owner: &AttachmentId) -> bool {
        let network = cluster::network_id();
        self.state.leases.held_by(owner).any(|key| key.network == network)
    }

    /// The error of a new pod if this node has no range yet in a family with pools for it.
    pub(super) fn without_range(
        &mut self,
        places: &[(Vec<Pool>, LeaseRequest)],
        owner: &AttachmentId,
        node_pools: &[IpNet],
    ) -> Option<Rejection> {
        let has_range = |ipv6: bool| {
            let mut ranges = places.iter().flat_map(|(pools, _)| pools).map(|pool| pool.range);
            ranges.any(|range| range.addr().is_ipv6() == ipv6)
        };
        let is_new = !node_pools.is_empty() && !self.has_any(owner);
        let missing = |ipv6: &bool| !has_range(*ipv6) && !self.may_skip_family(owner, *ipv6);
        let missing: Vec<bool> = [false, true].into_iter().filter(|ipv6| is_new && missing(ipv6)).collect();
        let error = missing.into_iter().map(|ipv6| self.short_of_pools(ipv6));
        error.collect::<Vec<_>>().into_iter().next()
    }

    /// All ranges for the pod are exhausted. Returns the error until there is another one.
    pub(super) fn short_of(&mut self, error: &AllocError, ipv6: bool) -> Rejection {
        match self.state.pools_for(&self.sandbox.namespace, ipv6).is_empty() {
            true => (error.reason(), error.to_string()),
            false => self.short_of_pools(ipv6),
        }
    }

    fn short_of_pools(&mut self, ipv6: bool) -> Rejection {
        let pools = self.state.pools_for(&self.sandbox.namespace, ipv6);
        let titles: Vec<String> = pools.iter().map(|pool| title(pool)).collect();
        let not_ready = |error: &str| {
            let message = format!("network {}: {} {error}", cluster::NAME, titles.join(" and "));
            (Reason::NotReady, message)
        };
        if self.state.free_addresses(self.state.own_blocks_of(&pools)) > 0 {
            return not_ready("has a block for this node that is not ready yet");
        }
        if !self.state.blocks.has_synced {
            return not_ready("has no free address on this node: the block watch has not synced yet");
        }
        let claims = self.state.blocks.claims.values();
        let mut late = claims.filter(|claim| pools.iter().any(|pool| key(pool) == claim.pool));
        if let Some(error) = late.find_map(|claim| claim.error.clone()) {
            return not_ready(&format!(
                "has no free address on this node: another block cannot be claimed so far ({error})"
            ));
        }
        let coming =
            not_ready("has no free address on this node; another block is being claimed for this node");
        if self.state.is_claiming_from(&pools) {
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

    /// Why a pool has no free address for this node.
    fn used_up(&self, pool: &AddressPoolIntent) -> String {
        let title = title(pool);
        let own = self.state.own_blocks_of(&[pool]);
        let total: u128 = own.iter().map(|block| Pool::with_gateway("", block.cidr).total()).sum();
        let of = key(pool).title();
        let others = self.state.blocks.remote.values().filter(|block| block.pool == of).count();
        match (total, others) {
            (0, others) => format!("{title} is exhausted: other nodes hold all of its {others} blocks"),
            (total, 0) => format!("{title} is exhausted: all {total} addresses are in use"),
            (total, others) => format!(
                "{title} is exhausted: all {total} addresses of this node's blocks are in use, and other nodes hold the other {others} blocks"
            ),
        }
    }

    /// A fixed address is leased where its block is held; a free block is claimed for it.
    pub(super) fn check_fixed(
        &mut self,
        address: IpAddr,
        owner: &AttachmentId,
        ranges: &[IpNet],
        node_pools: &[IpNet],
    ) -> Result<(), Rejection> {
        let is_held = self.state.leases.held_by(owner).any(|key| key.address == address);
        let of_pool = self.state.pool_of(address).filter(|_| !node_pools.is_empty() && !is_held);
        let Some((pool, block)) = of_pool else { return Ok(()) };
        let of = key(pool);
        let Some(name) = block_name(&of, block) else { return Ok(()) };
        let title = format!("network {}: {address} of {}", cluster::NAME, title(pool));
        let blocks = &self.state.blocks;
        if blocks.local.contains_key(&name) {
            return match ranges.contains(&block) {
                true => Ok(()),
                false => Err((
                    Reason::NotReady,
                    format!("{title} is in podaddressblock/{name}, which is not ready yet"),
                )),
            };
        }
        if let Some(other) = blocks.remote.get(&name) {
            let message = format!(
                "{title} is in podaddressblock/{name} ({block}), which node {} holds: it is only available on that node",
                other.node
            );
            return Err((Reason::Conflict, message));
        }
        let error = match blocks.claims.get(&name).and_then(|claim| claim.error.clone()) {
            Some(error) => format!("which cannot be claimed so far ({error})"),
            None => "which is being claimed for this node".to_owned(),
        };
        self.resolved.waits.entry(of).or_default().blocks.insert(block);
        Err((Reason::NotReady, format!("{title} waits for podaddressblock/{name}, {error}")))
    }

    /// The error message, with the pod that uses the address.
    pub(super) fn describe(&self, error: &AllocError) -> String {
        if let AllocError::InUse { network, address, owner } = error
            && let Some(holder) = self.state.sandboxes.get(&owner.sandbox)
        {
            return format!(
                "network {network}: {address} is in use by interface {} of pod {}",
                owner.interface,
                holder.title()
            );
        }
        error.to_string()
    }
}

fn title(pool: &AddressPoolIntent) -> String {
    format!("pool {} ({})", pool.name, pool.range)
}
