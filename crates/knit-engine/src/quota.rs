//! Quotas of namespaces: how many interfaces, addresses and bridges there may be.
//!
//! A quota from a file is this node's alone. One from an API server holds for all nodes together: of it a node may use what
//! it was told it may ([`crate::Event::Allowed`]), and before it was told it makes nothing new. Whoever tells has claimed
//! that much for this node where all nodes claim. What is there already stays, whatever a quota says.

use knit_model::intent::IntentSpec;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::quota::{Counts, QuotaIntent};

use crate::call::ATTACHMENT;
use crate::event::Unit;
use crate::state::{Made, ObjectKey, State, StoredObject};

/// The kind of quotas.
pub const KIND: &str = "NetworkQuota";

impl State {
    /// What objects of a namespace have on this node, or are about to have.
    pub fn used_by(&self, namespace: &str) -> Counts {
        let made = self.made.iter().map(|(unit, made)| {
            let flying = self.flights.get(unit).map(|flight| count(unit, &flight.resolved.made, namespace));
            count(unit, made, namespace).max(flying.unwrap_or_default())
        });
        let new = self.flights.iter().filter(|(unit, _)| !self.made.contains_key(unit));
        let new = new.map(|(unit, flight)| count(unit, &flight.resolved.made, namespace));
        made.chain(new).fold(Counts::default(), |all, one| all + one)
    }

    /// What objects of a namespace ask for on this node beside that, and may not have.
    pub fn refused_to(&self, namespace: &str) -> Counts {
        let mine = self.refused.iter().filter(|(unit, _)| self.is_of(unit, namespace));
        mine.fold(Counts::default(), |all, (_, one)| all + *one)
    }

    /// Units of a namespace that may not have all that they ask for.
    pub fn refused_units<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Unit> {
        self.refused.keys().filter(move |unit| self.is_of(unit, namespace))
    }

    /// Units of a namespace that a quota is in the way of: also where it is in the way of their bridge.
    pub fn blocked_by_quota(&self, namespace: &str) -> Vec<Unit> {
        let is_quota = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::QuotaExceeded;
        let blocked = self.problems.iter().filter(|(_, problems)| problems.iter().any(is_quota));
        let blocked = blocked.map(|(unit, _)| unit).filter(|unit| self.is_of(unit, namespace));
        blocked.chain(self.refused_units(namespace)).cloned().collect()
    }

    /// Whether something that a quota was in the way of is being tried again.
    pub fn tries_again(&self, namespace: &str) -> bool {
        let mut blocked = self.blocked_by_quota(namespace).into_iter();
        blocked.any(|unit| self.flights.contains_key(&unit) || self.dirty.contains(&unit))
    }

    /// What this node was told that it may use of a quota.
    pub fn allowance(&self, quota: &ObjectKey) -> Option<Counts> {
        self.allowances.get(quota).copied()
    }

    /// Quotas that hold for all nodes together.
    pub fn shared_quotas(&self) -> impl Iterator<Item = &ObjectKey> {
        let quotas = self.objects.iter().filter(|(key, _)| key.kind == KIND);
        quotas.filter(|(_, stored)| is_shared(stored)).map(|(key, _)| key)
    }

    /// Whether a namespace may have this much more, beside what is about to be made; otherwise why not.
    pub(crate) fn has_room(&self, namespace: &str, beside: Counts, more: Counts) -> Result<(), String> {
        let mut quotas = self.quotas(namespace).peekable();
        if quotas.peek().is_none() {
            return Ok(());
        }
        let used = self.used_by(namespace);
        for (key, stored, hard) in quotas {
            let allowed = match is_shared(stored) {
                // Where there is no limit, nobody has to be asked.
                true => self.allowance(key).unwrap_or(used).max(unlimited(hard)),
                false => hard.counts(),
            };
            let wanted = used + beside + more;
            let words = [
                ("interfaces", hard.interfaces, more.interfaces, wanted.interfaces > allowed.interfaces),
                ("addresses", hard.addresses, more.addresses, wanted.addresses > allowed.addresses),
                ("bridges", hard.bridges, more.bridges, wanted.bridges > allowed.bridges),
            ];
            for (what, hard, more, is_too_much) in words {
                if let (Some(hard), true, true) = (hard, more > 0, is_too_much) {
                    let all = if is_shared(stored) { "on all nodes" } else { "on this node" };
                    return Err(format!(
                        "namespace {namespace} may have {hard} {what} {all} (networkquota {}), and {more} more would be too many",
                        key.name
                    ));
                }
            }
        }
        Ok(())
    }

    fn quotas<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a StoredObject, QuotaIntent)> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: namespace.to_owned(), name: String::new() };
        let mine = self.objects.range(first..);
        let mine = mine.take_while(move |(key, _)| key.kind == KIND && key.namespace == namespace);
        mine.flat_map(|(key, stored)| {
            stored.intents.iter().filter_map(move |intent| match &intent.spec {
                IntentSpec::Quota(hard) => Some((key, stored, *hard)),
                _ => None,
            })
        })
    }

    fn is_of(&self, unit: &Unit, namespace: &str) -> bool {
        match unit {
            Unit::Bridge(key) => key.namespace == namespace,
            Unit::Sandbox(id) => self.sandboxes.get(id).is_some_and(|pod| pod.namespace == namespace),
            Unit::NodeRoutes => false,
        }
    }
}

/// Whether a quota holds for all nodes together.
fn is_shared(stored: &StoredObject) -> bool {
    stored.intents.iter().any(|intent| intent.origin.dialect == Dialect::Kubernetes)
}

/// More than there can be, of what has no limit.
fn unlimited(hard: QuotaIntent) -> Counts {
    let of = |hard: Option<u64>| if hard.is_none() { u64::MAX } else { 0 };
    Counts { interfaces: of(hard.interfaces), addresses: of(hard.addresses), bridges: of(hard.bridges) }
}

/// What of a unit objects of a namespace have. What calls asked for is not counted.
pub(crate) fn count(unit: &Unit, made: &Made, namespace: &str) -> Counts {
    let is_mine = |object: &ObjectKey| object.namespace == namespace && object.kind != ATTACHMENT;
    let mine = made.interfaces.iter().filter(|(object, _)| is_mine(object)).map(|(_, interface)| interface);
    let is_bridge = matches!(unit, Unit::Bridge(key) if key.namespace == namespace) && made.bridge.is_some();
    Counts {
        interfaces: mine.clone().count() as u64,
        addresses: mine.map(|interface| interface.addresses.len() as u64).sum(),
        bridges: u64::from(is_bridge),
    }
}
