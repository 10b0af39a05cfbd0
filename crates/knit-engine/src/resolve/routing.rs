//! Routes, rules, neighbours and sysctls that come with no interface of their own. Each waits for what it needs, and takes
//! nothing that another object asked for before, or that others made.
//!
//! What a pod has beside Knit's interfaces is only known once the kernel was looked at, so that they are put into desired
//! then. What the kernel would refuse is left out, with a sentence: one bad route must not hold up a pod's interfaces.

mod pod;

use std::collections::BTreeMap;

use knit_model::intent::{IntentSpec, RoutingEntry, RoutingIntent, link_of};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::{IfName, Neighbour, NetState, Route, Rule, Sandbox, Scope, ScopeState};

use self::pod::Pod;
use super::Resolved;
use crate::state::{ObjectKey, State};

/// Why something cannot be had.
type Refusal = (Reason, String);

/// One thing that one object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    object: ObjectKey,
    why: Provenance,
    want: RoutingIntent,
}

/// The same as the kernel will hold it.
enum Placed {
    Route(Route),
    Rule(Rule),
    Neighbour(Neighbour),
    Sysctl(String, String),
}

/// Collects what objects ask for in a sandbox, with the names that interfaces have there.
pub(super) fn collect(
    state: &State,
    sandbox: &Sandbox,
    names: &BTreeMap<String, IfName>,
    resolved: &mut Resolved,
) {
    let name_of = |name: &IfName| names.get(name.as_str()).unwrap_or(name).clone();
    for (object, stored) in state.in_order() {
        for intent in &stored.intents {
            let IntentSpec::Routing(want) = &intent.spec else { continue };
            if !want.pods.matches(&object.namespace, sandbox) {
                continue;
            }
            let want = want.with_names(name_of);
            if let RoutingEntry::Sysctl(sysctl) = &want.entry {
                resolved.look.sysctls.insert(sysctl.path());
                resolved.look.sysctls.extend(sysctl.default_path());
            }
            resolved.askers.insert(object.clone());
            resolved.routing.push(Asked { object: object.clone(), why: intent.origin.clone(), want });
        }
    }
}

/// Puts what was collected into desired, as far as it can be had.
pub(super) fn place(resolved: &mut Resolved, seen: &NetState, scope: &Scope) {
    let nothing = ScopeState::default();
    let seen = seen.scopes.get(scope).unwrap_or(&nothing);
    forget_what_went(resolved, seen, scope);
    say_what_others_have(resolved, seen, scope);
    for asked in std::mem::take(&mut resolved.routing) {
        let desired = resolved.desired.state.scopes.get(scope).unwrap_or(&nothing);
        let placed = Pod { title: &resolved.title, desired, seen }.place(&asked.want);
        let placed = placed.and_then(|placed| resolved.is_free(scope, &placed).map(|()| placed));
        let (what, links) = match &placed {
            Ok(placed) => (placed.to_string(), placed.links()),
            Err(_) => (asked.want.entry.to_string(), Vec::new()),
        };
        let (field, ready) = (asked.why.field.clone(), placed.is_ok());
        resolved.made.items.push((asked.object.clone(), ItemReport { field, what, links, ready }));
        match placed {
            Ok(placed) => resolved.add(scope, placed, &asked.why),
            Err((reason, message)) => {
                resolved.problem(&asked.object, asked.why.field.clone(), reason, message);
            }
        }
    }
}

/// A value that was to be given back to an interface that is gone is nobody's any more.
fn forget_what_went(resolved: &mut Resolved, seen: &ScopeState, scope: &Scope) {
    let desired = resolved.desired.state.scope(scope);
    let pod = Pod { title: "", desired, seen };
    let is_gone = |path: &&String| match link_of(path) {
        Some(link) => pod.link(&link).is_none(),
        None => !seen.sysctls.contains_key(*path),
    };
    let gone: Vec<String> = resolved.returned.iter().filter(is_gone).cloned().collect();
    for path in gone {
        resolved.desired.state.scope(scope).sysctls.remove(&path);
        resolved.returned.remove(&path);
    }
}

/// A route that comes with an interface and that others have already stays theirs; whoever asks for it is told.
fn say_what_others_have(resolved: &mut Resolved, seen: &ScopeState, scope: &Scope) {
    let Some(desired) = resolved.desired.state.scopes.get(scope) else { return };
    let pod = Pod { title: &resolved.title, desired, seen };
    let differs = |route: &&Route| seen.routes.get(&route.key()).is_some_and(|there| !there.same_as(route));
    let theirs = desired.routes.values().filter(differs);
    let told: Vec<(ObjectKey, String, Refusal)> = theirs
        .filter_map(|route| Some((route, pod.route_is_free(route).err()?)))
        .flat_map(|(route, refusal)| {
            let why = resolved.desired.why.get(&(scope.clone(), Item::Route(route.key())));
            why.into_iter().flatten().filter_map(move |why| {
                let object = why.object.as_ref().map(ObjectKey::of)?;
                Some((object, why.field.clone(), refusal.clone()))
            })
        })
        .collect();
    for (object, field, (reason, message)) in told {
        resolved.problem(&object, field, reason, message);
    }
}

impl Resolved {
    /// Puts a route of an interface in, unless another object was first with another one.
    pub(super) fn claim_route(&mut self, scope: &Scope, object: &ObjectKey, why: &Provenance, route: Route) {
        let there = self.desired.state.scope(scope).routes.get(&route.key());
        let is_same = there.is_some_and(|there| there.same_as(&route));
        let placed = Placed::Route(route);
        if is_same {
            self.because(scope, placed.item(), why);
            return;
        }
        match self.is_free(scope, &placed) {
            Ok(()) => self.add(scope, placed, why),
            Err((reason, message)) => self.problem(object, why.field.clone(), reason, message),
        }
    }

    /// Whether no object asked for it before.
    fn is_free(&self, scope: &Scope, placed: &Placed) -> Result<(), Refusal> {
        let Some(desired) = self.desired.state.scopes.get(scope) else { return Ok(()) };
        let is_taken = match placed {
            Placed::Route(route) => desired.routes.contains_key(&route.key()),
            Placed::Rule(rule) => desired.rules.contains(rule),
            Placed::Neighbour(neighbour) => desired.neighbours.contains_key(&neighbour.key()),
            Placed::Sysctl(path, _) => {
                let is_knits = self.returned.contains(path) || self.habits.contains(path);
                desired.sysctls.contains_key(path) && !is_knits
            }
        };
        if !is_taken {
            return Ok(());
        }
        let first = self.desired.why.get(&(scope.clone(), placed.item())).and_then(|why| why.first());
        let first = first.and_then(|why| why.object.as_ref()).map(ObjectKey::of);
        let who = first.map_or_else(String::new, |first| format!(" by {first}, which was first"));
        Err((Reason::Conflict, format!("{} of pod {} is asked for already{who}", placed.short(), self.title)))
    }

    fn add(&mut self, scope: &Scope, placed: Placed, why: &Provenance) {
        self.because(scope, placed.item(), why);
        let desired = self.desired.state.scope(scope);
        match placed {
            Placed::Route(route) => desired.add_route(route),
            Placed::Neighbour(neighbour) => desired.add_neighbour(neighbour),
            Placed::Rule(rule) => {
                desired.rules.insert(rule);
            }
            Placed::Sysctl(path, value) => {
                self.returned.remove(&path);
                self.habits.remove(&path);
                desired.sysctls.insert(path, value);
            }
        }
    }
}

impl Placed {
    fn item(&self) -> Item {
        match self {
            Self::Route(route) => Item::Route(route.key()),
            Self::Rule(rule) => Item::Rule(rule.clone()),
            Self::Neighbour(neighbour) => Item::Neighbour(neighbour.key()),
            Self::Sysctl(path, _) => Item::Sysctl(path.clone()),
        }
    }

    /// The interfaces that it cannot be without. A rule is there also without those that it names.
    fn links(&self) -> Vec<IfName> {
        match self {
            Self::Route(route) => route.via.iter().map(|hop| hop.link.clone()).collect(),
            Self::Rule(_) => Vec::new(),
            Self::Neighbour(neighbour) => vec![neighbour.link.clone()],
            Self::Sysctl(path, _) => link_of(path).into_iter().collect(),
        }
    }

    /// Its identity, for people.
    fn short(&self) -> String {
        match self {
            Self::Route(route) => route_text(route),
            Self::Rule(rule) => format!("rule {rule}"),
            Self::Neighbour(neighbour) => format!("neighbour {} on {}", neighbour.address, neighbour.link),
            Self::Sysctl(path, _) => format!("sysctl {}", path.replace('/', ".")),
        }
    }
}

impl std::fmt::Display for Placed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Route(route) => write!(out, "route {route}"),
            Self::Rule(rule) => write!(out, "rule {rule}"),
            Self::Neighbour(neighbour) => write!(out, "neighbour {neighbour}"),
            Self::Sysctl(path, value) => write!(out, "sysctl {}={value}", path.replace('/', ".")),
        }
    }
}

/// A route's identity, for people.
fn route_text(route: &Route) -> String {
    let bare = Route { via: Vec::new(), source: None, mtu: None, ..route.clone() };
    format!("route {bare}")
}
