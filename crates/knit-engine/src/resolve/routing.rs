//! Standalone routes, rules, neighbours and sysctls. Each waits for what it depends on, and never overrides an older
//! object or a foreign entry.
//!
//! They are added to the desired state after the observation, because they depend on foreign interfaces. Entries that
//! the kernel would reject are left out with a problem: one bad route must not block a pod's interfaces.

mod pod;

use std::collections::BTreeMap;

use knit_model::intent::{IntentSpec, RoutingEntry, RoutingIntent};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::{IfName, Neighbour, NetState, Route, Rule, Sandbox, Scope, ScopeState, sysctl};

use self::pod::Pod;
use super::Resolved;
use crate::state::{ObjectKey, State};

/// Why an entry is rejected.
type Rejection = (Reason, String);

/// One entry that an object requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutingRequest {
    object: ObjectKey,
    origin: Provenance,
    spec: RoutingIntent,
}

/// The entry as the kernel will hold it.
enum PlacedEntry {
    Route(Route),
    Rule(Rule),
    Neighbour(Neighbour),
    Sysctl(String, String),
}

/// Collects the entries that objects request in a sandbox, with the names of its interfaces.
pub(super) fn collect(
    state: &State,
    sandbox: &Sandbox,
    names: &BTreeMap<String, IfName>,
    resolved: &mut Resolved,
) {
    let name_of = |name: &IfName| names.get(name.as_str()).unwrap_or(name).clone();
    for (object, stored) in state.objects.of_namespace_by_age(&sandbox.namespace) {
        for intent in &stored.intents {
            let IntentSpec::Routing(spec) = &intent.spec else { continue };
            if !spec.pods.matches(&object.namespace, sandbox) {
                continue;
            }
            let spec = spec.with_names(name_of);
            if let RoutingEntry::Sysctl(sysctl) = &spec.entry {
                resolved.observe.sysctls.insert(sysctl.path());
                resolved.observe.sysctls.extend(sysctl.default_path());
            }
            resolved.requesters.insert(object.clone());
            resolved.routing.push(RoutingRequest {
                object: object.clone(),
                origin: intent.origin.clone(),
                spec,
            });
        }
    }
}

/// Adds the collected entries to the desired state, if possible.
pub(super) fn place(resolved: &mut Resolved, observed: &NetState, scope: &Scope) {
    let nothing = ScopeState::default();
    let observed = observed.scopes.get(scope).unwrap_or(&nothing);
    drop_stale_restores(resolved, observed, scope);
    report_foreign_routes(resolved, observed, scope);
    for request in std::mem::take(&mut resolved.routing) {
        let desired = resolved.desired.state.scopes.get(scope).unwrap_or(&nothing);
        let placed = Pod { title: &resolved.title, desired, observed }.place(&request.spec);
        let placed = placed.and_then(|placed| resolved.is_free(scope, &placed).map(|()| placed));
        let (description, links) = match &placed {
            Ok(placed) => (placed.to_string(), placed.links()),
            Err(_) => (request.spec.entry.to_string(), Vec::new()),
        };
        let (field, kind, ready) = (request.origin.field.clone(), request.spec.entry.kind(), placed.is_ok());
        let item = ItemReport { field, kind, description, links, ready };
        resolved.unit_state.items.push((request.object.clone(), item));
        match placed {
            Ok(placed) => resolved.add(scope, placed, &request.origin),
            Err((reason, message)) => {
                resolved.problem(&request.object, request.origin.field.clone(), reason, message);
            }
        }
    }
}

/// The interface that a sysctl path belongs to.
fn link_of_sysctl(path: &str) -> Option<IfName> {
    sysctl::link_of(path)?.parse().ok()
}

/// Drops restored values of interfaces that are gone.
fn drop_stale_restores(resolved: &mut Resolved, observed: &ScopeState, scope: &Scope) {
    let desired = resolved.desired.state.scope(scope);
    let pod = Pod { title: "", desired, observed };
    let is_gone = |path: &&String| match link_of_sysctl(path) {
        Some(link) => pod.link(&link).is_none(),
        None => !observed.sysctls.contains_key(*path),
    };
    let gone: Vec<String> = resolved.restored_sysctls.iter().filter(is_gone).cloned().collect();
    for path in gone {
        resolved.desired.state.scope(scope).sysctls.remove(&path);
        resolved.restored_sysctls.remove(&path);
    }
}

/// Reports routes of interfaces that exist already and are foreign.
fn report_foreign_routes(resolved: &mut Resolved, observed: &ScopeState, scope: &Scope) {
    let Some(desired) = resolved.desired.state.scopes.get(scope) else { return };
    let pod = Pod { title: &resolved.title, desired, observed };
    let differs =
        |route: &&Route| observed.routes.get(&route.key()).is_some_and(|existing| !existing.same_as(route));
    let theirs = desired.routes.values().filter(differs);
    let conflicts: Vec<(ObjectKey, String, Rejection)> = theirs
        .filter_map(|route| Some((route, pod.route_is_free(route).err()?)))
        .flat_map(|(route, rejection)| {
            let origins = resolved.desired.origins.get(&(scope.clone(), ItemKey::Route(route.key())));
            origins.into_iter().flatten().filter_map(move |origin| {
                let object = origin.object.as_ref().map(ObjectKey::of)?;
                Some((object, origin.field.clone(), rejection.clone()))
            })
        })
        .collect();
    for (object, field, (reason, message)) in conflicts {
        resolved.problem(&object, field, reason, message);
    }
}

impl Resolved {
    /// Adds a route of an interface, unless an older object has a different one.
    pub(super) fn claim_route(
        &mut self,
        scope: &Scope,
        object: &ObjectKey,
        origin: &Provenance,
        route: Route,
    ) {
        let existing = self.desired.state.scope(scope).routes.get(&route.key());
        let is_same = existing.is_some_and(|existing| existing.same_as(&route));
        let placed = PlacedEntry::Route(route);
        if is_same {
            self.add_origin(scope, placed.item(), origin);
            return;
        }
        match self.is_free(scope, &placed) {
            Ok(()) => self.add(scope, placed, origin),
            Err((reason, message)) => self.problem(object, origin.field.clone(), reason, message),
        }
    }

    /// Whether no older object requests the same entry.
    fn is_free(&self, scope: &Scope, placed: &PlacedEntry) -> Result<(), Rejection> {
        let Some(desired) = self.desired.state.scopes.get(scope) else { return Ok(()) };
        let is_taken = match placed {
            PlacedEntry::Route(route) => desired.routes.contains_key(&route.key()),
            PlacedEntry::Rule(rule) => desired.rules.contains(rule),
            PlacedEntry::Neighbour(neighbour) => desired.neighbours.contains_key(&neighbour.key()),
            PlacedEntry::Sysctl(path, _) => {
                let is_knits = self.restored_sysctls.contains(path) || self.default_sysctls.contains(path);
                desired.sysctls.contains_key(path) && !is_knits
            }
        };
        if !is_taken {
            return Ok(());
        }
        let first =
            self.desired.origins.get(&(scope.clone(), placed.item())).and_then(|origin| origin.first());
        let first = first.and_then(|origin| origin.object.as_ref()).map(ObjectKey::of);
        let owner = first.map_or_else(String::new, |first| format!(" by {first}, which is older"));
        Err((
            Reason::Conflict,
            format!("{} of pod {} is already requested{owner}", placed.short(), self.title),
        ))
    }

    fn add(&mut self, scope: &Scope, placed: PlacedEntry, origin: &Provenance) {
        self.add_origin(scope, placed.item(), origin);
        let desired = self.desired.state.scope(scope);
        match placed {
            PlacedEntry::Route(route) => desired.add_route(route),
            PlacedEntry::Neighbour(neighbour) => desired.add_neighbour(neighbour),
            PlacedEntry::Rule(rule) => {
                desired.rules.insert(rule);
            }
            PlacedEntry::Sysctl(path, value) => {
                self.restored_sysctls.remove(&path);
                self.default_sysctls.remove(&path);
                desired.sysctls.insert(path, value);
            }
        }
    }
}

impl PlacedEntry {
    fn item(&self) -> ItemKey {
        match self {
            Self::Route(route) => ItemKey::Route(route.key()),
            Self::Rule(rule) => ItemKey::Rule(rule.clone()),
            Self::Neighbour(neighbour) => ItemKey::Neighbour(neighbour.key()),
            Self::Sysctl(path, _) => ItemKey::Sysctl(path.clone()),
        }
    }

    /// The interfaces that it depends on. A rule does not depend on those that it names.
    fn links(&self) -> Vec<IfName> {
        match self {
            Self::Route(route) => route.via.iter().map(|hop| hop.link.clone()).collect(),
            Self::Rule(_) => Vec::new(),
            Self::Neighbour(neighbour) => vec![neighbour.link.clone()],
            Self::Sysctl(path, _) => link_of_sysctl(path).into_iter().collect(),
        }
    }

    /// Its identity, for messages.
    fn short(&self) -> String {
        match self {
            Self::Route(route) => route_text(route),
            Self::Rule(rule) => format!("rule {rule}"),
            Self::Neighbour(neighbour) => format!("neighbour {} on {}", neighbour.address, neighbour.link),
            Self::Sysctl(path, _) => format!("sysctl {}", path.replace('/', ".")),
        }
    }
}

/// Without its kind.
impl std::fmt::Display for PlacedEntry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Route(route) => write!(out, "{route}"),
            Self::Rule(rule) => write!(out, "{rule}"),
            Self::Neighbour(neighbour) => write!(out, "{neighbour}"),
            Self::Sysctl(path, value) => write!(out, "{}={value}", path.replace('/', ".")),
        }
    }
}

/// A route's identity, for messages.
fn route_text(route: &Route) -> String {
    let bare = Route { via: Vec::new(), source: None, mtu: None, ..route.clone() };
    format!("route {bare}")
}
