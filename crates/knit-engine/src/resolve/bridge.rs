//! Bridges: requested by a Bridge object, or by an interface that names one as its master.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{BridgeIntent, BridgePortIntent, IntentSpec, InterfaceIntent};
use knit_model::link::{Bridge, DEFAULT_VLAN, Kind, Link, OwnerId};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::quota::ResourceCounts;
use knit_model::report::BridgeReport;
use knit_model::{Address, IfName, Mac, Route, Rule, Scope, kernel_ids, reserved_names};

use super::bridge_ranges::{check_range, range_holder};
use super::{DEFAULT_MTU, Resolved, attachment, overlay_tunnel, with_defaults};
use crate::call::{ATTACHMENT_KIND, Attachment};
use crate::cluster;
use crate::event::Unit;
use crate::packet_filter;
use crate::state::{BridgeKey, ObjectKey, State};

/// A request of one object for a bridge.
struct BridgeRequest<'a> {
    object: &'a ObjectKey,
    origin: &'a Provenance,
    ranges: Vec<IpNet>,
    /// The network that its ranges are of.
    network: Option<&'a str>,
    /// Whether it needs VLAN filtering.
    needs_vlan_filter: bool,
    /// The spec of a `Bridge` object; interfaces do not configure their bridge.
    bridge_spec: Option<&'a BridgeIntent>,
}

/// The desired state of a bridge. Empty if it is not needed.
pub(crate) fn bridge(state: &State, key: &BridgeKey) -> Resolved {
    let mut resolved = Resolved::default();
    let name = name_of(state, key);
    let requests = requests(state, key);
    // A link of the host is not even observed: routes through it that Knit has for other nodes would count as the bridge's.
    if deny_reserved_name(state, key, &requests, &mut resolved) {
        return resolved;
    }
    resolved.observe.host_links.insert(name.clone());
    if let Some(tunnel) =
        state.units.get(&Unit::Bridge(key.clone())).and_then(|unit_state| unit_state.tunnel.as_ref())
    {
        resolved.observe.host_links.insert(tunnel.link.clone());
    }
    resolved.observe.host_rules = true;
    let unit = Unit::Bridge(key.clone());
    if requests.is_empty() && !is_used(state, key) {
        resolved.observe.ports_of = Some(name);
        packet_filter::add_tunnel(state, &unit, None, &mut resolved);
        return resolved;
    }
    if deny_by_quota(state, key, &requests, &mut resolved) {
        return resolved;
    }
    let mut link = Link::new(name.clone(), Kind::Bridge(Bridge::default()));
    link.owner = Some(OwnerId::derived(&format!("bridge/{key}")));
    let bridge_spec = requests.iter().find_map(|request| request.bridge_spec);
    if let Some(bridge_spec) = bridge_spec {
        link.kind = Kind::Bridge(bridge_spec.bridge.clone());
    }
    let default_vlan = default_vlan(state, key, &requests);
    if let Kind::Bridge(bridge) = &mut link.kind {
        bridge.vlan_filtering = Some(default_vlan.is_some());
        bridge.ip_filter = state.filters_bridged_packets(key).then_some(true);
    }
    link.kind = link.kind.with_defaults();
    let mut attrs = bridge_spec.map(|bridge_spec| bridge_spec.attrs.clone()).unwrap_or_default();
    let port = bridge_spec.and_then(|bridge_spec| bridge_spec.port.clone()).unwrap_or_default();
    attrs.vlans = default_vlan.map(|default| port.vlans(default));
    resolved.observe.vlans = default_vlan.is_some();
    let mtu = state.overlay_mtu(key).unwrap_or(DEFAULT_MTU);
    link.attrs = with_defaults(&link.kind, &attrs, Some(mtu), None, &mac_seed(key));
    for request in &requests {
        resolved.requesters.insert(request.object.clone());
        resolved.add_origin(&Scope::Host, ItemKey::Link(name.clone()), request.origin);
    }
    overlay_tunnel::add(state, key, &link, default_vlan, &mut resolved);
    packet_filter::add_tunnel(state, &unit, requests.first().map(|request| request.origin), &mut resolved);
    resolved.desired.state.scope(&Scope::Host).add_link(link);
    let addresses = add_ranges(state, key, &name, &requests, &mut resolved);
    if attachment::is_routed(state, key) {
        attachment::route_to(&name, &addresses, &requests[0].origin.clone(), &mut resolved);
    }
    resolved.unit_state.host_links.insert(name.clone());
    resolved.unit_state.bridge =
        Some(BridgeReport { requested: key.name.to_string(), name, addresses, default_vlan });
    resolved
}

/// Denies a new bridge with a name of the host. The bridge of the cluster network has one of Knit's.
fn deny_reserved_name(
    state: &State,
    key: &BridgeKey,
    requests: &[BridgeRequest<'_>],
    resolved: &mut Resolved,
) -> bool {
    let is_new = !state.units.contains_key(&Unit::Bridge(key.clone()));
    let is_denied = is_new && key.namespace != cluster::NAMESPACE && reserved_names::is_reserved(&key.name);
    for request in requests.iter().filter(|_| is_denied) {
        resolved.requesters.insert(request.object.clone());
        let message = format!("bridge {}: the name is reserved for links of the host", key.name);
        resolved.problem(request.object, request.origin.field.clone(), Reason::InvalidValue, message);
    }
    is_denied
}

/// Denies a new bridge beyond the namespace's quota. Attachments are not counted.
fn deny_by_quota(
    state: &State,
    key: &BridgeKey,
    requests: &[BridgeRequest<'_>],
    resolved: &mut Resolved,
) -> bool {
    let is_new = !state.units.contains_key(&Unit::Bridge(key.clone()));
    let is_counted = requests.iter().all(|request| request.object.kind != ATTACHMENT_KIND);
    let one = ResourceCounts { bridges: 1, ..ResourceCounts::default() };
    if !is_new || !is_counted {
        return false;
    }
    let Err(error) = state.check_namespace_quota(&key.namespace, ResourceCounts::default(), one) else {
        return false;
    };
    resolved.denied = one;
    for request in requests {
        resolved.requesters.insert(request.object.clone());
        let message = format!("bridge {}: {error}", key.name);
        resolved.problem(request.object, request.origin.field.clone(), Reason::QuotaExceeded, message);
    }
    true
}

/// The default VLAN of ports, if the bridge filters VLANs: because its object enables it, because a port needs it, or
/// because a port that needed it still exists. So ports of different VLANs stay isolated during the removal.
pub(super) fn filters_vlans(state: &State, key: &BridgeKey) -> bool {
    default_vlan(state, key, &requests(state, key)).is_some()
}

fn default_vlan(state: &State, key: &BridgeKey, requests: &[BridgeRequest<'_>]) -> Option<u16> {
    let bridge_spec =
        requests.iter().find_map(|request| request.bridge_spec).map(|bridge_spec| &bridge_spec.bridge);
    let filters = bridge_spec.and_then(|bridge_spec| bridge_spec.vlan_filtering);
    let is_needed = || requests.iter().any(|request| request.needs_vlan_filter) || has_vlan_ports(state, key);
    let default = bridge_spec.and_then(|bridge_spec| bridge_spec.default_pvid).unwrap_or(DEFAULT_VLAN);
    filters.unwrap_or_else(is_needed).then_some(default)
}

/// Whether a port with VLANs exists.
fn has_vlan_ports(state: &State, key: &BridgeKey) -> bool {
    let Some(name) =
        state.units.get(&Unit::Bridge(key.clone())).and_then(|unit_state| unit_state.bridge.as_ref())
    else {
        return false;
    };
    let users = state.units.users_of(key).filter_map(|unit| state.units.get(unit));
    let mut ports = users.flat_map(|unit_state| &unit_state.interfaces).map(|(_, interface)| interface);
    ports.any(|port| port.vlans.is_some() && port.master.as_ref() == Some(&name.name))
}

/// Whether the bridge is needed.
pub(crate) fn is_needed(state: &State, key: &BridgeKey) -> bool {
    is_used(state, key) || !requests(state, key).is_empty()
}

/// Whether no object requests the bridge any more, but it still has ports. It stays unchanged until they are gone, so
/// that a failed removal leaves it intact.
pub(crate) fn is_draining(state: &State, key: &BridgeKey) -> bool {
    is_used(state, key) && requests(state, key).is_empty()
}

/// The name on the node: the requested one, unless another bridge or link of Knit has it. An existing bridge keeps its
/// name.
pub(crate) fn name_of(state: &State, key: &BridgeKey) -> IfName {
    let unit = Unit::Bridge(key.clone());
    if let Some(bridge) = state.units.get(&unit).and_then(|unit_state| unit_state.bridge.as_ref()) {
        return bridge.name.clone();
    }
    if state.is_name_taken(&key.name, &unit) { derived_name(key) } else { key.name.clone() }
}

/// The MAC addresses that a bridge may have: its own, and those that objects request for it.
pub(crate) fn macs_of<'a>(state: &'a State, key: &'a BridgeKey) -> impl Iterator<Item = Mac> + 'a {
    let intents = state.objects.of_namespace(&key.namespace).flat_map(|(_, stored)| &stored.intents);
    let requested = intents.filter_map(|intent| match &intent.spec {
        IntentSpec::Bridge(spec) if spec.name == key.name => spec.attrs.mac,
        _ => None,
    });
    requested.chain([Mac::derived(&mac_seed(key))])
}

fn mac_seed(key: &BridgeKey) -> String {
    format!("bridge/{key}")
}

fn derived_name(key: &BridgeKey) -> IfName {
    let OwnerId(id) = OwnerId::derived(&format!("bridge/{key}"));
    IfName::new(format!("knbr{id}")).expect("four letters and ten digits are a name")
}

fn is_used(state: &State, key: &BridgeKey) -> bool {
    state.units.users_of(key).next().is_some()
}

fn requests<'a>(state: &'a State, key: &BridgeKey) -> Vec<BridgeRequest<'a>> {
    let mut requests = Vec::new();
    for (object, stored) in state.objects.on_networks_of(&key.namespace) {
        let is_own = object.namespace == key.namespace;
        for intent in &stored.intents {
            let origin = &intent.origin;
            match &intent.spec {
                IntentSpec::Bridge(spec) if is_own && spec.name == key.name => {
                    let needs_vlan_filter = spec.port.as_ref().is_some_and(BridgePortIntent::needs_filter);
                    let ranges = spec.ranges.clone();
                    requests.push(BridgeRequest {
                        object,
                        origin,
                        ranges,
                        network: None,
                        needs_vlan_filter,
                        bridge_spec: Some(spec),
                    });
                }
                IntentSpec::Interface(spec)
                    if spec.tenant(&object.namespace) == key.namespace
                        && is_port(spec, key)
                        && has_pod(state, &object.namespace, spec)
                        && !state.is_on_segment(&key.namespace, spec) =>
                {
                    requests.push(BridgeRequest {
                        object,
                        origin,
                        ranges: ranges(state, &key.namespace, spec),
                        network: spec.network.as_deref(),
                        needs_vlan_filter: spec.port.as_ref().is_some_and(BridgePortIntent::needs_filter),
                        bridge_spec: None,
                    });
                }
                _ => {}
            }
        }
    }
    // All attachments of a network make the same request, so one is sufficient; links described by callers are
    // individual.
    let is_port = |attachment: &&Attachment| attachment::bridge(state, attachment).as_ref() == Some(key);
    let on_network =
        state.attachments.all().filter(|attachment| attachment.request.link.is_none()).find(is_port);
    let described =
        state.attachments.all().filter(|attachment| attachment.request.link.is_some()).filter(is_port);
    requests.extend(on_network.into_iter().chain(described).map(|attachment| BridgeRequest {
        object: &attachment.object,
        origin: &attachment.origin,
        ranges: attachment::bridge_ranges(state, attachment),
        network: Some(&attachment.network),
        needs_vlan_filter: attachment::needs_vlan_filter(attachment),
        bridge_spec: None,
    }));
    requests
}

/// The ranges that an interface adds to its bridge: its own, or its network's. The node is not on an isolated network.
fn ranges(state: &State, namespace: &str, spec: &InterfaceIntent) -> Vec<IpNet> {
    if spec.definition.as_ref().is_some_and(|defined| !defined.gateway) {
        return Vec::new();
    }
    let network = spec.network.as_ref().and_then(|name| state.network(namespace, name));
    match network {
        Some(network) if network.isolated => Vec::new(),
        Some(network) => network.ranges.clone(),
        None => spec.ranges.clone(),
    }
}

fn is_port(spec: &InterfaceIntent, key: &BridgeKey) -> bool {
    matches!(spec.kind, Kind::Veth(_)) && spec.master.as_deref() == Some(key.name.as_str())
}

fn has_pod(state: &State, namespace: &str, spec: &InterfaceIntent) -> bool {
    state.sandboxes.values().any(|sandbox| spec.pods.matches(namespace, sandbox))
}

/// Adds the gateway address of each range to the bridge, with its connected route in Knit's routing table: the main
/// table stays unchanged.
fn add_ranges(
    state: &State,
    key: &BridgeKey,
    name: &IfName,
    requests: &[BridgeRequest<'_>],
    resolved: &mut Resolved,
) -> Vec<IpNet> {
    let mut addresses: Vec<IpNet> = Vec::new();
    let mut seen: BTreeSet<IpNet> = BTreeSet::new();
    let mut checks = BTreeMap::new();
    for (request, range) in
        requests.iter().flat_map(|request| request.ranges.iter().map(move |range| (request, *range)))
    {
        let check = checks.entry(range).or_insert_with(|| check_range(state, key, range));
        if let Err((reason, why)) = check {
            // Every object that requests it, and its network: none of them has a gateway.
            let network = request.network.and_then(|name| state.network_object(&key.namespace, name));
            for (object, origin) in [(request.object, request.origin)].into_iter().chain(network) {
                resolved.problem(
                    object,
                    origin.field.clone(),
                    *reason,
                    format!("bridge {}: {why}", key.name),
                );
            }
            continue;
        }
        if !seen.insert(range) {
            continue;
        }
        if let Some(other) = seen.iter().find(|other| **other != range && knit_ipam::overlaps(**other, range))
        {
            let message = format!("bridge {}: {range} overlaps {other} on the same bridge", key.name);
            resolved.problem(request.object, request.origin.field.clone(), Reason::RangeOverlap, message);
            continue;
        }
        let Some(first) = Pool::with_gateway(key.to_string(), range).gateway_address() else { continue };
        if let Some((other, is_mine)) = range_holder(state, key, range) {
            let suffix = if is_mine { "" } else { " of another namespace" };
            let warning = format!(
                "bridge {name} has no address of {range}: bridge {other}{suffix} has it on this node"
            );
            resolved.unit_state.warnings.push((request.object.clone(), warning));
            continue;
        }
        add_address(name, first, request.origin, resolved);
        addresses.push(first);
    }
    addresses
}

fn add_address(name: &IfName, address: IpNet, origin: &Provenance, resolved: &mut Resolved) {
    let host = Scope::Host;
    let single = IpNet::from(address.addr());
    let rule = Rule::from_address(single, kernel_ids::HOST_TABLE, kernel_ids::HOST_RULE_PRIORITY);
    let route = Route { table: kernel_ids::HOST_TABLE, ..Route::on_link(address.trunc(), name.clone()) };
    let address = Address { noprefixroute: true, ..Address::new(name.clone(), address) };
    resolved.add_origin(&host, ItemKey::Address(address.key()), origin);
    resolved.add_origin(&host, ItemKey::Route(route.key()), origin);
    resolved.add_origin(&host, ItemKey::Rule(rule.clone()), origin);
    resolved.unit_state.rules.insert(rule.clone());
    let scope = resolved.desired.state.scope(&host);
    scope.add_address(address);
    scope.add_route(route);
    scope.rules.insert(rule);
}
