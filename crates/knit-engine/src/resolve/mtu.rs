//! The MTU of a link that states none follows the link that it sits on.

use knit_model::{IfName, NetState, Scope};

use super::Resolved;

/// Gives an MTU to every link that has none yet, now that the links below have been seen.
pub(crate) fn follow_parents(resolved: &mut Resolved, seen: &NetState) {
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
        let parent = link.kind.parent().filter(|_| link.owner.is_some() && link.attrs.mtu.is_none())?;
        let below = link.born_from.as_ref().unwrap_or(scope);
        let mtu = match desired.link(below, parent) {
            Some(wanted) if wanted.owner.is_some() || wanted.attrs.mtu.is_some() => wanted.attrs.mtu?,
            _ => seen.link(below, parent)?.attrs.mtu?,
        };
        let largest = resolved.largest.get(&link.name).copied().unwrap_or(u32::MAX);
        Some((scope.clone(), link.name.clone(), mtu.saturating_sub(link.kind.overhead()).min(largest)))
    })
}
