//! Logs of dropped packets: rules before those that drop, for policies and namespaces that request it.
//!
//! A rule of its own logs, because a limit that is exceeded ends a rule.

use std::collections::BTreeSet;

use knit_model::filter::rule::{Expression, FilterRule};
use serde::{Deserialize, Serialize};

use crate::compile::shortened;
use crate::labels::Labels;
use crate::policy::PolicyId;
use crate::report::{DropReason, DropRule, counts_drops};
use crate::tables::PolicyTables;

/// The annotation of a policy or a Namespace that requests logs, with the value `true`.
pub const LOG_DROPS_ANNOTATION: &str = "knit.opdev.io/log-drops";
/// The rate of log lines of one rule: packets in a minute, and more at once.
const RATE: Expression = Expression::Limit { packets: 10, seconds: 60, burst: 10 };

/// What requests logs of the packets that it drops.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DropLogTarget {
    /// A policy.
    Policy(PolicyId),
    /// All policies about pods of a namespace, and its isolation.
    Namespace(String),
}

/// Whether an object with these annotations requests logs.
pub fn logs_drops(annotations: &Labels) -> bool {
    annotations.get(LOG_DROPS_ANNOTATION).is_some_and(|value| value == "true")
}

impl PolicyTables {
    /// Adds rules that log what these rules drop, where the policy or the namespace requests it.
    pub fn log_drops(&mut self, rules: &[DropRule], targets: &BTreeSet<DropLogTarget>) {
        for rule in rules {
            let Some(prefix) = prefix(rule, targets) else { continue };
            let Some(chain) = self.chains.get_mut(&rule.chain) else { continue };
            let is_it = |one: &FilterRule| counts_drops(one) && one.comment.as_ref() == Some(&rule.comment);
            let logged = std::mem::take(chain).into_iter();
            *chain = logged
                .flat_map(|one| [is_it(&one).then(|| log(&one, &prefix)), Some(one)])
                .flatten()
                .collect();
        }
    }
}

/// A rule that logs what another one drops.
fn log(drop: &FilterRule, prefix: &str) -> FilterRule {
    let matches = drop.expressions.iter().take_while(|one| **one != Expression::Count).cloned();
    let log = Expression::Log { prefix: prefix.to_owned(), group: None };
    FilterRule { expressions: matches.chain([RATE, log]).collect(), comment: drop.comment.clone() }
}

/// The beginning of log lines; `None`: nothing requests them.
fn prefix(rule: &DropRule, targets: &BTreeSet<DropLogTarget>) -> Option<String> {
    let requests = |id: &&PolicyId| targets.contains(&DropLogTarget::Policy((*id).clone()));
    let of_namespace = targets.contains(&DropLogTarget::Namespace(rule.namespace.clone()));
    let policies: &[PolicyId] = match &rule.reason {
        DropReason::DeniedBy { policy, .. } => std::slice::from_ref(policy),
        DropReason::NotAllowed(policies) => policies,
        DropReason::Isolated(segment) => {
            return of_namespace.then(|| shortened(format!("knit drop {}: ", segment.title())));
        }
    };
    // Several policies are named by the first one that requests logs.
    let named = policies.iter().find(requests).or(policies.first().filter(|_| of_namespace))?;
    Some(shortened(format!("knit drop {named} {}: ", rule.direction.name())))
}
