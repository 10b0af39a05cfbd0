//! What was seen of the kernel, and what a plan says about it: for the unit that it is about, and for the objects that asked.

use std::collections::BTreeSet;

use knit_model::link::{Attrs, Link, Master};
use knit_model::{IfName, NetState, Plan, Route, Scope, ScopeState, marks};

use crate::event::{Look, Unit};
use crate::resolve::Resolved;
use crate::state::{BridgeKey, Made, ObjectKey};

/// Of the host only what is this unit's business: everything else is another unit's, or not Knit's.
pub(super) fn focus(mut seen: NetState, look: &Look, had: &Made, resolved: &Resolved) -> NetState {
    let host = std::mem::take(seen.scope(&Scope::Host));
    let is_port = |master: Option<&Master>| {
        look.ports_of.is_some() && master.and_then(Master::name) == look.ports_of.as_ref()
    };
    let mut mine = ScopeState::default();
    for link in host.links.into_values() {
        let foreign_port = link.owner.is_none() && is_port(link.attrs.master.as_ref());
        let is_lent = link.owner.as_ref().is_some_and(|owner| look.lent.contains(owner));
        if look.host_links.contains(&link.name) || foreign_port || is_lent {
            mine.add_link(link);
        } else if look.host_parents.contains(&link.name) || look.ways.contains(&link.name) {
            // Whose it is does not matter here: it is not this unit's, so this unit never changes it.
            let attrs = Attrs { mtu: link.attrs.mtu, ..Attrs::default() };
            mine.add_link(Link { attrs, owner: None, ..link });
        }
    }
    let on_mine = |name: &IfName| look.host_links.contains(name);
    // Those of others are looked at: routes of this unit may need them.
    let is_near = |name: &IfName| on_mine(name) || look.ways.contains(name);
    mine.addresses = host.addresses.into_iter().filter(|(_, address)| is_near(&address.link)).collect();
    for (key, address) in &mut mine.addresses {
        address.owned |= had.addresses.contains(key);
    }
    let is_way = |route: &Route| route.owned && marks::is_of_ways(route.table);
    let is_mine = |route: &Route| {
        let is_dead_end = look.dead_ends && route.via.is_empty() && is_way(route);
        is_dead_end
            || route
                .via
                .iter()
                .any(|hop| on_mine(&hop.link) || look.ways.contains(&hop.link) && is_way(route))
    };
    mine.routes = host.routes.into_iter().filter(|(_, route)| is_mine(route)).collect();
    mine.neighbours = host.neighbours.into_iter().filter(|(_, neighbour)| on_mine(&neighbour.link)).collect();
    mine.sysctls = host.sysctls;
    mine.rules = host
        .rules
        .into_iter()
        .filter(|rule| had.rules.contains(rule) || resolved.made.rules.contains(rule))
        .collect();
    seen.scopes.insert(Scope::Host, mine);
    seen
}

/// Problems of a plan belong to the objects whose interface or bridge they name.
pub(super) fn blame(unit: &Unit, plan: &Plan, resolved: &mut Resolved) {
    for (_, problem) in &plan.problems {
        let named = |interface: &knit_model::report::InterfaceReport| {
            let word = |name: &IfName| problem.message.split(' ').any(|word| word == name.as_str());
            word(&interface.name) || interface.peer.as_ref().is_some_and(word)
        };
        let mut objects: BTreeSet<ObjectKey> = BTreeSet::new();
        for (object, interface) in
            resolved.made.interfaces.iter_mut().filter(|(_, interface)| named(interface))
        {
            interface.ready = false;
            objects.insert(object.clone());
        }
        for (object, item) in &mut resolved.made.items {
            let is_needed = |name: &IfName| item.links.contains(name);
            let mut words = problem.message.split(' ').filter_map(|word| word.parse().ok());
            if words.any(|word: IfName| is_needed(&word)) {
                item.ready = false;
                objects.insert(object.clone());
            }
        }
        if objects.is_empty() {
            objects.clone_from(&resolved.askers);
        }
        if objects.is_empty() {
            objects.extend(in_the_name_of(unit));
        }
        resolved.problems.extend(objects.into_iter().map(|object| (object, problem.clone())));
    }
}

/// Who is told about a bridge that nobody asks for any more and that cannot go: the bridge itself.
pub(super) fn in_the_name_of(unit: &Unit) -> Option<ObjectKey> {
    let Unit::Bridge(BridgeKey { namespace, name }) = unit else { return None };
    Some(ObjectKey { kind: "Bridge".to_owned(), namespace: namespace.clone(), name: name.to_string() })
}
