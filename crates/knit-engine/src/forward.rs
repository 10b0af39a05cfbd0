//! Ports of the node that lead to pods. All of them are one thing in the kernel, which is replaced as a whole; so there is
//! one change at a time, and what changed meanwhile follows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, SandboxId};

use crate::call::{ATTACHMENT, Attachment, PortMapping};
use crate::cluster::{self, ClusterNetwork};
use crate::event::{Effect, Unit};
use crate::resolve;
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

/// All ports of the node that lead to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// These, and no others.
    pub forwards: Vec<Forward>,
    /// The bridge of the cluster's network, if there is one: what the node says to itself on its loopback leaves by it.
    pub bridge: Option<IfName>,
    /// Whose packets leave the cluster with the node's address.
    pub outside: Option<Outside>,
}

/// Pods that have the node's address outside of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// The ranges of the pods.
    pub pods: Vec<IpNet>,
    /// What they reach with their own address: pods, nodes, and what is said to be inside. In order, none twice.
    pub inside: Vec<IpNet>,
}

/// What the host was asked to have. Not remembered: it is asked again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forwards {
    of: BTreeMap<SandboxId, BTreeSet<Forward>>,
    outside: Option<Outside>,
    under_way: bool,
    again: bool,
}

impl Forwards {
    /// Whether the kernel is not yet as it should be.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }
}

fn ask(state: &mut State, effects: &mut Effects) {
    let bridge = state.cluster().map(|cluster| cluster.bridge.clone());
    let outside = state.cluster().and_then(outside);
    state.forwards.outside.clone_from(&outside);
    let asked = &mut state.forwards;
    if asked.under_way {
        asked.again = true;
        return;
    }
    asked.under_way = true;
    let forwards = asked.of.values().flatten().cloned().collect();
    effects.list.push(Effect::Forward(Forwarding { forwards, bridge, outside }));
}

fn outside(cluster: ClusterNetwork<'_>) -> Option<Outside> {
    let ways = cluster.ways.filter(|ways| ways.masquerade)?;
    let pods = cluster.network.ranges.clone();
    let addresses = ways.nodes.iter().flat_map(|node| node.own()).map(IpNet::from);
    let theirs = resolve::ranges_of_others(cluster.network, ways).into_iter().chain(addresses);
    let stated = ways.inside.iter().chain(&ways.pools);
    let inside: BTreeSet<IpNet> = pods.iter().chain(stated).copied().chain(theirs).collect();
    Some(Outside { pods, inside: inside.into_iter().collect() })
}

/// The cluster's network is another, or what lies beyond it.
pub(crate) fn heed(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    if *object == cluster::key() && state.cluster().and_then(outside) != state.forwards.outside {
        ask(state, effects);
    }
}

/// The host has done what it was asked. Says whether that was the last of it.
pub(crate) fn done(state: &mut State, effects: &mut Effects) -> bool {
    state.forwards.under_way = false;
    if std::mem::take(&mut state.forwards.again) {
        ask(state, effects);
    }
    !state.forwards.under_way
}

/// Compares the ports of one sandbox with what was asked for last.
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
    let ids: Vec<SandboxId> = state.called.sandboxes().cloned().collect();
    let all = ids.into_iter().map(|id| (id.clone(), wanted(state, &id)));
    state.forwards.of = all.filter(|(_, forwards)| !forwards.is_empty()).collect();
    state.forwards.outside = state.cluster().and_then(outside);
}

/// Asks for all of them, whatever was asked before.
pub(crate) fn refresh_all(state: &mut State, effects: &mut Effects) {
    remember(state);
    ask(state, effects);
}

fn wanted(state: &State, id: &SandboxId) -> BTreeSet<Forward> {
    let mut all = BTreeSet::new();
    for there in state.called.of(id).filter(|there| !there.asked.ports.is_empty()) {
        let made = state.made.get(&Unit::Sandbox(id.clone())).into_iter().flat_map(|made| &made.interfaces);
        let mine =
            made.filter(|(object, report)| object.kind == ATTACHMENT && report.name == there.interface);
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
