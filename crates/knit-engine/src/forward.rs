//! The node's part of the way to and from pods: ports of the node that lead to pods, the way out of the cluster, and what may
//! come in by the ports of the cluster's bridge. Admins choose for namespaces and pools ([`crate::namespaces`]). All of it is one
//! thing in the kernel, which is replaced as a whole; so there is one change at a time, and what changed meanwhile follows.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_model::intent::NodeRoutesIntent;
use knit_model::link::{LinkKind, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::report::InterfaceReport;
use knit_model::route::Through;
use knit_model::{IfName, Mac, SandboxId};

use crate::call::{ATTACHMENT, Attachment, PortMapping};
use crate::cluster::{self, ClusterNetwork};
use crate::egress::{self, Exit};
use crate::event::{Effect, Unit};
use crate::pools;
use crate::resolve;
pub use crate::spans::Gate;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// A port of the node that leads to one address of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Only on this address of the node.
    pub host_ip: Option<IpAddr>,
    /// The node's port.
    pub host_port: u16,
    /// The pod's address.
    pub to: IpAddr,
    /// The pod's port.
    pub port: u16,
}

/// A port of the cluster's bridge, and in whose name its pod may speak.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The link on the host.
    pub link: IfName,
    /// The pod's hardware addresses.
    pub macs: BTreeSet<Mac>,
    /// The pod's addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether packets may be handed to and from its pod past the bridge: it is an end of a pair, with one hardware address, and
    /// there is nothing that a packet would miss (limits, VLANs).
    pub direct: bool,
}

/// The node's part of the way to and from pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Ports of the node that lead to pods: these, and no others.
    pub forwards: Vec<Forward>,
    /// The bridge of the cluster's network, if there is one: what the node says to itself on its loopback leaves by it.
    pub bridge: Option<IfName>,
    /// Whose packets leave the cluster with the node's address.
    pub outside: Option<Outside>,
    /// Whose packets leave the cluster by a gateway.
    pub egress: Option<Leaving>,
    /// The ports whose pods can say nothing in the name of others.
    pub guarded: Vec<Port>,
    /// Tunnels of bridges that are one on all nodes.
    pub gates: Vec<Gate>,
    /// Where guarded ports are: pods of other nodes that are reached without a tunnel. Many, and the same at each attach.
    pub beyond: Arc<[Through]>,
    /// Whether the host is to have it whatever it was told before: somebody else may have changed it meanwhile.
    pub anew: bool,
}

/// Pods whose packets leave the cluster by a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// What they reach with their own address. In order, none twice.
    pub inside: Vec<IpNet>,
    /// Pods of this node that leave by another.
    pub sent: Vec<Sent>,
    /// Pods of any node that leave by this one, each with the address that it has outside.
    pub translated: BTreeMap<IpAddr, IpAddr>,
    /// Pods that do not leave by this node: their gateway is another, or has no node.
    pub barred: BTreeSet<IpAddr>,
    /// Pods that leave otherwise than they were last asked to: their connections with the outside are to go the new way.
    pub moved: BTreeSet<IpAddr>,
}

/// Pods of this node that leave by another, of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The mark of their packets.
    pub mark: u32,
    /// The next hop, which leads to the other node: they leave by no other.
    pub via: IpAddr,
    /// The pods' addresses.
    pub pods: Vec<IpAddr>,
}

/// Pods that have the node's address outside of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// The ranges of the pods, and the addresses of those that an admin chose it for.
    pub pods: Vec<IpNet>,
    /// Addresses of those ranges that are kept, since an admin chose so for their pods' namespace.
    pub kept: Vec<IpAddr>,
    /// What they reach with their own address: pods, nodes, and what is said to be inside. In order, none twice.
    pub inside: Vec<IpNet>,
}

/// The number of a change.
pub(crate) type Turn = u64;

/// What the host was asked to have. Not remembered: it is asked again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forwards {
    of: BTreeMap<SandboxId, Wanted>,
    of_all: OfAll,
    /// The last change.
    last: Turn,
    /// The last change that is in what the host works on.
    under_way: Option<Turn>,
    /// What was asked last about packets that leave by a gateway.
    by_gateways: ByGateways,
    /// Whether the next change is to be made whatever the host was told before.
    anew: bool,
}

/// What the host was asked about packets that leave by a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ByGateways {
    /// Where those of each pod go on.
    pods: BTreeMap<IpAddr, Exit>,
    /// The same for namespaces: a pod that is not among those of before may have gone, or its gateway.
    namespaces: egress::Exits,
    inside: Vec<IpNet>,
}

impl ByGateways {
    fn of(asked: &Forwards) -> Self {
        let own = asked.of.values().flat_map(|wanted| &wanted.exits);
        let pods = asked.of_all.elsewhere.iter().chain(own);
        Self {
            pods: pods.map(|(address, exit)| (*address, exit.clone())).collect(),
            namespaces: asked.of_all.exits.clone(),
            inside: asked.of_all.inside.clone(),
        }
    }

    /// Pods whose packets go another way than before, so that the source of their connections is given elsewhere.
    fn moved_since(&self, before: &Self) -> BTreeSet<IpAddr> {
        let is_here = |exit: &Exit| matches!(exit, Exit::Here(_));
        let has_moved = |address: &IpAddr, old: &Exit| match self.pods.get(address) {
            Some(exit) => exit != old && (is_here(old) || is_here(exit)),
            None => self.namespaces != before.namespaces,
        };
        let moved = before.pods.iter().filter(|(address, old)| has_moved(address, old));
        moved.map(|(address, _)| *address).collect()
    }
}

/// What one sandbox needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    forwards: BTreeSet<Forward>,
    guarded: BTreeSet<Port>,
    /// Addresses that an admin said something about: whether the node's takes their place outside.
    masquerade: BTreeMap<IpAddr, bool>,
    /// Addresses that leave by a gateway.
    exits: BTreeMap<IpAddr, Exit>,
}

/// What is the same for all sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfAll {
    outside: Option<Outside>,
    /// The bridge whose ports are guarded.
    guards: Option<IfName>,
    beyond: Arc<[Through]>,
    /// What is inside, if there is a gateway.
    inside: Vec<IpNet>,
    /// Where packets go on that leave by a gateway, by namespace and by whether they are of IPv6.
    exits: egress::Exits,
    /// The same for pods of other nodes.
    elsewhere: BTreeMap<IpAddr, Exit>,
    /// Tunnels of bridges that are one on all nodes.
    gates: Vec<Gate>,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.forwards.is_empty()
            && self.guarded.is_empty()
            && self.masquerade.is_empty()
            && self.exits.is_empty()
    }
}

impl Forwards {
    /// The change that a sandbox that needs something has to wait for; `None` if all is there.
    pub(crate) fn awaited(&self, id: &SandboxId) -> Option<Turn> {
        (self.under_way.is_some() && self.of.contains_key(id)).then_some(self.last)
    }
}

fn of_all(state: &State) -> OfAll {
    let gates = state.gates();
    let Some(cluster) = state.cluster() else { return OfAll { gates, ..OfAll::default() } };
    let guarded = cluster.ways.filter(|ways| ways.anti_spoofing);
    let guards = guarded.map(|_| cluster.bridge.clone());
    let beyond = guarded.map(|ways| resolve::native_ways(cluster.network, ways).into()).unwrap_or_default();
    let exits = state.exits();
    let inside = if exits.is_empty() { Vec::new() } else { inside(cluster) };
    let elsewhere = state.exits_elsewhere(&exits);
    OfAll { outside: outside(state, cluster), guards, beyond, inside, exits, elsewhere, gates }
}

/// Something changed: the host is asked, now or when it has done what it was asked before.
fn ask(state: &mut State, effects: &mut Effects) {
    state.forwards.last += 1;
    go_on(state, effects);
}

fn go_on(state: &mut State, effects: &mut Effects) {
    let bridge = state.cluster().map(|cluster| cluster.bridge.clone());
    let asked = &mut state.forwards;
    if asked.under_way.is_some() {
        return;
    }
    asked.under_way = Some(asked.last);
    let now = ByGateways::of(asked);
    let before = mem::replace(&mut asked.by_gateways, now);
    effects.list.push(Effect::Forward(Forwarding {
        forwards: asked.of.values().flat_map(|wanted| &wanted.forwards).cloned().collect(),
        bridge,
        outside: leaving(asked),
        egress: by_gateways(&asked.by_gateways, &before),
        guarded: asked.of.values().flat_map(|wanted| &wanted.guarded).cloned().collect(),
        gates: asked.of_all.gates.clone(),
        beyond: asked.of_all.beyond.clone(),
        anew: mem::take(&mut asked.anew),
    }));
}

/// What holds for the ranges of this node, by what their pools say; `None` if no pod has the node's address outside.
fn outside(state: &State, cluster: ClusterNetwork<'_>) -> Option<Outside> {
    let none = NodeRoutesIntent::default();
    let ways = cluster.ways.unwrap_or(&none);
    let own = &cluster.network.ranges;
    let is_masqueraded = |range: &&IpNet| state.pool_masquerades(**range).unwrap_or(ways.masquerade);
    let pods: Vec<IpNet> = own.iter().filter(is_masqueraded).copied().collect();
    let is_chosen = state.namespaces.values().any(|terms| terms.masquerade == Some(true));
    if pods.is_empty() && !is_chosen {
        return None;
    }
    Some(Outside { pods, kept: Vec::new(), inside: inside(cluster) })
}

/// What pods reach with their own address: pods, nodes, and what is said to be inside. In order, none twice.
fn inside(cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let none = NodeRoutesIntent::default();
    let ways = cluster.ways.unwrap_or(&none);
    let addresses = ways.nodes.iter().flat_map(|node| node.own()).map(IpNet::from);
    let theirs = resolve::ranges_of_others(cluster.network, ways).into_iter().chain(addresses);
    let stated = ways.inside.iter().chain(&ways.pools);
    let own = &cluster.network.ranges;
    let inside: BTreeSet<IpNet> = own.iter().chain(stated).copied().chain(theirs).collect();
    inside.into_iter().collect()
}

/// Whose packets leave by a gateway, and how.
fn by_gateways(now: &ByGateways, before: &ByGateways) -> Option<Leaving> {
    let inside = if now.inside.is_empty() { &before.inside } else { &now.inside };
    let moved = now.moved_since(before);
    let mut leaving = Leaving { inside: inside.clone(), moved, ..Leaving::default() };
    let mut sent: BTreeMap<(u32, IpAddr), Vec<IpAddr>> = BTreeMap::new();
    for (address, exit) in &now.pods {
        match exit {
            Exit::Here(outside) => drop(leaving.translated.insert(*address, *outside)),
            Exit::By { mark, via } => sent.entry((*mark, *via)).or_default().push(*address),
            Exit::Nowhere => drop(leaving.barred.insert(*address)),
        }
    }
    let sent = sent.into_iter().map(|((mark, via), pods)| Sent { mark, via, pods });
    leaving.sent = sent.collect();
    let is_any = !now.pods.is_empty() || !leaving.moved.is_empty();
    is_any.then_some(leaving)
}

/// The same with the pods that an admin chose otherwise for.
fn leaving(asked: &Forwards) -> Option<Outside> {
    let of_all = asked.of_all.outside.as_ref()?;
    let in_range = |address: &IpAddr| of_all.pods.iter().any(|range| range.contains(address));
    let chosen = asked.of.values().flat_map(|wanted| &wanted.masquerade);
    let others: BTreeMap<IpAddr, bool> = chosen
        .map(|(address, is)| (*address, *is))
        .filter(|(address, is)| in_range(address) != *is)
        .collect();
    let with = |is: bool| others.iter().filter(move |(_, other)| **other == is).map(|(address, _)| *address);
    let pods: Vec<IpNet> = of_all.pods.iter().copied().chain(with(true).map(IpNet::from)).collect();
    let kept = with(false).collect();
    (!pods.is_empty()).then(|| Outside { pods, kept, inside: of_all.inside.clone() })
}

/// The cluster's network is another, or what lies beyond it, or what a pool says.
pub(crate) fn heed(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    let is_about = *object == cluster::key() || object.kind == pools::KIND;
    if is_about && of_all(state) != state.forwards.of_all {
        refresh_all(state, effects);
    }
}

/// Gateways are others, or their nodes, or their pods on other nodes.
pub(crate) fn heed_egress(state: &mut State, effects: &mut Effects) {
    if of_all(state) != state.forwards.of_all {
        refresh_all(state, effects);
    }
}

/// A bridge may have got a tunnel, or lost it.
pub(crate) fn heed_tunnels(state: &mut State, effects: &mut Effects) {
    let gates = state.gates();
    if state.forwards.of_all.gates != gates {
        state.forwards.of_all.gates = gates;
        ask(state, effects);
    }
}

/// An admin says something else about namespaces: it holds for their running pods at once.
pub(crate) fn heed_namespaces(state: &mut State, effects: &mut Effects) {
    let before = (mem::take(&mut state.forwards.of_all), mem::take(&mut state.forwards.of));
    remember(state);
    if (&state.forwards.of_all, &state.forwards.of) != (&before.0, &before.1) {
        ask(state, effects);
    }
}

/// The host has done what it was asked. Says up to which change.
pub(crate) fn done(state: &mut State, effects: &mut Effects) -> Turn {
    let done = state.forwards.under_way.take().unwrap_or_default();
    if state.forwards.last > done {
        go_on(state, effects);
    }
    done
}

/// Compares what one sandbox needs with what was asked for last.
pub(crate) fn refresh(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    let now = wanted(state, id);
    if state.forwards.of.get(id).map_or(now.is_empty(), |before| *before == now) {
        return;
    }
    if now.is_empty() {
        state.forwards.of.remove(id);
    } else {
        state.forwards.of.insert(id.clone(), now);
    }
    ask(state, effects);
}

/// After a start: what is written down is what the kernel has. Asking anew pod by pod would close the others' ports.
pub(crate) fn remember(state: &mut State) {
    state.forwards.of_all = of_all(state);
    let ids = state.made.keys().filter_map(|unit| match unit {
        Unit::Sandbox(id) => Some(id),
        _ => None,
    });
    let all = ids.map(|id| (id.clone(), wanted(state, id)));
    let all = all.filter(|(_, wanted)| !wanted.is_empty()).collect();
    state.forwards.of = all;
}

/// Asks for all of it.
fn refresh_all(state: &mut State, effects: &mut Effects) {
    remember(state);
    ask(state, effects);
}

/// Asks for all of it, whatever was asked before.
pub(crate) fn repeat(state: &mut State, effects: &mut Effects) {
    state.forwards.anew = true;
    refresh_all(state, effects);
}

fn wanted(state: &State, id: &SandboxId) -> Wanted {
    let said = state.terms_of(id);
    let guarded = if said.unguarded { BTreeSet::new() } else { guarded(state, id) };
    let masquerade = said.masquerade.map(|is| own(state, id).map(|address| (address, is)).collect());
    let masquerade = masquerade.unwrap_or_default();
    Wanted { forwards: forwards(state, id), guarded, masquerade, exits: exits(state, id) }
}

/// Where packets of the sandbox go on that leave by a gateway.
fn exits(state: &State, id: &SandboxId) -> BTreeMap<IpAddr, Exit> {
    let namespace = state.sandboxes.get(id).map(|sandbox| &sandbox.namespace);
    let Some(exits) = namespace.and_then(|namespace| state.forwards.of_all.exits.get(namespace)) else {
        return BTreeMap::new();
    };
    own(state, id).filter_map(|address| Some((address, exits.get(&address.is_ipv6())?.clone()))).collect()
}

/// The sandbox's addresses on the cluster's network.
fn own<'a>(state: &'a State, id: &'a SandboxId) -> impl Iterator<Item = IpAddr> + 'a {
    let bridge = state.cluster().map(|cluster| cluster.bridge);
    let is_on_it = move |master: &IfName| Some(master) == bridge;
    let on_it =
        interfaces(state, id).filter(move |(_, report)| report.master.as_ref().is_some_and(&is_on_it));
    on_it.flat_map(|(_, report)| &report.addresses).map(IpNet::addr)
}

fn interfaces<'a>(
    state: &'a State,
    id: &SandboxId,
) -> impl Iterator<Item = &'a (ObjectKey, InterfaceReport)> {
    state.made.get(&Unit::Sandbox(id.clone())).into_iter().flat_map(|made| &made.interfaces)
}

fn forwards(state: &State, id: &SandboxId) -> BTreeSet<Forward> {
    let mut all = BTreeSet::new();
    for there in state.called.of(id).filter(|there| !there.asked.ports.is_empty()) {
        let mine = interfaces(state, id)
            .filter(|(object, report)| object.kind == ATTACHMENT && report.name == there.interface);
        for address in mine.flat_map(|(_, report)| &report.addresses).map(|address| address.addr()) {
            let fits =
                |port: &&PortMapping| port.host_ip.is_none_or(|host| host.is_ipv4() == address.is_ipv4());
            all.extend(there.asked.ports.iter().filter(fits).map(|port| Forward {
                protocol: port.protocol.clone(),
                host_ip: port.host_ip,
                host_port: port.host_port,
                to: address,
                port: port.container_port,
            }));
        }
    }
    all
}

/// The sandbox's ports of the guarded bridge. What has no end of its own on the host lies on such a port, or changes its pod's
/// end; whatever it is, it is the pod's own.
fn guarded(state: &State, id: &SandboxId) -> BTreeSet<Port> {
    let Some(bridge) = &state.forwards.of_all.guards else { return BTreeSet::new() };
    let is_inside = |report: &&InterfaceReport| report.peer.is_none();
    let inside: Vec<&InterfaceReport> =
        interfaces(state, id).map(|(_, report)| report).filter(is_inside).collect();
    let ports = interfaces(state, id).filter(|(_, report)| report.master.as_ref() == Some(bridge));
    ports
        .filter_map(|(_, report)| {
            let own = || inside.iter().copied().chain([report]);
            let macs: BTreeSet<Mac> = own().filter_map(|report| report.mac).collect();
            let misses_nothing = !report.limited && report.vlans.is_none();
            Some(Port {
                link: report.peer.clone()?,
                direct: report.kind == Veth::NAME && macs.len() == 1 && misses_nothing,
                macs,
                addresses: own().flat_map(|report| &report.addresses).map(IpNet::addr).collect(),
            })
        })
        .collect()
}

/// Whether another attachment has one of these ports of the node.
pub(crate) fn check<'a>(
    state: &State,
    id: &SandboxId,
    ports: impl Iterator<Item = (&'a IfName, &'a PortMapping)>,
) -> Result<(), Problem> {
    let ports: Vec<(&IfName, &PortMapping)> = ports.collect();
    let clash = |one: &PortMapping, other: &PortMapping| {
        let same_address = one.host_ip.is_none() || other.host_ip.is_none() || one.host_ip == other.host_ip;
        one.protocol == other.protocol && one.host_port == other.host_port && same_address
    };
    for (at, (interface, port)) in ports.iter().enumerate() {
        // The same interface asked for again keeps its ports.
        let is_same = |there: &Attachment| there.sandbox == *id && there.interface == **interface;
        let mut others = state.called.all().filter(|there| !is_same(there));
        let taken = others.find(|there| there.asked.ports.iter().any(|other| clash(port, other)));
        let twice = ports[..at].iter().any(|(_, other)| clash(port, other));
        let whose = match (taken, twice) {
            (Some(there), _) => format!("sandbox {}'s already", there.sandbox),
            (None, true) => "asked for twice".to_owned(),
            (None, false) => continue,
        };
        let message = format!("{} port {} of the node is {whose}", port.protocol, port.host_port);
        let field = format!("port_mappings[{at}].host_port");
        return Err(Problem { field, reason: Reason::Conflict, message });
    }
    Ok(())
}
