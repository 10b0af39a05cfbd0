//! Steps on the packet filter. All consecutive steps of a scope are one nftables transaction.

use serde::{Deserialize, Serialize};

use super::rule::FilterRule;
use super::{BaseChain, ElementData, ElementKey, FilterSet, TableKey};
use crate::plan::StepEffect;

/// One operation on the packet filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FilterStep {
    /// Adds an empty table.
    AddTable(TableKey),
    /// Removes a table with everything in it.
    RemoveTable(TableKey),
    /// Adds an empty set or map.
    AddSet(TableKey, String, FilterSet),
    /// Removes a set or map with its elements.
    RemoveSet(TableKey, String, FilterSet),
    /// Adds a named counter.
    AddCounter(TableKey, String),
    /// Removes a named counter.
    RemoveCounter(TableKey, String),
    /// Adds a chain without rules.
    AddChain(TableKey, String, Option<BaseChain>),
    /// Removes a chain without rules.
    RemoveChain(TableKey, String, Option<BaseChain>),
    /// Replaces the rules of a chain.
    SetRules {
        /// The table.
        table: TableKey,
        /// The chain.
        chain: String,
        /// The old rules.
        before: Vec<FilterRule>,
        /// The new rules.
        after: Vec<FilterRule>,
    },
    /// Adds an element.
    AddElement(ElementKey, ElementData),
    /// Removes an element.
    RemoveElement(ElementKey, ElementData),
    /// Replaces the data of an element.
    ReplaceElement {
        /// The element.
        key: ElementKey,
        /// The old data.
        before: ElementData,
        /// The new data.
        after: ElementData,
    },
}

/// Identity of an item of the packet filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FilterItem {
    /// A table.
    Table(TableKey),
    /// A set or map.
    Set(TableKey, String),
    /// A named counter.
    Counter(TableKey, String),
    /// A chain.
    Chain(TableKey, String),
    /// An element.
    Element(ElementKey),
}

impl FilterStep {
    /// The step that rolls this one back.
    #[must_use]
    pub fn inverse(self) -> Self {
        match self {
            Self::AddTable(table) => Self::RemoveTable(table),
            Self::RemoveTable(table) => Self::AddTable(table),
            Self::AddSet(table, name, set) => Self::RemoveSet(table, name, set),
            Self::RemoveSet(table, name, set) => Self::AddSet(table, name, set),
            Self::AddCounter(table, name) => Self::RemoveCounter(table, name),
            Self::RemoveCounter(table, name) => Self::AddCounter(table, name),
            Self::AddChain(table, name, base) => Self::RemoveChain(table, name, base),
            Self::RemoveChain(table, name, base) => Self::AddChain(table, name, base),
            Self::SetRules { table, chain, before, after } => {
                Self::SetRules { table, chain, before: after, after: before }
            }
            Self::AddElement(key, data) => Self::RemoveElement(key, data),
            Self::RemoveElement(key, data) => Self::AddElement(key, data),
            Self::ReplaceElement { key, before, after } => {
                Self::ReplaceElement { key, before: after, after: before }
            }
        }
    }

    /// What it is about.
    pub fn item(&self) -> FilterItem {
        match self {
            Self::AddTable(table) | Self::RemoveTable(table) => FilterItem::Table(table.clone()),
            Self::AddSet(table, name, _) | Self::RemoveSet(table, name, _) => {
                FilterItem::Set(table.clone(), name.clone())
            }
            Self::AddCounter(table, name) | Self::RemoveCounter(table, name) => {
                FilterItem::Counter(table.clone(), name.clone())
            }
            Self::AddChain(table, name, _) | Self::RemoveChain(table, name, _) => {
                FilterItem::Chain(table.clone(), name.clone())
            }
            Self::SetRules { table, chain, .. } => FilterItem::Chain(table.clone(), chain.clone()),
            Self::AddElement(key, _) | Self::RemoveElement(key, _) | Self::ReplaceElement { key, .. } => {
                FilterItem::Element(key.clone())
            }
        }
    }

    /// The table.
    pub fn table(&self) -> &TableKey {
        match self {
            Self::AddTable(table)
            | Self::RemoveTable(table)
            | Self::AddSet(table, ..)
            | Self::RemoveSet(table, ..)
            | Self::AddCounter(table, _)
            | Self::RemoveCounter(table, _)
            | Self::AddChain(table, ..)
            | Self::RemoveChain(table, ..)
            | Self::SetRules { table, .. } => table,
            Self::AddElement(key, _) | Self::RemoveElement(key, _) | Self::ReplaceElement { key, .. } => {
                &key.table
            }
        }
    }

    /// The rules that it adds.
    pub fn rules(&self) -> impl Iterator<Item = &FilterRule> {
        let rules: &[FilterRule] = match self {
            Self::SetRules { after, .. } => after,
            _ => &[],
        };
        rules.iter()
    }

    /// What it does to its item.
    pub fn effect(&self) -> StepEffect {
        match self {
            Self::AddTable(_)
            | Self::AddSet(..)
            | Self::AddCounter(..)
            | Self::AddChain(..)
            | Self::AddElement(..) => StepEffect::Add,
            Self::RemoveTable(_)
            | Self::RemoveSet(..)
            | Self::RemoveCounter(..)
            | Self::RemoveChain(..)
            | Self::RemoveElement(..) => StepEffect::Remove,
            Self::SetRules { .. } | Self::ReplaceElement { .. } => StepEffect::Change,
        }
    }
}
