//! Plans: ordered kernel operations from observed to desired state, each with its inverse for rollback.

mod diff;
mod display;
mod field_changes;
mod filter_steps;
mod link_decisions;
mod moved_devices;
mod parents;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use diff::diff;
pub use moved_devices::fill_original_attrs;

use crate::filter::{FilterItem, FilterStep};
use crate::link::{Kind, Link, values_match};
use crate::name::IfName;
use crate::neighbour::{Neighbour, NeighbourKey};
use crate::problem::Problem;
use crate::provenance::Provenance;
use crate::route::{Route, RouteKey};
use crate::rule::Rule;
use crate::sandbox::Scope;
use crate::state::{Address, AddressKey, NetState};

/// Desired state, with the origin of each item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The state.
    pub state: NetState,
    /// The origins of each item.
    #[serde(skip)]
    pub origins: BTreeMap<(Scope, ItemKey), Vec<Arc<Provenance>>>,
    /// The origin of items without an entry in `origins`. Saves memory where one object requests thousands of items.
    #[serde(skip)]
    pub default_origin: Option<Arc<Provenance>>,
    /// The origin of the packet filter's elements in each scope, which have no entries in `origins`: one source adds all of them.
    #[serde(skip)]
    pub element_origins: BTreeMap<Scope, Arc<Provenance>>,
    /// Links whose new addresses are announced (gratuitous ARP, unsolicited NA), because they may have moved.
    #[serde(skip)]
    pub announced_links: BTreeSet<(Scope, IfName)>,
}

/// Identity of an item of a scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKey {
    /// A link.
    Link(IfName),
    /// An address.
    Address(AddressKey),
    /// A route.
    Route(RouteKey),
    /// A rule.
    Rule(Rule),
    /// A neighbour.
    Neighbour(NeighbourKey),
    /// A sysctl.
    Sysctl(String),
    /// An item of the packet filter.
    Filter(FilterItem),
}

/// Ordered steps, and problems that could not be planned around.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Steps in the order of application.
    pub steps: Vec<PlannedStep>,
    /// Problems by scope. The steps do not touch the items concerned.
    pub problems: Vec<(Scope, Problem)>,
    /// Addresses to announce once the plan is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub announced_addresses: Vec<(Scope, IfName, IpAddr)>,
}

/// A step with its scope and origins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// The scope.
    pub scope: Scope,
    /// The step.
    pub step: Step,
    /// The origins of the item; empty if it is removed because it has none any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Arc<Provenance>>,
    /// The kernel does it as a side effect of a later step. Only its inverse has to be executed.
    #[serde(default)]
    pub implied: bool,
    /// A remark, such as why a link is recreated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One kernel operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Creates a link with all set fields; a veth together with its peer.
    CreateLink {
        /// The link.
        link: Link,
        /// The peer of a veth and its scope.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<(Scope, Link)>,
    },
    /// Deletes a link; a veth together with its peer.
    DeleteLink {
        /// The link as observed.
        link: Link,
        /// The peer of a veth and its scope.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<(Scope, Link)>,
    },
    /// Changes fields of an existing link.
    ChangeLink {
        /// The link.
        name: IfName,
        /// Its kind, for kind-specific fields.
        kind: String,
        /// The changed fields.
        changes: Vec<FieldChange>,
    },
    /// Adds an address.
    AddAddress(Address),
    /// Removes an address.
    RemoveAddress(Address),
    /// Adds a route.
    AddRoute(Route),
    /// Removes a route.
    RemoveRoute(Route),
    /// Atomically replaces a route by another of the same identity.
    ReplaceRoute {
        /// The old one.
        before: Route,
        /// The new one.
        after: Route,
    },
    /// Adds a rule.
    AddRule(Rule),
    /// Removes a rule.
    RemoveRule(Rule),
    /// Adds a neighbour, replacing an entry that the kernel resolved.
    AddNeighbour(Neighbour),
    /// Replaces a neighbour by another of the same identity.
    ReplaceNeighbour {
        /// The old one.
        before: Neighbour,
        /// The new one.
        after: Neighbour,
    },
    /// Removes a neighbour.
    RemoveNeighbour(Neighbour),
    /// Sets a sysctl.
    SetSysctl {
        /// Its path.
        key: String,
        /// The old value.
        from: String,
        /// The new value.
        to: String,
    },
    /// Changes the packet filter.
    Filter(FilterStep),
}

/// What a step does to its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEffect {
    /// The item is new.
    Add,
    /// The item is removed.
    Remove,
    /// The item stays, with other properties.
    Change,
}

/// The change of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// The field.
    pub field: String,
    /// The old value.
    pub from: Value,
    /// The new value.
    pub to: Value,
    /// Whether the values are maps with only the entries that differ: a map may have thousands of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entries: bool,
}

impl FieldChange {
    /// A change of the whole value.
    pub fn new(field: impl Into<String>, from: impl Into<Value>, to: impl Into<Value>) -> Self {
        Self { field: field.into(), from: from.into(), to: to.into(), entries: false }
    }

    /// Restricts a change of a map to the entries that differ.
    #[must_use]
    pub(crate) fn restricted_to_entries(mut self) -> Self {
        if let (Value::Object(from), Value::Object(to)) = (&mut self.from, &mut self.to) {
            from.retain(|key, value| {
                let is_same = to.get(key).is_some_and(|to| values_match(to, value));
                if is_same {
                    to.remove(key);
                }
                !is_same
            });
            self.entries = true;
        }
        self
    }

    /// Whether a value is as it is after the change.
    pub fn is_applied_to(&self, value: &Value) -> bool {
        let (true, Value::Object(from), Value::Object(to), Value::Object(entries)) =
            (self.entries, &self.from, &self.to, value)
        else {
            return values_match(&self.to, value);
        };
        to.iter().all(|(key, to)| entries.get(key).is_some_and(|value| values_match(to, value)))
            && from.keys().all(|key| to.contains_key(key) || !entries.contains_key(key))
    }

    /// Changes a value.
    pub fn apply_to(&self, value: &mut Value) {
        let (true, Value::Object(from), Value::Object(to), Value::Object(entries)) =
            (self.entries, &self.from, &self.to, &mut *value)
        else {
            *value = self.to.clone();
            return;
        };
        from.keys().for_each(|key| drop(entries.remove(key)));
        entries.extend(to.clone());
    }
}

impl Plan {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan that rolls this one back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let reversible = self.steps.iter().rev().filter(|planned| !planned.step.is_irreversible());
        Self { steps: reversible.map(PlannedStep::inverse).collect(), ..Self::default() }
    }
}

impl PlannedStep {
    /// The step that rolls this one back. The inverse of an implied step has to be executed.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self {
            scope: self.scope.clone(),
            step: self.step.inverse(),
            origins: self.origins.clone(),
            implied: false,
            note: None,
        }
    }
}

impl Step {
    /// What it does to its item.
    pub fn effect(&self) -> StepEffect {
        match self {
            Self::Filter(step) => step.effect(),
            Self::CreateLink { .. }
            | Self::AddAddress(_)
            | Self::AddRoute(_)
            | Self::AddRule(_)
            | Self::AddNeighbour(_) => StepEffect::Add,
            Self::DeleteLink { .. }
            | Self::RemoveAddress(_)
            | Self::RemoveRoute(_)
            | Self::RemoveRule(_)
            | Self::RemoveNeighbour(_) => StepEffect::Remove,
            Self::ChangeLink { .. }
            | Self::ReplaceRoute { .. }
            | Self::ReplaceNeighbour { .. }
            | Self::SetSysctl { .. } => StepEffect::Change,
        }
    }

    /// Whether it cannot be rolled back: the host end of a veth whose peer is in a sandbox that is no longer observed.
    pub fn is_irreversible(&self) -> bool {
        matches!(self, Self::DeleteLink { link, peer: None } if matches!(link.kind, Kind::Veth(_)))
    }

    /// The step that rolls this one back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::CreateLink { link, peer } => Self::DeleteLink { link, peer },
            Self::DeleteLink { link, peer } => Self::CreateLink { link, peer },
            Self::ChangeLink { name, kind, changes } => {
                let invert = |change: FieldChange| FieldChange {
                    field: change.field,
                    from: change.to,
                    to: change.from,
                    entries: change.entries,
                };
                Self::ChangeLink { name, kind, changes: changes.into_iter().map(invert).collect() }
            }
            Self::AddAddress(address) => Self::RemoveAddress(address),
            Self::RemoveAddress(address) => Self::AddAddress(address),
            Self::AddRoute(route) => Self::RemoveRoute(route),
            Self::RemoveRoute(route) => Self::AddRoute(route),
            Self::ReplaceRoute { before, after } => Self::ReplaceRoute { before: after, after: before },
            Self::AddRule(rule) => Self::RemoveRule(rule),
            Self::RemoveRule(rule) => Self::AddRule(rule),
            Self::AddNeighbour(neighbour) => Self::RemoveNeighbour(neighbour),
            Self::ReplaceNeighbour { before, after } => {
                Self::ReplaceNeighbour { before: after, after: before }
            }
            Self::RemoveNeighbour(neighbour) => Self::AddNeighbour(neighbour),
            Self::SetSysctl { key, from, to } => Self::SetSysctl { key, from: to, to: from },
            Self::Filter(step) => Self::Filter(step.inverse()),
        }
    }
}
