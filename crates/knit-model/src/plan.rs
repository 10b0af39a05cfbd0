//! Plans: the ordered kernel operations from observed to desired, each with its inverse.

mod below;
mod changes;
mod devices;
mod diff;
mod removal;
mod show;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use devices::settle_devices;
pub use diff::diff;

use crate::link::{Kind, Link};
use crate::name::IfName;
use crate::neighbour::{Neighbour, NeighbourKey};
use crate::problem::Problem;
use crate::provenance::Provenance;
use crate::route::{Route, RouteKey};
use crate::rule::Rule;
use crate::sandbox::Scope;
use crate::state::{Address, AddressKey, NetState};

/// What a node should look like, with the reason for each item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The state.
    pub state: NetState,
    /// Why each item is wanted.
    #[serde(skip)]
    pub why: BTreeMap<(Scope, Item), Vec<Provenance>>,
    /// Links whose new addresses neighbours are told of: they may know them elsewhere.
    #[serde(skip)]
    pub announced: BTreeSet<(Scope, IfName)>,
}

/// One item of a scope, by its identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Item {
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
}

/// The ordered steps, and what could not be planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In the order in which they are applied.
    pub steps: Vec<Planned>,
    /// What stands in the way, by scope. The steps do not touch what these name.
    pub problems: Vec<(Scope, Problem)>,
    /// Addresses that neighbours are told of once all of it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub announced: Vec<(Scope, IfName, IpAddr)>,
}

/// A step, where it happens, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Where.
    pub scope: Scope,
    /// What.
    pub step: Step,
    /// Who asked for it; empty when it goes because nobody does any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<Provenance>,
    /// It happens by itself when a link of a later step goes or changes. Only its inverse has to be carried out.
    #[serde(default)]
    pub implied: bool,
    /// A remark for people, such as why a link has to be made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One kernel operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Makes a link with all its stated fields; for a veth, with its far end.
    CreateLink {
        /// The link.
        link: Link,
        /// The far end of a veth, and where it is born.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<(Scope, Link)>,
    },
    /// Deletes a link; the far end of a veth goes with it.
    DeleteLink {
        /// The link as it was seen.
        link: Link,
        /// The far end of a veth, and where it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<(Scope, Link)>,
    },
    /// Changes fields of a living link.
    ChangeLink {
        /// The link.
        name: IfName,
        /// Its kind: some fields are the kind's own.
        kind: String,
        /// Field by field.
        changes: Vec<Change>,
    },
    /// Adds an address.
    AddAddress(Address),
    /// Removes an address.
    RemoveAddress(Address),
    /// Adds a route.
    AddRoute(Route),
    /// Removes a route.
    RemoveRoute(Route),
    /// Replaces a route by another of the same identity, with no moment without either.
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
    /// Adds a neighbour, in the place of what the kernel found out by itself.
    AddNeighbour(Neighbour),
    /// Puts a neighbour in the place of another of the same identity.
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
}

/// The change of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The field.
    pub field: String,
    /// The old value.
    pub from: Value,
    /// The new value.
    pub to: Value,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan that takes this one back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let back = self.steps.iter().rev().filter(|planned| !planned.step.is_final());
        Self { steps: back.map(Planned::inverse).collect(), ..Self::default() }
    }
}

impl Planned {
    /// The step that takes this one back. What was implied has to be carried out now.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self {
            scope: self.scope.clone(),
            step: self.step.inverse(),
            because: self.because.clone(),
            implied: false,
            note: None,
        }
    }
}

impl Step {
    /// Whether there is no way back: half of a pair, cut off from a sandbox that is not looked into any more. Nobody would
    /// know what to make the other half of, and nobody wants it.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::DeleteLink { link, peer: None } if matches!(link.kind, Kind::Veth(_)))
    }

    /// The step that takes this one back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::CreateLink { link, peer } => Self::DeleteLink { link, peer },
            Self::DeleteLink { link, peer } => Self::CreateLink { link, peer },
            Self::ChangeLink { name, kind, changes } => {
                let back = |change: Change| Change { field: change.field, from: change.to, to: change.from };
                Self::ChangeLink { name, kind, changes: changes.into_iter().map(back).collect() }
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
        }
    }
}
