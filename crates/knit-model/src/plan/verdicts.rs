//! Which links stay, which go, and which cannot be had.

use std::collections::{BTreeMap, BTreeSet};

use super::removal::{Place, Removal};
use crate::link::Link;
use crate::marks;
use crate::name::IfName;
use crate::problem::{Problem, Reason};
use crate::sandbox::Scope;
use crate::state::NetState;

/// What becomes of each observed link.
#[derive(Default)]
pub(super) struct Verdicts {
    /// Links that go.
    pub(super) going: BTreeSet<Place>,
    /// Why some of them go although they are wanted.
    pub(super) notes: BTreeMap<Place, String>,
    /// Desired links that cannot be had; what hangs on them is left out.
    pub(super) blocked: BTreeSet<Place>,
    /// What stands in the way.
    pub(super) problems: Vec<(Scope, Problem)>,
}

/// Decides what becomes of each observed link.
pub(super) fn judge(desired: &NetState, observed: &NetState) -> Verdicts {
    let mut verdicts = Verdicts::default();
    for (scope, state) in &observed.scopes {
        for (name, seen) in &state.links {
            let place = (scope.clone(), name.clone());
            match desired.link(scope, name) {
                None if is_knits(seen) => verdicts.goes_if_free(observed, place, seen, None),
                None => {}
                Some(want) => verdicts.compare(observed, place, want, seen),
            }
        }
    }
    for (scope, state) in &desired.scopes {
        let missing = state
            .links
            .values()
            .filter(|want| want.owner.is_none() && observed.link(scope, &want.name).is_none());
        for want in missing {
            let message = format!("there is no link {} to change", want.name);
            verdicts.block(scope, &want.name, Reason::NotFound, message);
        }
    }
    verdicts.block_devices(desired, observed);
    verdicts.block_seatless(desired, observed);
    verdicts.take_along(observed);
    verdicts
}

/// Whether a link has Knit's mark: its name's, or the group that it was born in when a crash came in between.
fn is_knits(link: &Link) -> bool {
    link.owner.is_some() || link.attrs.group == Some(marks::BIRTH_GROUP)
}

impl Verdicts {
    fn compare(&mut self, observed: &NetState, place: Place, want: &Link, seen: &Link) {
        let Some(owner) = &want.owner else { return };
        if seen.owner.as_ref() == Some(owner) {
            if let Some(note) = must_be_made_again(want, seen) {
                self.goes_if_free(observed, place, seen, Some(note));
            }
        } else if seen.owner.is_none() && is_knits(seen) {
            self.goes_if_free(observed, place, seen, Some("left unfinished by a crash".to_owned()));
        } else {
            let whose = if seen.owner.is_some() {
                "belongs to another attachment"
            } else {
                "exists, and Knit did not make it"
            };
            let message = format!("link {} {whose}", place.1);
            self.block(&place.0, &place.1, Reason::NotOwned, message);
        }
    }

    fn goes_if_free(&mut self, observed: &NetState, place: Place, seen: &Link, note: Option<String>) {
        if let Some(problem) = Removal::obstacle(observed, &place.0, seen) {
            self.blocked.insert(place.clone());
            self.problems.push((place.0, problem));
            return;
        }
        if let Some(note) = note {
            self.notes.insert(place.clone(), note);
        }
        self.going.insert(place);
    }

    /// The kernel deletes what sits on a link along with it, so that goes too, and is made again if it is wanted.
    fn take_along(&mut self, observed: &NetState) {
        loop {
            let links = observed
                .scopes
                .iter()
                .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
            let sits_on_one = |scope: &Scope, link: &Link| {
                let below = link.born_from.as_ref().unwrap_or(scope);
                link.kind.parent().is_some_and(|parent| self.going.contains(&(below.clone(), parent.clone())))
            };
            let along = links.filter(|(scope, link)| sits_on_one(scope, link));
            let mut places = along.map(|(scope, link)| (scope.clone(), link.name.clone()));
            let Some(place) = places.find(|place| !self.going.contains(place)) else { return };
            self.notes.insert(place.clone(), "the link that it sits on goes".to_owned());
            self.going.insert(place);
        }
    }

    /// A link whose parent is neither there nor wanted cannot be had, and neither can what sits on it.
    fn block_seatless(&mut self, desired: &NetState, observed: &NetState) {
        let links = || {
            desired
                .scopes
                .iter()
                .flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)))
        };
        loop {
            let is_seatless = |scope: &Scope, link: &Link| {
                let Some(parent) = link.kind.parent().filter(|_| link.owner.is_some()) else { return false };
                let below = (link.born_from.as_ref().unwrap_or(scope).clone(), parent.clone());
                let stays = match desired.link(&below.0, parent) {
                    Some(wanted) if wanted.owner.is_some() => !self.blocked.contains(&below),
                    _ => observed.link(&below.0, parent).is_some() && !self.going.contains(&below),
                };
                !stays && !self.blocked.contains(&(scope.clone(), link.name.clone()))
            };
            let Some((scope, link)) = links().find(|(scope, link)| is_seatless(scope, link)) else { return };
            let below = link.born_from.as_ref().unwrap_or(scope);
            let parent = link.kind.parent().map(IfName::as_str).unwrap_or_default();
            let message =
                format!("link {} has nothing to sit on: there is no link {parent} on {below}", link.name);
            if let Some(seen) = observed.link(scope, &link.name).filter(|seen| seen.owner == link.owner) {
                self.goes_if_free(observed, (scope.clone(), link.name.clone()), seen, None);
            }
            self.block(scope, &link.name, Reason::NotFound, message);
        }
    }

    pub(super) fn block(&mut self, scope: &Scope, name: &IfName, reason: Reason, message: String) {
        self.blocked.insert((scope.clone(), name.clone()));
        self.problems.push((scope.clone(), Problem { field: String::new(), reason, message }));
    }
}

/// Why a link cannot become the wanted one while it lives.
fn must_be_made_again(want: &Link, seen: &Link) -> Option<String> {
    if want.kind.name() != seen.kind.name() {
        return Some(format!("the kind changes from {} to {}", seen.kind.name(), want.kind.name()));
    }
    if want.kind.parent().is_some() && seen.kind.parent().is_some() && want.born_from != seen.born_from {
        return Some("it sits on a link of another place".to_owned());
    }
    let field = seen.kind.cannot_become(&want.kind)?;
    Some(format!("the kernel does not make this change of `{field}` on a living {}", want.kind.name()))
}
