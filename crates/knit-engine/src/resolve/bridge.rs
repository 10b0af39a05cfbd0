//! Bridges: asked for by an object of their own, or by an interface that names one as its master.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_ipam::Pool;
use knit_model::intent::{BridgeWant, InterfaceWant, Want};
use knit_model::link::{Bridge, Kind, Link, OwnerId};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::BridgeReport;
use knit_model::{Address, IfName, Route, Rule, Scope, marks};

use super::{DEFAULT_MTU, Resolved, with_defaults};
use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State};

/// One object's wish about a bridge.
struct Wish<'a> {
    object: &'a ObjectKey,
    why: &'a Provenance,
    ranges: Vec<IpNet>,
    /// What a `Bridge` object says; an interface says nothing about its bridge.
    says: Option<&'a BridgeWant>,
}

/// What a bridge should be. Nothing at all when nobody needs it.
pub(crate) fn bridge(state: &State, key: &BridgeKey) -> Resolved {
    let mut resolved = Resolved::default();
    let name = name_of(state, key);
    resolved.look.host_links.insert(name.clone());
    resolved.look.host_rules = true;
    let wishes = wishes(state, key);
    if wishes.is_empty() && !is_used(state, key) {
        resolved.look.ports_of = Some(name);
        return resolved;
    }
    let mut link = Link::new(name.clone(), Kind::Bridge(Bridge::default()));
    link.owner = Some(OwnerId::derived(&format!("bridge/{key}")));
    let says = wishes.iter().find_map(|wish| wish.says);
    if let Some(says) = says {
        link.kind = Kind::Bridge(says.bridge.clone());
    }
    let asked = says.map(|says| says.attrs.clone()).unwrap_or_default();
    link.attrs = with_defaults(&link.kind, &asked, Some(DEFAULT_MTU), None, &format!("bridge/{key}"));
    for wish in &wishes {
        resolved.askers.insert(wish.object.clone());
        resolved.because(&Scope::Host, Item::Link(name.clone()), wish.why);
    }
    resolved.desired.state.scope(&Scope::Host).add_link(link);
    let addresses = add_ranges(state, key, &name, &wishes, &mut resolved);
    resolved.made.host_links.insert(name.clone());
    resolved.made.bridge = Some(BridgeReport { asked: key.name.to_string(), name, addresses });
    resolved
}

/// Whether anything wants the bridge to be there.
pub(crate) fn is_needed(state: &State, key: &BridgeKey) -> bool {
    is_used(state, key) || !wishes(state, key).is_empty()
}

/// The name on the node: what was asked for, unless another tenant's bridge has it.
pub(crate) fn name_of(state: &State, key: &BridgeKey) -> IfName {
    let bridges = state.made.iter().filter_map(|(unit, made)| match (unit, &made.bridge) {
        (Unit::Bridge(other), Some(bridge)) => Some((other, &bridge.name)),
        _ => None,
    });
    let mut taken = false;
    for (other, name) in bridges {
        if other == key {
            return name.clone();
        }
        taken |= *name == key.name;
    }
    if taken { derived_name(key) } else { key.name.clone() }
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
    for (object, stored) in
        state.in_order().into_iter().filter(|(object, _)| object.namespace == key.namespace)
    {
        for intent in &stored.intents {
            let why = &intent.origin;
            match &intent.want {
                Want::Bridge(want) if want.name == key.name => {
                    wishes.push(Wish { object, why, ranges: want.ranges.clone(), says: Some(want) });
                }
                Want::Interface(want) if is_port(want, key) && has_pod(state, &key.namespace, want) => {
                    wishes.push(Wish {
                        object,
                        why,
                        ranges: ranges(state, &key.namespace, want),
                        says: None,
                    });
                }
                _ => {}
            }
        }
    }
    wishes
}

/// The ranges that an interface brings to its bridge: its own, or its network's. An isolated network has no node on it.
fn ranges(state: &State, namespace: &str, want: &InterfaceWant) -> Vec<IpNet> {
    let network = want.network.as_ref().and_then(|name| state.network(namespace, name));
    match network {
        Some(network) if network.isolated => Vec::new(),
        Some(network) => network.ranges.clone(),
        None => want.ranges.clone(),
    }
}

fn is_port(want: &InterfaceWant, key: &BridgeKey) -> bool {
    matches!(want.kind, Kind::Veth(_)) && want.master.as_deref() == Some(key.name.as_str())
}

fn has_pod(state: &State, namespace: &str, want: &InterfaceWant) -> bool {
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
        if let Some(other) = who_has(state, key, range) {
            let warning = format!(
                "bridge {name} has no address of {range}: bridge {other} of another namespace has it on this node"
            );
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

/// Another bridge of this node that has an address in the same range.
fn who_has(state: &State, key: &BridgeKey, range: IpNet) -> Option<IfName> {
    let others = state.made.iter().filter(|(unit, _)| **unit != Unit::Bridge(key.clone()));
    let mut bridges = others.filter_map(|(_, made)| made.bridge.as_ref());
    bridges
        .find(|bridge| bridge.addresses.iter().any(|address| knit_ipam::overlaps(*address, range)))
        .map(|bridge| bridge.name.clone())
}
