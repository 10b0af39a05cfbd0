//! Computes the plan from observed to desired state. Pure and total: any two states give a plan.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::field_changes::{changes, up_change};
use super::filter_steps::{self, PlannedFilterStep};
use super::link_decisions::decide_links;
use super::parents::{depth, implied_mtu_changes, parent_of, required_links};
use super::removal::{LinkKey, Removal};
use super::{Desired, FieldChange, ItemKey, Plan, PlannedStep, Step};
use crate::filter::{Filter, FilterItem, FilterStep};
use crate::link::{Kind, Link, Master};
use crate::name::IfName;
use crate::provenance::Provenance;
use crate::route::{NextHop, Route};
use crate::rule::Rule;
use crate::sandbox::Scope;
use crate::state::{Address, NetState, ScopeState};
use crate::sysctl;

/// The ordered steps from `observed` to `desired`.
///
/// Items that Knit owns and that are not desired are removed. Items that Knit does not own are never changed or removed,
/// except for the set fields of a link that desired state names without an owner. Order: removals (users before what they
/// use), additions to the packet filter, link creation, sysctls, field changes, addresses, setting links up that waited for addresses, routes, rules,
/// neighbours, removals from the packet filter. Only the rule of VRFs precedes link creation: no VRF ever exists without it.
pub fn diff(desired: &Desired, observed: &NetState) -> Plan {
    let decisions = decide_links(&desired.state, observed);
    let mut removal = Removal::new(observed, &decisions.removed);
    remove_items(&mut removal, &desired.state, observed);
    removal.delete_links(&|place| decisions.notes.get(place).cloned());

    let Removal { now, steps, .. } = removal;
    let mut builder = Builder { desired, now, steps, blocked: decisions.blocked };
    builder.change_filter(observed, |desired, observed| filter_steps::additions(desired, observed, false));
    builder.add_rules(|rule| rule.vrf);
    builder.create_links();
    builder.change_filter(observed, |desired, observed| filter_steps::additions(desired, observed, true));
    builder.set_sysctls();
    builder.change_links();
    builder.add_addresses();
    builder.bring_up();
    builder.add_routes();
    builder.add_rules(|rule| !rule.vrf);
    builder.add_neighbours();
    builder.change_filter(observed, filter_steps::removals);
    let announced_addresses = announced_addresses(desired, &builder.steps);
    Plan { steps: builder.steps, problems: decisions.problems, announced_addresses }
}

/// New addresses that are to be announced.
fn announced_addresses(desired: &Desired, steps: &[PlannedStep]) -> Vec<(Scope, IfName, IpAddr)> {
    if desired.announced_links.is_empty() {
        return Vec::new();
    }
    let new = steps.iter().filter_map(|planned| match &planned.step {
        Step::AddAddress(address) => {
            let at = (planned.scope.clone(), address.link.clone());
            desired.announced_links.contains(&at).then(|| (at.0, at.1, address.address.addr()))
        }
        _ => None,
    });
    new.collect()
}

/// Removes owned items that are not desired, and records what the kernel removes together with a link.
fn remove_items(removal: &mut Removal<'_>, desired: &NetState, observed: &NetState) {
    let nothing = ScopeState::default();
    for (scope, state) in &observed.scopes {
        let target = desired.scopes.get(scope).unwrap_or(&nothing);
        for rule in state.rules.difference(&target.rules) {
            removal.now.scope(scope).rules.remove(rule);
            removal.push(scope, Step::RemoveRule(rule.clone()), false, None);
        }
        for (key, neighbour) in &state.neighbours {
            let with_link = removal.is_removed(scope, &neighbour.link);
            let stays = target.neighbours.contains_key(key)
                && !changes_vrf(removal, desired, observed, (scope, &neighbour.link));
            if with_link || (neighbour.owned && !stays) {
                removal.now.scope(scope).neighbours.remove(key);
                removal.push(scope, Step::RemoveNeighbour(neighbour.clone()), with_link, None);
            }
        }
        let is_leaving = |address: &Address| {
            let is_desired = target.addresses.get(&address.key()).is_some_and(|other| other.same_as(address));
            let stays = is_desired && !changes_vrf(removal, desired, observed, (scope, &address.link));
            removal.is_removed(scope, &address.link) || (address.owned && !stays)
        };
        let (removed, kept): (Vec<_>, Vec<_>) =
            state.addresses.values().partition(|address| is_leaving(address));
        for (key, route) in &state.routes {
            let with_link = route.via.iter().any(|hop| removal.is_removed(scope, &hop.link));
            let loses_next_hop = route.owned
                && route.via.iter().any(|hop| {
                    changes_vrf(removal, desired, observed, (scope, &hop.link))
                        || loses_next_hop(route, hop, &removed, &kept)
                });
            if with_link || loses_next_hop || (route.owned && !target.routes.contains_key(key)) {
                // The kernel keeps an ECMP route whose other next hops are still there.
                let is_implied = with_link
                    && (!route.owned || route.via.iter().all(|hop| removal.is_removed(scope, &hop.link)));
                removal.now.scope(scope).routes.remove(key);
                removal.push(scope, Step::RemoveRoute(route.clone()), is_implied, None);
            }
        }
        for address in removed {
            let with_link = removal.is_removed(scope, &address.link);
            removal.now.scope(scope).addresses.remove(&address.key());
            removal.push(scope, Step::RemoveAddress(address.clone()), with_link, None);
        }
    }
}

/// Whether an existing link enters or leaves a VRF, or its VRF is recreated: the kernel cycles it and drops its routes,
/// neighbours and IPv6 addresses. So they are removed before and added again after, in the right table.
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
    let is_recreated = from.name().is_some_and(|master| removal.is_removed(scope, master));
    (to != from || is_recreated) && (is_vrf(desired, &to) || is_vrf(observed, &from))
}

/// Whether a route does not survive the removed addresses: its gateway is reachable only through one of them, or it is an
/// IPv4 route and its link keeps no IPv4 address, at which point the kernel drops all IPv4 routes of the link.
fn loses_next_hop(route: &Route, hop: &NextHop, removed: &[&Address], kept: &[&Address]) -> bool {
    let is_ipv4 = route.to.addr().is_ipv4();
    let here = |address: &&&Address| address.link == hop.link && address.address.addr().is_ipv4() == is_ipv4;
    if !removed.iter().any(|address| here(&address)) {
        return false;
    }
    let mut kept = kept.iter().filter(here);
    match hop.gateway {
        Some(gateway) if !hop.onlink => !kept.any(|address| address.address.contains(&gateway)),
        _ => is_ipv4 && kept.next().is_none(),
    }
}

/// The second half of a plan: from the state after removals to desired state.
struct Builder<'a> {
    desired: &'a Desired,
    now: NetState,
    steps: Vec<PlannedStep>,
    blocked: BTreeSet<LinkKey>,
}

impl Builder<'_> {
    fn push(&mut self, scope: &Scope, item: ItemKey, step: Step) {
        let origins = self.origins(scope, item);
        self.steps.push(PlannedStep { scope: scope.clone(), step, origins, implied: false, note: None });
    }

    fn origins(&self, scope: &Scope, item: ItemKey) -> Vec<Arc<Provenance>> {
        let stated = self.desired.origins.get(&(scope.clone(), item)).cloned();
        stated.unwrap_or_else(|| self.desired.default_origin.iter().cloned().collect())
    }

    /// The origins of a step on the packet filter: sets, chains and counters have those of their table, elements that of their scope.
    fn filter_origins(&self, scope: &Scope, step: &FilterStep) -> Vec<Arc<Provenance>> {
        let default = self.desired.default_origin.as_ref();
        match step {
            FilterStep::AddElement(..) | FilterStep::ReplaceElement { .. } => {
                let origin = self.desired.element_origins.get(scope).or(default);
                origin.cloned().into_iter().collect()
            }
            FilterStep::RemoveElement(..) => default.cloned().into_iter().collect(),
            FilterStep::RemoveSet(..) | FilterStep::RemoveCounter(..) | FilterStep::RemoveChain(..) => {
                Vec::new()
            }
            _ => self.origins(scope, ItemKey::Filter(FilterItem::Table(step.table().clone()))),
        }
    }

    fn is_blocked(&self, scope: &Scope, link: &IfName) -> bool {
        // Called for every item of every plan, and almost always empty.
        !self.blocked.is_empty() && self.blocked.contains(&(scope.clone(), link.clone()))
    }

    /// Adds a part of the steps on the packet filter of each scope.
    fn change_filter(
        &mut self,
        observed: &NetState,
        part: impl Fn(&Filter, &Filter) -> Vec<PlannedFilterStep>,
    ) {
        let nothing = Filter::default();
        let desired = self.desired;
        let scopes: BTreeSet<&Scope> = desired.state.scopes.keys().chain(observed.scopes.keys()).collect();
        for scope in scopes {
            let (to, from) = (
                desired.state.scopes.get(scope).map_or(&nothing, |state| &state.filter),
                observed.scopes.get(scope).map_or(&nothing, |state| &state.filter),
            );
            for (step, implied) in part(to, from) {
                let origins = self.filter_origins(scope, &step);
                let step = Step::Filter(step);
                self.steps.push(PlannedStep { scope: scope.clone(), step, origins, implied, note: None });
            }
        }
    }

    /// Creates missing links, each after those it requires. A veth is created with its peer.
    fn create_links(&mut self) {
        let mut left: Vec<LinkKey> = Vec::new();
        for (scope, state) in &self.desired.state.scopes {
            let missing = |link: &&Link| {
                link.owner.is_some()
                    && self.now.link(scope, &link.name).is_none()
                    && !self.is_blocked(scope, &link.name)
            };
            left.extend(state.links.values().filter(missing).map(|link| (scope.clone(), link.name.clone())));
        }
        // Sandboxes before the host, so that a veth pair is named by its end in the sandbox.
        left.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        while !left.is_empty() {
            let ready = |(scope, name): &LinkKey| {
                !self.prerequisites(scope, name).iter().any(|other| left.contains(other))
            };
            let next = left.iter().position(ready).unwrap_or(0);
            let place = left.remove(next);
            let Some(link) = self.desired.state.link(&place.0, &place.1).cloned() else { continue };
            let peer = veth_peer(&self.desired.state, &link);
            if let Some((scope, other)) = &peer {
                left.retain(|place| (&place.0, &place.1) != (scope, &other.name));
            }
            let created = |scope: &Scope, link: &Link| {
                let mut created = link.clone();
                created.attrs.up = None;
                created.attrs.mtu = link.attrs.mtu.map(|mtu| self.initial_mtu(scope, link, mtu));
                created
            };
            let ends: Vec<(Scope, Link)> = [(place.0.clone(), link)]
                .into_iter()
                .chain(peer)
                .map(|(scope, link)| (scope.clone(), created(&scope, &link)))
                .collect();
            let step = Step::CreateLink { link: ends[0].1.clone(), peer: ends.get(1).cloned() };
            self.push(&place.0, ItemKey::Link(place.1.clone()), step);
            for (scope, mut made) in ends {
                if let Some(device) = made.device() {
                    self.now.scope(&Scope::Host).links.remove(device);
                }
                made.attrs.up = Some(false);
                self.now.scope(&scope).add_link(made);
            }
        }
    }

    /// The MTU that a link can be created with: that of its parent, if the parent is raised only later.
    fn initial_mtu(&self, scope: &Scope, link: &Link, mtu: u32) -> u32 {
        let parent = parent_of(scope, link);
        let mtu_in =
            |state: &NetState| parent.as_ref().and_then(|(scope, name)| state.link(scope, name)?.attrs.mtu);
        match (mtu_in(&self.now), mtu_in(&self.desired.state)) {
            (Some(now), Some(later)) if now < mtu && mtu <= later => now,
            _ => mtu,
        }
    }

    /// The links that must exist before this one.
    fn prerequisites(&self, scope: &Scope, name: &IfName) -> Vec<LinkKey> {
        let Some(link) = self.desired.state.link(scope, name) else { return Vec::new() };
        let mut required = required_links(scope, link);
        if let Some((scope, peer)) = veth_peer(&self.desired.state, link) {
            required.extend(required_links(&scope, &peer));
        }
        required
    }

    fn set_sysctls(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            for (key, to) in &want.sysctls {
                let observed = self.now.scopes.get(scope).and_then(|state| state.sysctls.get(key)).cloned();
                // Not observed for a link that this plan creates; it starts with the kernel's default.
                let from = observed.unwrap_or_default();
                let is_blocked = self
                    .blocked
                    .iter()
                    .any(|(there, link)| there == scope && sysctl::link_of(key) == Some(link.as_str()));
                if from != *to && !is_blocked {
                    let step = Step::SetSysctl { key: key.clone(), from, to: to.clone() };
                    self.push(scope, ItemKey::Sysctl(key.clone()), step);
                }
            }
        }
    }

    /// Changes fields of existing links. Setting a link up waits for its addresses and its parent.
    fn change_links(&mut self) {
        self.for_each_change(|desired, observed, waits| {
            let mut changes = changes(desired, observed);
            changes.extend(up_change(desired, observed).filter(|_| !waits));
            changes
        });
    }

    fn bring_up(&mut self) {
        self.for_each_change(|desired, observed, waits| {
            up_change(desired, observed).filter(|_| waits).into_iter().collect()
        });
    }

    /// A link whose MTU shrinks is changed before its parent, all others after it, so that neither the plan nor its rollback
    /// ever requests an MTU larger than the parent's.
    fn for_each_change(&mut self, changes: fn(&Link, &Link, bool) -> Vec<FieldChange>) {
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
            let mtu_change =
                changes.iter().find(|change| change.field == "mtu").and_then(|change| change.to.as_u64());
            if let Some(mtu) = mtu_change {
                let place = (scope.clone(), name.clone());
                self.steps.extend(implied_mtu_changes(&mut self.now, &place, mtu));
                if let Some(link) = self.now.scope(scope).links.get_mut(name) {
                    link.attrs.mtu = u32::try_from(mtu).ok();
                }
            }
            let step = Step::ChangeLink { name: name.clone(), kind, changes };
            self.push(scope, ItemKey::Link(name.clone()), step);
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
                    self.push(scope, ItemKey::Address(key.clone()), Step::AddAddress(address.clone()));
                }
            }
        }
    }

    fn add_routes(&mut self) {
        for (scope, want) in &self.desired.state.scopes {
            // On-link routes precede routes through a gateway that they make reachable.
            let mut routes: Vec<_> = want.routes.iter().collect();
            routes.sort_by_key(|(_, route)| route.via.iter().any(|hop| hop.gateway.is_some()));
            for (key, route) in routes {
                if route.via.iter().any(|hop| self.is_blocked(scope, &hop.link)) {
                    continue;
                }
                match self.now.scopes.get(scope).and_then(|state| state.routes.get(key)) {
                    None => self.push(scope, ItemKey::Route(key.clone()), Step::AddRoute(route.clone())),
                    Some(before) if before.owned && !before.same_as(route) => {
                        let step = Step::ReplaceRoute { before: before.clone(), after: route.clone() };
                        self.push(scope, ItemKey::Route(key.clone()), step);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn add_rules(&mut self, filter: fn(&Rule) -> bool) {
        for (scope, want) in &self.desired.state.scopes {
            let there =
                |rule: &Rule| self.now.scopes.get(scope).is_some_and(|state| state.rules.contains(rule));
            let missing: Vec<_> = want.rules.iter().filter(|rule| filter(rule) && !there(rule)).collect();
            for rule in missing {
                self.push(scope, ItemKey::Rule(rule.clone()), Step::AddRule(rule.clone()));
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
                        self.push(scope, ItemKey::Neighbour(key.clone()), step);
                    }
                    Some(before) if before.owned && before.mac != neighbour.mac => {
                        let step =
                            Step::ReplaceNeighbour { before: before.clone(), after: neighbour.clone() };
                        self.push(scope, ItemKey::Neighbour(key.clone()), step);
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// The peer of a desired veth, with its scope.
fn veth_peer(desired: &NetState, link: &Link) -> Option<(Scope, Link)> {
    let Kind::Veth(veth) = &link.kind else { return None };
    let peer = veth.peer.as_ref()?;
    Some((peer.scope.clone(), desired.link(&peer.scope, &peer.name)?.clone()))
}
