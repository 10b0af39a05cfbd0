//! What calls asked for, as wants: the same rooms follow as for what objects ask for.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{BridgePortIntent, InterfaceIntent, NameRule, NetworkIntent, RouteIntent, Selector};
use knit_model::link::{Attrs, Kind, Link, Veth};
use knit_model::plan::Item;
use knit_model::provenance::Provenance;
use knit_model::{IfName, Sandbox, SandboxId, Scope};

use super::interface::{Wanted, bridge_of};
use super::{Resolved, ways};
use crate::call::{Attachment, Device};
use crate::state::{BridgeKey, State};

/// What calls want in a sandbox.
pub(super) fn wants_of(state: &State, sandbox: &Sandbox) -> Vec<Wanted> {
    state.called.of(&sandbox.id).map(|there| wanted(state, sandbox, there)).collect()
}

fn wanted(state: &State, sandbox: &Sandbox, there: &Attachment) -> Wanted {
    let mut want = match &there.asked.link {
        Some(link) => InterfaceIntent {
            name: NameRule::Exact(there.interface.clone()),
            limits: there.limits(sandbox),
            ..(**link).clone()
        },
        None => on_network(state, sandbox, there),
    };
    if let Some(Device { nic: Ok(nic), .. }) = &there.asked.device {
        want.kind.set_parent(nic.clone());
        want.parent = state.uplink_of_nic(&sandbox.namespace, nic).map(|uplink| uplink.name.clone());
        want.fixed = on_ranges(state, there);
        // A network may be asked for without its name.
        want.network = want.network.map(|_| there.network.clone());
    }
    Wanted {
        object: there.object.clone(),
        why: there.why.clone(),
        want,
        tenant: there.tenant.clone(),
        sets: there.asked.sets.clone(),
        sticky: there.asked.sticky.clone(),
    }
}

/// A pair on the bridge of a network.
fn on_network(state: &State, sandbox: &Sandbox, there: &Attachment) -> InterfaceIntent {
    let network = state.network(&there.tenant, &there.network);
    let gateways: Vec<_> = network.filter(|network| !network.isolated).map_or_else(Vec::new, gateways);
    let routes = there.asked.routes.iter().map(|route| through(route, &gateways));
    InterfaceIntent {
        pods: Selector::default(),
        name: NameRule::Exact(there.interface.clone()),
        kind: Kind::Veth(Veth::default()),
        attrs: there.asked.attrs.clone(),
        parent: None,
        master: bridge(state, there).map(|key| key.name.to_string()),
        ranges: Vec::new(),
        network: Some(there.network.clone()),
        fixed: on_ranges(state, there),
        routes: routes.collect(),
        rules: Vec::new(),
        gateways: if there.asked.default_route { gateways.clone() } else { Vec::new() },
        sysctls: there.asked.sysctls.clone(),
        limits: there.limits(sandbox),
        port: None,
        remote_pod: None,
        vrf: None,
        defined: None,
    }
}

/// A route that says no router goes through the network's.
fn through(route: &RouteIntent, gateways: &[IpAddr]) -> RouteIntent {
    let of_family = gateways.iter().find(|gateway| gateway.is_ipv4() == route.to.addr().is_ipv4());
    let mut route = route.clone();
    for hop in &mut route.via {
        hop.gateway = hop.gateway.or(of_family.copied());
    }
    route
}

/// The bridge of an attachment's network on this node, or of the link that it describes.
pub(super) fn bridge(state: &State, there: &Attachment) -> Option<BridgeKey> {
    if let Some(link) = &there.asked.link {
        return bridge_of(link, &there.tenant);
    }
    let name = match state.cluster() {
        Some(cluster) if cluster.is(&there.tenant, &there.network) => cluster.bridge.clone(),
        _ => IfName::new(NetworkIntent::bridge_name(&there.network)).ok()?,
    };
    Some(BridgeKey { namespace: there.tenant.clone(), name })
}

/// Whether an attachment needs its bridge to filter VLANs.
pub(super) fn needs_filter(there: &Attachment) -> bool {
    let port = there.asked.link.as_ref().and_then(|link| link.port.as_ref());
    port.is_some_and(BridgePortIntent::needs_filter)
}

/// The ranges whose first address an attachment's bridge has.
pub(super) fn bridge_ranges(state: &State, there: &Attachment) -> Vec<IpNet> {
    if let Some(link) = &there.asked.link {
        return link.ranges.clone();
    }
    let network = state.network(&there.tenant, &there.network).filter(|network| !network.isolated);
    network.map_or_else(Vec::new, |network| network.ranges.clone())
}

/// Has `lo` up where a call gives a pod its first interface: nothing works in a namespace without it.
pub(super) fn loopback(state: &State, id: &SandboxId, resolved: &mut Resolved) {
    let Some(first) = state.called.of(id).find(|there| there.asked.default_route) else { return };
    let scope = Scope::Sandbox(id.clone());
    let name = IfName::new("lo").expect("`lo` is a name");
    resolved.because(&scope, Item::Link(name.clone()), &first.why);
    let links = &mut resolved.desired.state.scope(&scope).links;
    let none = || Link::new(name.clone(), Kind::Other { name: String::new() });
    let link = links.entry(name.clone()).or_insert_with(none);
    link.attrs = std::mem::take(&mut link.attrs).or(&Attrs { up: Some(true), ..Attrs::default() });
}

/// Whether the node itself reaches the pods on a bridge.
pub(super) fn is_routed(state: &State, key: &BridgeKey) -> bool {
    state.cluster().is_some_and(|cluster| cluster.bridge_key() == *key)
}

/// The node finds the pods of a bridge by a rule of Knit's own, and what comes from them may go on. The host's main
/// table and its own forwarding switch stay as they are.
pub(super) fn route_to(bridge: &IfName, addresses: &[IpNet], why: &Provenance, resolved: &mut Resolved) {
    let host = Scope::Host;
    for range in addresses.iter().map(IpNet::trunc) {
        ways::add_rule(range, why, resolved);
    }
    if addresses.iter().any(|address| address.addr().is_ipv4()) {
        let path = format!("net/ipv4/conf/{bridge}/forwarding");
        resolved.because(&host, Item::Sysctl(path.clone()), why);
        resolved.look.sysctls.insert(path.clone());
        resolved.made.sysctls.insert(path.clone());
        resolved.desired.state.scope(&host).sysctls.insert(path, "1".to_owned());
    }
}

/// The bridge's address of each range: the way out.
pub(super) fn gateways(network: &NetworkIntent) -> Vec<IpAddr> {
    let pools = network.ranges.iter().map(|range| Pool::with_gateway("", *range));
    pools.filter_map(|pool| pool.gateway_address()).map(|address| address.addr()).collect()
}

/// The addresses that are asked for by value, with the prefix lengths of the network's ranges; on no network, as they are
/// asked for.
fn on_ranges(state: &State, there: &Attachment) -> Vec<IpNet> {
    let link = there.asked.link.as_deref().filter(|link| link.network.is_none());
    if let Some(link) = link {
        return link.fixed.clone();
    }
    let network = state.network(&there.tenant, &there.network);
    let ranges = network.map_or(&[][..], |network| &network.ranges);
    let of_pools = state.cluster().filter(|cluster| cluster.is(&there.tenant, &there.network));
    let with_prefix = |address: &IpAddr| {
        let range = ranges.iter().find(|range| range.contains(address)).copied();
        // This node may be about to take the block that it is of.
        let coming = || of_pools.and_then(|_| state.pool_of(*address)).map(|(_, block)| block);
        IpNet::new(*address, range.or_else(coming)?.prefix_len()).ok()
    };
    there.asked.addresses.iter().filter_map(with_prefix).collect()
}
