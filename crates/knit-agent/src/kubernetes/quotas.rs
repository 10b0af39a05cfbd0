//! This node's share of quotas that apply to all nodes together.
//!
//! A NetworkQuota's status has a claim for each node; the sum of all claims is within the quota. An agent changes its own claim in one
//! request, which the API server rejects if the object has changed since it was read, so two nodes never claim the same remainder. The
//! node's use stays within its claim at any time: a larger claim is written before it is used; a smaller one is fed to the loop before it
//! is written.
//!
//! A claim covers what is used and what is requested, as far as the quota allows. What a node cannot use because of another problem stays
//! claimed, and is not available to other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knit_crds::kinds::{NetworkQuota, UsedCounts};
use knit_engine::quota::KIND;
use knit_engine::{Event, ObjectKey, State, Unit};
use knit_kube::kube::api::{DynamicObject, Patch, PatchParams};
use knit_kube::kube::{self, Api, ResourceExt};
use knit_kube::{FIELD_MANAGER, WatchUpdate};
use knit_model::SandboxId;
use knit_model::quota::ResourceCounts;
use serde_json::json;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Context;
use super::state_follower::{StateFollower, notified};

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(5);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The known quotas and what was claimed of them.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Each as last read or written.
    known: Mutex<BTreeMap<ObjectKey, NetworkQuota>>,
    /// Wakes the claiming task.
    changed: Notify,
    /// The last request of each quota that has a result.
    claimed: Mutex<BTreeMap<ObjectKey, ResourceCounts>>,
}

impl Quotas {
    fn known(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, NetworkQuota>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, ResourceCounts>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a watch event. Invalid quotas are skipped: the loop does not know them either.
    pub(super) fn handle(&self, seen: WatchUpdate<DynamicObject>) {
        let Some(seen) = seen.filter_map(|found| found.try_parse::<NetworkQuota>().ok()) else { return };
        match seen {
            WatchUpdate::Listed(all) => {
                let there: BTreeSet<ObjectKey> = all.iter().map(key_of).collect();
                self.known().retain(|key, _| there.contains(key));
                all.into_iter().for_each(|quota| self.store(quota));
            }
            WatchUpdate::Applied(quota) => self.store(quota),
            WatchUpdate::Deleted(quota) => {
                self.known().remove(&key_of(&quota));
            }
        }
        self.changed.notify_one();
    }

    /// Stores a quota, unless it is older than the last write.
    fn store(&self, quota: NetworkQuota) {
        let mut known = self.known();
        let key = key_of(&quota);
        let is_older = known.get(&key).is_some_and(|have| {
            have.uid() == quota.uid() && resource_version(have) > resource_version(&quota)
        });
        if !is_older {
            known.insert(key, quota);
        }
    }

    /// Namespaces with rejected requests that are still being claimed: not a problem yet.
    pub(super) fn waiting<'a>(&self, state: &'a State) -> BTreeSet<&'a str> {
        let claimed = self.claimed();
        let open = state.shared_quotas().filter(|quota| {
            let is_refused = !state.denied_to(&quota.namespace).is_zero();
            let is_open = is_refused && claimed.get(*quota) != Some(&need(state, &quota.namespace));
            is_open || state.is_retrying_denied(&quota.namespace)
        });
        open.map(|quota| quota.namespace.as_str()).collect()
    }

    /// The sandboxes that wait for a claim.
    pub(super) fn sandboxes_waiting(&self, state: &State) -> BTreeSet<SandboxId> {
        let namespaces = self.waiting(state).into_iter();
        let units = namespaces.flat_map(|namespace| state.blocked_by_quota(namespace));
        let sandboxes = units.filter_map(|unit| match unit {
            Unit::Sandbox(id) => Some(id),
            Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter => None,
        });
        sandboxes.collect()
    }
}

/// What a namespace uses and requests on this node.
fn need(state: &State, namespace: &str) -> ResourceCounts {
    state.used_by(namespace) + state.denied_to(namespace)
}

/// Claims quotas.
pub(super) async fn run(context: Context) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    loop {
        let quotas: Vec<NetworkQuota> = context.quotas.known().values().cloned().collect();
        let mut succeeded = true;
        for quota in quotas {
            match claim(&context, &quota).await {
                Ok(()) => {}
                // Another node was faster: the watch delivers its write.
                Err(kube::Error::Api(why)) if why.code == 409 => succeeded = false,
                Err(why) => {
                    tracing::warn!(quota = %key_of(&quota), error = %why, "cannot claim the quota; retrying");
                    succeeded = false;
                }
            }
        }
        let retry = (!succeeded).then(|| Instant::now() + RETRY_INTERVAL);
        if state.changed(notified(&context.quotas.changed), retry).await.is_err() {
            return;
        }
    }
}

/// The resource version as a number. Versions of one object grow.
fn resource_version(quota: &NetworkQuota) -> u64 {
    quota.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Adjusts this node's claim to its need, as far as the quota allows, and the grant in the loop to the claim.
async fn claim(context: &Context, quota: &NetworkQuota) -> kube::Result<()> {
    let key = key_of(quota);
    let claims = quota.status.as_ref().map(|status| status.claims.clone()).unwrap_or_default();
    let others = claims.iter().filter(|(node, _)| **node != *context.node);
    let others = others.fold(ResourceCounts::default(), |all, (_, one)| all + ResourceCounts::from(*one));
    let current = claims.get(&*context.node).copied().map(ResourceCounts::from).unwrap_or_default();
    let free = quota.spec.hard().counts() - others;
    let (answer, answered) = oneshot::channel();
    let quota_key = key.clone();
    context.handle.feed(move |state| {
        let used = state.used_by(&quota_key.namespace);
        let needed = need(state, &quota_key.namespace);
        let target = needed.min(free).max(used);
        // From now on nothing beyond the target is created.
        let now = state.granted_quota(&quota_key).unwrap_or(used).min(target);
        let _ = answer.send((needed, target));
        vec![Event::QuotaGranted { quota: quota_key, counts: now }]
    });
    let Ok((needed, target)) = answered.await else { return Ok(()) };
    if target != current {
        let claim = (!target.is_zero()).then(|| UsedCounts::from(target));
        let patch = json!({
            "metadata": {"resourceVersion": quota.resource_version()},
            "status": {"claims": {&*context.node: claim}, "used": UsedCounts::from(others + target)},
        });
        let api: Api<NetworkQuota> = Api::namespaced(context.client.clone(), &key.namespace);
        let params =
            PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
        let written = api.patch_status(&key.name, &params, &Patch::Merge(&patch)).await?;
        context.quotas.store(written);
    }
    context.handle.submit(Event::QuotaGranted { quota: key.clone(), counts: target });
    if context.quotas.claimed().insert(key, needed) != Some(needed) {
        context.pods_changed.notify_one();
    }
    Ok(())
}

fn key_of(quota: &NetworkQuota) -> ObjectKey {
    ObjectKey {
        kind: KIND.to_owned(),
        namespace: quota.namespace().unwrap_or_default(),
        name: quota.name_any(),
    }
}
