//! Differences between two versions of a table.

use std::collections::BTreeSet;

use super::constants::{NFT_MSG_DELSETELEM, NFT_MSG_NEWSETELEM};
use super::set::{Element, Set};
use super::{Step, Table};

impl Table {
    /// The steps from the known tables to this one: set elements only, if all else is equal.
    pub(super) fn update_steps(&self, known: &[Self]) -> Vec<Step> {
        let is_same = |other: &&Self| (other.family, other.name) == (self.family, self.name);
        match known.iter().find(is_same) {
            Some(known) if self == known => Vec::new(),
            Some(known) if self.same_except_elements(known) => self.differing_elements(known),
            _ => self.steps(),
        }
    }

    /// Whether the tables differ only in set elements.
    fn same_except_elements(&self, other: &Self) -> bool {
        let sets = || self.sets.iter().zip(&other.sets);
        self.chains == other.chains
            && self.sets.len() == other.sets.len()
            && sets().all(|(set, other)| set.same_except_elements(other))
    }

    fn differing_elements(&self, known: &Self) -> Vec<Step> {
        let differing = self.sets.iter().zip(&known.sets).filter(|(set, known)| set != known);
        differing.flat_map(|(set, known)| self.differing(set, known)).collect()
    }

    /// Removals come first: a key can have only one element.
    fn differing(&self, set: &Set, known: &Set) -> Vec<Step> {
        let [new, old] = [set, known].map(|set| set.elements().into_iter().collect::<BTreeSet<Element>>());
        let only = |one: &BTreeSet<Element>, other| one.difference(other).cloned().collect::<Vec<_>>();
        let mut steps = self.elements(NFT_MSG_DELSETELEM, set, &only(&old, &new));
        steps.extend(self.elements(NFT_MSG_NEWSETELEM, set, &only(&new, &old)));
        steps
    }
}
