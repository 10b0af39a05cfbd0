//! What links sit on, and what that means for their MTU: no link is larger than the one that it sits on.

use super::removal::Place;
use super::{Change, Planned, Step};
use crate::link::{Link, Master};
use crate::sandbox::Scope;
use crate::state::NetState;

/// Links sit on each other at most this deep (the kernel's own bound is 8).
const MAX_DEPTH: usize = 16;

/// The link that a link sits on.
pub(super) fn below_of(scope: &Scope, link: &Link) -> Option<Place> {
    let parent = link.kind.parent()?.clone();
    Some((link.born_from.clone().unwrap_or_else(|| scope.clone()), parent))
}

/// The links that a link sits on or is a port of.
pub(super) fn needs(scope: &Scope, link: &Link) -> Vec<Place> {
    let master = link.attrs.master.as_ref().and_then(Master::name).map(|name| (scope.clone(), name.clone()));
    below_of(scope, link).into_iter().chain(master).collect()
}

/// What the kernel does by itself when a link's MTU changes: no link that sits on it keeps a larger one, and some follow
/// it upwards too. These come before that step, so that taking it back takes back theirs after it.
pub(super) fn moved_along(now: &mut NetState, below: &Place, mtu: u64) -> Vec<Planned> {
    let mut moved = Vec::new();
    for (scope, state) in &mut now.scopes {
        for link in state.links.values_mut().filter(|link| below_of(scope, link).as_ref() == Some(below)) {
            let Some(own) = link.attrs.mtu else { continue };
            if u64::from(own) > mtu || (link.kind.follows_mtu() && u64::from(own) != mtu) {
                // One that was lowered cannot be larger again: what was wanted of it is not asked for once more.
                link.attrs.mtu = u32::try_from(mtu).ok().map(|mtu| mtu.max(own));
                let change = Change { field: "mtu".to_owned(), from: own.into(), to: mtu.into() };
                let (name, kind) = (link.name.clone(), link.kind.name().to_owned());
                let step = Step::ChangeLink { name, kind, changes: vec![change] };
                let scope = scope.clone();
                moved.push(Planned { scope, step, because: Vec::new(), implied: true, note: None });
            }
        }
    }
    moved
}

/// How many links lie below a link.
pub(super) fn depth(state: &NetState, scope: &Scope, link: &Link) -> usize {
    let mut at = (scope.clone(), link);
    // A circle cannot come from a kernel; if one is asked for, the walk still ends.
    for depth in 0..MAX_DEPTH {
        let Some((scope, name)) = below_of(&at.0, at.1) else { return depth };
        let Some(link) = state.link(&scope, &name) else { return depth + 1 };
        at = (scope, link);
    }
    MAX_DEPTH
}
