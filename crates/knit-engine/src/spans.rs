//! Networks that are one on all nodes: which number each has in its tunnels, and which nodes are on it.
//!
//! Every node decides alike, from what the API server tells all of them: networks, blocks of addresses, and the addresses of
//! nodes. A node is on a network as soon as it holds a block of it, which is before any pod there can say a word.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, last_quarter};
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent, TunnelEndpoint};
use knit_model::link::Vxlan;
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::{IfName, Mac};
use serde::{Deserialize, Serialize};

use crate::event::{Event, Record, Unit};
use crate::state::{BridgeKey, ObjectKey, State};
use crate::step::Effects;

/// What the tunnels of networks lie on. Remembered: without an API server a restart changes nothing for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underlay {
    /// The number of the cluster's own tunnels, which no network has.
    pub taken: u32,
    /// The UDP port of all tunnels.
    pub port: u16,
    /// Addresses of this node, at most one of each family.
    pub ends: Vec<TunnelEndpoint>,
    /// Addresses of other nodes, of those that are on such a network.
    pub nodes: BTreeMap<String, Vec<IpAddr>>,
}

impl Underlay {
    /// Where tunnels of this node begin.
    pub(crate) fn end(&self) -> Option<&TunnelEndpoint> {
        let of_family = |ipv4: bool| self.ends.iter().find(move |end| end.address.is_ipv4() == ipv4);
        of_family(true).or_else(|| of_family(false))
    }

    /// What fits into them.
    fn mtu(&self) -> Option<u32> {
        let end = self.end()?;
        Some(end.mtu.saturating_sub(Vxlan::overhead_over(end.address.is_ipv6())))
    }
}

/// The tunnel that a bridge has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The link, a port of the bridge.
    pub link: IfName,
    /// The hardware address of the bridge, the same on all nodes.
    pub mac: Mac,
    /// The first address of each range, the bridge's on every node that has one.
    pub first: BTreeSet<IpAddr>,
    /// The other nodes on the network.
    pub members: BTreeSet<String>,
}

/// A tunnel that is a port of a bridge whose first addresses are the same on all nodes: nothing that is the bridge's own goes
/// through it, neither way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gate {
    /// The tunnel's link.
    pub link: IfName,
    /// The bridge's hardware address.
    pub mac: Mac,
    /// The bridge's addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// A network that is one on all nodes.
#[derive(Clone, Copy)]
pub(crate) struct Spanning<'a> {
    pub(crate) object: &'a ObjectKey,
    pub(crate) why: &'a Provenance,
    pub(crate) network: &'a NetworkIntent,
    want: &'a OverlayIntent,
}

impl Spanning<'_> {
    /// The bridge whose pods are on it.
    pub(crate) fn bridge(&self) -> Option<BridgeKey> {
        let name = IfName::new(NetworkIntent::bridge_name(&self.network.name)).ok()?;
        Some(BridgeKey { namespace: self.object.namespace.clone(), name })
    }

    /// What leases and blocks have as its id.
    pub(crate) fn id(&self) -> String {
        format!("{}/network/{}", self.object.namespace, self.network.name)
    }

    fn vni(&self, taken: u32) -> u32 {
        self.want.vni(&self.object.namespace, &self.network.name, taken)
    }
}

impl<'a> Spanning<'a> {
    /// Of two with the same number the lesser has it.
    fn age(&self) -> (&'a str, &'a ObjectKey) {
        (&self.want.created, self.object)
    }
}

impl State {
    /// All networks that are one on all nodes.
    pub(crate) fn spanning(&self) -> impl Iterator<Item = Spanning<'_>> {
        self.objects.iter().flat_map(|(object, stored)| {
            stored.intents.iter().filter_map(move |intent| match &intent.spec {
                // Whoever states it does so for all nodes.
                IntentSpec::Network(network) if intent.origin.dialect == Dialect::Kubernetes => {
                    let (why, want) = (&intent.origin, network.span.as_ref()?);
                    Some(Spanning { object, why, network, want })
                }
                _ => None,
            })
        })
    }

    /// Whether there is any.
    pub fn has_spanning(&self) -> bool {
        self.spanning().next().is_some()
    }

    /// The network that is one on all nodes and has this bridge.
    pub(crate) fn spanning_on(&self, key: &BridgeKey) -> Option<Spanning<'_>> {
        let mut mine = self.spanning().filter(|one| one.object.namespace == key.namespace);
        mine.find(|one| one.bridge().as_ref() == Some(key))
    }

    /// The network with this id, if it is one on all nodes.
    pub(crate) fn spanning_with(&self, id: &str) -> Option<Spanning<'_>> {
        self.spanning().find(|one| one.id() == id)
    }

    /// The number of a network in its tunnels, or why it has none.
    pub(crate) fn vni_of(&self, spanning: Spanning<'_>, taken: u32) -> Result<u32, String> {
        let vni = spanning.vni(taken);
        if vni == taken {
            return Err(format!("VNI {vni} is that of the cluster's own tunnels: state another `vni`"));
        }
        let older = self.spanning().filter(|other| other.vni(taken) == vni).min_by_key(|one| one.age());
        match older.filter(|older| older.object != spanning.object) {
            None => Ok(vni),
            Some(older) => {
                let whose = if older.object.namespace == spanning.object.namespace {
                    format!("of {}", older.object)
                } else {
                    "of a network of another namespace".to_owned()
                };
                Err(format!("VNI {vni} is that {whose}, which is older: state another `vni`"))
            }
        }
    }

    /// A range as this node sees it: of which it has addresses, or could claim them. Some may be kept for those who ask by value.
    pub fn reachable(&self, pool: &Pool) -> Pool {
        let mut pool = pool.clone();
        if self.spanning_with(&pool.network).is_some() {
            pool.reserved.extend(last_quarter(pool.range));
        }
        self.blocks.reachable(&pool)
    }

    /// The MTU of interfaces on a bridge that is one on all nodes: what is stated, or what fits into the tunnels.
    pub(crate) fn spanning_mtu(&self, key: &BridgeKey) -> Option<u32> {
        let spanning = self.spanning_on(key)?;
        spanning.network.mtu.or_else(|| self.underlay.as_ref()?.mtu())
    }

    /// What fits into the tunnels of networks.
    pub(crate) fn tunnel_mtu(&self) -> Option<u32> {
        self.underlay.as_ref()?.mtu()
    }

    /// The other nodes on a network: those that hold a block of it. Before all blocks were told, those that were on it last.
    pub(crate) fn members(&self, spanning: Spanning<'_>) -> BTreeSet<String> {
        if !self.blocks.listed {
            let made = spanning.bridge().and_then(|key| self.made.get(&Unit::Bridge(key)));
            let tunnel = made.and_then(|made| made.tunnel.as_ref());
            return tunnel.map(|tunnel| tunnel.members.clone()).unwrap_or_default();
        }
        let id = spanning.id();
        let held = self.blocks.others.values().filter(|block| {
            // Whoever can make a block for a network that is not his is no member of it.
            block.pool.starts_with(&id) && block.pool_key().is_some_and(|pool| pool.network == id)
        });
        held.map(|block| block.node.clone()).collect()
    }

    /// What goes through none of the tunnels that there are.
    pub(crate) fn gates(&self) -> Vec<Gate> {
        let tunnels = self.made.values().filter_map(|made| made.tunnel.as_ref());
        let gates = tunnels.map(|tunnel| Gate {
            link: tunnel.link.clone(),
            mac: tunnel.mac,
            addresses: tunnel.first.clone(),
        });
        gates.collect()
    }

    /// What the loop has to hear when the addresses of nodes are these. Of other nodes only those on such networks matter.
    pub fn underlay_news(&self, mut underlay: Underlay) -> Option<Event> {
        if !self.has_spanning() {
            return None;
        }
        let mut needed: BTreeSet<String> = self.spanning().flat_map(|one| self.members(one)).collect();
        underlay.nodes.retain(|name, _| needed.remove(name));
        // One that is not told of any more keeps its address until its blocks are gone, too.
        let before = self.underlay.iter().flat_map(|before| &before.nodes);
        let before = before.filter(|(name, _)| needed.contains(*name));
        underlay.nodes.extend(before.map(|(name, addresses)| (name.clone(), addresses.clone())));
        (self.underlay.as_ref() != Some(&underlay)).then_some(Event::Underlay(underlay))
    }
}

/// Nodes have other addresses than before.
pub(crate) fn hear_underlay(state: &mut State, underlay: Underlay, effects: &mut Effects) {
    if state.underlay.as_ref() == Some(&underlay) {
        return;
    }
    let before = state.tunnel_mtu();
    effects.record(state, Record::Underlay(underlay));
    let keys: BTreeSet<BridgeKey> = state.spanning().filter_map(|one| one.bridge()).collect();
    let bridges = keys.iter().map(|key| Unit::Bridge(key.clone())).filter(|unit| is_there(state, unit));
    let bridges: Vec<Unit> = bridges.collect();
    state.dirty.extend(bridges);
    if state.tunnel_mtu() != before {
        let users = state.made.iter().filter(|(_, made)| !made.uses.is_disjoint(&keys));
        let users: Vec<Unit> = users.map(|(unit, _)| unit.clone()).collect();
        state.dirty.extend(users);
    }
}

/// Blocks came or went: tunnels go to the nodes that hold some now.
pub(crate) fn heed_blocks(state: &mut State) {
    let others = state.spanning().filter_map(|spanning| {
        let unit = Unit::Bridge(spanning.bridge()?);
        let tunnel = state.made.get(&unit)?.tunnel.as_ref()?;
        (tunnel.members != state.members(spanning)).then_some(unit)
    });
    let others: Vec<Unit> = others.collect();
    state.dirty.extend(others);
}

/// What keeps gateways out of tunnels, among the kinds of links that a kernel was found not to have.
pub(crate) const FILTER: &str = "filter of tunnels";

/// The packet filter could not be had as it should be: without it there are no tunnels, until everything is compared again.
pub(crate) fn unfiltered(state: &mut State, why: &Problem) {
    let tunnels = state.made.iter().filter(|(_, made)| made.tunnel.is_some());
    let tunnels: Vec<Unit> = tunnels.map(|(unit, _)| unit.clone()).collect();
    if !tunnels.is_empty() {
        state.lacking.insert(FILTER.to_owned(), why.message.clone());
        state.dirty.extend(tunnels);
    }
}

/// Bridges whose tunnel may be another when this network comes, changes or goes: those of networks with its number.
pub(crate) fn rivals(state: &State, namespace: &str, network: &NetworkIntent) -> Vec<Unit> {
    let Some(span) = &network.span else { return Vec::new() };
    let taken = state.underlay.as_ref().map_or(0, |underlay| underlay.taken);
    let vni = span.vni(namespace, &network.name, taken);
    let same = state.spanning().filter(|other| other.vni(taken) == vni);
    let bridges = same.filter_map(|other| other.bridge()).map(Unit::Bridge);
    bridges.filter(|unit| is_there(state, unit)).collect()
}

fn is_there(state: &State, unit: &Unit) -> bool {
    state.made.contains_key(unit) || state.flights.contains_key(unit)
}

/// The first address of each range.
pub(crate) fn first_addresses(ranges: &[IpNet]) -> BTreeSet<IpAddr> {
    let pools = ranges.iter().map(|range| Pool::with_gateway("", *range));
    pools.filter_map(|pool| pool.gateway_address()).map(|address| address.addr()).collect()
}
