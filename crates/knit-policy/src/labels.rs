//! Labels and label selectors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Labels of a pod or a namespace.
pub type Labels = BTreeMap<String, String>;

/// Selects objects by their labels. All parts have to match; without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Further requirements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// What is required.
    pub operator: Operator,
    /// The values that [`Operator::In`] and [`Operator::NotIn`] refer to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// What a requirement requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operator {
    /// One of the values.
    In,
    /// None of the values. An object without the label matches.
    NotIn,
    /// The label with any value.
    Exists,
    /// No such label.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn selectors_match_as_kubernetes_documents_them() {
        let (web, db) = (labels(&[("app", "web"), ("tier", "front")]), labels(&[("app", "db")]));
        let none = labels(&[]);
        let selects = |json: &str| {
            let selector: LabelSelector = serde_json::from_str(json).unwrap();
            [&web, &db, &none].map(|labels| selector.matches(labels))
        };
        assert_eq!(selects("{}"), [true, true, true]);
        assert_eq!(selects(r#"{"matchLabels":{"app":"web"}}"#), [true, false, false]);
        let expression = |operator: &str| {
            format!(
                r#"{{"matchExpressions":[{{"key":"app","operator":"{operator}","values":["web","x"]}}]}}"#
            )
        };
        assert_eq!(selects(&expression("In")), [true, false, false]);
        assert_eq!(selects(&expression("NotIn")), [false, true, true]);
        let tier =
            |operator: &str| format!(r#"{{"matchExpressions":[{{"key":"tier","operator":"{operator}"}}]}}"#);
        assert_eq!(selects(&tier("Exists")), [true, false, false]);
        assert_eq!(selects(&tier("DoesNotExist")), [false, true, true]);
        let both =
            r#"{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]}"#;
        assert_eq!(selects(both), [false, false, false]);
    }
}
