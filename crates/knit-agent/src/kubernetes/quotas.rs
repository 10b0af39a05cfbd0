//! What this node may use of quotas that hold for all nodes together.
//!
//! A NetworkQuota's status has a claim for each node; the sum of all claims is within the quota. An agent changes its own
//! claim in one request, which the API server refuses if anyone has changed the object since it was read: so two nodes
//! never take the same rest, and nobody has to hand it out. The order keeps the node's use within its claim at every
//! moment: a larger claim is written first and used then; of a smaller one the loop hears first.
//!
//! A claim is what is there and what is asked for, as far as there is room. So what a node cannot use because something
//! else is in its way is still claimed, and no other node can have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knit_crds::kinds::{NetworkQuota, UsedCounts};
use knit_engine::quota::KIND;
use knit_engine::{Event, ObjectKey, State, Unit};
use knit_kube::kube::api::{DynamicObject, Patch, PatchParams};
use knit_kube::kube::{self, Api, ResourceExt};
use knit_kube::{MANAGER, Seen};
use knit_model::SandboxId;
use knit_model::quota::Counts;
use serde_json::json;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::Shared;

/// Changes often come in groups: so long after the first it is looked what is needed.
const GROUP: Duration = Duration::from_millis(5);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// The quotas that there are, and what was claimed of them.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Each as it was read or written last.
    known: Mutex<BTreeMap<ObjectKey, NetworkQuota>>,
    /// There is more to know.
    news: Notify,
    /// What was last asked for of each and answered: as much of it was claimed as there is.
    answered: Mutex<BTreeMap<ObjectKey, Counts>>,
}

impl Quotas {
    fn known(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, NetworkQuota>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Counts>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears what the watch of their kind tells. One that cannot be read is left out: the loop does not know it either.
    pub(super) fn hear(&self, seen: Seen<DynamicObject>) {
        let Some(seen) = seen.filter_map(|found| found.try_parse::<NetworkQuota>().ok()) else { return };
        match seen {
            Seen::Listed(all) => {
                let there: BTreeSet<ObjectKey> = all.iter().map(key_of).collect();
                self.known().retain(|key, _| there.contains(key));
                all.into_iter().for_each(|quota| self.learn(quota));
            }
            Seen::Applied(quota) => self.learn(quota),
            Seen::Deleted(quota) => {
                self.known().remove(&key_of(&quota));
            }
        }
        self.news.notify_one();
    }

    /// A watch may tell of a time before the last write: then what was written counts.
    fn learn(&self, quota: NetworkQuota) {
        let mut known = self.known();
        let key = key_of(&quota);
        let is_older =
            known.get(&key).is_some_and(|have| have.uid() == quota.uid() && age(have) > age(&quota));
        if !is_older {
            known.insert(key, quota);
        }
    }

    /// Namespaces in which something was refused that is still being asked for: no problem yet.
    pub(super) fn waiting<'a>(&self, state: &'a State) -> BTreeSet<&'a str> {
        let answered = self.answered();
        let open = state.shared_quotas().filter(|quota| {
            let is_refused = !state.refused_to(&quota.namespace).is_zero();
            let is_open = is_refused && answered.get(*quota) != Some(&need(state, &quota.namespace));
            is_open || state.tries_again(&quota.namespace)
        });
        open.map(|quota| quota.namespace.as_str()).collect()
    }

    /// The sandboxes there that a quota is in the way of so far.
    pub(super) fn sandboxes_waiting(&self, state: &State) -> BTreeSet<SandboxId> {
        let namespaces = self.waiting(state).into_iter();
        let units = namespaces.flat_map(|namespace| state.blocked_by_quota(namespace));
        let sandboxes = units.filter_map(|unit| match unit {
            Unit::Sandbox(id) => Some(id),
            Unit::Bridge(_) | Unit::NodeRoutes => None,
        });
        sandboxes.collect()
    }
}

/// What a namespace has and asks for on this node.
fn need(state: &State, namespace: &str) -> Counts {
    state.used_by(namespace) + state.refused_to(namespace)
}

/// Claims for as long as it is polled.
pub(super) async fn follow(shared: Shared) {
    let mut version = shared.handle.version();
    loop {
        let quotas: Vec<NetworkQuota> = shared.quotas.known().values().cloned().collect();
        let mut all = true;
        for quota in quotas {
            match settle(&shared, &quota).await {
                Ok(()) => {}
                // Another node was faster: the watch brings what it wrote.
                Err(kube::Error::Api(why)) if why.code == 409 => all = false,
                Err(why) => {
                    tracing::warn!(quota = %key_of(&quota), %why, "nothing could be claimed; it is tried again");
                    all = false;
                }
            }
        }
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = shared.quotas.news.notified() => {}
            () = sleep(AGAIN), if !all => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
}

/// Versions of one object grow.
fn age(quota: &NetworkQuota) -> u64 {
    quota.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Has this node's claim be what it needs, as far as there is room, and has the loop use no more.
async fn settle(shared: &Shared, quota: &NetworkQuota) -> kube::Result<()> {
    let key = key_of(quota);
    let claims = quota.status.as_ref().map(|status| status.claims.clone()).unwrap_or_default();
    let others = claims.iter().filter(|(node, _)| **node != *shared.node);
    let others = others.fold(Counts::default(), |all, (_, one)| all + Counts::from(*one));
    let mine = claims.get(&*shared.node).copied().map(Counts::from).unwrap_or_default();
    let free = quota.spec.hard().counts() - others;
    let (answer, answered) = oneshot::channel();
    let told = key.clone();
    shared.handle.feed(move |state| {
        let used = state.used_by(&told.namespace);
        let needed = need(state, &told.namespace);
        let target = needed.min(free).max(used);
        // From this turn of the loop on nothing beyond it is made.
        let now = state.allowance(&told).unwrap_or(used).min(target);
        let _ = answer.send((needed, target));
        vec![Event::Allowed { quota: told, counts: now }]
    });
    let Ok((needed, target)) = answered.await else { return Ok(()) };
    if target != mine {
        let claim = (!target.is_zero()).then(|| UsedCounts::from(target));
        let patch = json!({
            "metadata": {"resourceVersion": quota.resource_version()},
            "status": {"claims": {&*shared.node: claim}, "used": UsedCounts::from(others + target)},
        });
        let api: Api<NetworkQuota> = Api::namespaced(shared.client.clone(), &key.namespace);
        let params =
            PatchParams { field_manager: Some(format!("{MANAGER}-agent")), ..PatchParams::default() };
        let written = api.patch_status(&key.name, &params, &Patch::Merge(&patch)).await?;
        shared.quotas.learn(written);
    }
    shared.handle.feed({
        let quota = key.clone();
        move |_| vec![Event::Allowed { quota, counts: target }]
    });
    if shared.quotas.answered().insert(key, needed) != Some(needed) {
        shared.tell.notify_one();
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
