//! Decides for each link whether it is kept, removed, recreated or blocked.

use std::collections::{BTreeMap, BTreeSet};

use super::removal::{LinkKey, Removal};
use crate::kernel_ids;
use crate::link::{Kind, Link, Master};
use crate::name::IfName;
use crate::problem::{Problem, Reason};
use crate::sandbox::Scope;
use crate::state::NetState;

/// Decisions about links.
#[derive(Default)]
pub(super) struct LinkDecisions {
    /// Links to be removed.
    pub(super) removed: BTreeSet<LinkKey>,
    /// Why some of them are removed although they are desired.
    pub(super) notes: BTreeMap<LinkKey, String>,
    /// Desired links that cannot be configured; their addresses, routes and children are skipped.
    pub(super) blocked: BTreeSet<LinkKey>,
    /// Why links are blocked.
    pub(super) problems: Vec<(Scope, Problem)>,
}

/// Compares desired and observed links.
pub(super) fn decide_links(desired: &NetState, observed: &NetState) -> LinkDecisions {
    let mut decisions = LinkDecisions::default();
    for (scope, state) in &observed.scopes {
        for (name, link) in &state.links {
            let place = (scope.clone(), name.clone());
            match desired.link(scope, name) {
                None if is_owned(link) => decisions.remove_if_unused(observed, place, link, None),
                None => {}
                Some(desired) => decisions.compare(observed, place, desired, link),
            }
        }
    }
    for (scope, state) in &desired.scopes {
        let missing = state
            .links
            .values()
            .filter(|link| link.owner.is_none() && observed.link(scope, &link.name).is_none());
        for link in missing {
            let message = format!("link {} does not exist", link.name);
            decisions.block(scope, &link.name, Reason::NotFound, message);
        }
    }
    decisions.recreate_ports(desired, observed);
    decisions.block_unavailable_devices(desired, observed);
    decisions.block_missing_parents(desired, observed);
    decisions.remove_children(observed);
    decisions
}

/// Whether a link is owned by Knit: by its alternative name, or by its group if a crash prevented the name.
fn is_owned(link: &Link) -> bool {
    link.owner.is_some() || link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP)
}

impl LinkDecisions {
    fn compare(&mut self, observed: &NetState, place: LinkKey, desired: &Link, link: &Link) {
        let Some(owner) = &desired.owner else { return };
        if link.owner.as_ref() == Some(owner) {
            if let Some(note) = recreate_reason(desired, link) {
                self.remove_if_unused(observed, place, link, Some(note));
            }
        } else if link.owner.is_none() && is_owned(link) {
            self.remove_if_unused(observed, place, link, Some("left unfinished by a crash".to_owned()));
        } else {
            let reason = if link.owner.is_some() {
                "belongs to another attachment"
            } else {
                "exists and is not owned by Knit"
            };
            let message = format!("link {} {reason}", place.1);
            self.block(&place.0, &place.1, Reason::NotOwned, message);
        }
    }

    fn remove_if_unused(&mut self, observed: &NetState, place: LinkKey, link: &Link, note: Option<String>) {
        if let Some(problem) = Removal::obstacle(observed, &place.0, link) {
            self.blocked.insert(place.clone());
            self.problems.push((place.0, problem));
            return;
        }
        if let Some(note) = note {
            self.notes.insert(place.clone(), note);
        }
        self.removed.insert(place);
    }

    /// Removes the ports that join or leave a link which configures its ports, or whose master is recreated.
    fn recreate_ports(&mut self, desired: &NetState, observed: &NetState) {
        for (scope, state) in &observed.scopes {
            for link in state.links.values() {
                let Some(target) = desired.link(scope, &link.name) else { continue };
                let place = (scope.clone(), link.name.clone());
                if link.owner.is_none() || target.owner != link.owner || self.removed.contains(&place) {
                    continue;
                }
                let (from, to) =
                    (configuring_master(observed, scope, link), configuring_master(desired, scope, target));
                let is_recreated =
                    from.is_some_and(|master| self.removed.contains(&(scope.clone(), master.clone())));
                if from == to && !is_recreated {
                    continue;
                }
                let master = to.or(from).map(IfName::as_str).unwrap_or_default();
                let note = format!("a port joins or leaves {master} only when it is created");
                self.remove_if_unused(observed, place, link, Some(note));
                self.remove_veth_peer(observed, link);
            }
        }
    }

    /// Both ends of a veth pair are deleted together, so that a rollback restores both.
    fn remove_veth_peer(&mut self, observed: &NetState, link: &Link) {
        let is_end = |other: &&Link| matches!(other.kind, Kind::Veth(_)) && other.owner == link.owner;
        if !is_end(&link) {
            return;
        }
        for (scope, state) in &observed.scopes {
            let ends = state.links.values().filter(is_end).map(|end| (scope.clone(), end.name.clone()));
            self.removed.extend(ends);
        }
    }

    /// The kernel deletes the children of a deleted link, so they are removed too, and recreated if desired.
    fn remove_children(&mut self, observed: &NetState) {
        loop {
            let links = observed
                .scopes
                .iter()
                .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
            let is_child = |scope: &Scope, link: &Link| {
                let parent_scope = link.parent_scope.as_ref().unwrap_or(scope);
                let is_removed =
                    |parent: &IfName| self.removed.contains(&(parent_scope.clone(), parent.clone()));
                link.kind.parent().is_some_and(is_removed)
            };
            let children = links.filter(|(scope, link)| is_child(scope, link));
            let mut places = children.map(|(scope, link)| (scope.clone(), link.name.clone()));
            let Some(place) = places.find(|place| !self.removed.contains(place)) else { return };
            self.notes.insert(place.clone(), "its parent link is removed".to_owned());
            self.removed.insert(place);
        }
    }

    /// Blocks links whose parent neither exists nor is desired, and their children.
    fn block_missing_parents(&mut self, desired: &NetState, observed: &NetState) {
        let links = || {
            desired
                .scopes
                .iter()
                .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)))
        };
        loop {
            let lacks_parent = |scope: &Scope, link: &Link| {
                let Some(parent) = link.kind.parent().filter(|_| link.owner.is_some()) else { return false };
                let parent_key = (link.parent_scope.as_ref().unwrap_or(scope).clone(), parent.clone());
                let remains = match desired.link(&parent_key.0, parent) {
                    Some(parent) if parent.owner.is_some() => !self.blocked.contains(&parent_key),
                    _ => {
                        observed.link(&parent_key.0, parent).is_some() && !self.removed.contains(&parent_key)
                    }
                };
                !remains && !self.blocked.contains(&(scope.clone(), link.name.clone()))
            };
            let Some((scope, link)) = links().find(|(scope, link)| lacks_parent(scope, link)) else { return };
            let parent_scope = link.parent_scope.as_ref().unwrap_or(scope);
            let parent = link.kind.parent().map(IfName::as_str).unwrap_or_default();
            let message =
                format!("link {}: parent link {parent} does not exist on {parent_scope}", link.name);
            if let Some(existing) = observed.link(scope, &link.name).filter(|other| other.owner == link.owner)
            {
                self.remove_if_unused(observed, (scope.clone(), link.name.clone()), existing, None);
            }
            self.block(scope, &link.name, Reason::NotFound, message);
        }
    }

    pub(super) fn block(&mut self, scope: &Scope, name: &IfName, reason: Reason, message: String) {
        self.blocked.insert((scope.clone(), name.clone()));
        self.problems.push((scope.clone(), Problem::of_link(scope, name, reason, message)));
    }
}

/// The master of a link, if it configures its ports.
fn configuring_master<'a>(state: &NetState, scope: &Scope, link: &'a Link) -> Option<&'a IfName> {
    let master = link.attrs.master.as_ref().and_then(Master::name)?;
    state.link(scope, master).is_some_and(|master| master.kind.configures_ports()).then_some(master)
}

/// Why a link must be recreated.
fn recreate_reason(desired: &Link, observed: &Link) -> Option<String> {
    if desired.kind.name() != observed.kind.name() {
        return Some(format!("the kind changes from {} to {}", observed.kind.name(), desired.kind.name()));
    }
    if desired.kind.parent().is_some()
        && observed.kind.parent().is_some()
        && desired.parent_scope != observed.parent_scope
    {
        return Some("its parent is in another scope".to_owned());
    }
    let field = observed.kind.recreate_field(&desired.kind)?;
    Some(format!("the kernel cannot make this change of `{field}` on an existing {}", desired.kind.name()))
}
