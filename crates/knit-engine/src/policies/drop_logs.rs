//! Which policies and namespaces request logs of dropped packets.

use std::collections::BTreeSet;

use knit_policy::{DropLogTarget, PolicyId, PolicyKind, PolicyTables};
use serde::{Deserialize, Serialize};

use super::key_of;
use crate::state::State;

/// A change of what requests logs. Without support in the kernel nothing may: all rules of the table would be rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DropLogEvent {
    /// All policies of a kind that request logs.
    PoliciesListed(PolicyKind, BTreeSet<PolicyId>),
    /// All namespaces that request logs.
    NamespacesListed(BTreeSet<String>),
    /// A policy or a namespace was created, changed or deleted.
    Changed {
        /// The policy or the namespace.
        target: DropLogTarget,
        /// Whether it requests logs.
        enabled: bool,
    },
}

/// Handles a change. Returns whether rules change.
pub(super) fn handle(targets: &mut BTreeSet<DropLogTarget>, event: DropLogEvent) -> bool {
    let before = targets.clone();
    match event {
        DropLogEvent::PoliciesListed(kind, all) => {
            targets.retain(|one| !matches!(one, DropLogTarget::Policy(id) if id.kind == kind));
            targets.extend(all.into_iter().map(DropLogTarget::Policy));
        }
        DropLogEvent::NamespacesListed(all) => {
            targets.retain(|one| !matches!(one, DropLogTarget::Namespace(_)));
            targets.extend(all.into_iter().map(DropLogTarget::Namespace));
        }
        DropLogEvent::Changed { target, enabled: true } => drop(targets.insert(target)),
        DropLogEvent::Changed { target, enabled: false } => drop(targets.remove(&target)),
    }
    *targets != before
}

/// Adds rules that log to the chains of this node's pods.
pub(super) fn add_rules(state: &State, tables: &mut PolicyTables) {
    let policies = &state.policies;
    if policies.drop_logs.is_empty() {
        return;
    }
    let chains = policies.chains.iter();
    let pods = chains.filter_map(|(id, chains)| Some((key_of(state.sandboxes.get(id)?), chains)));
    let rules = policies.index.drop_rules(tables, pods);
    tables.log_drops(&rules, &policies.drop_logs);
}
