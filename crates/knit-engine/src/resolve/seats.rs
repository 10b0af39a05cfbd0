//! What a link sits on, once the links below have been seen: the kernel may put it deeper, and its MTU follows from there.

use knit_model::{IfName, Kind, Link, NetState, Scope};

use super::{DEFAULT_MTU, Resolved, devices, routing};
use crate::state::State;

/// Settles what could not be known before the kernel was looked at.
pub(crate) fn settle(state: &State, resolved: &mut Resolved, seen: &NetState) {
    devices::settle(resolved, seen);
    see_through(resolved, seen);
    follow_parents(resolved, seen);
    if let Some(id) = resolved.look.sandbox.clone() {
        routing::place(resolved, seen, &Scope::Sandbox(id));
    }
    warn(state, resolved, seen);
}

/// The kernel puts a macvlan on a macvlan onto the link below both.
fn see_through(resolved: &mut Resolved, seen: &NetState) {
    let state = &mut resolved.desired.state;
    let places: Vec<(Scope, IfName)> = state
        .scopes
        .iter()
        .flat_map(|(scope, state)| state.links.keys().map(move |name| (scope.clone(), name.clone())))
        .collect();
    // Each link goes down a tower that is at most as high as there are links.
    for (scope, name) in places.iter().flat_map(|place| places.iter().map(move |_| place)) {
        let below = state.link(scope, name).and_then(|link| deeper(state, seen, scope, link));
        if let (Some((place, parent)), Some(link)) = (below, state.scope(scope).links.get_mut(name)) {
            link.kind.set_parent(parent);
            link.born_from = (place != *scope).then_some(place);
        }
    }
}

/// What is below the macvlan that a macvlan of Knit's sits on.
fn deeper(desired: &NetState, seen: &NetState, scope: &Scope, link: &Link) -> Option<(Scope, IfName)> {
    if !matches!(link.kind, Kind::Macvlan(_)) || link.owner.is_none() {
        return None;
    }
    let (below, parent) = (link.born_from.as_ref().unwrap_or(scope), link.kind.parent()?);
    let owned = desired.link(below, parent).filter(|lower| lower.owner.is_some());
    let lower = owned.or_else(|| seen.link(below, parent))?;
    let lowest = lower.kind.parent().filter(|_| matches!(lower.kind, Kind::Macvlan(_)))?;
    Some((lower.born_from.clone().unwrap_or_else(|| below.clone()), lowest.clone()))
}

/// Gives an MTU to every link that has none yet, now that the links below have been seen.
fn follow_parents(resolved: &mut Resolved, seen: &NetState) {
    // Each round settles at least the next link of every tower, so there are at most as many rounds as links.
    while let Some((scope, name, mtu)) = next(resolved, seen) {
        if let Some(link) = resolved.desired.state.scope(&scope).links.get_mut(&name) {
            link.attrs.mtu = Some(mtu);
        }
        let reports = resolved.made.interfaces.iter_mut().map(|(_, report)| report);
        reports.filter(|report| report.name == name).for_each(|report| report.mtu = Some(mtu));
    }
}

/// A link without an MTU that sits on one whose MTU is known.
fn next(resolved: &Resolved, seen: &NetState) -> Option<(Scope, IfName, u32)> {
    let desired = &resolved.desired.state;
    let mut links =
        desired.scopes.iter().flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
    links.find_map(|(scope, link)| {
        if link.owner.is_none() || link.attrs.mtu.is_some() {
            return None;
        }
        let (_, mtu) = below(desired, seen, scope, link)?;
        let largest = resolved.largest.get(&link.name).copied().unwrap_or(u32::MAX);
        Some((scope.clone(), link.name.clone(), mtu.saturating_sub(link.kind.overhead()).min(largest)))
    })
}

/// The link that a link sits on, and its MTU.
fn below<'a>(
    desired: &NetState,
    seen: &NetState,
    scope: &Scope,
    link: &'a Link,
) -> Option<(&'a IfName, u32)> {
    let (place, parent) = (link.born_from.as_ref().unwrap_or(scope), link.kind.parent()?);
    let mtu = match desired.link(place, parent) {
        Some(wanted) if wanted.owner.is_some() || wanted.attrs.mtu.is_some() => wanted.attrs.mtu,
        _ => seen.link(place, parent)?.attrs.mtu,
    };
    Some((parent, mtu?))
}

/// Warns of tunnels whose MTU leaves too little room for the headers around each packet.
fn warn(state: &State, resolved: &mut Resolved, seen: &NetState) {
    let desired = &resolved.desired.state;
    for (scope, there) in &desired.scopes {
        let Scope::Sandbox(id) = scope else { continue };
        let pod = state.sandboxes.get(id).map_or_else(|| id.to_string(), |sandbox| sandbox.title());
        for link in there.links.values().filter(|link| link.kind.overhead() > 0) {
            let (whose, under) = match link.kind.parent() {
                None => ("the usual".to_owned(), DEFAULT_MTU),
                Some(_) => match below(desired, seen, scope, link) {
                    Some((parent, mtu)) => (format!("{parent}'s"), mtu),
                    None => continue,
                },
            };
            let (name, overhead) = (&link.name, link.kind.overhead());
            let Some(mtu) = link.attrs.mtu.filter(|mtu| *mtu > under.saturating_sub(overhead)) else {
                continue;
            };
            let warning = format!(
                "MTU {mtu} of {name} in pod {pod} does not fit into {whose} {under} minus {overhead}: packets will be fragmented or dropped"
            );
            let askers = resolved.made.interfaces.iter().filter(|(_, interface)| interface.name == *name);
            let askers = askers.map(|(object, _)| (object.clone(), warning.clone()));
            resolved.made.warnings.extend(askers);
        }
    }
}
