//! Taking things out of a state: the steps for it, and the state afterwards.

use std::collections::BTreeSet;

use super::changes::lost_with_master;
use super::devices::returned;
use super::{Change, Planned, Step};
use crate::link::{Kind, Link, Master};
use crate::name::IfName;
use crate::problem::{Problem, Reason};
use crate::sandbox::Scope;
use crate::state::NetState;

/// A link and where it is.
pub(super) type Place = (Scope, IfName);

/// Takes steps out of a state one by one, so that later steps see what the earlier ones left.
pub(super) struct Removal<'a> {
    /// The state as it is after the steps so far.
    pub(super) now: NetState,
    /// The steps so far.
    pub(super) steps: Vec<Planned>,
    /// Links that are to go.
    going: &'a BTreeSet<Place>,
}

impl<'a> Removal<'a> {
    pub(super) fn new(observed: &NetState, going: &'a BTreeSet<Place>) -> Self {
        Self { now: observed.clone(), steps: Vec::new(), going }
    }

    /// Adds a step that stands for itself.
    pub(super) fn push(&mut self, scope: &Scope, step: Step, implied: bool, note: Option<String>) {
        self.steps.push(Planned { scope: scope.clone(), step, because: Vec::new(), implied, note });
    }

    /// Whether the link goes, and so takes with it what hangs on it.
    pub(super) fn goes(&self, scope: &Scope, link: &IfName) -> bool {
        self.going.contains(&(scope.clone(), link.clone()))
    }

    /// What stands in the way of deleting a link: someone else's link that sits on it or is a port of it.
    pub(super) fn obstacle(observed: &NetState, scope: &Scope, link: &Link) -> Option<Problem> {
        let on_it = observed
            .scopes
            .iter()
            .flat_map(|(place, state)| state.links.values().map(move |other| (place, other)));
        let mut foreign = on_it.filter(|(_, other)| other.owner.is_none());
        let (_, user) = foreign.find(|(place, other)| depends(place, other, scope, &link.name))?;
        Some(Problem {
            field: String::new(),
            reason: Reason::NotOwned,
            message: format!(
                "{} {} is kept: link {} uses it, and Knit did not make that one",
                link.kind.name(),
                link.name,
                user.name
            ),
        })
    }

    /// Deletes the links that go: whatever uses another link goes before it.
    pub(super) fn delete_links(&mut self, notes: &dyn Fn(&Place) -> Option<String>) {
        let mut left: Vec<Place> = self.going.iter().cloned().collect();
        // Sandboxes before the host, so that a pair is named by its end in the sandbox.
        left.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        while !left.is_empty() {
            let is_used = |place: &Place| left.iter().any(|(scope, name)| self.uses(scope, name, place));
            // A circle cannot come from a kernel; if one is claimed, any order is as good.
            let next = left.iter().position(|place| !is_used(place)).unwrap_or(0);
            let place = left.remove(next);
            let Some(link) = self.take(&place) else { continue };
            let peer = self.far_end(&link, &left);
            let peer = peer.and_then(|place| {
                left.retain(|other| *other != place);
                self.take(&place).map(|link| (place.0, link))
            });
            self.push(&place.0, Step::DeleteLink { link, peer }, false, notes(&place));
        }
    }

    fn uses(&self, scope: &Scope, name: &IfName, used: &Place) -> bool {
        (scope, name) != (&used.0, &used.1)
            && self.now.link(scope, name).is_some_and(|link| depends(scope, link, &used.0, &used.1))
    }

    /// Takes a link out of the state, and its sysctls with it. Its ports that stay lose their master.
    fn take(&mut self, place: &Place) -> Option<Link> {
        let state = self.now.scopes.get_mut(&place.0)?;
        let master = Master::Of(place.1.clone());
        let mut freed = Vec::new();
        for port in state.links.values_mut().filter(|port| port.attrs.master.as_ref() == Some(&master)) {
            let left = Change { field: "master".to_owned(), from: place.1.as_str().into(), to: "".into() };
            let mut free = port.clone();
            (free.attrs.master, free.attrs.vlans, free.attrs.hairpin) = (Some(Master::Nothing), None, None);
            let changes = std::iter::once(left).chain(lost_with_master(&free, port)).collect();
            *port = free;
            freed.push((port.name.clone(), port.kind.name().to_owned(), changes));
        }
        let link = state.links.remove(&place.1)?;
        let sysctls = std::mem::take(&mut state.sysctls).into_iter();
        let (gone, kept) = sysctls.partition(|(key, _)| key.split('/').any(|word| word == place.1.as_str()));
        state.sysctls = kept;
        for (key, from) in gone {
            self.push(&place.0, Step::SetSysctl { key, from, to: String::new() }, true, None);
        }
        if let Some(nic) = returned(&link) {
            self.now.scope(&Scope::Host).add_link(nic);
        }
        for (name, kind, changes) in freed {
            self.push(&place.0, Step::ChangeLink { name, kind, changes }, true, None);
        }
        Some(link)
    }

    /// The other end of a pair among the links that are left: the kernel does not tell its name, the mark does.
    fn far_end(&self, link: &Link, left: &[Place]) -> Option<Place> {
        let is_pair = |other: &Link| matches!(other.kind, Kind::Veth(_)) && other.owner == link.owner;
        if !matches!(link.kind, Kind::Veth(_)) || link.owner.is_none() {
            return None;
        }
        left.iter().find(|(scope, name)| self.now.link(scope, name).is_some_and(is_pair)).cloned()
    }
}

/// Whether `link` in `scope` sits on, or is a port of, the link `name` in `where_`.
fn depends(scope: &Scope, link: &Link, where_: &Scope, name: &IfName) -> bool {
    let is_port = scope == where_ && link.attrs.master.as_ref().and_then(Master::name) == Some(name);
    let below = link.born_from.as_ref().unwrap_or(scope);
    is_port || (below == where_ && link.kind.parent() == Some(name))
}
