//! What restricts a pod, how a verdict comes about, and which rules of the packet filter count dropped packets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_model::filter::rule::{Expression, FilterRule, Verdict};
use serde::Serialize;

use crate::compile::{comment, shortened};
use crate::evaluate::Flow;
use crate::index::{PodKey, PolicyIndex};
use crate::isolation::Segment;
use crate::policy::{Action, Direction, Policy, PolicyId, Tier};
use crate::tables::{PodChains, PolicyTables, denied};

/// A policy about one end of a connection, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    /// The policy.
    pub policy: PolicyId,
    /// Its group.
    pub tier: Tier,
    /// What it does.
    pub outcome: Outcome,
}

/// What a policy does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// None of its rules matches.
    NoMatch,
    /// A rule matches.
    Matched {
        /// The number of the rule in its direction.
        rule: usize,
        /// What the rule decides.
        action: Action,
    },
    /// It is not evaluated: another policy decided or passed on, or there are NetworkPolicies and it is a Baseline policy.
    Skipped,
}

/// A rule of the packet filter that drops packets and counts them. Several rules of a chain with one comment are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRule {
    /// The chain.
    pub chain: String,
    /// The rule's comment.
    pub comment: String,
    /// The namespace of the pods of the chain.
    pub namespace: String,
    /// The direction as seen by the pods of the chain.
    pub direction: Direction,
    /// Why packets are dropped.
    pub reason: DropReason,
}

/// Why a packet is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A rule denies it.
    DeniedBy {
        /// The policy.
        policy: PolicyId,
        /// The number of the rule in its direction.
        rule: usize,
    },
    /// None of these NetworkPolicies allows it.
    NotAllowed(Vec<PolicyId>),
    /// The destination is isolated.
    Isolated(Segment),
}

impl PolicyIndex {
    /// The policies about a pod and a direction, in the order of their evaluation; none if the pod is not known.
    pub fn policies_about(&self, key: &PodKey, direction: Direction) -> Vec<&Policy> {
        self.pod(key).map_or_else(Vec::new, |pod| self.about(&pod.group().key, direction))
    }

    /// The segment that isolates a pod.
    pub fn segment(&self, key: &PodKey) -> Option<Segment> {
        self.segment_of(self.pod(key)?)
    }

    /// All segments of the cluster.
    pub fn segments(&self) -> BTreeSet<Segment> {
        self.node.segments().cloned().collect()
    }

    /// The pod with an address.
    pub fn pod_with_address(&self, address: IpAddr) -> Option<PodKey> {
        self.pod_at(address, None).map(|pod| pod.key())
    }

    /// How the policies about one end of a connection decide, in the order of their evaluation.
    pub fn trace(&self, flow: &Flow, direction: Direction) -> Vec<TraceStep> {
        let end = match direction {
            Direction::Ingress => flow.destination,
            Direction::Egress => flow.source,
        };
        let Some(pod) = self.pod_at(end, None) else { return Vec::new() };
        let policies = self.about(&pod.group().key, direction);
        let has_namespace = policies.iter().any(|policy| policy.tier == Tier::Namespace);
        // Policies up to this tier are not evaluated.
        let (mut is_decided, mut passed) = (flow.source == flow.destination, false);
        let step = |policy: &Policy| {
            let is_passed_over = passed && policy.tier < Tier::Namespace;
            let outcome = if is_decided || is_passed_over || (has_namespace && policy.tier > Tier::Namespace)
            {
                Outcome::Skipped
            } else {
                self.outcome(policy, flow, direction)
            };
            match outcome {
                Outcome::Matched { action: Action::Pass, .. } if policy.tier < Tier::Namespace => {
                    passed = true;
                }
                Outcome::Matched { .. } => is_decided = true,
                Outcome::NoMatch | Outcome::Skipped => {}
            }
            TraceStep { policy: policy.id.clone(), tier: policy.tier, outcome }
        };
        policies.into_iter().map(step).collect()
    }

    fn outcome(&self, policy: &Policy, flow: &Flow, direction: Direction) -> Outcome {
        let rules = policy.rules(direction).unwrap_or_default();
        let matched = rules.iter().position(|rule| self.is_matched(policy, rule, flow, direction));
        matched.map_or(Outcome::NoMatch, |rule| Outcome::Matched { rule, action: rules[rule].action })
    }

    /// The rules that count dropped packets: those in the chains of these pods, then those of all segments.
    pub fn drop_rules<'a>(
        &self,
        tables: &PolicyTables,
        pods: impl IntoIterator<Item = (PodKey, &'a PodChains)>,
    ) -> Vec<DropRule> {
        let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
        for (key, chains) in pods {
            for (direction, first) in
                [(Direction::Ingress, &chains.ingress), (Direction::Egress, &chains.egress)]
            {
                let Some(first) = first.as_ref().filter(|first| !seen.contains(*first)) else { continue };
                let policies = self.policies_about(&key, direction);
                for chain in tables.following(first) {
                    if seen.insert(chain.clone()) {
                        all.extend(drops_of(tables, &chain, &key.namespace, direction, &policies));
                    }
                }
            }
        }
        for segment in self.segments() {
            let chain = segment.chain();
            if tables.chains.contains_key(&chain) {
                let (comment, namespace) = (shortened(segment.title()), segment.namespace().to_owned());
                let reason = DropReason::Isolated(segment);
                all.push(DropRule { chain, comment, namespace, direction: Direction::Ingress, reason });
            }
        }
        all
    }
}

impl PolicyTables {
    /// A chain, and those that connections continue with.
    pub fn following(&self, first: &str) -> Vec<String> {
        let mut all = vec![first.to_owned()];
        while let Some(rules) = all.last().and_then(|last| self.chains.get(last)) {
            let next =
                rules.iter().flat_map(|rule| &rule.expressions).find_map(|expression| match expression {
                    Expression::Verdict(Verdict::Goto(next)) if !all.contains(next) => Some(next.clone()),
                    _ => None,
                });
            match next {
                Some(next) => all.push(next),
                None => break,
            }
        }
        all
    }
}

/// The counted drops of a chain with rules of these policies.
pub(crate) fn drops_of(
    tables: &PolicyTables,
    chain: &str,
    namespace: &str,
    direction: Direction,
    policies: &[&Policy],
) -> Vec<DropRule> {
    let rules = tables.chains.get(chain).map(Vec::as_slice).unwrap_or_default();
    let comments: BTreeSet<&String> =
        rules.iter().filter(|rule| counts_drops(rule)).filter_map(|rule| rule.comment.as_ref()).collect();
    let drop_rule = |comment: &String| {
        let reason = reason(comment, direction, policies)?;
        let (chain, namespace) = (chain.to_owned(), namespace.to_owned());
        Some(DropRule { chain, comment: comment.clone(), namespace, direction, reason })
    };
    comments.into_iter().filter_map(drop_rule).collect()
}

pub(crate) fn counts_drops(rule: &FilterRule) -> bool {
    rule.expressions.contains(&Expression::Count)
        && rule.expressions.last() == Some(&Expression::Verdict(Verdict::Drop))
}

/// What a comment refers to. Comments of policies with long names are shortened: then it is the first policy.
fn reason(text: &str, direction: Direction, policies: &[&Policy]) -> Option<DropReason> {
    if denied().comment.as_deref() == Some(text) {
        let of_tenants = policies.iter().filter(|policy| policy.tier == Tier::Namespace);
        return Some(DropReason::NotAllowed(of_tenants.map(|policy| policy.id.clone()).collect()));
    }
    policies.iter().find_map(|policy| {
        let mut rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
        let is_it = |(rule, _): &(usize, _)| comment(&policy.id, direction, *rule) == text;
        let (rule, _) = rules.find(is_it)?;
        Some(DropReason::DeniedBy { policy: policy.id.clone(), rule })
    })
}
