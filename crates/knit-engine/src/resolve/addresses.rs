//! The addresses of an interface: where each is looked for, and which one it gets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, Pool, Want as Ask};
use knit_model::IfName;
use knit_model::problem::Reason;

use super::interface::{Builder, Wanted};
use crate::call::RangeWish;
use crate::state::LeaseTaken;

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
        let mut addresses = Vec::new();
        for (pools, ask) in wanted.places(ranges).into_iter().take(most) {
            let had: BTreeSet<IpAddr> = self.state.leases.held_by(&owner).map(|key| key.address).collect();
            // What goes and comes again, by `undo` or by a label, finds its address as it was.
            let last = pools.iter().find_map(|pool| self.state.leases.last_of(pool, &owner));
            let ask = match last {
                Some(last) if ask == Ask::Any => Ask::Sticky(last),
                _ => ask,
            };
            let instance = &self.sandbox.instance;
            let given = self.state.leases.allocate_in_order(&pools, &owner, instance, ask, self.now);
            let address = given.map_err(|why| (why.reason(), why.to_string()))?;
            if let Some(lease) =
                self.state.leases.get(&network, address.addr()).filter(|_| !had.contains(&address.addr()))
            {
                let taken =
                    LeaseTaken { network: network.clone(), address: address.addr(), lease: lease.clone() };
                self.resolved.leases.push(taken);
            }
            addresses.push(address);
        }
        Ok(addresses)
    }
}

impl Wanted {
    /// Where each address is looked for, in this order: in the ranges, in the sets of a call, by value.
    fn places(&self, ranges: &[IpNet]) -> Vec<(Vec<Pool>, Ask)> {
        let fixed = &self.want.fixed;
        // In a call, an address by value stands for its range and for its set, and a set for the ranges that it is of.
        let is_open = |range: &&IpNet| {
            !self.is_call()
                || (!fixed.iter().any(|fixed| range.contains(&fixed.addr()))
                    && !self.sets.iter().flatten().any(|wish| wish.range_of(ranges) == Some(**range)))
        };
        let open = ranges.iter().filter(is_open).map(|range| (vec![self.pool(*range, false)], Ask::Any));
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
}
