//! Restricts observed state to one unit, and attributes problems of a plan to objects.

use std::collections::BTreeSet;

use knit_model::filter::TABLE;
use knit_model::link::{Attrs, Link, Master};
use knit_model::problem::Subject;
use knit_model::{Address, IfName, NetState, Plan, Route, Scope, ScopeState, kernel_ids};

use crate::event::{ObserveRequest, Unit};
use crate::resolve::Resolved;
use crate::state::{BridgeKey, ObjectKey, UnitState};

/// Removes host state that does not belong to this unit.
pub(super) fn restrict_to_unit(
    mut observed: NetState,
    request: &ObserveRequest,
    had: &UnitState,
    resolved: &Resolved,
) -> NetState {
    let host = std::mem::take(observed.scope(&Scope::Host));
    let is_port = |master: Option<&Master>| {
        request.ports_of.is_some() && master.and_then(Master::name) == request.ports_of.as_ref()
    };
    let is_owned = |name: &IfName| {
        had.host_links.contains(name) || host.links.get(name).is_some_and(|link| link.owner.is_some())
    };
    // What Knit has on a link of the host belongs to others, also if this unit requests a link with the same name.
    let own_links: BTreeSet<IfName> =
        request.host_links.iter().filter(|name| is_owned(name)).cloned().collect();
    let mut mine = ScopeState::default();
    for link in host.links.into_values() {
        let foreign_port = link.owner.is_none() && is_port(link.attrs.master.as_ref());
        let is_moved = link.owner.as_ref().is_some_and(|owner| request.moved_devices.contains(owner));
        if request.host_links.contains(&link.name) || foreign_port || is_moved {
            mine.add_link(link);
        } else if request.lower_links.contains(&link.name) || request.route_links.contains(&link.name) {
            // A lower link is not owned by this unit, so the unit never changes it.
            let attrs = Attrs { mtu: link.attrs.mtu, ..Attrs::default() };
            mine.add_link(Link { attrs, owner: None, ..link });
        }
    }
    let on_mine = |name: &IfName| own_links.contains(name);
    // Addresses of foreign links are included: routes of this unit may need them, and a NIC with one is not moved.
    let is_near = |address: &Address| {
        let link = &address.link;
        let is_foreign = || request.host_links.contains(link) && !address.owned;
        on_mine(link) || request.route_links.contains(link) || is_foreign()
    };
    mine.addresses = host.addresses.into_iter().filter(|(_, address)| is_near(address)).collect();
    for (key, address) in &mut mine.addresses {
        address.owned |= had.addresses.contains(key);
    }
    let is_node_route = |route: &Route| route.owned && kernel_ids::is_node_route_table(route.table);
    let is_mine = |route: &Route| {
        let is_unreachable = request.unreachable_routes && route.via.is_empty() && is_node_route(route);
        is_unreachable
            || route.via.iter().any(|hop| {
                on_mine(&hop.link) || request.route_links.contains(&hop.link) && is_node_route(route)
            })
    };
    mine.routes = host.routes.into_iter().filter(|(_, route)| is_mine(route)).collect();
    mine.neighbours = host.neighbours.into_iter().filter(|(_, neighbour)| on_mine(&neighbour.link)).collect();
    mine.sysctls = host.sysctls;
    mine.filter = host.filter;
    mine.rules = host
        .rules
        .into_iter()
        .filter(|rule| had.rules.contains(rule) || resolved.unit_state.rules.contains(rule))
        .collect();
    observed.scopes.insert(Scope::Host, mine);
    observed
}

/// Attributes each problem of a plan to the objects that request the link it concerns.
pub(super) fn attribute_problems(unit: &Unit, plan: &Plan, resolved: &mut Resolved) {
    let unit_scope = match unit {
        Unit::Sandbox(id) => Scope::Sandbox(id.clone()),
        _ => Scope::Host,
    };
    for (_, problem) in &plan.problems {
        let concerns = |at: &Scope, link: &IfName| match &problem.subject {
            Subject::Link(subject) => subject.scope == *at && subject.name == *link,
            Subject::Field => false,
        };
        let mut objects: BTreeSet<ObjectKey> = BTreeSet::new();
        for (object, interface) in &mut resolved.unit_state.interfaces {
            let is_host_end = interface.peer.as_ref().is_some_and(|peer| concerns(&Scope::Host, peer));
            if is_host_end || concerns(&unit_scope, &interface.name) {
                interface.ready = false;
                objects.insert(object.clone());
            }
        }
        for (object, item) in &mut resolved.unit_state.items {
            if item.links.iter().any(|link| concerns(&unit_scope, link)) {
                item.ready = false;
                objects.insert(object.clone());
            }
        }
        if objects.is_empty() {
            objects.clone_from(&resolved.requesters);
        }
        if objects.is_empty() {
            objects.extend(unit_object(unit));
        }
        resolved.problems.extend(objects.into_iter().map(|object| (object, problem.clone())));
    }
}

/// The unit itself as the object to report to, if no object requests it any more but it cannot be removed.
pub(super) fn unit_object(unit: &Unit) -> Option<ObjectKey> {
    let (kind, namespace, name) = match unit {
        Unit::Bridge(BridgeKey { namespace, name }) => ("Bridge", namespace.as_str(), name.as_str()),
        Unit::PacketFilter => ("PacketFilter", "", TABLE),
        Unit::Sandbox(_) | Unit::NodeRoutes | Unit::Services | Unit::Policies => return None,
    };
    Some(ObjectKey { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
}
