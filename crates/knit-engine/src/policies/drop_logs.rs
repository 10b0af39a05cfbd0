//! Which policies and namespaces request logs of dropped packets.

use std::collections::BTreeSet;

use knit_policy::{DropLogTarget, PolicyId, PolicyKind};
use serde::{Deserialize, Serialize};

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

/// What requests logs after a change.
pub(super) fn changed(before: &BTreeSet<DropLogTarget>, event: DropLogEvent) -> BTreeSet<DropLogTarget> {
    let mut targets = before.clone();
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
    targets
}
