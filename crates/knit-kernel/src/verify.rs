//! Verifies an applied plan: links are up with a carrier, addresses are usable, routes are present.

use std::collections::BTreeMap;
use std::fmt::Display;

use knit_model::filter::{ElementKey, Filter, FilterStep};
use knit_model::link::{Attrs, FieldDifference, Kind, Link, values_match};
use knit_model::plan::{FieldChange, ItemKey, Plan, Step};
use knit_model::{IfName, Scope, ScopeState};
use serde_json::Value;

use crate::error::Result;
use crate::kernel::{Kernel, SandboxNamespaces, Session, reset_sockets_on_error};
use crate::observe::{ObservedScope, query_for};

impl Kernel {
    /// Observes what a plan touched and returns the deviations as text; empty if the plan holds.
    pub fn verify(&mut self, plan: &Plan, namespaces: &mut SandboxNamespaces) -> Result<Vec<String>> {
        let missing = missing(&mut Session { kernel: self, namespaces }, plan);
        reset_sockets_on_error(missing, self, namespaces)
    }
}

fn missing(session: &mut Session<'_>, plan: &Plan) -> Result<Vec<String>> {
    let expected = Expected::of(plan);
    let mut missing = Vec::new();
    for (scope, query) in &query_for(plan.steps.iter()).scopes {
        let observed = session.observe_scope(scope, query)?;
        expected.compare(scope, &observed, &mut |what| missing.push(format!("{scope}: {what}")));
    }
    Ok(missing)
}

/// The expected state after a plan.
#[derive(Default)]
struct Expected<'a> {
    /// The expected fields of a link; `None` if it must be gone.
    links: BTreeMap<(&'a Scope, &'a IfName), Option<ExpectedLink<'a>>>,
    /// The last step on each object other than links.
    items: BTreeMap<(&'a Scope, Item<'a>), &'a Step>,
    /// The ends of pairs: each has a carrier if both are up.
    pairs: Vec<[(&'a Scope, &'a IfName); 2]>,
}

/// Identity of an object other than a link. The keys of elements are long and numerous, so they are not copied.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Item<'a> {
    Element(&'a ElementKey),
    Other(ItemKey),
}

/// The expected fields of a link.
#[derive(Default)]
struct ExpectedLink<'a> {
    /// As created, including later changes of `up`.
    created: Option<(Attrs, &'a Kind)>,
    /// The last change of other fields.
    changed: BTreeMap<&'a str, &'a FieldChange>,
}

impl<'a> ExpectedLink<'a> {
    fn created(link: &'a Link) -> Self {
        Self { created: Some((link.attrs.clone(), &link.kind)), changed: BTreeMap::new() }
    }

    fn change(&mut self, change: &'a FieldChange) {
        match (&mut self.created, &change.to) {
            (Some((attrs, _)), Value::Bool(up)) if change.field == "up" => attrs.up = Some(*up),
            _ => {
                self.changed.insert(&change.field, change);
            }
        }
    }

    /// Reports differences. The kernel does not report the far end of a pair.
    fn compare(&self, link: &Link, report: &mut dyn FnMut(String)) {
        let mut differs = |field: &str, there: &Value, want: &Value| {
            report(format!("link {}: {field} is {there}, expected {want}", link.name));
        };
        if let Some((attrs, kind)) = &self.created {
            let of_attrs = attrs.differences(&link.attrs);
            for FieldDifference { field, observed: seen, desired: want } in
                of_attrs.iter().filter(|this| !self.changes(this.field))
            {
                differs(field, seen, want);
            }
            if !matches!(kind, Kind::Veth(_)) && **kind != link.kind {
                let (desired, observed) = (kind.fields(), link.kind.fields());
                for (field, want) in desired.iter().filter(|(field, _)| !self.changes(field)) {
                    if let Some(there) = observed.get(field).filter(|there| !values_match(want, there)) {
                        differs(field, there, want);
                    }
                }
            }
        }
        for (field, change) in &self.changed {
            let there = link.attrs.field(field).or_else(|| link.kind.fields().remove(*field));
            if let Some(there) = there.filter(|there| !change.is_applied_to(there)) {
                differs(field, &there, &change.to);
            }
        }
    }

    /// Whether a step changed the field.
    fn changes(&self, field: &str) -> bool {
        self.changed.contains_key(field)
    }
}

impl<'a> Expected<'a> {
    fn of(plan: &'a Plan) -> Self {
        let mut expected = Self::default();
        for planned in &plan.steps {
            expected.add(&planned.scope, &planned.step);
        }
        expected
    }

    fn add(&mut self, scope: &'a Scope, step: &'a Step) {
        let item = match step {
            Step::CreateLink { link, peer } => {
                self.links.insert((scope, &link.name), Some(ExpectedLink::created(link)));
                if let Some((far_scope, far)) = peer {
                    self.links.insert((far_scope, &far.name), Some(ExpectedLink::created(far)));
                    self.pairs.push([(scope, &link.name), (far_scope, &far.name)]);
                }
                return;
            }
            Step::DeleteLink { link, peer } => {
                self.links.insert((scope, &link.name), None);
                if let Some((far_scope, far)) = peer {
                    self.links.insert((far_scope, &far.name), None);
                }
                return;
            }
            Step::ChangeLink { name, changes, .. } => {
                let link = self.links.entry((scope, name)).or_default().get_or_insert_default();
                changes.iter().for_each(|change| link.change(change));
                return;
            }
            Step::AddAddress(address) | Step::RemoveAddress(address) => ItemKey::Address(address.key()),
            Step::AddRoute(route) | Step::RemoveRoute(route) => ItemKey::Route(route.key()),
            Step::ReplaceRoute { after, .. } => ItemKey::Route(after.key()),
            Step::AddRule(rule) | Step::RemoveRule(rule) => ItemKey::Rule(rule.clone()),
            Step::AddNeighbour(neighbour)
            | Step::RemoveNeighbour(neighbour)
            | Step::ReplaceNeighbour { after: neighbour, .. } => ItemKey::Neighbour(neighbour.key()),
            Step::SetSysctl { key, .. } => ItemKey::Sysctl(key.clone()),
            Step::Filter(
                FilterStep::AddElement(key, _)
                | FilterStep::RemoveElement(key, _)
                | FilterStep::ReplaceElement { key, .. },
            ) => {
                self.items.insert((scope, Item::Element(key)), step);
                return;
            }
            Step::Filter(change) => ItemKey::Filter(change.item()),
        };
        self.items.insert((scope, Item::Other(item)), step);
    }

    fn compare(&self, scope: &Scope, observed: &ObservedScope, report: &mut dyn FnMut(String)) {
        for ((_, name), expected) in self.links.iter().filter(|((here, _), _)| *here == scope) {
            match (expected, observed.state.links.get(*name)) {
                (Some(_), None) => report(format!("link {name} is missing")),
                (Some(expected), Some(link)) => expected.compare(link, report),
                (None, Some(link)) if link.owner.is_some() => report(format!("link {name} still exists")),
                (None, _) => {}
            }
        }
        for pair in self.pairs.iter().filter(|pair| pair.iter().all(|end| self.is_up(end))) {
            for (_, name) in pair.iter().filter(|(here, _)| *here == scope) {
                if observed.without_carrier.contains(*name) {
                    report(format!("link {name} is up, but its peer is not"));
                }
            }
        }
        for ((_, item), step) in self.items.iter().filter(|((here, _), _)| *here == scope) {
            if let Some(wrong) = compare_item(step, &observed.state) {
                report(wrong);
            }
            if let (Item::Other(ItemKey::Address(key)), Step::AddAddress(address)) = (item, step)
                && address.owned
                && let Some(is_duplicate) = observed.unready.get(key)
            {
                let problem =
                    if *is_duplicate { "is a duplicate" } else { "is still in duplicate address detection" };
                report(format!("address {address} {problem}"));
            }
        }
    }

    fn is_up(&self, end: &(&Scope, &IfName)) -> bool {
        let link = self.links.get(end).and_then(|link| link.as_ref());
        let created = link.and_then(|link| link.created.as_ref());
        created.is_some_and(|(attrs, _)| attrs.up == Some(true))
    }
}

/// The deviation of an object after its last step. Foreign objects are ignored.
fn compare_item(step: &Step, observed: &ScopeState) -> Option<String> {
    let missing = |is_there: bool, what: &str, which: &dyn Display| {
        (!is_there).then(|| format!("{what} {which} is missing"))
    };
    let remains = |is_there: bool, what: &str, which: &dyn Display| {
        is_there.then(|| format!("{what} {which} still exists"))
    };
    match step {
        Step::AddAddress(address) if address.owned => {
            let existing = observed.addresses.get(&address.key());
            missing(existing.is_some_and(|existing| existing.same_as(address)), "address", address)
        }
        Step::RemoveAddress(address) => {
            let existing = observed.addresses.get(&address.key());
            remains(existing.is_some_and(|existing| existing.owned), "address", address)
        }
        Step::AddRoute(route) | Step::ReplaceRoute { after: route, .. } if route.owned => {
            let existing = observed.routes.get(&route.key());
            missing(existing.is_some_and(|existing| existing.same_as(route)), "route", route)
        }
        Step::RemoveRoute(route) => {
            let existing = observed.routes.get(&route.key());
            remains(existing.is_some_and(|existing| existing.owned), "route", route)
        }
        Step::AddRule(rule) => missing(observed.rules.contains(rule), "rule", rule),
        Step::RemoveRule(rule) => remains(observed.rules.contains(rule), "rule", rule),
        Step::AddNeighbour(neighbour) | Step::ReplaceNeighbour { after: neighbour, .. }
            if neighbour.owned =>
        {
            let existing = observed.neighbours.get(&neighbour.key());
            missing(existing.is_some_and(|existing| existing.mac == neighbour.mac), "neighbour", neighbour)
        }
        Step::RemoveNeighbour(neighbour) => {
            let existing = observed.neighbours.get(&neighbour.key());
            remains(existing.is_some_and(|existing| existing.owned), "neighbour", neighbour)
        }
        Step::SetSysctl { key, to, .. } if !to.is_empty() => match observed.sysctls.get(key) {
            Some(there) if there == to => None,
            Some(there) => Some(format!("sysctl {key} is {there}, expected {to}")),
            None => Some(format!("sysctl {key} is missing")),
        },
        Step::Filter(change) => compare_filter(change, &observed.filter),
        _ => None,
    }
}

/// The deviation of an item of the packet filter after its last step.
fn compare_filter(change: &FilterStep, observed: &Filter) -> Option<String> {
    let table = || observed.tables.get(change.table());
    let is_as_expected = match change {
        FilterStep::AddTable(_) => table().is_some(),
        FilterStep::RemoveTable(_) => table().is_none(),
        FilterStep::AddSet(_, name, set) => table().and_then(|table| table.sets.get(name)) == Some(set),
        FilterStep::RemoveSet(_, name, _) => table().is_none_or(|table| !table.sets.contains_key(name)),
        FilterStep::AddCounter(_, name) => table().is_some_and(|table| table.counters.contains(name)),
        FilterStep::RemoveCounter(_, name) => table().is_none_or(|table| !table.counters.contains(name)),
        FilterStep::AddChain(_, name, base) => {
            table().and_then(|table| table.chains.get(name)).is_some_and(|chain| chain.base == *base)
        }
        FilterStep::RemoveChain(_, name, _) => table().is_none_or(|table| !table.chains.contains_key(name)),
        FilterStep::SetRules { chain, after, .. } => {
            let rules = table().and_then(|table| table.chains.get(chain)).map(|chain| &chain.rules);
            rules.map_or(after.is_empty(), |rules| rules == after)
        }
        FilterStep::AddElement(key, data) | FilterStep::ReplaceElement { key, after: data, .. } => {
            observed.elements.get(key) == Some(data)
        }
        FilterStep::RemoveElement(key, _) => !observed.elements.contains_key(key),
    };
    (!is_as_expected).then(|| format!("packet filter: {change} did not take effect"))
}
