//! From desired and observed to a plan. Pure, and total: any two states give a plan.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::removal::{Place, Removal};
use super::{Change, Desired, Item, Plan, Planned, Step};
use crate::link::{Kind, Link, Master};
use crate::marks;
use crate::name::IfName;
use crate::problem::{Problem, Reason};
use crate::provenance::Provenance;
use crate::route::{NextHop, Route};
use crate::sandbox::Scope;
use crate::state::{Address, NetState, ScopeState};

/// The ordered steps from `observed` to `desired`.
///
/// What carries Knit's mark and is not desired goes. What has no mark is never changed or removed, except for the stated
/// fields of a link that desired names without an owner. First things go (what uses another before what is used), then
/// links are made, then sysctls, changes and addresses, then links go up, then routes, rules and neighbours follow.
pub fn diff(desired: &Desired, observed: &NetState) -> Plan {
    let verdicts = judge(&desired.state, observed);
    let mut removal = Removal::new(observed, &verdicts.going);
    remove_items(&mut removal, &desired.state, observed);
    removal.delete_links(&|place| verdicts.notes.get(place).cloned());

    let Removal { now, steps, .. } = removal;
    let mut building = Building { desired, now, steps, blocked: verdicts.blocked };
    building.create_links();
    building.set_sysctls();
    building.change_links();
    building.add_addresses();
    building.bring_up();
    building.add_the_rest();
    Plan { steps: building.steps, problems: verdicts.problems }
}

/// What becomes of each observed link.
#[derive(Default)]
struct Verdicts {
    going: BTreeSet<Place>,
    notes: BTreeMap<Place, String>,
    /// Desired links that cannot be had; what hangs on them is left out.
    blocked: BTreeSet<Place>,
    problems: Vec<(Scope, Problem)>,
}

fn judge(desired: &NetState, observed: &NetState) -> Verdicts {
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

    fn block(&mut self, scope: &Scope, name: &IfName, reason: Reason, message: String) {
        self.blocked.insert((scope.clone(), name.clone()));
        self.problems.push((scope.clone(), Problem { field: String::new(), reason, message }));
    }
}

/// Why a link cannot become the wanted one while it lives.
fn must_be_made_again(want: &Link, seen: &Link) -> Option<String> {
    if want.kind.name() != seen.kind.name() {
        return Some(format!("the kind changes from {} to {}", seen.kind.name(), want.kind.name()));
    }
    if let Some(why) = want.kind.reborn(&seen.kind) {
        return Some(why.to_owned());
    }
    let (want_fields, seen_fields) = (want.kind.fields(), seen.kind.fields());
    let differs = |field: &&&str| match (want_fields.get(**field), seen_fields.get(**field)) {
        (Some(want), Some(seen)) => want != seen,
        _ => false,
    };
    let field = want.kind.recreate().iter().find(differs)?;
    Some(format!("the kernel takes `{field}` of a {} only at birth", want.kind.name()))
}

/// Removes what carries Knit's mark and is not desired, and notes what goes by itself with a link.
fn remove_items(removal: &mut Removal<'_>, desired: &NetState, observed: &NetState) {
    let nothing = ScopeState::default();
    for (scope, seen) in &observed.scopes {
        let want = desired.scopes.get(scope).unwrap_or(&nothing);
        for rule in seen.rules.difference(&want.rules) {
            removal.now.scope(scope).rules.remove(rule);
            removal.push(scope, Step::RemoveRule(rule.clone()), false, None);
        }
        for (key, neighbour) in &seen.neighbours {
            let with_link = removal.goes(scope, &neighbour.link);
            if with_link || (neighbour.owned && !want.neighbours.contains_key(key)) {
                removal.now.scope(scope).neighbours.remove(key);
                removal.push(scope, Step::RemoveNeighbour(neighbour.clone()), with_link, None);
            }
        }
        let leaving = |address: &Address| {
            let wanted = want.addresses.get(&address.key()).is_some_and(|want| want.same_as(address));
            removal.goes(scope, &address.link) || (address.owned && !wanted)
        };
        let (leaving, staying): (Vec<_>, Vec<_>) =
            seen.addresses.values().partition(|address| leaving(address));
        for (key, route) in &seen.routes {
            let with_link = route.via.iter().any(|hop| removal.goes(scope, &hop.link));
            let loses_its_way =
                route.owned && route.via.iter().any(|hop| loses_its_way(route, hop, &leaving, &staying));
            if with_link || loses_its_way || (route.owned && !want.routes.contains_key(key)) {
                removal.now.scope(scope).routes.remove(key);
                removal.push(scope, Step::RemoveRoute(route.clone()), with_link, None);
            }
        }
        for address in leaving {
            let with_link = removal.goes(scope, &address.link);
            removal.now.scope(scope).addresses.remove(&address.key());
            removal.push(scope, Step::RemoveAddress(address.clone()), with_link, None);
        }
    }
}

/// Whether a route cannot outlive the addresses that leave: its gateway is reached only through one of them, or it is
/// an IPv4 route and its link keeps no IPv4 address, at which the kernel drops all of that link's routes.
fn loses_its_way(route: &Route, hop: &NextHop, leaving: &[&Address], staying: &[&Address]) -> bool {
    let is_ipv4 = route.to.addr().is_ipv4();
    let here = |address: &&&Address| address.link == hop.link && address.address.addr().is_ipv4() == is_ipv4;
    if !leaving.iter().any(|address| here(&address)) {
        return false;
    }
    let mut staying = staying.iter().filter(here);
    match hop.gateway {
        Some(gateway) if !hop.onlink => !staying.any(|address| address.address.contains(&gateway)),
        _ => is_ipv4 && staying.next().is_none(),
    }
}

/// The second half of a plan: from what is left to what is wanted.
struct Building<'a> {
    desired: &'a Desired,
    now: NetState,
    steps: Vec<Planned>,
    blocked: BTreeSet<Place>,
}

impl Building<'_> {
    fn push(&mut self, scope: &Scope, item: Item, step: Step) {
        let because = self.because(scope, item);
        self.steps.push(Planned { scope: scope.clone(), step, because, implied: false, note: None });
    }

    fn because(&self, scope: &Scope, item: Item) -> Vec<Provenance> {
        self.desired.why.get(&(scope.clone(), item)).cloned().unwrap_or_default()
    }

    fn is_blocked(&self, scope: &Scope, link: &IfName) -> bool {
        self.blocked.contains(&(scope.clone(), link.clone()))
    }

    /// Makes missing links, each after those it needs. A veth comes with its far end.
    fn create_links(&mut self) {
        let mut left: Vec<Place> = Vec::new();
        for (scope, state) in &self.desired.state.scopes {
            let missing = |link: &&Link| link.owner.is_some() && self.now.link(scope, &link.name).is_none();
            left.extend(state.links.values().filter(missing).map(|link| (scope.clone(), link.name.clone())));
        }
        // Sandboxes before the host, so that a pair is named by its end in the sandbox.
        left.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        while !left.is_empty() {
            let ready =
                |(scope, name): &Place| !self.waits_for(scope, name).iter().any(|other| left.contains(other));
            let next = left.iter().position(ready).unwrap_or(0);
            let place = left.remove(next);
            let Some(link) = self.desired.state.link(&place.0, &place.1).cloned() else { continue };
            let peer = far_end(&self.desired.state, &link);
            if let Some((scope, other)) = &peer {
                left.retain(|place| (&place.0, &place.1) != (scope, &other.name));
            }
            let newborn = |link: &Link| {
                let mut newborn = link.clone();
                newborn.attrs.up = None;
                newborn
            };
            let step = Step::CreateLink {
                link: newborn(&link),
                peer: peer.as_ref().map(|(scope, link)| (scope.clone(), newborn(link))),
            };
            let item = Item::Link(link.name.clone());
            self.push(&place.0, item, step);
            for (scope, link) in std::iter::once((place.0, link)).chain(peer) {
                let mut made = newborn(&link);
                made.attrs.up = Some(false);
                self.now.scope(&scope).add_link(made);
            }
        }
    }

    /// The links that have to be there before this one.
    fn waits_for(&self, scope: &Scope, name: &IfName) -> Vec<Place> {
        let Some(link) = self.desired.state.link(scope, name) else { return Vec::new() };
        let mut needed = needs(scope, link);
        if let Some((scope, peer)) = far_end(&self.desired.state, link) {
            needed.extend(needs(&scope, &peer));
        }
        needed
    }

    fn set_sysctls(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            for (key, to) in &want.sysctls {
                let seen = self.now.scopes.get(scope).and_then(|state| state.sysctls.get(key)).cloned();
                // Of a link that is made by this plan nothing could be observed yet; its first value is the kernel's own.
                let from = seen.unwrap_or_default();
                if from != *to {
                    let step = Step::SetSysctl { key: key.clone(), from, to: to.clone() };
                    self.push(scope, Item::Sysctl(key.clone()), step);
                }
            }
        }
    }

    /// Changes what differs on living links; going up waits for addresses.
    fn change_links(&mut self) {
        self.for_each_change(|field, to| field != "up" || *to == Value::Bool(false));
    }

    fn bring_up(&mut self) {
        self.for_each_change(|field, to| field == "up" && *to == Value::Bool(true));
    }

    fn for_each_change(&mut self, wanted: fn(&str, &Value) -> bool) {
        for (scope, want) in &self.desired.state.scopes {
            for (name, want) in &want.links {
                if self.is_blocked(scope, name) {
                    continue;
                }
                let Some(seen) = self.now.link(scope, name) else { continue };
                let changes = changes(want, seen, wanted);
                if !changes.is_empty() {
                    let kind = seen.kind.name().to_owned();
                    let along = changes.iter().find(|change| change.field == "mtu").map(|change| &change.to);
                    if let Some(mtu) = along.and_then(Value::as_u64) {
                        let place = (scope.clone(), name.clone());
                        self.steps.extend(lowered_along(&self.now, &place, mtu));
                    }
                    self.push(
                        scope,
                        Item::Link(name.clone()),
                        Step::ChangeLink { name: name.clone(), kind, changes },
                    );
                }
            }
        }
    }

    fn add_addresses(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            for (key, address) in &want.addresses {
                let there = self.now.scopes.get(scope).is_some_and(|state| state.addresses.contains_key(key));
                if !there && !self.is_blocked(scope, &address.link) {
                    self.push(scope, Item::Address(key.clone()), Step::AddAddress(address.clone()));
                }
            }
        }
    }

    fn add_the_rest(&mut self) {
        let nothing = ScopeState::default();
        for (scope, want) in &self.desired.state.scopes {
            let seen = self.now.scopes.get(scope).unwrap_or(&nothing).clone();
            // Routes to what is on a link come before routes through a gateway there.
            let mut routes: Vec<_> = want.routes.iter().collect();
            routes.sort_by_key(|(_, route)| route.via.iter().any(|hop| hop.gateway.is_some()));
            for (key, route) in routes {
                if route.via.iter().any(|hop| self.is_blocked(scope, &hop.link)) {
                    continue;
                }
                match seen.routes.get(key) {
                    None => self.push(scope, Item::Route(key.clone()), Step::AddRoute(route.clone())),
                    Some(before) if before.owned && !before.same_as(route) => {
                        let step = Step::ReplaceRoute { before: before.clone(), after: route.clone() };
                        self.push(scope, Item::Route(key.clone()), step);
                    }
                    Some(_) => {}
                }
            }
            for rule in want.rules.difference(&seen.rules) {
                self.push(scope, Item::Rule(rule.clone()), Step::AddRule(rule.clone()));
            }
            for (key, neighbour) in &want.neighbours {
                let there = seen.neighbours.get(key);
                if there.is_none_or(|there| there.owned && there.mac != neighbour.mac)
                    && !self.is_blocked(scope, &neighbour.link)
                {
                    self.push(scope, Item::Neighbour(key.clone()), Step::AddNeighbour(neighbour.clone()));
                }
            }
        }
    }
}

/// The far end of a desired veth, with its scope.
fn far_end(desired: &NetState, link: &Link) -> Option<(Scope, Link)> {
    let Kind::Veth(veth) = &link.kind else { return None };
    let peer = veth.peer.as_ref()?;
    Some((peer.scope.clone(), desired.link(&peer.scope, &peer.name)?.clone()))
}

/// The links that a link sits on or is a port of.
fn needs(scope: &Scope, link: &Link) -> Vec<Place> {
    let below = link.born_from.as_ref().unwrap_or(scope);
    let parent = link.kind.parent().map(|name| (below.clone(), name.clone()));
    let master = link.attrs.master.as_ref().and_then(Master::name).map(|name| (scope.clone(), name.clone()));
    parent.into_iter().chain(master).collect()
}

/// What the kernel does by itself when a link's MTU is lowered: no link that sits on it keeps a larger one. These come
/// before that step, so that taking it back takes back theirs after it.
fn lowered_along(now: &NetState, below: &Place, mtu: u64) -> Vec<Planned> {
    let links =
        now.scopes.iter().flat_map(|(scope, state)| state.links.values().map(move |link| (scope, link)));
    let sits_on_it = |scope: &Scope, link: &Link| {
        let parent = link.kind.parent().map(|parent| (link.born_from.as_ref().unwrap_or(scope), parent));
        parent == Some((&below.0, &below.1))
    };
    let lowered = links.filter_map(|(scope, link)| {
        let own = link.attrs.mtu.filter(|own| u64::from(*own) > mtu && sits_on_it(scope, link))?;
        let change = Change { field: "mtu".to_owned(), from: own.into(), to: mtu.into() };
        let (name, kind) = (link.name.clone(), link.kind.name().to_owned());
        let step = Step::ChangeLink { name, kind, changes: vec![change] };
        Some(Planned { scope: scope.clone(), step, because: Vec::new(), implied: true, note: None })
    });
    lowered.collect()
}

/// Stated fields that differ. What either side does not state is left alone.
fn changes(want: &Link, seen: &Link, wanted: fn(&str, &Value) -> bool) -> Vec<Change> {
    let seen_fields = seen.fields();
    let differing = want.fields().into_iter().filter_map(|(field, to)| {
        let from = seen_fields.get(&field)?.clone();
        (from != to && wanted(&field, &to)).then_some(Change { field, from, to })
    });
    differing.collect()
}
