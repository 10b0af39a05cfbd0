//! Which pods an object is for: those with the kind's own label, or those that `spec.selector` matches.

use std::collections::BTreeMap;

use knit_model::Problems;
use knit_model::intent::{Expression, Operator, Selector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A label's value has at most this many characters; an object's name may have more.
pub const MAX_LABEL_VALUE: usize = 63;

/// Pods of the object's namespace, by their labels. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
    "an empty selector would mean no pod: name a label, or leave the selector out",
)])))]
pub struct PodSelector {
    /// Labels that a pod must have with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
    /// More conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelCondition>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "`In` and `NotIn` need values, `Exists` and `DoesNotExist` have none",
)])))]
pub struct LabelCondition {
    /// The label's key.
    #[schemars(extend("maxLength" = 317))]
    pub key: String,
    /// `In` and `NotIn` compare with `values`; `Exists` and `DoesNotExist` only ask whether the label is there.
    pub operator: LabelOperator,
    /// The values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// Kubernetes' operators on labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum LabelOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl PodSelector {
    pub(crate) fn read(&self, field: &str, problems: &mut Problems) -> Selector {
        if self.match_labels.is_empty() && self.match_expressions.is_empty() {
            problems.invalid(
                field,
                "an empty selector would mean no pod: name a label, or leave the selector out",
            );
        }
        for (index, condition) in self.match_expressions.iter().enumerate() {
            let compares = matches!(condition.operator, LabelOperator::In | LabelOperator::NotIn);
            if compares == condition.values.is_empty() {
                let message = if compares { "needs values to compare with" } else { "has no values" };
                problems.invalid(
                    format!("{field}.matchExpressions[{index}].values"),
                    format!("operator {:?} {message}", condition.operator),
                );
            }
        }
        let expressions = self.match_expressions.iter().map(LabelCondition::model).collect();
        Selector { labels: self.match_labels.clone(), expressions, uid: None }
    }
}

impl LabelCondition {
    fn model(&self) -> Expression {
        let operator = match self.operator {
            LabelOperator::In => Operator::In,
            LabelOperator::NotIn => Operator::NotIn,
            LabelOperator::Exists => Operator::Exists,
            LabelOperator::DoesNotExist => Operator::DoesNotExist,
        };
        Expression { key: self.key.clone(), operator, values: self.values.clone() }
    }
}
