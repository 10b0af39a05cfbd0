//! What calls asked for, as wants: the same rooms follow as for what objects ask for.

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{HopWant, InterfaceWant, NameRule, NetworkWant, RouteWant, Selector};
use knit_model::link::{Attrs, Kind, Link, Veth};
use knit_model::plan::Item;
use knit_model::provenance::Provenance;
use knit_model::route::{Action, MAIN_TABLE};
use knit_model::{IfName, Rule, Sandbox, SandboxId, Scope, marks};

use super::Resolved;
use super::interface::Wanted;
use crate::call::Attachment;
use crate::state::{BridgeKey, State};

/// What calls want in a sandbox.
pub(super) fn wants_of(state: &State, sandbox: &Sandbox) -> Vec<Wanted> {
    state.called.of(&sandbox.id).map(|there| wanted(state, there)).collect()
}

fn wanted(state: &State, there: &Attachment) -> Wanted {
    let network = state.network(&there.tenant, &there.network);
    let ranges = network.map_or(&[][..], |network| &network.ranges);
    let gateways: Vec<_> = network.filter(|network| !network.isolated).map_or_else(Vec::new, gateways);
    let routes = there.asked.routes.iter().map(|(to, via)| {
        let of_family = gateways.iter().find(|gateway| gateway.is_ipv4() == to.addr().is_ipv4());
        route(*to, via.or(of_family.copied()))
    });
    let want = InterfaceWant {
        pods: Selector::default(),
        name: NameRule::Exact(there.interface.clone()),
        kind: Kind::Veth(Veth::default()),
        attrs: there.asked.attrs.clone(),
        parent: None,
        master: bridge(state, there).map(|key| key.name.to_string()),
        ranges: Vec::new(),
        network: Some(there.network.clone()),
        fixed: there.asked.addresses.iter().filter_map(|address| in_range(ranges, *address)).collect(),
        routes: routes.collect(),
        rules: Vec::new(),
        gateways: if there.asked.default_route { gateways.clone() } else { Vec::new() },
        sysctls: Default::default(),
        limits: there.asked.limits,
        port: None,
        remote_pod: None,
        vrf: None,
    };
    Wanted { object: there.object.clone(), why: there.why.clone(), want, tenant: there.tenant.clone() }
}

/// The bridge of an attachment's network on this node.
pub(super) fn bridge(state: &State, there: &Attachment) -> Option<BridgeKey> {
    let name = match state.cluster() {
        Some(cluster) if cluster.is(&there.tenant, &there.network) => cluster.bridge.clone(),
        _ => IfName::new(NetworkWant::bridge_name(&there.network)).ok()?,
    };
    Some(BridgeKey { namespace: there.tenant.clone(), name })
}

/// The ranges whose first address an attachment's bridge has.
pub(super) fn bridge_ranges(state: &State, there: &Attachment) -> Vec<IpNet> {
    let network = state.network(&there.tenant, &there.network).filter(|network| !network.isolated);
    network.map_or_else(Vec::new, |network| network.ranges.clone())
}

/// Ranges that still have to give an address: a fixed one stands for its range.
pub(super) fn open_ranges(want: &InterfaceWant, ranges: Vec<IpNet>) -> Vec<IpNet> {
    let is_open = |range: &IpNet| !want.fixed.iter().any(|fixed| range.contains(&fixed.addr()));
    ranges.into_iter().filter(is_open).collect()
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
        let (priority, table) = (marks::HOST_RULE_PRIORITY, marks::HOST_TABLE);
        let rule = Rule { from: None, to: Some(range), ..Rule::from_address(range, table, priority) };
        resolved.because(&host, Item::Rule(rule.clone()), why);
        resolved.made.rules.insert(rule.clone());
        resolved.desired.state.scope(&host).rules.insert(rule);
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
fn gateways(network: &NetworkWant) -> Vec<std::net::IpAddr> {
    let pools = network.ranges.iter().map(|range| Pool::with_gateway("", *range));
    pools.filter_map(|pool| pool.gateway_address()).map(|address| address.addr()).collect()
}

/// An address with the prefix length of the range that it is in.
fn in_range(ranges: &[IpNet], address: std::net::IpAddr) -> Option<IpNet> {
    let range = ranges.iter().find(|range| range.contains(&address))?;
    IpNet::new(address, range.prefix_len()).ok()
}

fn route(to: IpNet, via: Option<std::net::IpAddr>) -> RouteWant {
    RouteWant {
        to,
        action: Action::Forward,
        via: vec![HopWant { gateway: via, link: None, weight: 1, onlink: false }],
        table: MAIN_TABLE,
        metric: 0,
        source: None,
        scope: None,
        mtu: None,
    }
}
