//! Rollback. Errors are collected; the remaining steps are still rolled back.
//!
//! After a crash it is unknown how many steps were applied. So each inverse is applied only where it has an effect:
//! an object to remove must exist with Knit's ownership mark, an object to restore may exist already.

use knit_model::link::Link;
use knit_model::plan::{PlannedStep, Step};
use knit_model::{NetState, Scope, ScopeState, kernel_ids};

use super::transaction::{Failure, Transaction};
use super::{DeleteMode, deletes, moved_device};
use crate::error::Error;
use crate::kernel::Session;
use crate::observe::{StateQuery, query_for};

/// Rolls steps back in reverse order. Returns what could not be rolled back.
pub(super) fn roll_back(session: &mut Session<'_>, steps: &[&PlannedStep]) -> Vec<String> {
    let mut failures = Vec::new();
    let observed = observe_scopes(session, &query_for(steps.iter().copied()), &mut failures);
    let mut transaction = Transaction::new(session, DeleteMode::Immediate);
    transaction.rolling_back = true;
    let reversible = steps.iter().rev().filter(|planned| !planned.step.is_irreversible());
    let inverses: Vec<PlannedStep> = reversible.map(|planned| planned.inverse()).collect();
    for group in inverses.chunk_by(are_one_transaction) {
        // The kernel may reject a state in between, such as a loop of jumps. A transaction is applied as a whole or not at all.
        if group.len() > 1 && apply_inverses(&mut transaction, group, &observed).is_ok() {
            continue;
        }
        for inverse in group {
            if let Err(Failure { error, .. }) = apply_inverses(&mut transaction, [inverse], &observed) {
                let PlannedStep { scope, step, .. } = inverse;
                failures.push(format!("{scope}: {} {step}: {error}", step.symbol()));
            }
        }
    }
    failures
}

/// Whether two steps can be one transaction of the packet filter.
fn are_one_transaction(one: &PlannedStep, other: &PlannedStep) -> bool {
    let is_filter = |planned: &PlannedStep| matches!(planned.step, Step::Filter(_));
    is_filter(one) && is_filter(other) && one.scope == other.scope
}

fn apply_inverses<'a>(
    transaction: &mut Transaction<'_, '_>,
    inverses: impl IntoIterator<Item = &'a PlannedStep>,
    observed: &NetState,
) -> Result<(), Failure> {
    for inverse in inverses {
        apply_inverse(transaction, inverse, observed)?;
    }
    transaction.finish()
}

/// Observes each scope separately: a scope that is gone does not prevent the cleanup of the others.
fn observe_scopes(session: &mut Session<'_>, query: &StateQuery, failures: &mut Vec<String>) -> NetState {
    let mut observed = NetState::default();
    for (scope, part) in &query.scopes {
        match session.observe(&StateQuery::default().with_scope(scope.clone(), part.clone())) {
            Ok(mut state) => observed.scopes.append(&mut state.scopes),
            Err(Error::NoNamespace { .. }) => {}
            Err(error) => failures.push(format!("{scope}: {error}")),
        }
    }
    observed
}

fn apply_inverse(
    transaction: &mut Transaction<'_, '_>,
    planned: &PlannedStep,
    observed: &NetState,
) -> Result<(), Failure> {
    if let Step::DeleteLink { link, peer } = &planned.step {
        if let Some(outcome) = move_device_back(transaction, planned, link, observed) {
            return outcome;
        }
        // Deleting either end deletes both. After a crash one end may still lack its mark.
        let far = peer.as_ref().map(|(scope, link)| (scope, link));
        let mut ends = far.into_iter().chain([(&planned.scope, link)]);
        for (scope, link) in ends.clone() {
            transaction.forget_index(scope, &link.name);
        }
        let found = ends.find_map(|(scope, link)| Some((scope, find_owned(observed, scope, link)?)));
        return found.map_or(Ok(()), |(scope, link)| deletes::queue_delete(transaction, 0, scope, link));
    }
    // A scope without observed state is gone, or its error is reported already.
    let Some(state) = observed.scopes.get(&planned.scope) else { return Ok(()) };
    if has_effect(&planned.step, state) { transaction.apply_step(0, planned) } else { Ok(()) }
}

/// Moves a NIC back from its sandbox, or restores it on the host, where a crash may have left it with its mark.
fn move_device_back(
    transaction: &mut Transaction<'_, '_>,
    planned: &PlannedStep,
    created: &Link,
    observed: &NetState,
) -> Option<Result<(), Failure>> {
    let device = created.device()?;
    let locations = [(&planned.scope, &created.name), (&Scope::Host, device)];
    let found = locations.into_iter().find_map(|(scope, name)| {
        Some((
            scope,
            observed.link(scope, name).filter(|observed| moved_device::is_same_device(observed, created))?,
        ))
    });
    found.map_or(Some(Ok(())), |(scope, link)| moved_device::move_back(transaction, 0, scope, link))
}

/// The observed link, if it is the one that Knit created.
fn find_owned<'a>(observed: &'a NetState, scope: &Scope, created: &Link) -> Option<&'a Link> {
    let link = observed.link(scope, &created.name)?;
    let is_unmarked = link.owner.is_none() && link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP);
    (is_unmarked || (link.owner.is_some() && link.owner == created.owner)).then_some(link)
}

fn has_effect(step: &Step, observed: &ScopeState) -> bool {
    match step {
        Step::RemoveAddress(address) => {
            observed.addresses.get(&address.key()).is_some_and(|existing| existing.owned)
        }
        Step::RemoveNeighbour(neighbour) => {
            observed.neighbours.get(&neighbour.key()).is_some_and(|existing| existing.owned)
        }
        Step::RemoveRoute(route) => observed.routes.get(&route.key()).is_some_and(|existing| existing.owned),
        // A foreign link that has the name now keeps it.
        Step::CreateLink { link, .. } => {
            observed.links.get(&link.name).is_none_or(|existing| existing.owner == link.owner)
        }
        _ => true,
    }
}
