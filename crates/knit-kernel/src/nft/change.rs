//! From a table that is there to another.

use std::collections::BTreeSet;

use super::constants::{NFT_MSG_DELSETELEM, NFT_MSG_NEWSETELEM};
use super::set::{Element, Set};
use super::{Step, Table};

impl Table {
    /// What has to be said to have this table where these are: elements of its sets, if all else is the same.
    pub(super) fn steps_from(&self, known: &[Self]) -> Vec<Step> {
        let is_same = |other: &&Self| (other.family, other.name) == (self.family, self.name);
        match known.iter().find(is_same) {
            Some(known) if self == known => Vec::new(),
            Some(known) if self.is_like(known) => self.differing_elements(known),
            _ => self.steps(),
        }
    }

    /// Whether another is the same but for elements.
    fn is_like(&self, other: &Self) -> bool {
        let sets = || self.sets.iter().zip(&other.sets);
        self.chains == other.chains
            && self.sets.len() == other.sets.len()
            && sets().all(|(set, other)| set.is_like(other))
    }

    fn differing_elements(&self, known: &Self) -> Vec<Step> {
        let differing = self.sets.iter().zip(&known.sets).filter(|(set, known)| set != known);
        differing.flat_map(|(set, known)| self.differing(set, known)).collect()
    }

    /// First what goes: of two elements with the same key there can be one.
    fn differing(&self, set: &Set, known: &Set) -> Vec<Step> {
        let [new, old] = [set, known].map(|set| set.elements().into_iter().collect::<BTreeSet<Element>>());
        let only = |one: &BTreeSet<Element>, other| one.difference(other).cloned().collect::<Vec<_>>();
        let mut steps = self.elements(NFT_MSG_DELSETELEM, set, &only(&old, &new));
        steps.extend(self.elements(NFT_MSG_NEWSETELEM, set, &only(&new, &old)));
        steps
    }
}
