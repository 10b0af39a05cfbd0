//! Reads the kernel's state into the model's types.
//!
//! A query selects scopes and objects. A sandbox is small, so it is dumped whole. The host may have thousands of
//! links, so a query names the links there; each is requested separately, and links are never dumped.
//!
//! Detached links (see [`Kernel::delete_deferred`]) are not reported: for Knit they are deleted.

pub(crate) mod addresses;
pub(crate) mod limits;
pub(crate) mod links;
pub(crate) mod neighbours;
pub(crate) mod routes;
pub(crate) mod rules;
mod sysctls;
pub(crate) mod vlans;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use rules::kernel_has_vrf_rule;
pub(crate) use sysctls::path as sysctl_path;
pub use sysctls::{set_sysctl_root, sysctl_root};

use ipnet::IpNet;
use knit_model::filter::rule::{Expression, LookupResult};
use knit_model::filter::{FilterItem, FilterStep, KeyPart};
use knit_model::plan::{PlannedStep, Step};
use knit_model::state::AddressKey;
use knit_model::{IfName, NetState, Route, Scope, ScopeState};

use crate::error::Result;
use crate::kernel::{Kernel, SandboxNamespaces, Session, reset_sockets_on_error};
use crate::netlink::constants::{AF_INET, AF_INET6, AF_UNSPEC};
use crate::nft::{self, FilterQuery};

/// Above this number of chains and sets, whole tables are observed.
const MAX_PARTS: usize = 100;

/// What to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateQuery {
    /// By scope.
    pub scopes: BTreeMap<Scope, ScopeQuery>,
}

/// What to observe in one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeQuery {
    /// The links.
    pub links: LinkFilter,
    /// The links' addresses.
    pub addresses: bool,
    /// The routes through the links.
    pub routes: bool,
    /// Only routes of these tables, including those without a link. `None`: of every table.
    pub tables: Option<BTreeSet<u32>>,
    /// Also Knit's blackhole, unreachable and prohibit routes in the host's table.
    pub blackhole_routes: bool,
    /// Knit's rules.
    pub rules: bool,
    /// The links' permanent neighbours and proxy entries.
    pub neighbours: bool,
    /// The VLANs of links that are bridges or ports of bridges.
    pub vlans: bool,
    /// These sysctls. Those that do not exist are left out.
    pub sysctls: BTreeSet<String>,
    /// Only addresses and routes of IPv4 (false) or IPv6 (true). `None`: both.
    pub ipv6: Option<bool>,
    /// The packet filter.
    pub filter: FilterQuery,
    /// Addresses, rules and neighbours only if a link or a route is Knit's: other objects of Knit's are added after
    /// such a one and removed before it.
    pub only_if_owned: bool,
}

/// Which links to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFilter {
    /// All, by a dump.
    All,
    /// These, requested separately.
    Named(BTreeSet<IfName>),
}

impl StateQuery {
    /// Adds a scope.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope, query: ScopeQuery) -> Self {
        self.scopes.insert(scope, query);
        self
    }

    /// The query of a scope, created empty on first use.
    fn scope(&mut self, scope: &Scope) -> &mut ScopeQuery {
        self.scopes.entry(scope.clone()).or_insert_with(ScopeQuery::nothing)
    }
}

impl ScopeQuery {
    /// Everything but sysctls, which have to be named.
    pub fn everything() -> Self {
        Self { links: LinkFilter::All, rules: true, neighbours: true, vlans: true, ..Self::named([]) }
    }

    /// Nothing.
    pub fn nothing() -> Self {
        Self { addresses: false, routes: false, ..Self::named([]) }
    }

    /// These links with their addresses and routes, and nothing else.
    pub fn named(links: impl IntoIterator<Item = IfName>) -> Self {
        let links = LinkFilter::Named(links.into_iter().collect());
        Self {
            links,
            addresses: true,
            routes: true,
            tables: None,
            blackhole_routes: false,
            rules: false,
            neighbours: false,
            vlans: false,
            sysctls: BTreeSet::new(),
            ipv6: None,
            filter: FilterQuery::default(),
            only_if_owned: false,
        }
    }

    /// Adds a link.
    fn add_link(&mut self, name: &IfName) {
        if let LinkFilter::Named(names) = &mut self.links
            && !names.contains(name)
        {
            names.insert(name.clone());
        }
    }

    /// The address family of the request.
    fn family(&self) -> u8 {
        match self.ipv6 {
            None => AF_UNSPEC,
            Some(false) => AF_INET,
            Some(true) => AF_INET6,
        }
    }

    /// Adds what a step on the packet filter is about. Elements of ranges are not found by key.
    fn add_filter(&mut self, change: &FilterStep) {
        let uses_data = |expression: &Expression| {
            matches!(expression, Expression::Lookup { to: LookupResult::Load(_), .. })
        };
        let is_partial = self.filter.chains.len() + self.filter.declarations.len() < MAX_PARTS;
        match change.item() {
            FilterItem::Set(table, name) if is_partial => {
                self.filter.declarations.insert((table, name));
            }
            FilterItem::Chain(table, name)
                if is_partial && !change.rules().flat_map(|rule| &rule.expressions).any(uses_data) =>
            {
                self.filter.chains.insert((table, name));
            }
            FilterItem::Element(key) => match &key.key[..] {
                [KeyPart::Range(..)] => drop(self.filter.sets.insert((key.table, key.set))),
                _ => drop(self.filter.elements.insert(key)),
            },
            FilterItem::Table(table)
            | FilterItem::Set(table, _)
            | FilterItem::Counter(table, _)
            | FilterItem::Chain(table, _) => drop(self.filter.tables.insert(table)),
        }
    }

    /// Adds a route by its links, and by its table, for routes without a link.
    fn add_route(&mut self, route: &Route) {
        self.routes = true;
        self.tables.get_or_insert_default().insert(route.table);
        route.via.iter().for_each(|hop| self.add_link(&hop.link));
    }
}

/// The query for everything that steps touch.
pub(crate) fn query_for<'a>(steps: impl Iterator<Item = &'a PlannedStep>) -> StateQuery {
    let mut query = StateQuery::default();
    // Whether the steps of a scope contain IPv4 and IPv6.
    let mut families: BTreeMap<&Scope, [bool; 2]> = BTreeMap::new();
    for planned in steps {
        let here = query.scope(&planned.scope);
        if let Some(prefix) = prefix_of(&planned.step) {
            families.entry(&planned.scope).or_default()[usize::from(prefix.addr().is_ipv6())] = true;
        }
        match &planned.step {
            Step::CreateLink { link, peer } | Step::DeleteLink { link, peer } => {
                here.add_link(&link.name);
                here.vlans |= link.attrs.vlans.is_some();
                if let Some(device) = link.device() {
                    query.scope(&Scope::Host).add_link(device);
                }
                if let Some((scope, far)) = peer {
                    let there = query.scope(scope);
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
            Step::Filter(change) => here.add_filter(change),
        }
    }
    for (scope, families) in families {
        if let [ipv4, ipv6] = families
            && ipv4 != ipv6
        {
            query.scope(scope).ipv6 = Some(ipv6);
        }
    }
    query
}

/// The prefix of an address or route step.
fn prefix_of(step: &Step) -> Option<&IpNet> {
    match step {
        Step::AddAddress(address) | Step::RemoveAddress(address) => Some(&address.address),
        Step::AddRoute(route) | Step::RemoveRoute(route) => Some(&route.to),
        Step::ReplaceRoute { after, .. } => Some(&after.to),
        _ => None,
    }
}

impl Kernel {
    /// Observes the kernel's state. Every scope of the query is in the result, even if it is empty.
    pub fn observe(&mut self, query: &StateQuery, namespaces: &mut SandboxNamespaces) -> Result<NetState> {
        let observed = Session { kernel: self, namespaces }.observe(query);
        reset_sockets_on_error(observed, self, namespaces)
    }
}

/// The state of a scope, with details that are not part of the model.
#[derive(Debug, Default)]
pub(crate) struct ObservedScope {
    pub(crate) state: ScopeState,
    /// Links without a carrier.
    pub(crate) without_carrier: BTreeSet<IfName>,
    /// Addresses that are not usable: duplicate address detection is in progress, or has failed (true).
    pub(crate) unready: BTreeMap<AddressKey, bool>,
}

impl Session<'_> {
    pub(crate) fn observe(&mut self, query: &StateQuery) -> Result<NetState> {
        let mut state = NetState::default();
        for (scope, query) in &query.scopes {
            let observed = self.observe_scope(scope, query)?;
            state.scopes.insert(scope.clone(), observed.state);
        }
        Ok(state)
    }

    pub(crate) fn observe_scope(&mut self, scope: &Scope, query: &ScopeQuery) -> Result<ObservedScope> {
        let mut observed = ObservedScope::default();
        let mut found = links::observe(self, scope, &query.links)?;
        if query.vlans {
            found.add_vlans(vlans::observe(self, scope, &found.with_vlans())?);
        }
        if query.routes {
            for route in routes::observe(self, scope, query, &found)? {
                routes::insert(&mut observed.state, route);
            }
        }
        let has_owned = || found.has_owned() || observed.state.routes.values().any(|route| route.owned);
        let is_included = !query.only_if_owned || has_owned();
        let is_filter_included = !query.filter.only_if_owned || has_owned();
        if query.addresses && is_included {
            for address in addresses::observe(self, scope, query, &found)? {
                if address.tentative || address.duplicate {
                    observed.unready.insert(address.address.key(), address.duplicate);
                }
                observed.state.add_address(address.address);
            }
        }
        if query.rules && is_included {
            (observed.state.rules, observed.state.foreign_rules) = rules::observe(self, scope)?;
        }
        if query.neighbours && is_included {
            for neighbour in neighbours::observe(self, scope, &query.links, &found)? {
                observed.state.add_neighbour(neighbour);
            }
        }
        if !query.filter.is_empty() && is_filter_included {
            observed.state.filter = nft::observe(self.netfilter(scope)?, &query.filter)?;
        }
        // A missing link has no sysctls: this avoids entering the namespace of a new sandbox.
        let is_there = |link: &str| query.links != LinkFilter::All || found.has(link);
        observed.state.sysctls = sysctls::observe(self, scope, &query.sysctls, is_there)?;
        for link in found.into_links() {
            if !link.carrier {
                observed.without_carrier.insert(link.link.name.clone());
            }
            observed.state.add_link(link.link);
        }
        Ok(observed)
    }
}
