//! Removal of items from a state: the steps, and the resulting state.

use std::collections::BTreeSet;

use super::field_changes::lost_with_master;
use super::moved_devices::returned_nic;
use super::{FieldChange, PlannedStep, Step};
use crate::link::{Kind, Link, Master};
use crate::name::IfName;
use crate::problem::{Problem, Reason};
use crate::sandbox::Scope;
use crate::state::NetState;

/// Scope and name of a link.
pub(super) type LinkKey = (Scope, IfName);

/// Removes items one by one, so that later steps see the result of earlier ones.
pub(super) struct Removal<'a> {
    /// The state after the steps so far.
    pub(super) now: NetState,
    /// The steps so far.
    pub(super) steps: Vec<PlannedStep>,
    /// Links to be removed.
    removed: &'a BTreeSet<LinkKey>,
}

impl<'a> Removal<'a> {
    pub(super) fn new(observed: &NetState, removed: &'a BTreeSet<LinkKey>) -> Self {
        Self { now: observed.clone(), steps: Vec::new(), removed }
    }

    /// Adds a step without origins.
    pub(super) fn push(&mut self, scope: &Scope, step: Step, implied: bool, note: Option<String>) {
        self.steps.push(PlannedStep { scope: scope.clone(), step, origins: Vec::new(), implied, note });
    }

    /// Whether the link is removed, and with it its addresses, routes and neighbours.
    pub(super) fn is_removed(&self, scope: &Scope, link: &IfName) -> bool {
        self.removed.contains(&(scope.clone(), link.clone()))
    }

    /// Why a link cannot be deleted: a link that Knit does not own is a child or port of it.
    pub(super) fn obstacle(observed: &NetState, scope: &Scope, link: &Link) -> Option<Problem> {
        let links = observed
            .scopes
            .iter()
            .flat_map(|(place, state)| state.links.values().map(move |other| (place, other)));
        let mut foreign = links.filter(|(_, other)| other.owner.is_none());
        let (_, user) = foreign.find(|(place, other)| depends(place, other, scope, &link.name))?;
        let (kind, name) = (link.kind.name(), &link.name);
        let message = format!("{kind} {name} is kept: link {} uses it and is not owned by Knit", user.name);
        Some(Problem::of_link(scope, name, Reason::NotOwned, message))
    }

    /// Deletes the removed links, each before the links that it uses.
    pub(super) fn delete_links(&mut self, notes: &dyn Fn(&LinkKey) -> Option<String>) {
        let mut left: Vec<LinkKey> = self.removed.iter().cloned().collect();
        // Sandboxes before the host, so that a veth pair is named by its end in the sandbox.
        left.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        while !left.is_empty() {
            let is_used = |place: &LinkKey| left.iter().any(|(scope, name)| self.uses(scope, name, place));
            // A kernel never has a cycle; if one is reported, any order will do.
            let next = left.iter().position(|place| !is_used(place)).unwrap_or(0);
            let place = left.remove(next);
            let Some(link) = self.take(&place) else { continue };
            let peer = self.veth_peer(&link, &left);
            let peer = peer.and_then(|place| {
                left.retain(|other| *other != place);
                self.take(&place).map(|link| (place.0, link))
            });
            self.push(&place.0, Step::DeleteLink { link, peer }, false, notes(&place));
        }
    }

    fn uses(&self, scope: &Scope, name: &IfName, used: &LinkKey) -> bool {
        (scope, name) != (&used.0, &used.1)
            && self.now.link(scope, name).is_some_and(|link| depends(scope, link, &used.0, &used.1))
    }

    /// Removes a link and its sysctls from the state. Remaining ports lose their master.
    fn take(&mut self, place: &LinkKey) -> Option<Link> {
        let state = self.now.scopes.get_mut(&place.0)?;
        let master = Master::Link(place.1.clone());
        let mut freed = Vec::new();
        for port in state.links.values_mut().filter(|port| port.attrs.master.as_ref() == Some(&master)) {
            let unset = FieldChange::new("master", place.1.as_str(), "");
            let mut free = port.clone();
            (free.attrs.master, free.attrs.vlans, free.attrs.hairpin) = (Some(Master::None), None, None);
            let changes = std::iter::once(unset).chain(lost_with_master(&free, port)).collect();
            *port = free;
            freed.push((port.name.clone(), port.kind.name().to_owned(), changes));
        }
        let link = state.links.remove(&place.1)?;
        let sysctls = std::mem::take(&mut state.sysctls).into_iter();
        let (gone, kept) = sysctls.partition(|(key, _)| key.split('/').any(|part| part == place.1.as_str()));
        state.sysctls = kept;
        for (key, from) in gone {
            self.push(&place.0, Step::SetSysctl { key, from, to: String::new() }, true, None);
        }
        if let Some(nic) = returned_nic(&link) {
            self.now.scope(&Scope::Host).add_link(nic);
        }
        for (name, kind, changes) in freed {
            self.push(&place.0, Step::ChangeLink { name, kind, changes }, true, None);
        }
        Some(link)
    }

    /// The peer of a veth among the remaining links, found by the owner id because the kernel does not report its name.
    fn veth_peer(&self, link: &Link, left: &[LinkKey]) -> Option<LinkKey> {
        let is_peer = |other: &Link| matches!(other.kind, Kind::Veth(_)) && other.owner == link.owner;
        if !matches!(link.kind, Kind::Veth(_)) || link.owner.is_none() {
            return None;
        }
        left.iter().find(|(scope, name)| self.now.link(scope, name).is_some_and(is_peer)).cloned()
    }
}

/// Whether `link` in `scope` is a child or port of the link `name` in `target`.
fn depends(scope: &Scope, link: &Link, target: &Scope, name: &IfName) -> bool {
    let is_port = scope == target && link.attrs.master.as_ref().and_then(Master::name) == Some(name);
    let parent_scope = link.parent_scope.as_ref().unwrap_or(scope);
    is_port || (parent_scope == target && link.kind.parent() == Some(name))
}
