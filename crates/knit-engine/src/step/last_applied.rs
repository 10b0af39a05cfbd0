//! The last applied state of sandboxes, to observe less for small changes.
//!
//! After a successful change the kernel has the desired state. If the next desired state differs only in in-place
//! fields of Knit's links, the plan can contain nothing else, so only links are observed, and not addresses, routes,
//! rules, neighbours and sysctls. Drift of those is found on resync ([`crate::Event::Resync`]), which discards the
//! last applied state. If links turn out not to be sufficient, everything is observed.

use std::mem;

use knit_model::filter::Filter;
use knit_model::link::{Attrs, Link};
use knit_model::plan::{Desired, diff};
use knit_model::{Address, Neighbour, NetState, Plan, Route, Rule, Scope, ScopeState, Step};
use serde::{Deserialize, Serialize};

use crate::event::Unit;
use crate::resolve::Resolved;
use crate::state::State;

/// Fields that the kernel changes on an existing link without side effects.
const IN_PLACE_FIELDS: [&str; 8] =
    ["mtu", "txqueuelen", "alias", "group", "promisc", "allmulticast", "multicast", "arp"];
/// Below this MTU the kernel disables IPv6 on a link.
const MIN_IPV6_MTU: u32 = 1280;

/// The state of a sandbox, in its scope and on the host. Kept for every sandbox, so in exact-size boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastApplied {
    parts: Box<[ScopeSnapshot]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ScopeSnapshot {
    scope: Scope,
    links: Box<[Link]>,
    addresses: Box<[Address]>,
    routes: Box<[Route]>,
    rules: Box<[Rule]>,
    neighbours: Box<[Neighbour]>,
    sysctls: Box<[(String, String)]>,
    filter: Filter,
}

impl LastApplied {
    /// The desired state of a successful change.
    pub(super) fn of(desired_scopes: NetState) -> Self {
        let part = |(scope, state): (Scope, ScopeState)| ScopeSnapshot {
            scope,
            links: state.links.into_values().collect(),
            addresses: state.addresses.into_values().collect(),
            routes: state.routes.into_values().collect(),
            rules: state.rules.into_iter().collect(),
            neighbours: state.neighbours.into_values().collect(),
            sysctls: state.sysctls.into_iter().collect(),
            filter: state.filter,
        };
        Self { parts: desired_scopes.scopes.into_iter().map(part).collect() }
    }
}

impl ScopeSnapshot {
    /// Whether the desired state differs only in in-place fields of links.
    fn matches_except_in_place(&self, scope: &Scope, desired_scopes: &ScopeState) -> bool {
        self.scope == *scope
            && self.links.len() == desired_scopes.links.len()
            && self
                .links
                .iter()
                .zip(desired_scopes.links.values())
                .all(|(before, spec)| matches_except_in_place(before, spec))
            && self.addresses.iter().eq(desired_scopes.addresses.values())
            && self.routes.iter().eq(desired_scopes.routes.values())
            && self.rules.iter().eq(&desired_scopes.rules)
            && self.neighbours.iter().eq(desired_scopes.neighbours.values())
            && self.sysctls.iter().map(|(key, value)| (key, value)).eq(&desired_scopes.sysctls)
            && self.filter == desired_scopes.filter
    }
}

/// Whether a link differs only in in-place fields. A link that Knit does not own must be equal.
fn matches_except_in_place(before: &Link, spec: &Link) -> bool {
    let differs_in_place_only = || {
        let Attrs { mac, up, master, vlans, limit, .. } = &before.attrs;
        (&before.name, &before.kind, &before.parent_scope, &before.owner)
            == (&spec.name, &spec.kind, &spec.parent_scope, &spec.owner)
            && (mac, up, master) == (&spec.attrs.mac, &spec.attrs.up, &spec.attrs.master)
            && (vlans, limit) == (&spec.attrs.vlans, &spec.attrs.limit)
    };
    before == spec || (before.owner.is_some() && differs_in_place_only())
}

/// Whether observing links is sufficient for this change of a unit.
pub(super) fn links_suffice(state: &State, unit: &Unit, resolved: &Resolved) -> bool {
    let (Unit::Sandbox(id), Some(last_applied)) = (unit, state.last_applied.get(unit)) else { return false };
    let desired_scopes = &resolved.desired.state.scopes;
    let asks_for_links_only = resolved.problems.is_empty()
        && resolved.leases.is_empty()
        && resolved.routing.is_empty()
        && resolved.observe.keys.is_empty()
        && resolved.observe.moved_devices.is_empty()
        // A table that is to be removed is not part of what is desired.
        && resolved.observe.sandbox_tables.is_empty()
        && !resolved.observe.vlans;
    let scope = Scope::Sandbox(id.clone());
    let has_ipv6 = |link: &Link| link.attrs.mtu.is_none_or(|mtu| mtu >= MIN_IPV6_MTU);
    let nearly = || {
        let mut parts = last_applied.parts.iter().zip(desired_scopes);
        last_applied.parts.len() == desired_scopes.len()
            && parts.clone().all(|(part, (scope, state))| part.matches_except_in_place(scope, state))
            // Without any difference the caller asked for a full comparison.
            && parts.any(|(part, (_, state))| part.links.iter().ne(state.links.values()))
    };
    asks_for_links_only
        && !state.original_values.keys().any(|key| key.scope == scope)
        && desired_scopes.values().flat_map(|state| state.links.values()).all(has_ipv6)
        && nearly()
}

/// The plan for links only; `None` if it needs more than in-place changes, so that everything has to be observed.
pub(super) fn links_plan(desired: &mut Desired, observed: &NetState) -> Option<Plan> {
    let scopes = desired.state.scopes.values_mut();
    let rest: Vec<ScopeState> = scopes
        .map(|state| {
            let links = mem::take(&mut state.links);
            mem::replace(state, ScopeState { links, ..ScopeState::default() })
        })
        .collect();
    let plan = diff(desired, observed);
    for (state, rest) in desired.state.scopes.values_mut().zip(rest) {
        *state = ScopeState { links: mem::take(&mut state.links), ..rest };
    }
    let is_in_place = |step: &Step| match step {
        Step::ChangeLink { changes, .. } => {
            changes.iter().all(|change| IN_PLACE_FIELDS.contains(&change.field.as_str()))
        }
        _ => false,
    };
    let all_in_place = plan.steps.iter().all(|planned| is_in_place(&planned.step));
    (all_in_place && plan.problems.is_empty()).then_some(plan)
}
