//! From desired and observed to a plan. Pure, and total: any two states give a plan.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::below::{below_of, depth, moved_along, needs};
use super::changes::{changes, going_up};
use super::removal::{Place, Removal};
use super::verdicts::judge;
use super::{Change, Desired, Item, Plan, Planned, Step};
use crate::link::{Kind, Link, Master};
use crate::name::IfName;
use crate::provenance::Provenance;
use crate::route::{NextHop, Route};
use crate::rule::Rule;
use crate::sandbox::Scope;
use crate::state::{Address, NetState, ScopeState};

/// The ordered steps from `observed` to `desired`.
///
/// What carries Knit's mark and is not desired goes. What has no mark is never changed or removed, except for the stated
/// fields of a link that desired names without an owner. First things go (what uses another before what is used), then
/// links are made, then sysctls, changes and addresses, then links go up that waited for those, then routes, rules and
/// neighbours follow. Only the rule of VRFs comes before links: no VRF is ever without it.
pub fn diff(desired: &Desired, observed: &NetState) -> Plan {
    let verdicts = judge(&desired.state, observed);
    let mut removal = Removal::new(observed, &verdicts.going);
    remove_items(&mut removal, &desired.state, observed);
    removal.delete_links(&|place| verdicts.notes.get(place).cloned());

    let Removal { now, steps, .. } = removal;
    let mut building = Building { desired, now, steps, blocked: verdicts.blocked };
    building.add_rules(|rule| rule.vrf);
    building.create_links();
    building.set_sysctls();
    building.change_links();
    building.add_addresses();
    building.bring_up();
    building.add_routes();
    building.add_rules(|rule| !rule.vrf);
    building.add_neighbours();
    let announced = announced(desired, &building.steps);
    Plan { steps: building.steps, problems: verdicts.problems, announced }
}

/// The new addresses that neighbours are told of.
fn announced(desired: &Desired, steps: &[Planned]) -> Vec<(Scope, IfName, IpAddr)> {
    if desired.announced.is_empty() {
        return Vec::new();
    }
    let new = steps.iter().filter_map(|planned| match &planned.step {
        Step::AddAddress(address) => {
            let at = (planned.scope.clone(), address.link.clone());
            desired.announced.contains(&at).then(|| (at.0, at.1, address.address.addr()))
        }
        _ => None,
    });
    new.collect()
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
            let stays = want.neighbours.contains_key(key)
                && !changes_vrf(removal, desired, observed, (scope, &neighbour.link));
            if with_link || (neighbour.owned && !stays) {
                removal.now.scope(scope).neighbours.remove(key);
                removal.push(scope, Step::RemoveNeighbour(neighbour.clone()), with_link, None);
            }
        }
        let leaving = |address: &Address| {
            let wanted = want.addresses.get(&address.key()).is_some_and(|want| want.same_as(address));
            let stays = wanted && !changes_vrf(removal, desired, observed, (scope, &address.link));
            removal.goes(scope, &address.link) || (address.owned && !stays)
        };
        let (leaving, staying): (Vec<_>, Vec<_>) =
            seen.addresses.values().partition(|address| leaving(address));
        for (key, route) in &seen.routes {
            let with_link = route.via.iter().any(|hop| removal.goes(scope, &hop.link));
            let loses_its_way = route.owned
                && route.via.iter().any(|hop| {
                    changes_vrf(removal, desired, observed, (scope, &hop.link))
                        || loses_its_way(route, hop, &leaving, &staying)
                });
            if with_link || loses_its_way || (route.owned && !want.routes.contains_key(key)) {
                // Of several hops a cut-off link is one that is down: the route stays for the others.
                let by_itself =
                    with_link && (!route.owned || route.via.iter().all(|hop| removal.goes(scope, &hop.link)));
                removal.now.scope(scope).routes.remove(key);
                removal.push(scope, Step::RemoveRoute(route.clone()), by_itself, None);
            }
        }
        for address in leaving {
            let with_link = removal.goes(scope, &address.link);
            removal.now.scope(scope).addresses.remove(&address.key());
            removal.push(scope, Step::RemoveAddress(address.clone()), with_link, None);
        }
    }
}

/// Whether a living link becomes a port of another VRF, or leaves one, or its VRF is made again: the kernel takes it down
/// and up again, and drops its routes, neighbours and IPv6 addresses. So they are taken away before and come back after, in
/// the table where they belong.
fn changes_vrf(
    removal: &Removal<'_>,
    desired: &NetState,
    observed: &NetState,
    (scope, name): (&Scope, &IfName),
) -> bool {
    let master = |state: &NetState| state.link(scope, name)?.attrs.master.clone();
    let (Some(to), Some(from)) = (master(desired), master(observed)) else { return false };
    let is_vrf = |state: &NetState, master: &Master| {
        let master = master.name().and_then(|name| state.link(scope, name));
        master.is_some_and(|master| matches!(master.kind, Kind::Vrf(_)))
    };
    let is_made_again = from.name().is_some_and(|master| removal.goes(scope, master));
    (to != from || is_made_again) && (is_vrf(desired, &to) || is_vrf(observed, &from))
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
        // Asked for every item of every plan, and hardly ever is there any.
        !self.blocked.is_empty() && self.blocked.contains(&(scope.clone(), link.clone()))
    }

    /// Makes missing links, each after those it needs. A veth comes with its far end.
    fn create_links(&mut self) {
        let mut left: Vec<Place> = Vec::new();
        for (scope, state) in &self.desired.state.scopes {
            let missing = |link: &&Link| {
                link.owner.is_some()
                    && self.now.link(scope, &link.name).is_none()
                    && !self.is_blocked(scope, &link.name)
            };
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
            let newborn = |scope: &Scope, link: &Link| {
                let mut newborn = link.clone();
                newborn.attrs.up = None;
                newborn.attrs.mtu = link.attrs.mtu.map(|mtu| self.room_for(scope, link, mtu));
                newborn
            };
            let ends: Vec<(Scope, Link)> = [(place.0.clone(), link)]
                .into_iter()
                .chain(peer)
                .map(|(scope, link)| (scope.clone(), newborn(&scope, &link)))
                .collect();
            let step = Step::CreateLink { link: ends[0].1.clone(), peer: ends.get(1).cloned() };
            self.push(&place.0, Item::Link(place.1.clone()), step);
            for (scope, mut made) in ends {
                if let Some(device) = made.device() {
                    self.now.scope(&Scope::Host).links.remove(device);
                }
                made.attrs.up = Some(false);
                self.now.scope(&scope).add_link(made);
            }
        }
    }

    /// The MTU that a link can be born with: its parent's, if that has yet to grow to hold it.
    fn room_for(&self, scope: &Scope, link: &Link, mtu: u32) -> u32 {
        let below = below_of(scope, link);
        let mtu_in =
            |state: &NetState| below.as_ref().and_then(|(scope, name)| state.link(scope, name)?.attrs.mtu);
        match (mtu_in(&self.now), mtu_in(&self.desired.state)) {
            (Some(now), Some(later)) if now < mtu && mtu <= later => now,
            _ => mtu,
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
                let of_blocked =
                    self.blocked.iter().any(|(there, link)| there == scope && is_sysctl_of(key, link));
                if from != *to && !of_blocked {
                    let step = Step::SetSysctl { key: key.clone(), from, to: to.clone() };
                    self.push(scope, Item::Sysctl(key.clone()), step);
                }
            }
        }
    }

    /// Changes what differs on living links. Going up waits for addresses, and for the link that it sits on.
    fn change_links(&mut self) {
        self.for_each_change(|want, seen, waits| {
            let mut changes = changes(want, seen);
            changes.extend(going_up(want, seen).filter(|_| !waits));
            changes
        });
    }

    fn bring_up(&mut self) {
        self.for_each_change(|want, seen, waits| {
            going_up(want, seen).filter(|_| waits).into_iter().collect()
        });
    }

    /// A link that gets smaller comes before the one that it sits on, all others after it: neither way is a link ever
    /// asked to be larger than what it sits on, nor when it is taken back.
    fn for_each_change(&mut self, changes: fn(&Link, &Link, bool) -> Vec<Change>) {
        let desired = self.desired;
        let mut places: Vec<(bool, usize, (&Scope, &IfName))> = Vec::new();
        for (scope, state) in &desired.state.scopes {
            for (name, want) in &state.links {
                let Some(seen) = self.now.link(scope, name).filter(|_| !self.is_blocked(scope, name)) else {
                    continue;
                };
                let depth = depth(&self.now, scope, want);
                let shrinks = want.attrs.mtu < seen.attrs.mtu;
                places.push((!shrinks, if shrinks { usize::MAX - depth } else { depth }, (scope, name)));
            }
        }
        places.sort();
        for (_, _, (scope, name)) in places {
            let (Some(want), Some(seen)) = (desired.state.link(scope, name), self.now.link(scope, name))
            else {
                continue;
            };
            let waits = want.kind.parent().is_some() || self.has_addresses(scope, name);
            let changes = changes(want, seen, waits);
            if changes.is_empty() {
                continue;
            }
            let kind = seen.kind.name().to_owned();
            let along =
                changes.iter().find(|change| change.field == "mtu").and_then(|change| change.to.as_u64());
            if let Some(mtu) = along {
                let place = (scope.clone(), name.clone());
                self.steps.extend(moved_along(&mut self.now, &place, mtu));
                if let Some(link) = self.now.scope(scope).links.get_mut(name) {
                    link.attrs.mtu = u32::try_from(mtu).ok();
                }
            }
            let step = Step::ChangeLink { name: name.clone(), kind, changes };
            self.push(scope, Item::Link(name.clone()), step);
        }
    }

    fn has_addresses(&self, scope: &Scope, link: &IfName) -> bool {
        let there = self.desired.state.scopes.get(scope);
        there.is_some_and(|state| state.addresses.values().any(|address| address.link == *link))
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

    fn add_routes(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            // Routes to what is on a link come before routes through a gateway there.
            let mut routes: Vec<_> = want.routes.iter().collect();
            routes.sort_by_key(|(_, route)| route.via.iter().any(|hop| hop.gateway.is_some()));
            for (key, route) in routes {
                if route.via.iter().any(|hop| self.is_blocked(scope, &hop.link)) {
                    continue;
                }
                match self.now.scopes.get(scope).and_then(|state| state.routes.get(key)) {
                    None => self.push(scope, Item::Route(key.clone()), Step::AddRoute(route.clone())),
                    Some(before) if before.owned && !before.same_as(route) => {
                        let step = Step::ReplaceRoute { before: before.clone(), after: route.clone() };
                        self.push(scope, Item::Route(key.clone()), step);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn add_rules(&mut self, wanted: fn(&Rule) -> bool) {
        for (scope, want) in &self.desired.state.scopes {
            let there =
                |rule: &Rule| self.now.scopes.get(scope).is_some_and(|state| state.rules.contains(rule));
            let missing: Vec<_> = want.rules.iter().filter(|rule| wanted(rule) && !there(rule)).collect();
            for rule in missing {
                self.push(scope, Item::Rule(rule.clone()), Step::AddRule(rule.clone()));
            }
        }
    }

    fn add_neighbours(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            for (key, neighbour) in &want.neighbours {
                if self.is_blocked(scope, &neighbour.link) {
                    continue;
                }
                match self.now.scopes.get(scope).and_then(|state| state.neighbours.get(key)) {
                    None => {
                        let step = Step::AddNeighbour(neighbour.clone());
                        self.push(scope, Item::Neighbour(key.clone()), step);
                    }
                    Some(before) if before.owned && before.mac != neighbour.mac => {
                        let step =
                            Step::ReplaceNeighbour { before: before.clone(), after: neighbour.clone() };
                        self.push(scope, Item::Neighbour(key.clone()), step);
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// Whether a sysctl is one of this link's: `net/ipv6/conf/net1/accept_ra` is of `net1`.
fn is_sysctl_of(key: &str, link: &IfName) -> bool {
    key.split('/').nth(3) == Some(link.as_str())
}

/// The far end of a desired veth, with its scope.
fn far_end(desired: &NetState, link: &Link) -> Option<(Scope, Link)> {
    let Kind::Veth(veth) = &link.kind else { return None };
    let peer = veth.peer.as_ref()?;
    Some((peer.scope.clone(), desired.link(&peer.scope, &peer.name)?.clone()))
}
