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
        let mut addresses = Vec::new();
        let mut waits = None;
        let asks = ranges.iter().map(|range| (*range, Ask::Any));
        let fixed = wanted.want.fixed.iter().map(|fixed| (fixed.trunc(), Ask::Fixed(fixed.addr())));
        for (range, ask) in asks.chain(fixed).take(most) {
            // Where there is no bridge nobody has its address, and a single address has none for it.
            let has_bridge = wanted.want.network.is_some() || wanted.bridge().is_some();
            let single = range.prefix_len() == range.max_prefix_len();
            let mut pool = match ask {
                Ask::Fixed(_) if !has_bridge => Pool::new(network.clone(), range),
                _ if single => Pool::new(network.clone(), range),
                _ => Pool::with_gateway(network.clone(), range),
            };
            let had: BTreeSet<IpAddr> = self.state.leases.held_by(&owner).map(|key| key.address).collect();
            // What goes and comes again, by `undo` or by a label, finds its address as it was.
            let ask = match self.state.leases.last_of(&pool, &owner) {
                Some(last) if ask == Ask::Any => Ask::Sticky(last),
                _ => ask,
            };
            // An address that is asked for by value is the asker's own choice, on whichever node.
            let shared = (is_shared && !matches!(ask, Ask::Fixed(_)))
                .then(|| PoolKey { network: network.clone(), range: range.trunc() });
            if let Some(key) = &shared {
                pool = pool.of_blocks(self.state.blocks.own(key));
                if self.state.leases.held(&pool, &owner, ask).is_none() {
                    pool.reserved = asked_by_value(self.state, &network);
                }
            }
            let given = self.state.leases.allocate(&pool, &owner, &self.sandbox.instance, ask, self.now);
            let address = match (given, &shared) {
                (Ok(address), _) => address,
                (Err(AllocError::Exhausted { total, .. }), Some(key)) => {
                    let why = self.wait_for_block(key, &pool, total);
                    waits = waits.or(Some(why));
                    continue;
                }
                (Err(why), _) => return Err((why.reason(), why.to_string())),
            };
            if let Some(key) = shared.filter(|_| !pool.is_own(address.addr())) {
                self.stray(wanted, &key, name, address.addr());
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
                AllocError::Exhausted { network, range, total: whole.total() }.to_string()
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
