//! Comparing the whole node with the kernel: what was changed by hand comes back, what nobody knows goes.
//!
//! Everything that Knit makes has a mark, so that it is found also when what was written down is lost. A link of the host
//! that has the mark and that no unit knows is removed; inside sandboxes the same happens whenever one is looked at.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use knit_engine::{Event, Unit};
use knit_kernel::Places;
use knit_kernel::apply::{Applied, Deletes, RollBack};
use knit_kernel::observe::{Look, ScopeLook};
use knit_model::plan::{Desired, diff};
use knit_model::route::NextHop;
use knit_model::{Address, IfName, Link, NetState, Plan, Route, Scope, ScopeState, Step, marks};

use super::{Node, Plans};
use crate::error::{Error, Result};
use crate::hands::Shared;

/// Something that was not as it should be, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// What, in words.
    pub what: String,
    /// What was done.
    pub plan: Arc<Plan>,
}

impl Node {
    /// From here on links with Knit's mark that no unit knows are taken for another Knit's: they stay, and nothing is made
    /// beside them. For commands, which may be given the wrong state folder; an agent has the machine to itself.
    pub fn spare_strays(&mut self) {
        self.spares_strays = true;
    }

    /// Compares everything with the kernel, repairs what differs, and removes what has Knit's mark and no unit knows.
    pub fn repair(&mut self) -> Result<Vec<Repair>> {
        let outcome = self.hear(Event::Resync)?;
        let mut repairs = Repair::of_plans(outcome.plans);
        let strays = self.strays()?;
        if self.spares_strays
            && let Some(what) = self.links_of_others(&strays)
        {
            return Err(Error::Others { what });
        }
        repairs.extend(self.sweep(strays)?);
        // A crash may have come after links were cut off and before they were deleted.
        self.to_reap.insert(Scope::Host);
        self.to_reap.extend(self.state.sandboxes.keys().cloned().map(Scope::Sandbox));
        self.tidy()?;
        Ok(repairs)
    }

    /// The same for a daemon, which compares unit by unit by itself: only what no unit knows.
    pub fn repair_strays(&mut self) -> Result<Option<Repair>> {
        self.to_reap.insert(Scope::Host);
        let strays = self.strays()?;
        self.sweep(strays)
    }

    /// What has Knit's mark on the host and no unit knows, as a plan that removes it.
    pub fn strays(&mut self) -> Result<Plan> {
        let host = self.observe_host()?;
        let known_rules: BTreeSet<_> = self.state.made.values().flat_map(|made| &made.rules).collect();
        let is_stray = |link: &Link| is_marked(link) && self.state.made.holder(&link.name).is_none();
        let here = |name: &IfName| host.links.get(name).is_some_and(is_stray);
        let mut stray = ScopeState::default();
        // A link without a mark is only looked at: what it sits on stays.
        stray
            .links
            .extend(host.links.clone().into_iter().filter(|(_, link)| is_stray(link) || !is_marked(link)));
        stray.neighbours.extend(host.neighbours.into_iter().filter(|(_, neighbour)| here(&neighbour.link)));
        stray.rules.extend(host.rules.into_iter().filter(|rule| !known_rules.contains(rule)));
        let over_here = |hops: &[NextHop]| hops.iter().any(|hop| here(&hop.link));
        // Of what is on links of others, those that ways go by are looked after with the ways.
        let ways = self.state.made.get(&Unit::NodeRoutes);
        let is_looked_after = |name: &IfName| ways.is_some_and(|ways| ways.ways.contains(name));
        let is_free = !self.state.is_pending(&Unit::NodeRoutes);
        let is_left = |name: &IfName| {
            let is_others = host.links.get(name).is_some_and(|link| !is_marked(link));
            is_free && is_others && !is_looked_after(name)
        };
        let of_ways = |route: &Route| route.owned && marks::is_of_ways(route.table);
        let over_left = |route: &Route| of_ways(route) && route.via.iter().all(|hop| is_left(&hop.link));
        let is_stray = |route: &Route| over_here(&route.via) || !route.via.is_empty() && over_left(route);
        stray.routes.extend(host.routes.into_iter().filter(|(_, route)| is_stray(route)));
        let is_stray = |one: &Address| here(&one.link) || one.owned && is_left(&one.link);
        stray.addresses.extend(host.addresses.into_iter().filter(|(_, address)| is_stray(address)));
        Ok(diff(&Desired::default(), &NetState { scopes: [(Scope::Host, stray)].into() }))
    }

    /// The names of the links among them that are another Knit's, if there are any. A pod's own may have come to lie on the
    /// host: a NIC that was lent and came home by itself.
    fn links_of_others(&self, strays: &Plan) -> Option<String> {
        let own = self.marks();
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

    /// Removes them. Nothing is written down: whatever a crash leaves is found by its mark again.
    fn sweep(&mut self, plan: Plan) -> Result<Option<Repair>> {
        if plan.is_empty() {
            return Ok(None);
        }
        let mut faults = Shared(self.hands.faults());
        match self.hands.kernel().apply(&plan, Deletes::Deferred, &mut Places::new(), &mut faults) {
            Ok(Applied { to_reap }) => self.to_reap.extend(to_reap),
            Err(error) if error.roll_back == RollBack::Left => {
                return Err(Error::Stopped { unit: "what nobody asks for".to_owned() });
            }
            Err(error) => return Err(Error::Stray { why: error.to_string() }),
        }
        let what = "removed what has Knit's mark and nobody asks for".to_owned();
        Ok(Some(Repair { what, plan: Arc::new(plan) }))
    }

    /// Everything on the host.
    pub(super) fn observe_host(&mut self) -> Result<ScopeState> {
        let look = Look::default().at(Scope::Host, ScopeLook::everything());
        let mut seen = self.hands.kernel().observe(&look, &mut Places::new())?;
        Ok(std::mem::take(seen.scope(&Scope::Host)))
    }
}

/// Whether a link has Knit's mark: its name's, or the group that it was born in when a crash came in between.
fn is_marked(link: &Link) -> bool {
    link.owner.is_some() || link.attrs.group == Some(marks::BIRTH_GROUP)
}

impl Repair {
    /// What comparing everything led to.
    pub(crate) fn of_plans(plans: Plans) -> Vec<Self> {
        let different = plans.into_iter().filter(|(_, plan)| !plan.is_empty());
        different.map(|(unit, plan)| Self { what: format!("{unit} was not as asked for"), plan }).collect()
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.what, self.plan.summary())
    }
}
