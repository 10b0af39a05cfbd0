//! Quotas of namespaces: the number of interfaces, addresses and bridges.
//!
//! A quota from a file applies to this node. A quota from an API server applies to the whole cluster: a node may use
//! what it has claimed ([`QuotaClaims`]) and creates nothing new before that. Existing interfaces stay, whatever the
//! quota. Claims are not persistent: after a restart they are listed again.

mod claims;

use std::collections::BTreeSet;

use knit_model::SandboxId;
use knit_model::intent::IntentSpec;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::quota::{QuotaIntent, ResourceCounts};

use crate::call::ATTACHMENT_KIND;
use crate::event::Unit;
use crate::state::{ObjectKey, State, StoredObject, UnitState};

pub(crate) use self::claims::SharedQuotas;
pub use self::claims::{ClaimRequest, QuotaClaims, QuotaEvent};

/// The kind of quotas.
pub const KIND: &str = "NetworkQuota";

impl State {
    /// What objects of a namespace use on this node, including changes in flight.
    pub fn used_by(&self, namespace: &str) -> ResourceCounts {
        let unit_state = self.units.iter().map(|(unit, unit_state)| {
            let in_flight =
                self.in_flight.get(unit).map(|change| count(unit, &change.resolved.unit_state, namespace));
            count(unit, unit_state, namespace).max(in_flight.unwrap_or_default())
        });
        let new = self.in_flight.iter().filter(|(unit, _)| !self.units.contains_key(unit));
        let new = new.map(|(unit, change)| count(unit, &change.resolved.unit_state, namespace));
        unit_state.chain(new).fold(ResourceCounts::default(), |all, one| all + one)
    }

    /// What objects of a namespace request beyond the quota on this node.
    pub fn denied_to(&self, namespace: &str) -> ResourceCounts {
        let mine = self.denied.iter().filter(|(unit, _)| self.is_of(unit, namespace));
        mine.fold(ResourceCounts::default(), |all, (_, one)| all + *one)
    }

    /// Units of a namespace with denied requests.
    fn denied_units<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Unit> {
        self.denied.keys().filter(move |unit| self.is_of(unit, namespace))
    }

    /// Units of a namespace that a quota blocks, directly or through their bridge.
    pub(crate) fn blocked_by_quota(&self, namespace: &str) -> Vec<Unit> {
        let is_quota = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::QuotaExceeded;
        let blocked = self.problems.iter().filter(|(_, problems)| problems.iter().any(is_quota));
        let blocked = blocked.map(|(unit, _)| unit).filter(|unit| self.is_of(unit, namespace));
        blocked.chain(self.denied_units(namespace)).cloned().collect()
    }

    /// Whether a unit that a quota blocked is being retried.
    fn is_retrying_denied(&self, namespace: &str) -> bool {
        let mut blocked = self.blocked_by_quota(namespace).into_iter();
        blocked.any(|unit| self.in_flight.contains_key(&unit) || self.dirty.contains(&unit))
    }

    /// What this node may use of a cluster-wide quota; `None` if its claims are unknown.
    pub fn granted_quota(&self, quota: &ObjectKey) -> Option<ResourceCounts> {
        let uid = &self.objects.get(quota)?.object.uid;
        self.shared_quotas.get(quota, uid).map(claims::SharedQuota::granted)
    }

    /// Whether a claim for this version of a quota is requested and has no result.
    pub fn is_claiming_quota(&self, quota: &ObjectKey, version: u64) -> bool {
        self.shared_quotas.is_claiming(quota, version)
    }

    /// Namespaces with denied requests whose claims have no result so far: not a problem yet.
    pub fn namespaces_awaiting_quota(&self) -> BTreeSet<&str> {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
        let quotas = self.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
        let open = quotas.filter(|(key, stored)| {
            let is_settled = || {
                let known = self.shared_quotas.get(key, &stored.object.uid);
                known.is_some_and(claims::SharedQuota::is_settled)
            };
            let is_claiming = || !self.denied_to(&key.namespace).is_zero() && !is_settled();
            is_shared(stored) && (is_claiming() || self.is_retrying_denied(&key.namespace))
        });
        open.map(|(key, _)| key.namespace.as_str()).collect()
    }

    /// The sandboxes that wait for a claim.
    pub fn sandboxes_awaiting_quota(&self) -> BTreeSet<SandboxId> {
        let namespaces = self.namespaces_awaiting_quota().into_iter();
        let units = namespaces.flat_map(|namespace| self.blocked_by_quota(namespace));
        units.filter_map(|unit| unit.sandbox().cloned()).collect()
    }

    /// The cluster-wide quotas of a namespace, each with the uid of its object.
    pub(crate) fn shared_quotas_of(&self, namespace: &str) -> Vec<(ObjectKey, String)> {
        let quotas = self.quotas(namespace).filter(|(_, stored, _)| is_shared(stored));
        quotas.map(|(key, stored, _)| (key.clone(), stored.object.uid.clone())).collect()
    }

    /// The objects of a namespace with a quota problem.
    pub(crate) fn objects_beyond_quota(&self, namespace: &str) -> BTreeSet<ObjectKey> {
        let blocked = self.blocked_by_quota(namespace).into_iter();
        let problems = blocked.filter_map(|unit| self.problems.get(&unit)).flatten();
        let problems = problems.filter(|(_, problem)| problem.reason == Reason::QuotaExceeded);
        problems.map(|(object, _)| object.clone()).collect()
    }

    /// Checks whether the namespace may use `more`, besides `beside`; the error is the message.
    pub(crate) fn check_namespace_quota(
        &self,
        namespace: &str,
        beside: ResourceCounts,
        more: ResourceCounts,
    ) -> Result<(), String> {
        let mut quotas = self.quotas(namespace).peekable();
        if quotas.peek().is_none() {
            return Ok(());
        }
        let used = self.used_by(namespace);
        for (key, stored, hard) in quotas {
            let granted = match is_shared(stored) {
                // Without a limit no claim is necessary.
                true => self.granted_quota(key).unwrap_or_default().max(unlimited(hard)),
                false => hard.counts(),
            };
            let requested = used + beside + more;
            let checks = [
                ("interfaces", hard.interfaces, more.interfaces, requested.interfaces > granted.interfaces),
                ("addresses", hard.addresses, more.addresses, requested.addresses > granted.addresses),
                ("bridges", hard.bridges, more.bridges, requested.bridges > granted.bridges),
            ];
            for (what, hard, more, is_too_much) in checks {
                if let (Some(hard), true, true) = (hard, more > 0, is_too_much) {
                    let all = if is_shared(stored) { "on all nodes" } else { "on this node" };
                    return Err(format!(
                        "namespace {namespace} may have {hard} {what} {all} (networkquota {}): {more} more would exceed it",
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
            Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => false,
        }
    }
}

/// Whether a quota is cluster-wide.
fn is_shared(stored: &StoredObject) -> bool {
    stored.intents.iter().any(|intent| intent.origin.dialect == Dialect::Kubernetes)
}

/// The maximum of every resource without a limit.
fn unlimited(hard: QuotaIntent) -> ResourceCounts {
    let of = |hard: Option<u64>| if hard.is_none() { u64::MAX } else { 0 };
    ResourceCounts {
        interfaces: of(hard.interfaces),
        addresses: of(hard.addresses),
        bridges: of(hard.bridges),
    }
}

/// What objects of a namespace use in a unit. Attachments are not counted.
pub(crate) fn count(unit: &Unit, unit_state: &UnitState, namespace: &str) -> ResourceCounts {
    let is_mine = |object: &ObjectKey| object.namespace == namespace && object.kind != ATTACHMENT_KIND;
    let mine =
        unit_state.interfaces.iter().filter(|(object, _)| is_mine(object)).map(|(_, interface)| interface);
    let is_bridge =
        matches!(unit, Unit::Bridge(key) if key.namespace == namespace) && unit_state.bridge.is_some();
    ResourceCounts {
        interfaces: mine.clone().count() as u64,
        addresses: mine.map(|interface| interface.addresses.len() as u64).sum(),
        bridges: u64::from(is_bridge),
    }
}
