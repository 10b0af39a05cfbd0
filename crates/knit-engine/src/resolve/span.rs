//! The tunnel of a network that is one on all nodes: a port of its bridge, which floods to the other nodes on the network and
//! learns who is where.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::intent::TunnelEndpoint;
use knit_model::link::{Attrs, Kind, Link, LinkKind, OwnerId, PortVlans, VlanSet, Vxlan};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::report::ItemReport;
use knit_model::{IfName, Scope};

use super::{Resolved, with_defaults};
use crate::spans::{FILTER, Spanning, Tunnel, Underlay, first_addresses};
use crate::state::{BridgeKey, State};

/// Where it is said.
const FIELD: &str = "spec.transport";
/// So many nodes are named.
const MOST_NAMED: usize = 50;

/// Adds the tunnel of a bridge to what it should be, if it has one.
pub(super) fn add(
    state: &State,
    key: &BridgeKey,
    bridge: &Link,
    default_vlan: Option<u16>,
    resolved: &mut Resolved,
) {
    let Some(spanning) = state.spanning_on(key) else { return };
    resolved.askers.insert(spanning.object.clone());
    let said = |sentence: &str| {
        format!("network {} does not reach other nodes from here: {sentence}", spanning.network.name)
    };
    let Some(underlay) = &state.underlay else {
        let warning = said("the API server has not told yet which addresses nodes have");
        resolved.made.warnings.push((spanning.object.clone(), warning));
        return;
    };
    let (vni, end) = match decide(state, spanning, underlay) {
        Ok(decided) => decided,
        Err((reason, sentence)) => {
            resolved.problem(spanning.object, FIELD, reason, said(&sentence));
            return;
        }
    };
    let members = state.members(spanning);
    let (reached, lost) = places(&members, underlay, end.address);
    for warning in lost {
        resolved.made.warnings.push((spanning.object.clone(), warning));
    }
    let name = link_name(key);
    let flood: BTreeSet<IpAddr> = reached.values().copied().collect();
    let vxlan = Vxlan::flooding(vni, underlay.port, end.address, flood);
    let largest = end.mtu.saturating_sub(vxlan.overhead());
    if let Some(mtu) = spanning.network.mtu.filter(|mtu| *mtu > largest) {
        let warning = format!(
            "spec.mtu: {mtu} bytes do not fit into the tunnels to other nodes, which carry {largest}: larger packets get lost there"
        );
        resolved.made.warnings.push((spanning.object.clone(), warning));
    }
    let mut link = Link::new(name.clone(), Kind::Vxlan(vxlan).with_defaults());
    link.owner = Some(OwnerId::derived(&seed(key)));
    // VLANs of pods go along.
    let vlans = default_vlan.map(|default| PortVlans::trunk(VlanSet::all(), default));
    let asked = Attrs { vlans, ..Attrs::default() };
    // Its own address is this node's alone; nobody speaks from it.
    let own = format!("{}/{}", seed(key), end.address);
    link.attrs = with_defaults(&link.kind, &asked, Some(largest), Some(bridge.name.clone()), &own);
    let what = in_words(vni, &name, &reached);
    let item = ItemReport { field: FIELD.to_owned(), what, links: vec![name.clone()], ready: true };
    resolved.made.items.push((spanning.object.clone(), item));
    resolved.because(&Scope::Host, Item::Link(name.clone()), spanning.why);
    resolved.look.host_links.insert(name.clone());
    resolved.made.host_links.insert(name.clone());
    resolved.made.tunnel = bridge.attrs.mac.map(|mac| Tunnel {
        link: name,
        mac,
        first: first_addresses(&spanning.network.ranges),
        members,
    });
    resolved.desired.state.scope(&Scope::Host).add_link(link);
}

/// The number of the tunnel and where it begins, or why there is none.
fn decide<'a>(
    state: &State,
    spanning: Spanning<'_>,
    underlay: &'a Underlay,
) -> Result<(u32, &'a TunnelEndpoint), (Reason, String)> {
    if let Some(words) = [Vxlan::NAME, FILTER].into_iter().find_map(|what| state.lacking.get(what)) {
        return Err((Reason::KernelLacks, words.clone()));
    }
    let vni = state.vni_of(spanning, underlay.taken).map_err(|why| (Reason::Conflict, why))?;
    let nowhere = || {
        let why = "no link of this node has an address that its Node object tells (InternalIP)".to_owned();
        (Reason::NotReady, why)
    };
    Ok((vni, underlay.end().ok_or_else(nowhere)?))
}

/// The address of each node that is reached, and a sentence for each that is not.
fn places(
    members: &BTreeSet<String>,
    underlay: &Underlay,
    from: IpAddr,
) -> (BTreeMap<String, IpAddr>, Vec<String>) {
    let (mut reached, mut lost) = (BTreeMap::new(), Vec::new());
    for node in members {
        let mut addresses = underlay.nodes.get(node).into_iter().flatten();
        match addresses.find(|to| to.is_ipv4() == from.is_ipv4()) {
            Some(to) => drop(reached.insert(node.clone(), *to)),
            None => {
                let family = if from.is_ipv4() { "IPv4" } else { "IPv6" };
                lost.push(format!("pods of node {node} are not reached: it has no {family} address"));
            }
        }
    }
    (reached, lost)
}

fn in_words(vni: u32, link: &IfName, reached: &BTreeMap<String, IpAddr>) -> String {
    let named = reached.iter().take(MOST_NAMED).map(|(node, to)| format!("{node} ({to})"));
    let mut named: Vec<String> = named.collect();
    if reached.len() > MOST_NAMED {
        named.push(format!("{} more", reached.len() - MOST_NAMED));
    }
    let to = if named.is_empty() { "no other node yet".to_owned() } else { named.join(", ") };
    format!("vxlan, VNI {vni}, by {link} to {to}")
}

fn seed(key: &BridgeKey) -> String {
    format!("span/{key}")
}

fn link_name(key: &BridgeKey) -> IfName {
    let OwnerId(id) = OwnerId::derived(&seed(key));
    IfName::new(format!("knvx{id}")).expect("four letters and ten digits are a name")
}
