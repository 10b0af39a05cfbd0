//! Gateways: pods of some namespaces leave the cluster by a chosen node, and have a chosen address outside.
//!
//! Which node of a gateway's list has its addresses is decided by every agent alike, from what the API server says about nodes;
//! no leader is asked. What was decided last is remembered: it holds while nothing is heard, and while no node of the list is
//! well. Packets to the outside leave by that node, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{EgressGatewayIntent, IntentSpec, LocalNode};
use knit_model::{IfName, Mac, marks};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterNetwork;
use crate::event::{Record, Unit};
use crate::forward;
use crate::resolve;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// The kind of a gateway's object.
pub const KIND: &str = "EgressGateway";
/// So many gateways have a number of their own: those of the bits of a mark, without zero.
const MOST: usize = 255;

/// What is remembered about gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Egress {
    /// The node that has each gateway's addresses, by the gateway's name.
    pub active: BTreeMap<String, String>,
    /// Addresses of pods of other nodes, by namespace: those that may leave by this one.
    pub elsewhere: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Nodes that are well. Not remembered: `None` until somebody says it.
    #[serde(skip)]
    pub(crate) well: Option<BTreeSet<String>>,
}

/// Where packets of one family go on from this node, when they leave the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// To the outside, with this address.
    Here(IpAddr),
    /// To the node that has the gateway's address, with this mark.
    By {
        /// The mark.
        mark: u32,
        /// The next hop.
        via: IpAddr,
    },
    /// Nowhere: the gateway cannot do what it is for.
    Nowhere,
}

/// A gateway, as far as it has its way.
pub(crate) struct Gateway<'a> {
    /// Its object.
    pub(crate) key: &'a ObjectKey,
    /// What was asked for.
    pub(crate) want: &'a EgressGatewayIntent,
    /// Its number; `None` if there are too many gateways.
    pub(crate) number: Option<u8>,
    /// The namespaces that are its own.
    pub(crate) namespaces: BTreeSet<&'a str>,
    /// Its addresses, each with what is wrong with it.
    pub(crate) addresses: Vec<(IpAddr, Option<String>)>,
    /// The node that has its addresses.
    pub(crate) active: Option<&'a str>,
    /// What is not as a person would expect.
    pub(crate) warnings: Vec<String>,
}

/// Which node has an address.
pub(crate) enum Place<'a> {
    /// This one, on this link.
    Here(&'a IfName),
    /// Another one.
    At(&'a str),
}

impl Egress {
    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.elsewhere.is_empty()
    }

    /// What is remembered: without what is only known while the program runs.
    pub(crate) fn remembered(&self) -> Self {
        Self { well: None, ..self.clone() }
    }

    /// Pods of a namespace came and went on other nodes.
    pub(crate) fn moved(&mut self, namespace: &str, gone: &[IpAddr], come: &[IpAddr]) {
        let there = self.elsewhere.entry(namespace.to_owned()).or_default();
        there.retain(|address| !gone.contains(address));
        there.extend(come);
        if there.is_empty() {
            self.elsewhere.remove(namespace);
        }
    }
}

impl Gateway<'_> {
    /// The mark of packets that go to its node.
    pub(crate) fn mark(&self) -> Option<u32> {
        self.number.map(|number| u32::from(number) << marks::EGRESS_SHIFT)
    }

    /// The table with the way to its node.
    pub(crate) fn table(&self) -> Option<u32> {
        self.number.map(|number| marks::EGRESS_TABLES + u32::from(number))
    }

    /// Who has an address of it, or why nobody has.
    pub(crate) fn place<'s>(
        &'s self,
        own: Option<&'s LocalNode>,
        address: IpAddr,
    ) -> Result<Place<'s>, String> {
        let wrong = self.addresses.iter().find(|(one, _)| *one == address).and_then(|(_, why)| why.as_ref());
        if let Some(why) = wrong {
            return Err(format!("{address} is not used: {why}"));
        }
        if self.number.is_none() {
            return Err(format!("there are more than {MOST} gateways, and this one has no number"));
        }
        let own = own.ok_or("this node's own links are not known yet")?;
        let Some(active) = self.active else {
            return Err(format!("none of its nodes is Ready: {}", self.want.nodes.join(", ")));
        };
        if active != own.name {
            return Ok(Place::At(active));
        }
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let why =
            || format!("node {active} has no link for {address}: it has no {family} address of its own");
        own.link_for(address).map(Place::Here).ok_or_else(why)
    }
}

impl State {
    fn egress_wants(&self) -> impl Iterator<Item = (&ObjectKey, u64, &EgressGatewayIntent)> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let objects = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        objects.flat_map(|(key, object)| {
            object.intents.iter().filter_map(move |intent| match &intent.spec {
                IntentSpec::EgressGateway(want) => Some((key, object.since, want)),
                _ => None,
            })
        })
    }

    /// All gateways by name, each with what it has of what it asks for. Nothing without a cluster's network.
    pub(crate) fn gateways(&self) -> Vec<Gateway<'_>> {
        let Some(cluster) = self.cluster() else { return Vec::new() };
        let numbers = numbers(self.egress_wants().map(|(key, since, _)| (since, key.name.as_str())));
        let mut namespaces: BTreeMap<&str, &str> = BTreeMap::new();
        let mut addresses: BTreeMap<IpAddr, &str> = BTreeMap::new();
        let mut gateways = Vec::new();
        for (key, _, want) in self.egress_wants() {
            let (mut own, mut warnings) = (BTreeSet::new(), Vec::new());
            for namespace in &want.namespaces {
                match *namespaces.entry(namespace).or_insert(&want.name) {
                    holder if holder == want.name => drop(own.insert(namespace.as_str())),
                    holder => warnings.push(format!(
                        "pods of namespace {namespace} leave by gateway {holder}, which names them, too"
                    )),
                }
            }
            let judged = want.addresses.iter().map(|address| {
                let holder = *addresses.entry(*address).or_insert(&want.name);
                let taken = (holder != want.name).then(|| format!("it is gateway {holder}'s"));
                (*address, taken.or_else(|| somebodys(cluster, *address)))
            });
            let addresses = judged.collect();
            let active = self.egress.active.get(&want.name).map(String::as_str);
            if let Some(active) = active
                && self.egress.well.as_ref().is_some_and(|well| !well.contains(active))
            {
                warnings
                    .push(format!("none of its nodes is Ready: the last one, {active}, keeps the addresses"));
            }
            let number = numbers.get(want.name.as_str()).copied();
            gateways.push(Gateway { key, want, number, namespaces: own, addresses, active, warnings });
        }
        gateways
    }

    /// Namespaces whose pods may leave by this node: their addresses on other nodes are of interest.
    pub fn leaving_by(&self, node: &str) -> BTreeSet<String> {
        let by_it = self.egress_wants().filter(|(_, _, want)| want.nodes.iter().any(|one| one == node));
        by_it.flat_map(|(_, _, want)| want.namespaces.iter().cloned()).collect()
    }
}

/// Where packets go on, by namespace and by whether they are of IPv6.
pub(crate) type Exits = BTreeMap<String, BTreeMap<bool, Exit>>;

impl State {
    /// Where packets of pods of this node go on, if they leave by a gateway.
    pub(crate) fn exits(&self) -> Exits {
        let mut exits = Exits::new();
        let (gateways, Some(cluster)) = (self.gateways(), self.cluster()) else { return exits };
        if gateways.is_empty() {
            return exits;
        }
        let own = cluster.ways.and_then(|ways| ways.own.as_ref());
        let hops = resolve::hops(cluster);
        for gateway in &gateways {
            let exit = |address: IpAddr| match gateway.place(own, address) {
                Ok(Place::Here(_)) => Exit::Here(address),
                Ok(Place::At(node)) => {
                    let hop = hops.get(&(node.to_owned(), address.is_ipv6()));
                    let via = hop.and_then(|hop| hop.gateway);
                    let by = via.zip(gateway.mark()).map(|(via, mark)| Exit::By { mark, via });
                    by.unwrap_or(Exit::Nowhere)
                }
                Err(_) => Exit::Nowhere,
            };
            let by_family: BTreeMap<bool, Exit> =
                gateway.addresses.iter().map(|(address, _)| (address.is_ipv6(), exit(*address))).collect();
            exits.extend(gateway.namespaces.iter().map(|name| ((*name).to_owned(), by_family.clone())));
        }
        exits
    }

    /// The same for pods of other nodes: what they say to the outside is this node's business only where it has the address.
    pub(crate) fn exits_elsewhere(&self, exits: &Exits) -> BTreeMap<IpAddr, Exit> {
        let mut elsewhere = BTreeMap::new();
        for (namespace, addresses) in &self.egress.elsewhere {
            let Some(exits) = exits.get(namespace) else { continue };
            for address in addresses {
                let exit = match exits.get(&address.is_ipv6()) {
                    Some(Exit::Here(outside)) => Exit::Here(*outside),
                    Some(_) => Exit::Nowhere,
                    None => continue,
                };
                elsewhere.insert(*address, exit);
            }
        }
        elsewhere
    }
}

/// Whose an address is already, if it can be no gateway's.
fn somebodys(cluster: ClusterNetwork<'_>, address: IpAddr) -> Option<String> {
    let ways = cluster.ways?;
    let mut own = ways.own.iter().flat_map(|own| own.addresses.iter().map(move |(one, _)| (*one, &own.name)));
    let mut others = ways.nodes.iter().flat_map(|peer| peer.own().map(move |one| (one, &peer.name)));
    let node = own.find(|(one, _)| *one == address).or_else(|| others.find(|(one, _)| *one == address));
    if let Some((_, node)) = node {
        return Some(format!("it is node {node}'s own"));
    }
    let theirs = ways.nodes.iter().flat_map(|peer| &peer.ranges);
    let mut ranges = cluster.network.ranges.iter().chain(&ways.pools).chain(theirs);
    let range: &IpNet = ranges.find(|range| range.contains(&address))?;
    Some(format!("{range} is for pods"))
}

/// A number for each gateway. It follows from the name; of two that would have the same, the later one has the next, so that
/// one that comes never changes those of others.
fn numbers<'a>(gateways: impl Iterator<Item = (u64, &'a str)>) -> BTreeMap<&'a str, u8> {
    let mut in_order: Vec<(u64, &str)> = gateways.collect();
    in_order.sort_unstable();
    let (mut numbers, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (_, name) in in_order.into_iter().take(MOST) {
        let first = Mac::derived(&format!("egress/{name}")).bytes()[5];
        let all = (0..=u8::MAX).map(|step| first.wrapping_add(step));
        let free = all.into_iter().find(|number| *number > 0 && !taken.contains(number));
        let Some(number) = free else { continue };
        taken.insert(number);
        numbers.insert(name, number);
    }
    numbers
}

/// Somebody says which nodes are well.
pub(crate) fn hear_nodes(state: &mut State, well: BTreeSet<String>, effects: &mut Effects) {
    if state.egress.well.as_ref() != Some(&well) {
        let (before, is_first) = (warned(state), state.egress.well.is_none());
        state.egress.well = Some(well);
        decide(state, effects);
        if warned(state) != before || (is_first && !state.egress.active.is_empty()) {
            state.dirty.insert(Unit::NodeRoutes);
        }
    }
}

fn warned(state: &State) -> Vec<Vec<String>> {
    state.gateways().into_iter().map(|gateway| gateway.warnings).collect()
}

/// Somebody says which addresses pods of a namespace have on other nodes.
pub(crate) fn hear_pods(state: &mut State, namespace: &str, now: &BTreeSet<IpAddr>, effects: &mut Effects) {
    let own = own_name(state);
    let mut wants = state.egress_wants();
    let is_asked = wants.any(|(_, _, want)| {
        let is_candidate = own.is_none_or(|own| want.nodes.iter().any(|node| node == own));
        is_candidate && want.namespaces.iter().any(|one| one == namespace)
    });
    drop(wants);
    if is_asked && record_pods(state, namespace, now, effects) {
        forward::heed_egress(state, effects);
    }
}

fn record_pods(state: &mut State, namespace: &str, now: &BTreeSet<IpAddr>, effects: &mut Effects) -> bool {
    let none = BTreeSet::new();
    let before = state.egress.elsewhere.get(namespace).unwrap_or(&none);
    let gone: Vec<IpAddr> = before.difference(now).copied().collect();
    let come: Vec<IpAddr> = now.difference(before).copied().collect();
    let is_news = !gone.is_empty() || !come.is_empty();
    if is_news {
        effects.record(state, Record::Elsewhere { namespace: namespace.to_owned(), gone, come });
    }
    is_news
}

fn own_name(state: &State) -> Option<&str> {
    let own = state.cluster()?.ways?.own.as_ref()?;
    Some(&own.name)
}

/// A gateway is another, or what is known of the cluster's network.
pub(crate) fn heed(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    if object.kind == KIND {
        decide(state, effects);
        forget(state, effects);
        forward::heed_egress(state, effects);
    }
}

/// Chooses the node that has each gateway's addresses: the first of its list that is well. While there is none, or while
/// nobody says which are, the last one stays, as long as the list has it.
fn decide(state: &mut State, effects: &mut Effects) {
    let wants = state.egress_wants().map(|(_, _, want)| want);
    let chosen = wants.filter_map(|want| {
        let is_well = |node: &&String| state.egress.well.as_ref().is_some_and(|well| well.contains(*node));
        let last = || state.egress.active.get(&want.name).filter(|last| want.nodes.contains(last));
        let node = want.nodes.iter().find(is_well).or_else(last)?;
        Some((want.name.clone(), node.clone()))
    });
    let chosen: BTreeMap<String, String> = chosen.collect();
    if chosen != state.egress.active {
        effects.record(state, Record::Active(chosen));
        state.dirty.insert(Unit::NodeRoutes);
        forward::heed_egress(state, effects);
    }
}

/// Forgets pods of other nodes that no longer leave by this one.
fn forget(state: &mut State, effects: &mut Effects) {
    let Some(own) = own_name(state) else { return };
    let asked = state.leaving_by(own);
    let known = state.egress.elsewhere.keys();
    let unasked: Vec<String> = known.filter(|namespace| !asked.contains(*namespace)).cloned().collect();
    for namespace in unasked {
        record_pods(state, &namespace, &BTreeSet::new(), effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_follows_from_the_name_and_stays_when_others_come() {
        let names: Vec<String> = (0..300).map(|number| format!("gateway{number}")).collect();
        let all = names.iter().enumerate().map(|(since, name)| (since as u64, name.as_str()));
        let many = numbers(all.clone());
        assert_eq!(many.len(), MOST, "no more than the mark has room for");
        let all_numbers: BTreeSet<u8> = many.values().copied().collect();
        assert_eq!((all_numbers.len(), all_numbers.contains(&0)), (MOST, false));
        for count in [1, 10, 100] {
            let few = numbers(all.clone().take(count));
            assert!(few.iter().all(|(name, number)| many[name] == *number), "{count}");
        }
    }
}
