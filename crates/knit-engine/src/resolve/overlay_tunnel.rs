//! The tunnel of an overlay network: a VXLAN port of its bridge that floods to the member nodes and learns MAC
//! addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::intent::TunnelEndpoint;
use knit_model::link::{Attrs, Kind, Link, LinkKind, OwnerId, PortVlans, VlanSet, Vxlan};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::report::{ItemKind, ItemReport};
use knit_model::{IfName, Scope};

use super::{Resolved, with_defaults};
use crate::overlay::{OverlayNetwork, OverlayTunnel, Underlay, gateway_addresses};
use crate::packet_filter;
use crate::state::{BridgeKey, State};

/// The field of problems and items.
const FIELD: &str = "spec.transport";
/// How many nodes are listed in the status.
const MAX_NAMED_NODES: usize = 50;

/// Adds the tunnel of an overlay bridge.
pub(super) fn add(
    state: &State,
    key: &BridgeKey,
    bridge: &Link,
    default_vlan: Option<u16>,
    resolved: &mut Resolved,
) {
    let Some(overlay) = state.overlay_on_bridge(key) else { return };
    resolved.requesters.insert(overlay.object.clone());
    let problem_text =
        |error: &str| format!("network {} is not connected to other nodes: {error}", overlay.network.name);
    let Some(underlay) = &state.underlay else {
        let warning = problem_text("the addresses of nodes have not been synced from the API server yet");
        resolved.unit_state.warnings.push((overlay.object.clone(), warning));
        return;
    };
    let (vni, end) = match decide(state, overlay, underlay) {
        Ok(decided) => decided,
        Err((reason, error)) => {
            resolved.problem(overlay.object, FIELD, reason, problem_text(&error));
            return;
        }
    };
    let members = state.members(overlay);
    let (reached, unreachable) = places(&members, underlay, end.address);
    for warning in unreachable {
        resolved.unit_state.warnings.push((overlay.object.clone(), warning));
    }
    let name = link_name(key);
    let flood: BTreeSet<IpAddr> = reached.values().copied().collect();
    let vxlan = Vxlan::flooding(vni, underlay.local.port, end.address, flood);
    let max_mtu = end.mtu.saturating_sub(vxlan.overhead());
    if let Some(mtu) = overlay.network.mtu.filter(|mtu| *mtu > max_mtu) {
        let warning = format!(
            "spec.mtu: {mtu} bytes do not fit into the tunnels to other nodes, which carry {max_mtu}: larger packets are dropped"
        );
        resolved.unit_state.warnings.push((overlay.object.clone(), warning));
    }
    let mut link = Link::new(name.clone(), Kind::Vxlan(vxlan).with_defaults());
    link.owner = Some(OwnerId::derived(&seed(key)));
    // Including the VLANs of pods.
    let vlans = default_vlan.map(|default| PortVlans::trunk(VlanSet::all(), default));
    let attrs = Attrs { vlans, ..Attrs::default() };
    // The MAC address of the tunnel link is local to the node and never used as a source.
    let own = format!("{}/{}", seed(key), end.address);
    link.attrs = with_defaults(&link.kind, &attrs, Some(max_mtu), Some(bridge.name.clone()), &own);
    let what = describe(vni, &name, &reached);
    let item = ItemReport {
        field: FIELD.to_owned(),
        kind: ItemKind::NodeTunnel,
        description: what,
        links: vec![name.clone()],
        ready: true,
    };
    resolved.unit_state.items.push((overlay.object.clone(), item));
    resolved.add_origin(&Scope::Host, ItemKey::Link(name.clone()), overlay.origin);
    resolved.observe.host_links.insert(name.clone());
    resolved.unit_state.host_links.insert(name.clone());
    resolved.unit_state.tunnel = bridge.attrs.mac.map(|mac| OverlayTunnel {
        link: name,
        mac,
        gateway_addresses: gateway_addresses(&overlay.network.ranges),
        members,
    });
    resolved.desired.state.scope(&Scope::Host).add_link(link);
}

/// The VNI and the local endpoint, or why there is no tunnel.
fn decide<'a>(
    state: &State,
    overlay: OverlayNetwork<'_>,
    underlay: &'a Underlay,
) -> Result<(u32, &'a TunnelEndpoint), (Reason, String)> {
    if let Some(message) = state.unsupported.get(Vxlan::NAME) {
        return Err((Reason::KernelUnsupported, message.clone()));
    }
    if let Some(problem) = packet_filter::problem(state) {
        return Err((problem.reason, problem.message.clone()));
    }
    let vni =
        state.vni_of(overlay, underlay.local.reserved_vni).map_err(|error| (Reason::Conflict, error))?;
    let nowhere = || {
        let error = "no link of this node has an InternalIP of its Node object".to_owned();
        (Reason::NotReady, error)
    };
    Ok((vni, underlay.end().ok_or_else(nowhere)?))
}

/// The address of each reachable member, and a warning for each of the others.
fn places(
    members: &BTreeSet<String>,
    underlay: &Underlay,
    from: IpAddr,
) -> (BTreeMap<String, IpAddr>, Vec<String>) {
    let (mut reached, mut unreachable) = (BTreeMap::new(), Vec::new());
    for node in members {
        let mut addresses = underlay.nodes.get(node).into_iter().flatten();
        match addresses.find(|to| to.is_ipv4() == from.is_ipv4()) {
            Some(to) => drop(reached.insert(node.clone(), *to)),
            None => {
                let family = if from.is_ipv4() { "IPv4" } else { "IPv6" };
                unreachable.push(format!("pods of node {node} are not reached: it has no {family} address"));
            }
        }
    }
    (reached, unreachable)
}

fn describe(vni: u32, link: &IfName, reached: &BTreeMap<String, IpAddr>) -> String {
    let named = reached.iter().take(MAX_NAMED_NODES).map(|(node, to)| format!("{node} ({to})"));
    let mut named: Vec<String> = named.collect();
    if reached.len() > MAX_NAMED_NODES {
        named.push(format!("{} more", reached.len() - MAX_NAMED_NODES));
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
