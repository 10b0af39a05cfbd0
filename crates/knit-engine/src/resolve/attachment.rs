//! Attachments of calls as requested interfaces, which are resolved like those of objects.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{BridgePortIntent, InterfaceIntent, NameRule, NetworkIntent, RouteIntent, Selector};
use knit_model::link::{Attrs, Kind, Link, Veth};
use knit_model::plan::ItemKey;
use knit_model::provenance::Provenance;
use knit_model::{IfName, Sandbox, SandboxId, Scope, sysctl};

use super::interface::{RequestedInterface, bridge_of};
use super::{Resolved, node_routes};
use crate::call::{Attachment, RequestedDevice};
use crate::state::{BridgeKey, State};

/// The interfaces that calls request in a sandbox.
pub(super) fn requested_interfaces(state: &State, sandbox: &Sandbox) -> Vec<RequestedInterface> {
    state.attachments.of(&sandbox.id).map(|attachment| requested(state, sandbox, attachment)).collect()
}

fn requested(state: &State, sandbox: &Sandbox, attachment: &Attachment) -> RequestedInterface {
    let mut spec = match &attachment.request.link {
        Some(link) => InterfaceIntent {
            name: NameRule::Exact(attachment.interface.clone()),
            limits: attachment.limits(sandbox),
            ..(**link).clone()
        },
        None => on_network(state, sandbox, attachment),
    };
    if let Some(RequestedDevice { nic: Some(Ok(nic)), .. }) = &attachment.request.device {
        spec.kind.set_parent(nic.clone());
        spec.parent = state.uplink_of_nic(&sandbox.namespace, nic).map(|uplink| uplink.name.clone());
        spec.fixed = on_ranges(state, attachment);
        // The network may have been requested without a name.
        spec.network = spec.network.map(|_| attachment.network.clone());
    }
    RequestedInterface {
        object: attachment.object.clone(),
        origin: attachment.origin.clone(),
        spec,
        tenant: attachment.tenant.clone(),
        sets: attachment.request.sets.clone(),
        sticky: attachment.request.sticky.clone(),
    }
}

/// A veth on the bridge of a network.
fn on_network(state: &State, sandbox: &Sandbox, attachment: &Attachment) -> InterfaceIntent {
    let network = state.network(&attachment.tenant, &attachment.network);
    let gateways: Vec<_> = network.filter(|network| !network.isolated).map_or_else(Vec::new, gateways);
    let routes = attachment.request.routes.iter().map(|route| through(route, &gateways));
    InterfaceIntent {
        pods: Selector::default(),
        name: NameRule::Exact(attachment.interface.clone()),
        kind: Kind::Veth(Veth::default()),
        attrs: attachment.request.attrs.clone(),
        parent: None,
        master: bridge(state, attachment).map(|key| key.name.to_string()),
        ranges: Vec::new(),
        network: Some(attachment.network.clone()),
        fixed: on_ranges(state, attachment),
        routes: routes.collect(),
        rules: Vec::new(),
        gateways: if attachment.request.default_route { gateways.clone() } else { Vec::new() },
        sysctls: attachment.request.sysctls.clone(),
        limits: attachment.limits(sandbox),
        port: None,
        ports: Vec::new(),
        remote_pod: None,
        vrf: None,
        definition: None,
    }
}

/// A route without a gateway uses the network's.
fn through(route: &RouteIntent, gateways: &[IpAddr]) -> RouteIntent {
    let of_family = gateways.iter().find(|gateway| gateway.is_ipv4() == route.to.addr().is_ipv4());
    let mut route = route.clone();
    for hop in &mut route.via {
        hop.gateway = hop.gateway.or(of_family.copied());
    }
    route
}

/// The bridge of an attachment's network on this node, or of the link that it describes.
pub(super) fn bridge(state: &State, attachment: &Attachment) -> Option<BridgeKey> {
    if let Some(link) = &attachment.request.link {
        return bridge_of(link, &attachment.tenant);
    }
    let name = match state.cluster() {
        Some(cluster) if cluster.is(&attachment.tenant, &attachment.network) => cluster.bridge.clone(),
        _ => IfName::new(NetworkIntent::bridge_name(&attachment.network)).ok()?,
    };
    Some(BridgeKey { namespace: attachment.tenant.clone(), name })
}

/// Whether an attachment needs VLAN filtering on its bridge.
pub(super) fn needs_vlan_filter(attachment: &Attachment) -> bool {
    let port = attachment.request.link.as_ref().and_then(|link| link.port.as_ref());
    port.is_some_and(BridgePortIntent::needs_filter)
}

/// The ranges whose gateway address the bridge of an attachment has.
pub(super) fn bridge_ranges(state: &State, attachment: &Attachment) -> Vec<IpNet> {
    if let Some(link) = &attachment.request.link {
        return link.ranges.clone();
    }
    let network = state.network(&attachment.tenant, &attachment.network).filter(|network| !network.isolated);
    network.map_or_else(Vec::new, |network| network.ranges.clone())
}

/// Sets `lo` up when a call attaches a pod's primary interface.
pub(super) fn loopback(state: &State, id: &SandboxId, resolved: &mut Resolved) {
    let Some(first) = state.attachments.of(id).find(|attachment| attachment.request.default_route) else {
        return;
    };
    let scope = Scope::Sandbox(id.clone());
    let name = IfName::new("lo").expect("`lo` is a name");
    resolved.add_origin(&scope, ItemKey::Link(name.clone()), &first.origin);
    let links = &mut resolved.desired.state.scope(&scope).links;
    let none = || Link::new(name.clone(), Kind::Other { name: String::new() });
    let link = links.entry(name.clone()).or_insert_with(none);
    link.attrs = std::mem::take(&mut link.attrs).or(&Attrs { up: Some(true), ..Attrs::default() });
}

/// Whether the node itself has routes to the pods on a bridge.
pub(super) fn is_routed(state: &State, key: &BridgeKey) -> bool {
    state.cluster().is_some_and(|cluster| cluster.bridge_key() == *key)
}

/// Adds rules so that the node finds the pods of a bridge in Knit's table, and enables forwarding on the bridge. The
/// main table and the global forwarding sysctl stay unchanged.
pub(super) fn route_to(bridge: &IfName, addresses: &[IpNet], origin: &Provenance, resolved: &mut Resolved) {
    let host = Scope::Host;
    for range in addresses.iter().map(IpNet::trunc) {
        node_routes::add_rule(range, origin, resolved);
    }
    if addresses.iter().any(|address| address.addr().is_ipv4()) {
        let path = sysctl::link_path(bridge, "ipv4/forwarding");
        resolved.add_origin(&host, ItemKey::Sysctl(path.clone()), origin);
        resolved.observe.sysctls.insert(path.clone());
        resolved.unit_state.sysctls.insert(path.clone());
        resolved.desired.state.scope(&host).sysctls.insert(path, "1".to_owned());
    }
}

/// The gateway address of each range, which the bridge has.
pub(super) fn gateways(network: &NetworkIntent) -> Vec<IpAddr> {
    let pools = network.ranges.iter().map(|range| Pool::with_gateway("", *range));
    pools.filter_map(|pool| pool.gateway_address()).map(|address| address.addr()).collect()
}

/// The fixed addresses with the prefix lengths of the network's ranges; unchanged without a network.
fn on_ranges(state: &State, attachment: &Attachment) -> Vec<IpNet> {
    let link = attachment.request.link.as_deref().filter(|link| link.network.is_none());
    if let Some(link) = link {
        return link.fixed.clone();
    }
    let network = state.network(&attachment.tenant, &attachment.network);
    let ranges = network.map_or(&[][..], |network| &network.ranges);
    let of_pools = state.cluster().filter(|cluster| cluster.is(&attachment.tenant, &attachment.network));
    let with_prefix = |address: &IpAddr| {
        let range = ranges.iter().find(|range| range.contains(address)).copied();
        // This node may be about to take the block that it is of.
        let coming = || of_pools.and_then(|_| state.pool_of(*address)).map(|(_, block)| block);
        IpNet::new(*address, range.or_else(coming)?.prefix_len()).ok()
    };
    attachment.request.addresses.iter().filter_map(with_prefix).collect()
}
