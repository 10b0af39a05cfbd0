//! Finds the selectors that can select a pod, without a look at the others.
//!
//! Each selector is filed once under a label that it requires, within its namespace if it names one. A pod looks under its own
//! labels, and at the selectors that require none. What is found may still not match: it has to be checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels::{LabelSelector, Labels, Operator};
use crate::policy::{Namespaces, PodSelector};

/// Selectors, each with what it stands for.
#[derive(Clone, Debug)]
pub(crate) struct SelectorIndex<T> {
    by_namespace: BTreeMap<String, Shelf<T>>,
    /// Those that select namespaces by labels.
    of_cluster: Shelf<T>,
}

#[derive(Clone, Debug)]
struct Shelf<T> {
    by_label: BTreeMap<String, BTreeMap<String, BTreeSet<T>>>,
    /// Those that require no certain value of a label.
    others: BTreeSet<T>,
}

impl<T> Default for SelectorIndex<T> {
    fn default() -> Self {
        Self { by_namespace: BTreeMap::new(), of_cluster: Shelf::default() }
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { by_label: BTreeMap::new(), others: BTreeSet::new() }
    }
}

/// The values of one label, one of which a pod must have.
fn required(selector: &LabelSelector) -> Option<(&String, Vec<&String>)> {
    let exact = selector.match_labels.iter().next().map(|(key, value)| (key, vec![value]));
    exact.or_else(|| {
        let mut all = selector.match_expressions.iter();
        let one = all.find(|requirement| requirement.operator == Operator::In)?;
        Some((&one.key, one.values.iter().collect()))
    })
}

impl<T: Ord + Clone> SelectorIndex<T> {
    pub(crate) fn insert(&mut self, selector: &PodSelector, what: &T) {
        let shelf = match &selector.namespaces {
            Namespaces::Named(name) => self.by_namespace.entry(name.clone()).or_default(),
            Namespaces::Labelled(_) => &mut self.of_cluster,
        };
        match required(&selector.pods) {
            None => drop(shelf.others.insert(what.clone())),
            Some((key, values)) => {
                let of_key = shelf.by_label.entry(key.clone()).or_default();
                for value in values {
                    of_key.entry(value.clone()).or_default().insert(what.clone());
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, selector: &PodSelector, what: &T) {
        let shelf = match &selector.namespaces {
            Namespaces::Named(name) => self.by_namespace.get_mut(name),
            Namespaces::Labelled(_) => Some(&mut self.of_cluster),
        };
        let Some(shelf) = shelf else { return };
        match required(&selector.pods) {
            None => drop(shelf.others.remove(what)),
            Some((key, values)) => {
                let Some(of_key) = shelf.by_label.get_mut(key) else { return };
                for value in values {
                    if let Some(all) = of_key.get_mut(value) {
                        all.remove(what);
                        if all.is_empty() {
                            of_key.remove(value);
                        }
                    }
                }
                if of_key.is_empty() {
                    shelf.by_label.remove(key);
                }
            }
        }
        if let Namespaces::Named(name) = &selector.namespaces
            && shelf.others.is_empty()
            && shelf.by_label.is_empty()
        {
            self.by_namespace.remove(name);
        }
    }

    /// What the selectors that can select pods with these labels stand for.
    pub(crate) fn candidates<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let shelves = self.by_namespace.get(namespace).into_iter().chain([&self.of_cluster]);
        shelves.flat_map(move |shelf| {
            let found = labels.iter().filter_map(|(key, value)| shelf.by_label.get(key)?.get(value));
            found.flatten().chain(&shelf.others)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(namespaces: Namespaces, json: &str) -> PodSelector {
        PodSelector { namespaces, pods: serde_json::from_str(json).unwrap() }
    }

    #[test]
    fn only_selectors_that_can_match_are_looked_at() {
        let mut index = SelectorIndex::default();
        let named = |name: &str| Namespaces::Named(name.to_owned());
        let everywhere = || Namespaces::Labelled(LabelSelector::default());
        let is_a = r#"{"matchLabels":{"app":"a","x":"1"}}"#;
        let in_a_b = r#"{"matchExpressions":[{"key":"app","operator":"In","values":["a","b"]}]}"#;
        let all = [
            (1, selector(named("blue"), is_a)),
            (2, selector(everywhere(), is_a)),
            (3, selector(named("green"), is_a)),
            (4, selector(everywhere(), in_a_b)),
            (5, selector(named("blue"), "{}")),
            (6, selector(everywhere(), r#"{"matchExpressions":[{"key":"app","operator":"Exists"}]}"#)),
        ];
        all.iter().for_each(|(number, selector)| index.insert(selector, number));
        let find = |index: &SelectorIndex<i32>, namespace: &str, app: &str| {
            let labels = Labels::from([("app".to_owned(), app.to_owned())]);
            let mut found: Vec<i32> = index.candidates(namespace, &labels).copied().collect();
            found.sort_unstable();
            found
        };
        assert_eq!(find(&index, "blue", "a"), [1, 2, 4, 5, 6]);
        assert_eq!(find(&index, "green", "b"), [4, 6]);
        all.iter().for_each(|(number, selector)| index.remove(selector, number));
        assert_eq!(find(&index, "blue", "a"), [0; 0]);
        assert!(index.by_namespace.is_empty() && index.of_cluster.by_label.is_empty());
    }
}
