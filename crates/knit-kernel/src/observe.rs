//! What the kernel says, in the model's words.
//!
//! A look says where to look and at what. A sandbox is small: all of it is dumped. The host may hold thousands of
//! links, so there a look names those it is about, each asked for on its own, and never dumps all links.
//!
//! Links on their way out (see [`crate::reap`]) are not seen: for Knit they are gone.

mod addresses;
mod links;
mod neighbours;
mod routes;
mod rules;
mod sysctls;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use rules::kernel_has_vrf_rule;
pub(crate) use sysctls::path as sysctl_path;

use knit_model::plan::{Planned, Step};
use knit_model::state::AddressKey;
use knit_model::{IfName, NetState, Route, Scope, ScopeState};

use crate::error::Result;
use crate::kernel::{Kernel, Places, Room, recovered};

/// Where to look, and at what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Scope by scope.
    pub scopes: BTreeMap<Scope, ScopeLook>,
}

/// What to look at in one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLook {
    /// Which links.
    pub links: Links,
    /// The links' addresses.
    pub addresses: bool,
    /// The routes over the links.
    pub routes: bool,
    /// Only routes of these tables, and all of those that need no link. `None`: of every table.
    pub tables: Option<BTreeSet<u32>>,
    /// Knit's rules.
    pub rules: bool,
    /// The links' permanent neighbours and proxy entries.
    pub neighbours: bool,
    /// These sysctls. One that does not exist is left out.
    pub sysctls: BTreeSet<String>,
}

/// Which links to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// All, by a dump.
    All,
    /// These, one by one.
    Named(BTreeSet<IfName>),
}

impl Look {
    /// Adds a scope.
    #[must_use]
    pub fn at(mut self, scope: Scope, look: ScopeLook) -> Self {
        self.scopes.insert(scope, look);
        self
    }

    /// What to look at in a scope, to add to it; nothing yet when it was not named before.
    fn scope(&mut self, scope: &Scope) -> &mut ScopeLook {
        let nothing = || ScopeLook { addresses: false, routes: false, ..ScopeLook::named([]) };
        self.scopes.entry(scope.clone()).or_insert_with(nothing)
    }
}

impl ScopeLook {
    /// Everything but sysctls, which have to be named.
    pub fn everything() -> Self {
        Self { links: Links::All, rules: true, neighbours: true, ..Self::named([]) }
    }

    /// These links with their addresses and routes, and nothing else.
    pub fn named(links: impl IntoIterator<Item = IfName>) -> Self {
        let links = Links::Named(links.into_iter().collect());
        let sysctls = BTreeSet::new();
        Self { links, addresses: true, routes: true, tables: None, rules: false, neighbours: false, sysctls }
    }

    /// Adds a link.
    fn add_link(&mut self, name: &IfName) {
        if let Links::Named(names) = &mut self.links
            && !names.contains(name)
        {
            names.insert(name.clone());
        }
    }

    /// Adds a route: by its links, and by its table, where it may be without a link.
    fn add_route(&mut self, route: &Route) {
        self.routes = true;
        self.tables.get_or_insert_default().insert(route.table);
        route.via.iter().for_each(|hop| self.add_link(&hop.link));
    }
}

/// Everything that steps touch.
pub(crate) fn look_of<'a>(steps: impl Iterator<Item = &'a Planned>) -> Look {
    let mut look = Look::default();
    for planned in steps {
        let here = look.scope(&planned.scope);
        match &planned.step {
            Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } => {
                here.add_link(&link.name);
                if let Some((scope, far)) = peer {
                    look.scope(scope).add_link(&far.name);
                }
            }
            Step::ChangeLink { name, .. } => here.add_link(name),
            Step::AddAddress(address) | Step::RemoveAddress(address) => {
                here.addresses = true;
                here.add_link(&address.link);
            }
            Step::AddRoute(route) | Step::RemoveRoute(route) => here.add_route(route),
            Step::ReplaceRoute { before, after } => {
                here.add_route(before);
                here.add_route(after);
            }
            Step::AddRule(_) | Step::RemoveRule(_) => here.rules = true,
            Step::AddNeighbour(neighbour)
            | Step::RemoveNeighbour(neighbour)
            | Step::ReplaceNeighbour { after: neighbour, .. } => {
                here.neighbours = true;
                here.add_link(&neighbour.link);
            }
            Step::SetSysctl { key, .. } => {
                here.sysctls.insert(key.clone());
            }
        }
    }
    look
}

impl Kernel {
    /// Looks, and says what is there. A scope that was looked at is in the result even if it is empty.
    pub fn observe(&mut self, look: &Look, places: &mut Places) -> Result<NetState> {
        let observed = Room { kernel: self, places }.observe(look);
        recovered(observed, self, places)
    }
}

/// What is in a scope, and what the model does not hold of it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) state: ScopeState,
    /// Links with nothing at the other end of the cable.
    pub(crate) without_carrier: BTreeSet<IfName>,
    /// Addresses that cannot be used: duplicate detection is under way, or has found another (true).
    pub(crate) unready: BTreeMap<AddressKey, bool>,
}

impl Room<'_> {
    pub(crate) fn observe(&mut self, look: &Look) -> Result<NetState> {
        let mut state = NetState::default();
        for (scope, look) in &look.scopes {
            let seen = self.observe_scope(scope, look)?;
            state.scopes.insert(scope.clone(), seen.state);
        }
        Ok(state)
    }

    pub(crate) fn observe_scope(&mut self, scope: &Scope, look: &ScopeLook) -> Result<Seen> {
        let mut seen = Seen::default();
        let found = links::look(self, scope, &look.links)?;
        if look.addresses {
            for address in addresses::look(self, scope, &look.links, &found)? {
                if address.tentative || address.duplicate {
                    seen.unready.insert(address.address.key(), address.duplicate);
                }
                seen.state.add_address(address.address);
            }
        }
        if look.routes {
            for route in routes::look(self, scope, look, &found)? {
                routes::insert(&mut seen.state, route);
            }
        }
        if look.rules {
            (seen.state.rules, seen.state.foreign_rules) = rules::look(self, scope)?;
        }
        if look.neighbours {
            for neighbour in neighbours::look(self, scope, &look.links, &found)? {
                seen.state.add_neighbour(neighbour);
            }
        }
        // Of a link that is not there, no sysctl is: that saves a visit to the namespace of a new sandbox.
        let is_there = |link: &str| look.links != Links::All || found.has(link);
        seen.state.sysctls = sysctls::look(self, scope, &look.sysctls, is_there)?;
        for link in found.into_seen() {
            if !link.carrier {
                seen.without_carrier.insert(link.link.name.clone());
            }
            seen.state.add_link(link.link);
        }
        Ok(seen)
    }
}
