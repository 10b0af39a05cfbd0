//! Bridges: asked for by an object of their own, or by an interface that names one as its master.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{BridgeIntent, BridgePortIntent, IntentSpec, InterfaceIntent};
use knit_model::link::{Bridge, DEFAULT_VLAN, Kind, Link, OwnerId};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::quota::Counts;
use knit_model::report::BridgeReport;
use knit_model::{Address, IfName, Route, Rule, Scope, marks};

use super::{DEFAULT_MTU, Resolved, attachment, span, with_defaults};
use crate::call::{ATTACHMENT, Attachment};
use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State};

/// One object's wish about a bridge.
struct Wish<'a> {
    object: &'a ObjectKey,
    why: &'a Provenance,
    ranges: Vec<IpNet>,
    /// Whether it needs a bridge that filters VLANs.
    needs_filter: bool,
    /// What a `Bridge` object says; an interface says nothing about its bridge.
    says: Option<&'a BridgeIntent>,
}

/// What a bridge should be. Nothing at all when nobody needs it.
pub(crate) fn bridge(state: &State, key: &BridgeKey) -> Resolved {
    let mut resolved = Resolved::default();
    let name = name_of(state, key);
    resolved.look.host_links.insert(name.clone());
    if let Some(tunnel) = state.made.get(&Unit::Bridge(key.clone())).and_then(|made| made.tunnel.as_ref()) {
        resolved.look.host_links.insert(tunnel.link.clone());
    }
    resolved.look.host_rules = true;
    let wishes = wishes(state, key);
    if wishes.is_empty() && !is_used(state, key) {
        resolved.look.ports_of = Some(name);
        return resolved;
    }
    if refuse(state, key, &wishes, &mut resolved) {
        return resolved;
    }
    let mut link = Link::new(name.clone(), Kind::Bridge(Bridge::default()));
    link.owner = Some(OwnerId::derived(&format!("bridge/{key}")));
    let says = wishes.iter().find_map(|wish| wish.says);
    if let Some(says) = says {
        link.kind = Kind::Bridge(says.bridge.clone());
    }
    let default_vlan = default_vlan(state, key, &wishes);
    if let Kind::Bridge(bridge) = &mut link.kind {
        bridge.vlan_filtering = Some(default_vlan.is_some());
    }
    link.kind = link.kind.with_defaults();
    let mut asked = says.map(|says| says.attrs.clone()).unwrap_or_default();
    let port = says.and_then(|says| says.port.clone()).unwrap_or_default();
    asked.vlans = default_vlan.map(|default| port.vlans(default));
    resolved.look.vlans = default_vlan.is_some();
    let mtu = state.spanning_mtu(key).unwrap_or(DEFAULT_MTU);
    link.attrs = with_defaults(&link.kind, &asked, Some(mtu), None, &format!("bridge/{key}"));
    for wish in &wishes {
        resolved.askers.insert(wish.object.clone());
        resolved.because(&Scope::Host, Item::Link(name.clone()), wish.why);
    }
    span::add(state, key, &link, default_vlan, &mut resolved);
    resolved.desired.state.scope(&Scope::Host).add_link(link);
    let addresses = add_ranges(state, key, &name, &wishes, &mut resolved);
    if attachment::is_routed(state, key) {
        attachment::route_to(&name, &addresses, &wishes[0].why.clone(), &mut resolved);
    }
    resolved.made.host_links.insert(name.clone());
    resolved.made.bridge = Some(BridgeReport { asked: key.name.to_string(), name, addresses, default_vlan });
    resolved
}

/// Says no to a new bridge for which the namespace's quota has no room. What calls ask for is not counted.
fn refuse(state: &State, key: &BridgeKey, wishes: &[Wish<'_>], resolved: &mut Resolved) -> bool {
    let is_new = !state.made.contains_key(&Unit::Bridge(key.clone()));
    let is_counted = wishes.iter().all(|wish| wish.object.kind != ATTACHMENT);
    let one = Counts { bridges: 1, ..Counts::default() };
    if !is_new || !is_counted {
        return false;
    }
    let Err(why) = state.has_room(&key.namespace, Counts::default(), one) else { return false };
    resolved.refused = one;
    for wish in wishes {
        resolved.askers.insert(wish.object.clone());
        let message = format!("bridge {}: {why}", key.name);
        resolved.problem(wish.object, wish.why.field.clone(), Reason::QuotaExceeded, message);
    }
    true
}

/// The VLAN of a port when nobody says anything, if the bridge filters: because its object says so, because a port needs
/// it, or because a port that needed it is still there. So the ports of two VLANs never see each other on the way out.
pub(super) fn is_to_filter(state: &State, key: &BridgeKey) -> bool {
    default_vlan(state, key, &wishes(state, key)).is_some()
}

fn default_vlan(state: &State, key: &BridgeKey, wishes: &[Wish<'_>]) -> Option<u16> {
    let says = wishes.iter().find_map(|wish| wish.says).map(|says| &says.bridge);
    let filters = says.and_then(|says| says.vlan_filtering);
    let is_needed = || wishes.iter().any(|wish| wish.needs_filter) || has_vlan_ports(state, key);
    let default = says.and_then(|says| says.default_pvid).unwrap_or(DEFAULT_VLAN);
    filters.unwrap_or_else(is_needed).then_some(default)
}

/// Whether a port with VLANs of its own is there.
fn has_vlan_ports(state: &State, key: &BridgeKey) -> bool {
    let Some(name) = state.made.get(&Unit::Bridge(key.clone())).and_then(|made| made.bridge.as_ref()) else {
        return false;
    };
    let users = state.made.values().filter(|made| made.uses.contains(key));
    let mut ports = users.flat_map(|made| &made.interfaces).map(|(_, interface)| interface);
    ports.any(|port| port.vlans.is_some() && port.master.as_ref() == Some(&name.name))
}

/// Whether anything wants the bridge to be there.
pub(crate) fn is_needed(state: &State, key: &BridgeKey) -> bool {
    is_used(state, key) || !wishes(state, key).is_empty()
}

/// Whether nobody asks for the bridge any more, but interfaces are still on it. It stays as it is until they are gone, so
/// that nothing is half taken away if they cannot go.
pub(crate) fn is_left(state: &State, key: &BridgeKey) -> bool {
    is_used(state, key) && wishes(state, key).is_empty()
}

/// The name on the node: what was asked for, unless another tenant's bridge or another link of Knit's has it. A bridge
/// keeps its name as long as it is there.
pub(crate) fn name_of(state: &State, key: &BridgeKey) -> IfName {
    let unit = Unit::Bridge(key.clone());
    if let Some(bridge) = state.made.get(&unit).and_then(|made| made.bridge.as_ref()) {
        return bridge.name.clone();
    }
    if state.is_taken(&key.name, &unit) { derived_name(key) } else { key.name.clone() }
}

fn derived_name(key: &BridgeKey) -> IfName {
    let OwnerId(id) = OwnerId::derived(&format!("bridge/{key}"));
    IfName::new(format!("knbr{id}")).expect("four letters and ten digits are a name")
}

fn is_used(state: &State, key: &BridgeKey) -> bool {
    state.made.values().any(|made| made.uses.contains(key))
}

fn wishes<'a>(state: &'a State, key: &BridgeKey) -> Vec<Wish<'a>> {
    let mut wishes = Vec::new();
    for (object, stored) in state.in_order() {
        let is_own = object.namespace == key.namespace;
        for intent in &stored.intents {
            let why = &intent.origin;
            match &intent.spec {
                IntentSpec::Bridge(want) if is_own && want.name == key.name => {
                    let needs_filter = want.port.as_ref().is_some_and(BridgePortIntent::needs_filter);
                    let ranges = want.ranges.clone();
                    wishes.push(Wish { object, why, ranges, needs_filter, says: Some(want) });
                }
                IntentSpec::Interface(want)
                    if want.tenant(&object.namespace) == key.namespace
                        && is_port(want, key)
                        && has_pod(state, &object.namespace, want) =>
                {
                    wishes.push(Wish {
                        object,
                        why,
                        ranges: ranges(state, &key.namespace, want),
                        needs_filter: want.port.as_ref().is_some_and(BridgePortIntent::needs_filter),
                        says: None,
                    });
                }
                _ => {}
            }
        }
    }
    // All attachments of a network bring the same to its bridge, so one speaks for all; links that callers describe each
    // speak for themselves.
    let is_port = |there: &&Attachment| attachment::bridge(state, there).as_ref() == Some(key);
    let on_network = state.called.all().filter(|there| there.asked.link.is_none()).find(is_port);
    let described = state.called.all().filter(|there| there.asked.link.is_some()).filter(is_port);
    wishes.extend(on_network.into_iter().chain(described).map(|there| Wish {
        object: &there.object,
        why: &there.why,
        ranges: attachment::bridge_ranges(state, there),
        needs_filter: attachment::needs_filter(there),
        says: None,
    }));
    wishes
}

/// The ranges that an interface brings to its bridge: its own, or its network's. An isolated network has no node on it.
fn ranges(state: &State, namespace: &str, want: &InterfaceIntent) -> Vec<IpNet> {
    if want.defined.as_ref().is_some_and(|defined| !defined.gateway) {
        return Vec::new();
    }
    let network = want.network.as_ref().and_then(|name| state.network(namespace, name));
    match network {
        Some(network) if network.isolated => Vec::new(),
        Some(network) => network.ranges.clone(),
        None => want.ranges.clone(),
    }
}

fn is_port(want: &InterfaceIntent, key: &BridgeKey) -> bool {
    matches!(want.kind, Kind::Veth(_)) && want.master.as_deref() == Some(key.name.as_str())
}

fn has_pod(state: &State, namespace: &str, want: &InterfaceIntent) -> bool {
    state.sandboxes.values().any(|sandbox| want.pods.matches(namespace, sandbox))
}

/// Gives the bridge the first address of each range, with its connected route in Knit's own table: the host's main
/// table stays as it is.
fn add_ranges(
    state: &State,
    key: &BridgeKey,
    name: &IfName,
    wishes: &[Wish<'_>],
    resolved: &mut Resolved,
) -> Vec<IpNet> {
    let mut addresses: Vec<IpNet> = Vec::new();
    let mut seen: BTreeSet<IpNet> = BTreeSet::new();
    for (wish, range) in wishes.iter().flat_map(|wish| wish.ranges.iter().map(move |range| (wish, *range))) {
        if !seen.insert(range) {
            continue;
        }
        if let Some(sentence) = forbidden(state, range) {
            resolved.problem(
                wish.object,
                wish.why.field.clone(),
                Reason::RangeOverlap,
                format!("bridge {}: {sentence}", key.name),
            );
            continue;
        }
        if let Some(other) = seen.iter().find(|other| **other != range && knit_ipam::overlaps(**other, range))
        {
            let message = format!("bridge {}: {range} overlaps {other} on the same bridge", key.name);
            resolved.problem(wish.object, wish.why.field.clone(), Reason::RangeOverlap, message);
            continue;
        }
        let Some(first) = Pool::with_gateway(key.to_string(), range).gateway_address() else { continue };
        if let Some((other, is_mine)) = who_has(state, key, range) {
            let whose = if is_mine { "" } else { " of another namespace" };
            let warning =
                format!("bridge {name} has no address of {range}: bridge {other}{whose} has it on this node");
            resolved.made.warnings.push((wish.object.clone(), warning));
            continue;
        }
        add_address(name, first, wish.why, resolved);
        addresses.push(first);
    }
    addresses
}

fn add_address(name: &IfName, address: IpNet, why: &Provenance, resolved: &mut Resolved) {
    let host = Scope::Host;
    let single = IpNet::from(address.addr());
    let rule = Rule::from_address(single, marks::HOST_TABLE, marks::HOST_RULE_PRIORITY);
    let route = Route { table: marks::HOST_TABLE, ..Route::on_link(address.trunc(), name.clone()) };
    let address = Address { noprefixroute: true, ..Address::new(name.clone(), address) };
    resolved.because(&host, Item::Address(address.key()), why);
    resolved.because(&host, Item::Route(route.key()), why);
    resolved.because(&host, Item::Rule(rule.clone()), why);
    resolved.made.rules.insert(rule.clone());
    let scope = resolved.desired.state.scope(&host);
    scope.add_address(address);
    scope.add_route(route);
    scope.rules.insert(rule);
}

fn forbidden(state: &State, range: IpNet) -> Option<String> {
    let mut others = knit_ipam::overlap::never_for_pods();
    others.extend(state.settings.forbidden.iter().map(|(name, range)| (name.as_str(), *range)));
    knit_ipam::forbidden(range, &others)
}

/// Another bridge of this node that has, or is about to take, an address in the same range, and whether it is of the
/// same namespace.
fn who_has(state: &State, key: &BridgeKey, range: IpNet) -> Option<(IfName, bool)> {
    let flying = state.flights.iter().map(|(unit, flight)| (unit, &flight.resolved.made));
    let others = state.made.iter().chain(flying).filter(|(unit, _)| **unit != Unit::Bridge(key.clone()));
    let mut bridges = others.filter_map(|(unit, made)| Some((unit, made.bridge.as_ref()?)));
    bridges
        .find(|(_, bridge)| bridge.addresses.iter().any(|address| knit_ipam::overlaps(*address, range)))
        .map(|(unit, bridge)| {
            let is_mine = matches!(unit, Unit::Bridge(other) if other.namespace == key.namespace);
            (bridge.name.clone(), is_mine)
        })
}
