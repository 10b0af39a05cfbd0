//! What the kernel says, in the model's words.
//!
//! A look says where to look and at what. A sandbox is small: all of it is dumped. The host may hold thousands of
//! links, so there a look names those it is about, each asked for on its own, and never dumps all links.
//!
//! Links on their way out (see [`crate::reap`]) are not seen: for Knit they are gone.

mod addresses;
mod limits;
mod links;
mod neighbours;
mod routes;
mod rules;
mod sysctls;
mod vlans;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use rules::kernel_has_vrf_rule;
pub(crate) use sysctls::path as sysctl_path;
pub use sysctls::{sysctls, use_sysctls_at};

use ipnet::IpNet;
use knit_model::plan::{Planned, Step};
use knit_model::state::AddressKey;
use knit_model::{IfName, NetState, Route, Scope, ScopeState};

use crate::error::Result;
use crate::kernel::{Kernel, Places, Room, recovered};
use crate::netlink::constants::{AF_INET, AF_INET6, AF_UNSPEC};

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
    /// Also Knit's routes of the host's own table that lead nowhere.
    pub dead_ends: bool,
    /// Knit's rules.
    pub rules: bool,
    /// The links' permanent neighbours and proxy entries.
    pub neighbours: bool,
    /// The VLANs of links that are bridges or ports of bridges.
    pub vlans: bool,
    /// These sysctls. One that does not exist is left out.
    pub sysctls: BTreeSet<String>,
    /// Only addresses and routes of IPv4 (false) or of IPv6 (true). `None`: of both.
    pub ipv6: Option<bool>,
    /// Addresses, rules and neighbours only if a link or a route has Knit's mark: Knit's own come after such a one and go
    /// before it.
    pub only_if_marked: bool,
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
        self.scopes.entry(scope.clone()).or_insert_with(ScopeLook::nothing)
    }
}

impl ScopeLook {
    /// Everything but sysctls, which have to be named.
    pub fn everything() -> Self {
        Self { links: Links::All, rules: true, neighbours: true, vlans: true, ..Self::named([]) }
    }

    /// Nothing at all yet.
    pub fn nothing() -> Self {
        Self { addresses: false, routes: false, ..Self::named([]) }
    }

    /// These links with their addresses and routes, and nothing else.
    pub fn named(links: impl IntoIterator<Item = IfName>) -> Self {
        let links = Links::Named(links.into_iter().collect());
        Self {
            links,
            addresses: true,
            routes: true,
            tables: None,
            dead_ends: false,
            rules: false,
            neighbours: false,
            vlans: false,
            sysctls: BTreeSet::new(),
            ipv6: None,
            only_if_marked: false,
        }
    }

    /// Adds a link.
    fn add_link(&mut self, name: &IfName) {
        if let Links::Named(names) = &mut self.links
            && !names.contains(name)
        {
            names.insert(name.clone());
        }
    }

    /// The family to ask for.
    fn family(&self) -> u8 {
        match self.ipv6 {
            None => AF_UNSPEC,
            Some(false) => AF_INET,
            Some(true) => AF_INET6,
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
    // Whether IPv4, and whether IPv6 is among the steps of a scope.
    let mut families: BTreeMap<&Scope, [bool; 2]> = BTreeMap::new();
    for planned in steps {
        let here = look.scope(&planned.scope);
        if let Some(prefix) = prefix_of(&planned.step) {
            families.entry(&planned.scope).or_default()[usize::from(prefix.addr().is_ipv6())] = true;
        }
        match &planned.step {
            Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } => {
                here.add_link(&link.name);
                here.vlans |= link.attrs.vlans.is_some();
                if let Some(device) = link.device() {
                    look.scope(&Scope::Host).add_link(device);
                }
                if let Some((scope, far)) = peer {
                    let there = look.scope(scope);
                    there.add_link(&far.name);
                    there.vlans |= far.attrs.vlans.is_some();
                }
            }
            Step::ChangeLink { name, changes, .. } => {
                here.add_link(name);
                here.vlans |= changes.iter().any(|change| change.field == "vlans");
            }
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
    for (scope, families) in families {
        if let [ipv4, ipv6] = families
            && ipv4 != ipv6
        {
            look.scope(scope).ipv6 = Some(ipv6);
        }
    }
    look
}

/// The prefix that a step is about, for addresses and routes.
fn prefix_of(step: &Step) -> Option<&IpNet> {
    match step {
        Step::AddAddress(address) | Step::RemoveAddress(address) => Some(&address.address),
        Step::AddRoute(route) | Step::RemoveRoute(route) => Some(&route.to),
        Step::ReplaceRoute { after, .. } => Some(&after.to),
        _ => None,
    }
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
        let mut found = links::look(self, scope, &look.links)?;
        if look.vlans {
            found.add_vlans(vlans::look(self, scope, &found.with_vlans())?);
        }
        if look.routes {
            for route in routes::look(self, scope, look, &found)? {
                routes::insert(&mut seen.state, route);
            }
        }
        let is_marked = || found.is_marked() || seen.state.routes.values().any(|route| route.owned);
        let is_of_interest = !look.only_if_marked || is_marked();
        if look.addresses && is_of_interest {
            for address in addresses::look(self, scope, look, &found)? {
                if address.tentative || address.duplicate {
                    seen.unready.insert(address.address.key(), address.duplicate);
                }
                seen.state.add_address(address.address);
            }
        }
        if look.rules && is_of_interest {
            (seen.state.rules, seen.state.foreign_rules) = rules::look(self, scope)?;
        }
        if look.neighbours && is_of_interest {
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
