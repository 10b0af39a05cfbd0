//! Fixed addresses of overlay networks. Each is claimed individually, so that a pod can have it on any node, and only
//! one pod at a time.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, last_quarter};
use knit_model::problem::Reason;

use super::interface::{Builder, RequestedInterface};
use crate::blocks::PoolKey;

/// Why there is no address.
type Rejection = (Reason, String);

impl Builder<'_> {
    /// Checks that this node has claimed the address; the error explains what it waits for.
    pub(super) fn check_single_address_claim(
        &mut self,
        requested: &RequestedInterface,
        address: IpAddr,
        owner: &AttachmentId,
    ) -> Result<(), Rejection> {
        let Some(pool) = self.single_address_pool(requested, address)? else { return Ok(()) };
        let Some(name) = pool.single_address_name(address) else { return Ok(()) };
        let blocks = &self.state.blocks;
        if blocks.local.contains_key(&name) {
            return Ok(());
        }
        let other = blocks.remote.get(&name).map(|other| other.node.clone());
        let late = blocks.claims.get(&name).and_then(|claim| claim.error.clone());
        let has_synced = blocks.has_synced;
        let is_held = self.state.leases.held_by(owner).any(|key| key.address == address);
        let network = requested.network();
        if is_held {
            self.await_single_address(pool, address);
            // A running pod keeps its address, which is claimed again.
            if let Some(other) = other {
                let message = format!(
                    "pod {} keeps {address}, but node {other} holds it (podaddressblock/{name}) and may give it to another pod",
                    self.sandbox.title()
                );
                self.resolved.unit_state.warnings.push((requested.object.clone(), message));
            }
            return Ok(());
        }
        let error = match (other, late) {
            (Some(other), _) => format!("which node {other} holds until its pod there is gone"),
            (None, Some(error)) => format!("which cannot be claimed so far ({error})"),
            (None, None) if !has_synced => {
                "whose holder is unknown until the block watch has synced".to_owned()
            }
            (None, None) => "which is being claimed for this node".to_owned(),
        };
        Err((
            Reason::NotReady,
            format!("network {network}: {address} waits for podaddressblock/{name}, {error}"),
        ))
    }

    /// The pod cannot be attached yet: claims and keeps its fixed addresses meanwhile, in order and one at a time, so
    /// that two nodes that compete for the same addresses do not deadlock.
    pub(super) fn await_fixed_addresses(&mut self, requested: &RequestedInterface) {
        let addresses: BTreeSet<IpAddr> = requested.spec.fixed.iter().map(IpNet::addr).collect();
        for address in addresses {
            let Ok(Some(pool)) = self.single_address_pool(requested, address) else { return };
            let is_mine = pool
                .single_address_name(address)
                .is_some_and(|name| self.state.blocks.local.contains_key(&name));
            self.await_single_address(pool, address);
            if !is_mine {
                return;
            }
        }
    }

    fn await_single_address(&mut self, pool: PoolKey, address: IpAddr) {
        self.resolved.waits.entry(pool).or_default().single_addresses.insert(address);
    }

    /// The range of an individually claimed address; `None` outside of overlay networks.
    fn single_address_pool(
        &self,
        requested: &RequestedInterface,
        address: IpAddr,
    ) -> Result<Option<PoolKey>, Rejection> {
        let network = requested.network();
        let Some(overlay) = self.state.overlay_by_id(&network) else { return Ok(None) };
        let ranges = &overlay.network.ranges;
        let quarters: Vec<String> =
            ranges.iter().filter_map(|range| last_quarter(*range)).map(|one| one.to_string()).collect();
        let range =
            ranges.iter().find(|range| last_quarter(**range).is_some_and(|one| one.contains(&address)));
        let Some(range) = range else {
            let message = format!(
                "{address} cannot be requested on network {}, which spans all nodes: use the last quarter of a subnet ({})",
                overlay.network.name,
                quarters.join(", ")
            );
            return Err((Reason::InvalidValue, message));
        };
        Ok(Some(PoolKey { network, range: range.trunc() }))
    }
}
