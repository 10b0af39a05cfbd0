//! Parents of links and their effect on MTUs: the MTU of a link never exceeds that of its parent.

use super::removal::LinkKey;
use super::{FieldChange, PlannedStep, Step};
use crate::link::{Link, Master};
use crate::sandbox::Scope;
use crate::state::NetState;

/// Maximum nesting depth of links (the kernel's limit is 8).
const MAX_DEPTH: usize = 16;

/// The parent of a link.
pub(super) fn parent_of(scope: &Scope, link: &Link) -> Option<LinkKey> {
    let parent = link.kind.parent()?.clone();
    Some((link.parent_scope.clone().unwrap_or_else(|| scope.clone()), parent))
}

/// The links that must exist before a link: its parent and its master.
pub(super) fn required_links(scope: &Scope, link: &Link) -> Vec<LinkKey> {
    let master = link.attrs.master.as_ref().and_then(Master::name).map(|name| (scope.clone(), name.clone()));
    parent_of(scope, link).into_iter().chain(master).collect()
}

/// MTU changes that the kernel makes by itself when the MTU of `parent` changes: links on it are lowered, and some kinds are
/// raised too. They precede the parent's step, so that a rollback restores them after the parent.
pub(super) fn implied_mtu_changes(now: &mut NetState, parent: &LinkKey, mtu: u64) -> Vec<PlannedStep> {
    let mut implied = Vec::new();
    for (scope, state) in &mut now.scopes {
        for link in state.links.values_mut().filter(|link| parent_of(scope, link).as_ref() == Some(parent)) {
            let Some(own) = link.attrs.mtu else { continue };
            if u64::from(own) > mtu || (link.kind.follows_mtu() && u64::from(own) != mtu) {
                // A lowered link cannot be raised again here, so its desired MTU is not requested again.
                link.attrs.mtu = u32::try_from(mtu).ok().map(|mtu| mtu.max(own));
                let change = FieldChange::new("mtu", own, mtu);
                let (name, kind) = (link.name.clone(), link.kind.name().to_owned());
                let step = Step::ChangeLink { name, kind, changes: vec![change] };
                let scope = scope.clone();
                implied.push(PlannedStep { scope, step, origins: Vec::new(), implied: true, note: None });
            }
        }
    }
    implied
}

/// Number of links below a link.
pub(super) fn depth(state: &NetState, scope: &Scope, link: &Link) -> usize {
    let mut at = (scope.clone(), link);
    // The bound ends the walk even if desired state contains a cycle; a kernel never does.
    for depth in 0..MAX_DEPTH {
        let Some((scope, name)) = parent_of(&at.0, at.1) else { return depth };
        let Some(link) = state.link(&scope, &name) else { return depth + 1 };
        at = (scope, link);
    }
    MAX_DEPTH
}
