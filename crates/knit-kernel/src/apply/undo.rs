//! Taking steps back. Errors are collected, and the rest is still taken back.
//!
//! How far the steps came is not known after a crash, so that each inverse is carried out only where there is something
//! to take back: what is to be removed must be there with Knit's mark, what is to be brought back may be there already.

use knit_model::link::Link;
use knit_model::plan::{Planned, Step};
use knit_model::{NetState, Scope, ScopeState, marks};

use super::transaction::{Failure, Transaction};
use super::{Deletes, deletes, devices};
use crate::error::Error;
use crate::kernel::Room;
use crate::observe::{Look, look_of};

/// Takes steps back, the last one first. Returns what could not be taken back, in words.
pub(super) fn undo(room: &mut Room<'_>, steps: &[&Planned]) -> Vec<String> {
    let mut left = Vec::new();
    let seen = see(room, &look_of(steps.iter().copied()), &mut left);
    let mut transaction = Transaction::new(room, Deletes::Now);
    transaction.backward = true;
    for planned in steps.iter().rev().filter(|planned| !planned.step.is_final()) {
        let inverse = planned.inverse();
        let outcome = take(&mut transaction, &inverse, &seen).and_then(|()| transaction.finish());
        if let Err(Failure { error, .. }) = outcome {
            left.push(format!("{}: {} {}: {error}", inverse.scope, inverse.step.mark(), inverse.step));
        }
    }
    left
}

/// Looks at each scope by itself: one that is gone does not keep the others from being cleaned.
fn see(room: &mut Room<'_>, look: &Look, left: &mut Vec<String>) -> NetState {
    let mut seen = NetState::default();
    for (scope, part) in &look.scopes {
        match room.observe(&Look::default().at(scope.clone(), part.clone())) {
            Ok(mut state) => seen.scopes.append(&mut state.scopes),
            Err(Error::NoNamespace { .. }) => {}
            Err(error) => left.push(format!("{scope}: {error}")),
        }
    }
    seen
}

fn take(transaction: &mut Transaction<'_, '_>, planned: &Planned, seen: &NetState) -> Result<(), Failure> {
    if let Step::DeleteLink { link, peer } = &planned.step {
        if let Some(outcome) = give_back(transaction, planned, link, seen) {
            return outcome;
        }
        // Either end takes the other along; after a crash one may still be without its mark.
        let far = peer.as_ref().map(|(scope, link)| (scope, link));
        let mut ends = far.into_iter().chain([(&planned.scope, link)]);
        for (scope, link) in ends.clone() {
            transaction.forget(scope, &link.name);
        }
        let found = ends.find_map(|(scope, link)| Some((scope, ours(seen, scope, link)?)));
        return found.map_or(Ok(()), |(scope, link)| deletes::doom(transaction, 0, scope, link));
    }
    // A scope that could not be looked at is gone, or was told of already.
    let Some(state) = seen.scopes.get(&planned.scope) else { return Ok(()) };
    if is_worth_it(&planned.step, state) { transaction.take(0, planned) } else { Ok(()) }
}

/// Gives a NIC back from wherever it came to: its sandbox, or the host, where a crash may have left it with its mark.
fn give_back(
    transaction: &mut Transaction<'_, '_>,
    planned: &Planned,
    made: &Link,
    seen: &NetState,
) -> Option<Result<(), Failure>> {
    let device = made.device()?;
    let places = [(&planned.scope, &made.name), (&Scope::Host, device)];
    let found = places.into_iter().find_map(|(scope, name)| {
        Some((scope, seen.link(scope, name).filter(|seen| devices::is_this(seen, made))?))
    });
    found.map_or(Some(Ok(())), |(scope, link)| devices::give_back(transaction, 0, scope, link))
}

/// The link as it is now, if it is the one that Knit made.
fn ours<'a>(seen: &'a NetState, scope: &Scope, made: &Link) -> Option<&'a Link> {
    let link = seen.link(scope, &made.name)?;
    let is_newborn = link.owner.is_none() && link.attrs.group == Some(marks::BIRTH_GROUP);
    (is_newborn || (link.owner.is_some() && link.owner == made.owner)).then_some(link)
}

fn is_worth_it(step: &Step, seen: &ScopeState) -> bool {
    match step {
        Step::RemoveAddress(address) => seen.addresses.get(&address.key()).is_some_and(|there| there.owned),
        Step::RemoveNeighbour(neighbour) => {
            seen.neighbours.get(&neighbour.key()).is_some_and(|there| there.owned)
        }
        Step::RemoveRoute(route) => seen.routes.get(&route.key()).is_some_and(|there| there.owned),
        // A stranger that has the name now keeps it.
        Step::CreateLink { link, .. } => {
            seen.links.get(&link.name).is_none_or(|there| there.owner == link.owner)
        }
        _ => true,
    }
}
