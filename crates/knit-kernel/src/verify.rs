//! Whether a plan that was carried out holds: links up with a carrier, no address still being tried, routes present.

use std::collections::BTreeMap;
use std::fmt::Display;

use knit_model::link::{Attrs, Difference, Fields, Kind, Link, agrees};
use knit_model::plan::{Change, Item, Plan, Step};
use knit_model::{IfName, Scope, ScopeState};
use serde_json::Value;

use crate::error::Result;
use crate::kernel::{Kernel, Places, Room, recovered};
use crate::observe::{Seen, look_of};

impl Kernel {
    /// Looks at what a plan touched, and says in words what is not as the plan left it. Nothing: all of it holds.
    pub fn verify(&mut self, plan: &Plan, places: &mut Places) -> Result<Vec<String>> {
        let missing = missing(&mut Room { kernel: self, places }, plan);
        recovered(missing, self, places)
    }
}

fn missing(room: &mut Room<'_>, plan: &Plan) -> Result<Vec<String>> {
    let expected = Expected::of(plan);
    let mut missing = Vec::new();
    for (scope, look) in &look_of(plan.steps.iter()).scopes {
        let seen = room.observe_scope(scope, look)?;
        expected.compare(scope, &seen, &mut |what| missing.push(format!("{scope}: {what}")));
    }
    Ok(missing)
}

/// What a plan leaves behind.
#[derive(Default)]
struct Expected<'a> {
    /// What a link must be, or that it must be gone.
    links: BTreeMap<(&'a Scope, &'a IfName), Option<Final<'a>>>,
    /// What must be there (or gone) beside links: the last step about it.
    items: BTreeMap<(&'a Scope, Item), &'a Step>,
    /// The ends of pairs, of which each has a carrier when both are up.
    pairs: Vec<[(&'a Scope, &'a IfName); 2]>,
}

/// What a link is at the end of a plan.
#[derive(Default)]
struct Final<'a> {
    /// As it was made, and then went up or down.
    made: Option<(Attrs, &'a Kind)>,
    /// Other fields that were changed.
    changed: Fields,
}

impl<'a> Final<'a> {
    fn made(link: &'a Link) -> Self {
        Self { made: Some((link.attrs.clone(), &link.kind)), changed: Fields::new() }
    }

    fn change(&mut self, change: &Change) {
        match (&mut self.made, &change.to) {
            (Some((attrs, _)), Value::Bool(up)) if change.field == "up" => attrs.up = Some(*up),
            _ => {
                self.changed.insert(change.field.clone(), change.to.clone());
            }
        }
    }

    /// Says what a link is not. Of a pair the kernel does not tell the far end.
    fn compare(&self, link: &Link, say: &mut dyn FnMut(String)) {
        let mut differs = |field: &str, there: &Value, want: &Value| {
            say(format!("link {}: {field} is {there}, not {want}", link.name));
        };
        if let Some((attrs, kind)) = &self.made {
            let of_attrs = attrs.differences(&link.attrs);
            for Difference { field, seen, want } in of_attrs.iter().filter(|this| !self.changes(this.field)) {
                differs(field, seen, want);
            }
            if !matches!(kind, Kind::Veth(_)) && **kind != link.kind {
                let (wanted, seen) = (kind.fields(), link.kind.fields());
                for (field, want) in wanted.iter().filter(|(field, _)| !self.changes(field)) {
                    if let Some(there) = seen.get(field).filter(|there| !agrees(want, there)) {
                        differs(field, there, want);
                    }
                }
            }
        }
        for (field, want) in &self.changed {
            let there = link.attrs.field(field).or_else(|| link.kind.fields().remove(field));
            if let Some(there) = there.filter(|there| !agrees(want, there)) {
                differs(field, &there, want);
            }
        }
    }

    /// Whether a field was changed after the link was made, or without its being made.
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
                self.links.insert((scope, &link.name), Some(Final::made(link)));
                if let Some((there, far)) = peer {
                    self.links.insert((there, &far.name), Some(Final::made(far)));
                    self.pairs.push([(scope, &link.name), (there, &far.name)]);
                }
                return;
            }
            Step::DeleteLink { link, peer } => {
                self.links.insert((scope, &link.name), None);
                if let Some((there, far)) = peer {
                    self.links.insert((there, &far.name), None);
                }
                return;
            }
            Step::ChangeLink { name, changes, .. } => {
                let link = self.links.entry((scope, name)).or_default().get_or_insert_default();
                changes.iter().for_each(|change| link.change(change));
                return;
            }
            Step::AddAddress(address) | Step::RemoveAddress(address) => Item::Address(address.key()),
            Step::AddRoute(route) | Step::RemoveRoute(route) => Item::Route(route.key()),
            Step::ReplaceRoute { after, .. } => Item::Route(after.key()),
            Step::AddRule(rule) | Step::RemoveRule(rule) => Item::Rule(rule.clone()),
            Step::AddNeighbour(neighbour)
            | Step::RemoveNeighbour(neighbour)
            | Step::ReplaceNeighbour { after: neighbour, .. } => Item::Neighbour(neighbour.key()),
            Step::SetSysctl { key, .. } => Item::Sysctl(key.clone()),
        };
        self.items.insert((scope, item), step);
    }

    fn compare(&self, scope: &Scope, seen: &Seen, say: &mut dyn FnMut(String)) {
        for ((_, name), expected) in self.links.iter().filter(|((here, _), _)| *here == scope) {
            match (expected, seen.state.links.get(*name)) {
                (Some(_), None) => say(format!("link {name} is missing")),
                (Some(expected), Some(link)) => expected.compare(link, say),
                (None, Some(link)) if link.owner.is_some() => say(format!("link {name} is still there")),
                (None, _) => {}
            }
        }
        for pair in self.pairs.iter().filter(|pair| pair.iter().all(|end| self.is_up(end))) {
            for (_, name) in pair.iter().filter(|(here, _)| *here == scope) {
                if seen.without_carrier.contains(*name) {
                    say(format!("link {name} is up, but its far end is not"));
                }
            }
        }
        for ((_, item), step) in self.items.iter().filter(|((here, _), _)| *here == scope) {
            if let Some(wrong) = compare_item(step, &seen.state) {
                say(wrong);
            }
            if let (Item::Address(key), Step::AddAddress(address)) = (item, step)
                && address.owned
                && let Some(is_duplicate) = seen.unready.get(key)
            {
                let why =
                    if *is_duplicate { "is a duplicate" } else { "is still being tried for duplicates" };
                say(format!("address {address} {why}"));
            }
        }
    }

    fn is_up(&self, end: &(&Scope, &IfName)) -> bool {
        let link = self.links.get(end).and_then(|link| link.as_ref());
        let made = link.and_then(|link| link.made.as_ref());
        made.is_some_and(|(attrs, _)| attrs.up == Some(true))
    }
}

/// What is wrong with an item after its last step. What is not Knit's is not looked at.
fn compare_item(step: &Step, seen: &ScopeState) -> Option<String> {
    let missing = |is_there: bool, what: &str, which: &dyn Display| {
        (!is_there).then(|| format!("{what} {which} is missing"))
    };
    let remains = |is_there: bool, what: &str, which: &dyn Display| {
        is_there.then(|| format!("{what} {which} is still there"))
    };
    match step {
        Step::AddAddress(address) if address.owned => {
            let there = seen.addresses.get(&address.key());
            missing(there.is_some_and(|there| there.same_as(address)), "address", address)
        }
        Step::RemoveAddress(address) => {
            let there = seen.addresses.get(&address.key());
            remains(there.is_some_and(|there| there.owned), "address", address)
        }
        Step::AddRoute(route) | Step::ReplaceRoute { after: route, .. } if route.owned => {
            let there = seen.routes.get(&route.key());
            missing(there.is_some_and(|there| there.same_as(route)), "route", route)
        }
        Step::RemoveRoute(route) => {
            let there = seen.routes.get(&route.key());
            remains(there.is_some_and(|there| there.owned), "route", route)
        }
        Step::AddRule(rule) => missing(seen.rules.contains(rule), "rule", rule),
        Step::RemoveRule(rule) => remains(seen.rules.contains(rule), "rule", rule),
        Step::AddNeighbour(neighbour) | Step::ReplaceNeighbour { after: neighbour, .. }
            if neighbour.owned =>
        {
            let there = seen.neighbours.get(&neighbour.key());
            missing(there.is_some_and(|there| there.mac == neighbour.mac), "neighbour", neighbour)
        }
        Step::RemoveNeighbour(neighbour) => {
            let there = seen.neighbours.get(&neighbour.key());
            remains(there.is_some_and(|there| there.owned), "neighbour", neighbour)
        }
        Step::SetSysctl { key, to, .. } if !to.is_empty() => match seen.sysctls.get(key) {
            Some(there) if there == to => None,
            Some(there) => Some(format!("sysctl {key} is {there}, not {to}")),
            None => Some(format!("sysctl {key} is missing")),
        },
        _ => None,
    }
}
