//! Drift repair: compares the whole node with the kernel, restores what others changed and removes strays.
//!
//! Everything that Knit creates has a mark, so it is found even if the journal is lost. A host link with the mark that no unit owns is a
//! stray and is removed; strays inside sandboxes are removed whenever the sandbox is observed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use knit_engine::packet_filter::is_shared_set;
use knit_engine::{Event, Settings, Unit};
use knit_model::filter::ElementKey;
use knit_model::plan::{Desired, diff};
use knit_model::route::NextHop;
use knit_model::{Address, IfName, Link, NetState, Plan, Route, Scope, ScopeState, Step, kernel_ids};

use super::start::settings_of;
use super::{Node, Plans};
use crate::error::{Error, Result};

/// A repaired drift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// What had drifted.
    pub what: String,
    /// The plan that repaired it.
    pub plan: Arc<Plan>,
}

impl Node {
    /// From now on links with Knit's mark that no unit owns belong to another Knit: they stay, and changes are rejected. For commands, which
    /// may run with the wrong state directory; an agent owns the machine.
    pub fn keep_foreign_links(&mut self) {
        self.keeps_foreign_links = true;
    }

    /// Compares everything with the kernel, repairs drift and removes strays.
    pub fn repair(&mut self) -> Result<Vec<Repair>> {
        let outcome = self.handle(Event::Resync)?;
        let mut repairs = Repair::of_plans(outcome.plans);
        let strays = self.strays()?;
        if self.keeps_foreign_links
            && let Some(what) = self.foreign_links(&strays)
        {
            return Err(Error::ForeignLinks { what });
        }
        repairs.extend(self.remove_strays(strays)?);
        // A crash may have happened between a deferred deletion and its execution.
        self.deferred_deletes.insert(Scope::Host);
        self.deferred_deletes.extend(self.state.sandboxes.keys().cloned().map(Scope::Sandbox));
        self.clean_up()?;
        Ok(repairs)
    }

    /// Removes strays. For a daemon, which repairs drift of units itself.
    pub fn repair_strays(&mut self) -> Result<Option<Repair>> {
        self.deferred_deletes.insert(Scope::Host);
        let strays = self.strays()?;
        self.remove_strays(strays)
    }

    /// The host's ranges as of the last search for strays, if they changed, with the configured ones.
    pub fn changed_settings(&mut self) -> Option<Settings> {
        let host = self.host_settings.take()?;
        let settings = Settings { tenant_ranges: self.state.settings.tenant_ranges.clone(), ..host };
        (settings != self.state.settings).then_some(settings)
    }

    /// The current settings with other ranges that are open to tenants.
    pub fn settings_with(&self, tenant_ranges: Vec<IpNet>) -> Settings {
        Settings { tenant_ranges, ..self.state.settings.clone() }
    }

    /// The strays of the host, as a plan that removes them.
    pub fn strays(&mut self) -> Result<Plan> {
        let host = self.executor.observe_host()?;
        self.host_settings = Some(settings_of(&host));
        let known_rules: BTreeSet<_> =
            self.state.units.values().flat_map(|unit_state| &unit_state.rules).collect();
        let is_stray = |link: &Link| is_marked(link) && self.state.units.holder(&link.name).is_none();
        let here = |name: &IfName| host.links.get(name).is_some_and(is_stray);
        let mut stray = ScopeState::default();
        // A link without a mark is only needed as the lower link of others: it stays.
        stray
            .links
            .extend(host.links.clone().into_iter().filter(|(_, link)| is_stray(link) || !is_marked(link)));
        stray.neighbours.extend(host.neighbours.into_iter().filter(|(_, neighbour)| here(&neighbour.link)));
        stray.rules.extend(host.rules.into_iter().filter(|rule| !known_rules.contains(rule)));
        let on_stray = |hops: &[NextHop]| hops.iter().any(|hop| here(&hop.link));
        // Routes and addresses on foreign links that node routes use belong to the unit of the node routes.
        let node_routes = self.state.units.get(&Unit::NodeRoutes);
        let is_used =
            |name: &IfName| node_routes.is_some_and(|node_routes| node_routes.route_links.contains(name));
        let is_free = !self.state.is_pending(&Unit::NodeRoutes);
        let is_unused = |name: &IfName| {
            let is_others = host.links.get(name).is_some_and(|link| !is_marked(link));
            is_free && is_others && !is_used(name)
        };
        let of_node_routes = |route: &Route| route.owned && kernel_ids::is_node_route_table(route.table);
        let on_unused =
            |route: &Route| of_node_routes(route) && route.via.iter().all(|hop| is_unused(&hop.link));
        let is_stray = |route: &Route| on_stray(&route.via) || !route.via.is_empty() && on_unused(route);
        stray.routes.extend(host.routes.into_iter().filter(|(_, route)| is_stray(route)));
        let is_stray = |one: &Address| here(&one.link) || one.owned && is_unused(&one.link);
        stray.addresses.extend(host.addresses.into_iter().filter(|(_, address)| is_stray(address)));
        let tables =
            self.state.units.get(&Unit::PacketFilter).is_some_and(|unit_state| unit_state.has_tables);
        let is_free = !self.state.is_pending(&Unit::PacketFilter);
        let owned: BTreeSet<_> =
            self.state.units.values().flat_map(|unit_state| unit_state.filter.keys()).collect();
        if self.keeps_foreign_links {
            // The tables may be another Knit's.
        } else if !tables && is_free {
            stray.filter = host.filter;
        } else {
            // Some sets belong to the unit of the tables as a whole: it removes what is not desired.
            let tables = &host.filter.tables;
            let set = |key: &ElementKey| tables.get(&key.table).and_then(|table| table.sets.get(&key.set));
            let is_shared = |key: &ElementKey| set(key).is_some_and(|set| is_shared_set(&key.set, set));
            let is_stray = |key: &ElementKey| !owned.contains(key) && !is_shared(key);
            stray.filter.elements.extend(host.filter.elements.into_iter().filter(|(key, _)| is_stray(key)));
        }
        Ok(diff(&Desired::default(), &NetState { scopes: [(Scope::Host, stray)].into() }))
    }

    /// The names of the stray links that belong to another Knit, if there are any. A device that was moved into a pod returns to the host
    /// with the pod's mark when its namespace is gone: it is not foreign.
    fn foreign_links(&self, strays: &Plan) -> Option<String> {
        let own = self.owner_ids();
        let is_own = |link: &Link| link.owner.as_ref().is_some_and(|owner| own.contains(&owner.0));
        let names = strays.steps.iter().filter_map(|planned| match &planned.step {
            Step::DeleteLink { link, .. } if !is_own(link) => Some(link.name.as_str()),
            _ => None,
        });
        let names: Vec<&str> = names.collect();
        match names.len() {
            0 => None,
            1..=5 => Some(names.join(", ")),
            all => Some(format!("{} and {} more", names[..4].join(", "), all - 4)),
        }
    }

    /// Removes strays. Nothing is journalled: after a crash they are found by their marks again.
    fn remove_strays(&mut self, plan: Plan) -> Result<Option<Repair>> {
        if plan.is_empty() {
            return Ok(None);
        }
        self.deferred_deletes.extend(self.executor.remove_strays(&plan)?);
        let is_filter = plan.steps.iter().all(|planned| matches!(planned.step, Step::Filter(_)));
        let what = if is_filter { "removed stray packet filter elements" } else { "removed stray links" };
        let what = what.to_owned();
        Ok(Some(Repair { what, plan: Arc::new(plan) }))
    }
}

/// Whether a link has Knit's mark: an owner id, or the group of new links if a crash happened in between.
pub(super) fn is_marked(link: &Link) -> bool {
    link.owner.is_some() || link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP)
}

impl Repair {
    /// The repairs of a full comparison.
    pub(crate) fn of_plans(plans: Plans) -> Vec<Self> {
        let different = plans.into_iter().filter(|(_, plan)| !plan.is_empty());
        different.map(|(unit, plan)| Self { what: format!("{unit}: drift repaired"), plan }).collect()
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.what, self.plan.summary())
    }
}
