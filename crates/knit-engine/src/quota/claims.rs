//! Claims: this node's share of each cluster-wide quota.
//!
//! A quota's object has a claim for each node; the sum of all claims is within the quota. A node changes its own claim in
//! one request, which the API server rejects if the object has changed since it was read, so two nodes never claim the
//! same remainder. A claim covers what is used and what is requested, as far as the quota allows. What a node cannot use
//! because of another problem stays claimed, and is not available to other nodes.
//!
//! Invariant: the node's use stays within its claim. A larger claim is used after it is acknowledged; a smaller one takes
//! effect when it is requested. There is one request for each version of the object, and the host repeats it unchanged
//! until it has a result: once a newer version is known, no earlier request can change the claim any more.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::quota::ResourceCounts;
use serde::{Deserialize, Serialize};

use super::KIND;
use crate::state::ObjectKey;

/// A cluster-wide quota and its claims, as stored by the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaClaims {
    /// The quota.
    pub key: ObjectKey,
    /// The uid of its object: a name may be deleted and created again.
    pub uid: String,
    /// The resource version. Versions of one object grow.
    pub version: u64,
    /// The limits; `u64::MAX` for unlimited.
    pub hard: ResourceCounts,
    /// This node's claim.
    pub own: ResourceCounts,
    /// The sum of the other nodes' claims.
    pub others: ResourceCounts,
}

/// A change of cluster-wide quotas or their claims, or the result of a [`ClaimRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuotaEvent {
    /// The complete list of quotas.
    Listed(Vec<QuotaClaims>),
    /// A quota was created or updated, by any node.
    Applied(QuotaClaims),
    /// A quota was deleted.
    Deleted(ObjectKey),
    /// A claim was written; the quota after that. A request that another write preceded has no result: the watch
    /// delivers that write.
    ClaimWritten(QuotaClaims),
}

/// A request to the host: write this node's claim if the quota still has this version. Until it is written or rejected,
/// the host repeats it unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The quota.
    pub key: ObjectKey,
    /// The expected resource version.
    pub version: u64,
    /// This node's new claim.
    pub claim: ResourceCounts,
    /// The new sum of all claims.
    pub used: ResourceCounts,
}

/// All cluster-wide quotas, and the namespaces whose claims may be outdated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedQuotas {
    #[serde(with = "knit_model::serde_pairs")]
    known: BTreeMap<ObjectKey, SharedQuota>,
    /// Namespaces whose use, denied requests or quotas changed since their claims were computed.
    dirty: BTreeSet<String>,
}

/// A quota and the progress of this node's claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedQuota {
    claims: QuotaClaims,
    progress: ClaimProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ClaimProgress {
    /// The quota is new, or it was written since the last request.
    Due,
    /// This claim is requested.
    Requested(ResourceCounts),
    /// The claim covers what is needed, as far as the quota allows.
    Settled,
}

impl SharedQuotas {
    /// The quota with this key and uid.
    pub(crate) fn get(&self, key: &ObjectKey, uid: &str) -> Option<&SharedQuota> {
        self.known.get(key).filter(|quota| quota.claims.uid == uid)
    }

    /// The quota with this key and uid, to compute its claim.
    pub(crate) fn get_mut(&mut self, key: &ObjectKey, uid: &str) -> Option<&mut SharedQuota> {
        self.known.get_mut(key).filter(|quota| quota.claims.uid == uid)
    }

    /// Stores a quota unless this or a newer version is known: list and watch results may be older than the last write.
    /// Returns whether it was stored.
    pub(crate) fn store(&mut self, claims: QuotaClaims) -> bool {
        let known = self.get(&claims.key, &claims.uid);
        if known.is_some_and(|known| known.claims.version >= claims.version) {
            return false;
        }
        let was_settled = known.is_some_and(SharedQuota::is_settled);
        let progress = if was_settled { ClaimProgress::Settled } else { ClaimProgress::Due };
        self.dirty.insert(claims.key.namespace.clone());
        self.known.insert(claims.key.clone(), SharedQuota { claims, progress });
        true
    }

    /// Removes a quota that was deleted.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        self.known.remove(key);
    }

    /// Removes all quotas that are not in a complete list.
    pub(crate) fn retain(&mut self, listed: &BTreeSet<ObjectKey>) {
        self.known.retain(|key, _| listed.contains(key));
    }

    /// Whether a claim for this version of a quota is requested.
    pub(crate) fn is_claiming(&self, key: &ObjectKey, version: u64) -> bool {
        let known = self.known.get(key).filter(|quota| quota.claims.version == version);
        known.is_some_and(|quota| matches!(quota.progress, ClaimProgress::Requested(_)))
    }

    /// Whether no quota is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The claims of a namespace are computed again, if it has a quota.
    pub(crate) fn mark_dirty(&mut self, namespace: &str) {
        let first = ObjectKey { kind: KIND.to_owned(), namespace: namespace.to_owned(), name: String::new() };
        if self.known.range(first..).next().is_some_and(|(key, _)| key.namespace == namespace) {
            self.dirty.insert(namespace.to_owned());
        }
    }

    /// The namespaces whose claims are to be computed again.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.dirty)
    }
}

impl SharedQuota {
    /// What this node may use: its claim, or less if a smaller one is requested.
    pub(crate) fn granted(&self) -> ResourceCounts {
        match self.progress {
            ClaimProgress::Requested(claim) => self.claims.own.min(claim),
            ClaimProgress::Due | ClaimProgress::Settled => self.claims.own,
        }
    }

    /// Whether the claim covers what is needed, as far as the quota allows.
    pub(crate) fn is_settled(&self) -> bool {
        self.progress == ClaimProgress::Settled
    }

    /// Adjusts the claim to what is used and needed. Returns the request, if one is necessary and none is in flight.
    pub(crate) fn adjust(&mut self, used: ResourceCounts, needed: ResourceCounts) -> Option<ClaimRequest> {
        if let ClaimProgress::Requested(_) = self.progress {
            return None;
        }
        let QuotaClaims { key, version, hard, own, others, .. } = &self.claims;
        let claim = needed.min(*hard - *others).max(used);
        if claim == *own {
            self.progress = ClaimProgress::Settled;
            return None;
        }
        self.progress = ClaimProgress::Requested(claim);
        Some(ClaimRequest { key: key.clone(), version: *version, claim, used: *others + claim })
    }
}
