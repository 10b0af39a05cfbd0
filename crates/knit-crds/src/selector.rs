//! Pod selection: the kind's own label, or `spec.selector`.

use std::collections::BTreeMap;

use knit_model::Problems;
use knit_model::intent::{LabelRequirement, RequirementOperator, Selector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum length of a label value; object names may be longer.
pub const MAX_LABEL_VALUE: usize = 63;

/// PodSelector selects pods of the object's namespace by their labels. All conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
    "selector must not be empty: set matchLabels or matchExpressions, or remove it",
)])))]
pub struct PodSelector {
    /// matchLabels maps label keys to required values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
    /// matchExpressions lists label requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelCondition>,
}

/// LabelCondition is a requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "values must be set for In and NotIn, and unset for Exists and DoesNotExist",
)])))]
pub struct LabelCondition {
    /// key is the label key.
    #[schemars(extend("maxLength" = 317))]
    pub key: String,
    /// operator is `In` or `NotIn`, which compare with values, or `Exists` or `DoesNotExist`, which test for the label.
    pub operator: LabelOperator,
    /// values lists the values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// LabelOperator is an operator of a label requirement.
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
                "selector must not be empty: set matchLabels or matchExpressions, or remove it",
            );
        }
        for (index, condition) in self.match_expressions.iter().enumerate() {
            let compares = matches!(condition.operator, LabelOperator::In | LabelOperator::NotIn);
            if compares == condition.values.is_empty() {
                let message = if compares { "must be set" } else { "must be unset" };
                problems.invalid(
                    format!("{field}.matchExpressions[{index}].values"),
                    format!("{message} for operator {:?}", condition.operator),
                );
            }
        }
        let expressions = self.match_expressions.iter().map(LabelCondition::model).collect();
        Selector { labels: self.match_labels.clone(), expressions, uid: None }
    }
}

impl LabelCondition {
    fn model(&self) -> LabelRequirement {
        let operator = match self.operator {
            LabelOperator::In => RequirementOperator::In,
            LabelOperator::NotIn => RequirementOperator::NotIn,
            LabelOperator::Exists => RequirementOperator::Exists,
            LabelOperator::DoesNotExist => RequirementOperator::DoesNotExist,
        };
        LabelRequirement { key: self.key.clone(), operator, values: self.values.clone() }
    }
}
