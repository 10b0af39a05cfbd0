//! What a sandbox was last seen to have, so that a small change looks only at what it touches.
//!
//! When a unit's change ends well, what was wanted of it is what the kernel has. If the next wish differs from that only in
//! small fields of links that Knit made, comparing it can lead to nothing but changes of such fields: so only links are
//! looked at, not the addresses, routes, rules, neighbours and sysctls that cannot change. What someone did to those by
//! hand meanwhile is found, as before, when everything is compared ([`crate::Event::Resync`]), for which nothing that was
//! known counts. If links alone turn out not to be enough, everything is looked at after all.

use std::mem;

use knit_model::link::{Attrs, Link};
use knit_model::plan::{Desired, diff};
use knit_model::{Address, Neighbour, NetState, Plan, Route, Rule, Scope, ScopeState, Step};

use crate::event::Unit;
use crate::resolve::Resolved;
use crate::state::State;

/// Fields that the kernel changes on a living link without touching anything else of it.
const SMALL: [&str; 8] =
    ["mtu", "txqueuelen", "alias", "group", "promisc", "allmulticast", "multicast", "arp"];
/// Below this MTU the kernel takes IPv6 from a link.
const LEAST_IPV6_MTU: u32 = 1280;

/// What a sandbox has, in its scope and on the host. Kept for every sandbox, so without any room to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    parts: Box<[Part]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    scope: Scope,
    links: Box<[Link]>,
    addresses: Box<[Address]>,
    routes: Box<[Route]>,
    rules: Box<[Rule]>,
    neighbours: Box<[Neighbour]>,
    sysctls: Box<[(String, String)]>,
}

impl Standing {
    /// What was wanted, and holds.
    pub(super) fn of(wanted: NetState) -> Self {
        let part = |(scope, state): (Scope, ScopeState)| Part {
            scope,
            links: state.links.into_values().collect(),
            addresses: state.addresses.into_values().collect(),
            routes: state.routes.into_values().collect(),
            rules: state.rules.into_iter().collect(),
            neighbours: state.neighbours.into_values().collect(),
            sysctls: state.sysctls.into_iter().collect(),
        };
        Self { parts: wanted.scopes.into_iter().map(part).collect() }
    }
}

impl Part {
    /// Whether this is what is wanted, but for small fields of links.
    fn is_nearly(&self, scope: &Scope, wanted: &ScopeState) -> bool {
        self.scope == *scope
            && self.links.len() == wanted.links.len()
            && self.links.iter().zip(wanted.links.values()).all(|(had, want)| is_nearly(had, want))
            && self.addresses.iter().eq(wanted.addresses.values())
            && self.routes.iter().eq(wanted.routes.values())
            && self.rules.iter().eq(&wanted.rules)
            && self.neighbours.iter().eq(wanted.neighbours.values())
            && self.sysctls.iter().map(|(key, value)| (key, value)).eq(&wanted.sysctls)
    }
}

/// Whether a link is the wanted one, but for small fields. One that Knit does not own must be the same.
fn is_nearly(had: &Link, want: &Link) -> bool {
    let but_for_small = || {
        let Attrs { mac, up, master, vlans, limit, .. } = &had.attrs;
        (&had.name, &had.kind, &had.born_from, &had.owner)
            == (&want.name, &want.kind, &want.born_from, &want.owner)
            && (mac, up, master) == (&want.attrs.mac, &want.attrs.up, &want.attrs.master)
            && (vlans, limit) == (&want.attrs.vlans, &want.attrs.limit)
    };
    had == want || (had.owner.is_some() && but_for_small())
}

/// Whether links are all that has to be looked at for this change of a unit.
pub(super) fn suffices(state: &State, unit: &Unit, resolved: &Resolved) -> bool {
    let (Unit::Sandbox(id), Some(standing)) = (unit, state.standing.get(unit)) else { return false };
    let wanted = &resolved.desired.state.scopes;
    let asks_for_links_only = resolved.problems.is_empty()
        && resolved.leases.is_empty()
        && resolved.routing.is_empty()
        && resolved.look.keys.is_empty()
        && resolved.look.lent.is_empty()
        && !resolved.look.vlans;
    let scope = Scope::Sandbox(id.clone());
    let has_ipv6 = |link: &Link| link.attrs.mtu.is_none_or(|mtu| mtu >= LEAST_IPV6_MTU);
    let nearly = || {
        let mut parts = standing.parts.iter().zip(wanted);
        standing.parts.len() == wanted.len()
            && parts.clone().all(|(part, (scope, state))| part.is_nearly(scope, state))
            // Where nothing differs, whoever asks wants to know that all is well.
            && parts.any(|(part, (_, state))| part.links.iter().ne(state.links.values()))
    };
    asks_for_links_only
        && !state.held.keys().any(|held| held.scope == scope)
        && wanted.values().flat_map(|state| state.links.values()).all(has_ipv6)
        && nearly()
}

/// The plan for the links alone. `None` if it would do more than change small fields: then everything is to be looked at.
pub(super) fn plan(desired: &mut Desired, seen: &NetState) -> Option<Plan> {
    let scopes = desired.state.scopes.values_mut();
    let rest: Vec<ScopeState> = scopes
        .map(|state| {
            let links = mem::take(&mut state.links);
            mem::replace(state, ScopeState { links, ..ScopeState::default() })
        })
        .collect();
    let plan = diff(desired, seen);
    for (state, rest) in desired.state.scopes.values_mut().zip(rest) {
        *state = ScopeState { links: mem::take(&mut state.links), ..rest };
    }
    let is_small = |step: &Step| match step {
        Step::ChangeLink { changes, .. } => {
            changes.iter().all(|change| SMALL.contains(&change.field.as_str()))
        }
        _ => false,
    };
    let all_small = plan.steps.iter().all(|planned| is_small(&planned.step));
    (all_small && plan.problems.is_empty()).then_some(plan)
}
