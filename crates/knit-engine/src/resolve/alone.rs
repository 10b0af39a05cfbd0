//! Addresses that are asked for by value on a network that is one on all nodes. Each is claimed alone, so that a pod has it on
//! whichever node it is, and no two have it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, last_quarter};
use knit_model::problem::Reason;

use super::interface::{Builder, Wanted};
use crate::blocks::PoolKey;

/// Why there is no address.
type Why = (Reason, String);

impl Builder<'_> {
    /// Whether this node has claimed the address. If not, what is said until then is the error.
    pub(super) fn check_alone(
        &mut self,
        wanted: &Wanted,
        address: IpAddr,
        owner: &AttachmentId,
    ) -> Result<(), Why> {
        let Some(pool) = self.pool_alone(wanted, address)? else { return Ok(()) };
        let Some(name) = pool.alone_name(address) else { return Ok(()) };
        let blocks = &self.state.blocks;
        if blocks.mine.contains_key(&name) {
            return Ok(());
        }
        let other = blocks.others.get(&name).map(|other| other.node.clone());
        let late = blocks.claims.get(&name).and_then(|claim| claim.late.clone());
        let is_listed = blocks.listed;
        let is_held = self.state.leases.held_by(owner).any(|key| key.address == address);
        let network = wanted.network();
        if is_held {
            self.await_alone(pool, address);
            // A running pod keeps what it has, and it is claimed again.
            if let Some(other) = other {
                let message = format!(
                    "pod {} keeps {address}, but node {other} holds it (podaddressblock/{name}) and may give it to another pod",
                    self.sandbox.title()
                );
                self.resolved.made.warnings.push((wanted.object.clone(), message));
            }
            return Ok(());
        }
        let why = match (other, late) {
            (Some(other), _) => format!("which node {other} holds until its pod there is gone"),
            (None, Some(why)) => format!("which cannot be claimed so far ({why})"),
            (None, None) if !is_listed => "of which the API server has not told yet whose it is".to_owned(),
            (None, None) => "which is being claimed for this node".to_owned(),
        };
        Err((
            Reason::NotReady,
            format!("network {network}: {address} waits for podaddressblock/{name}, {why}"),
        ))
    }

    /// The pod cannot be attached yet: its addresses are claimed for it meanwhile, and kept. In order, and none before the last
    /// one is there: of two nodes that want the same, one has all of them then.
    pub(super) fn await_all(&mut self, wanted: &Wanted) {
        let addresses: BTreeSet<IpAddr> = wanted.want.fixed.iter().map(IpNet::addr).collect();
        for address in addresses {
            let Ok(Some(pool)) = self.pool_alone(wanted, address) else { return };
            let is_mine =
                pool.alone_name(address).is_some_and(|name| self.state.blocks.mine.contains_key(&name));
            self.await_alone(pool, address);
            if !is_mine {
                return;
            }
        }
    }

    fn await_alone(&mut self, pool: PoolKey, address: IpAddr) {
        self.resolved.waits.entry(pool).or_default().alone.insert(address);
    }

    /// The range that an address is claimed of; none on a network that each node has for itself.
    fn pool_alone(&self, wanted: &Wanted, address: IpAddr) -> Result<Option<PoolKey>, Why> {
        let network = wanted.network();
        let Some(spanning) = self.state.spanning_with(&network) else { return Ok(None) };
        let ranges = &spanning.network.ranges;
        let quarters: Vec<String> =
            ranges.iter().filter_map(|range| last_quarter(*range)).map(|one| one.to_string()).collect();
        let range =
            ranges.iter().find(|range| last_quarter(**range).is_some_and(|one| one.contains(&address)));
        let Some(range) = range else {
            let message = format!(
                "{address} cannot be asked for on network {}, which is one on all nodes: the last quarter of each subnet is for that ({})",
                spanning.network.name,
                quarters.join(", ")
            );
            return Err((Reason::InvalidValue, message));
        };
        Ok(Some(PoolKey { network, range: range.trunc() }))
    }
}
