//! Lower links: after the observation, resolves stacked macvlans and inherits MTUs.

use knit_model::{IfName, Link, NetState, Scope};

use super::{DEFAULT_MTU, Resolved, host_devices, routing};
use crate::state::State;

/// Completes the desired state with what depends on the observation.
pub(crate) fn settle(state: &State, resolved: &mut Resolved, observed: &NetState) {
    host_devices::settle(resolved, observed);
    resolve_lower_devices(resolved, observed);
    inherit_mtu(resolved, observed);
    if let Some(id) = resolved.observe.sandbox.clone() {
        routing::place(resolved, observed, &Scope::Sandbox(id));
    }
    warn(state, resolved, observed);
}

/// The kernel attaches a macvlan on a macvlan to the lower device of both.
fn resolve_lower_devices(resolved: &mut Resolved, observed: &NetState) {
    let state = &mut resolved.desired.state;
    let places: Vec<(Scope, IfName)> = state
        .scopes
        .iter()
        .flat_map(|(scope, state)| state.links.keys().map(move |name| (scope.clone(), name.clone())))
        .collect();
    // Each link descends at most as many levels as there are links.
    for (scope, name) in places.iter().flat_map(|place| places.iter().map(move |_| place)) {
        let parent_mtu = state.link(scope, name).and_then(|link| lower_device(state, observed, scope, link));
        if let (Some((place, parent)), Some(link)) = (parent_mtu, state.scope(scope).links.get_mut(name)) {
            link.kind.set_parent(parent);
            link.parent_scope = (place != *scope).then_some(place);
        }
    }
}

/// The lower device of the macvlan on which one of Knit's macvlans is stacked.
fn lower_device(
    desired: &NetState,
    observed: &NetState,
    scope: &Scope,
    link: &Link,
) -> Option<(Scope, IfName)> {
    if !link.kind.shares_parent() || link.owner.is_none() {
        return None;
    }
    let (parent_mtu, parent) = (link.parent_scope.as_ref().unwrap_or(scope), link.kind.parent()?);
    let owned = desired.link(parent_mtu, parent).filter(|lower| lower.owner.is_some());
    let lower = owned.or_else(|| observed.link(parent_mtu, parent))?;
    let lowest = lower.kind.parent().filter(|_| lower.kind.shares_parent())?;
    Some((lower.parent_scope.clone().unwrap_or_else(|| parent_mtu.clone()), lowest.clone()))
}

/// Sets the MTU of every link without one from its parent.
fn inherit_mtu(resolved: &mut Resolved, observed: &NetState) {
    // Each round resolves at least one level of every stack, so there are at most as many rounds as links.
    while let Some((scope, name, mtu)) = next(resolved, observed) {
        if let Some(link) = resolved.desired.state.scope(&scope).links.get_mut(&name) {
            link.attrs.mtu = Some(mtu);
        }
        let reports = resolved.unit_state.interfaces.iter_mut().map(|(_, report)| report);
        reports.filter(|report| report.name == name).for_each(|report| report.mtu = Some(mtu));
    }
}

/// A link without an MTU whose parent's MTU is known.
fn next(resolved: &Resolved, observed: &NetState) -> Option<(Scope, IfName, u32)> {
    let desired = &resolved.desired.state;
    let mut links =
        desired.scopes.iter().flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
    links.find_map(|(scope, link)| {
        if link.owner.is_none() || link.attrs.mtu.is_some() {
            return None;
        }
        let (_, mtu) = parent_mtu(desired, observed, scope, link)?;
        let max_mtus = resolved.max_mtus.get(&link.name).copied().unwrap_or(u32::MAX);
        Some((scope.clone(), link.name.clone(), mtu.saturating_sub(link.kind.overhead()).min(max_mtus)))
    })
}

/// The parent of a link, and its MTU.
fn parent_mtu<'a>(
    desired: &NetState,
    observed: &NetState,
    scope: &Scope,
    link: &'a Link,
) -> Option<(&'a IfName, u32)> {
    let (place, parent) = (link.parent_scope.as_ref().unwrap_or(scope), link.kind.parent()?);
    let mtu = match desired.link(place, parent) {
        Some(requested) if requested.owner.is_some() || requested.attrs.mtu.is_some() => requested.attrs.mtu,
        _ => observed.link(place, parent)?.attrs.mtu,
    };
    Some((parent, mtu?))
}

/// Warns of tunnels whose MTU leaves no room for the encapsulation.
fn warn(state: &State, resolved: &mut Resolved, observed: &NetState) {
    let desired = &resolved.desired.state;
    for (scope, there) in &desired.scopes {
        let Scope::Sandbox(id) = scope else { continue };
        let pod = state.sandboxes.get(id).map_or_else(|| id.to_string(), |sandbox| sandbox.title());
        for link in there.links.values().filter(|link| link.kind.overhead() > 0) {
            let (parent, under) = match link.kind.parent() {
                None => ("the usual".to_owned(), DEFAULT_MTU),
                Some(_) => match parent_mtu(desired, observed, scope, link) {
                    Some((parent, mtu)) => (format!("{parent}'s"), mtu),
                    None => continue,
                },
            };
            let (name, overhead) = (&link.name, link.kind.overhead());
            let Some(mtu) = link.attrs.mtu.filter(|mtu| *mtu > under.saturating_sub(overhead)) else {
                continue;
            };
            let warning = format!(
                "MTU {mtu} of {name} in pod {pod} does not fit into {parent} {under} minus {overhead}: packets will be fragmented or dropped"
            );
            let requesters =
                resolved.unit_state.interfaces.iter().filter(|(_, interface)| interface.name == *name);
            let requesters = requesters.map(|(object, _)| (object.clone(), warning.clone()));
            resolved.unit_state.warnings.extend(requesters);
        }
    }
}
