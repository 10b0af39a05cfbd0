//! The chains of the tables that depend on Services.
//!
//! There is a chain for each number of endpoints. A change of the tables costs more than one of elements, and a tenant can change
//! the number of endpoints as often as it likes. So chains come in steps of many, those for small numbers are always there, and
//! chains that no Service needs any more stay until everything is compared.

use std::collections::BTreeSet;

use knit_service::{BackendChain, Scope, ServiceIndex};

/// How many chains come at a time.
const STEP: u32 = 32;

/// The chains that are there for the Services of an index.
pub(super) fn needed(index: &ServiceIndex) -> BTreeSet<BackendChain> {
    let used = index.chains();
    let mut steps: BTreeSet<(Scope, u32)> = [(Scope::Cluster, 0), (Scope::Local, 0)].into();
    steps.extend(used.iter().filter_map(|chain| match chain {
        BackendChain::Choose { scope, slots } => Some((*scope, slots.saturating_sub(1) / STEP)),
        BackendChain::Recall { .. } => None,
    }));
    let in_step = |(scope, step): (Scope, u32)| {
        (1..=STEP).map(move |number| BackendChain::Choose { scope, slots: step * STEP + number })
    };
    steps.into_iter().flat_map(in_step).chain(used).collect()
}
