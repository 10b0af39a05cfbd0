//! The readiness gate `knit.opdev.io/networks`: a pod with this gate is not ready before all its interfaces are.
//!
//! The condition in each pod's status is compared with the desired one whenever either changes, so it survives restarts and writes by
//! others. [`knit_engine::pod_start`] computes the desired condition.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_engine::pod_start::ReadinessGate;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use knit_kube::{FIELD_MANAGER, WatchUpdate};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state_follower::{StateFollower, notified};
use super::{Context, status_writer};

/// The condition type in `spec.readinessGates`.
pub(super) const CONDITION: &str = "knit.opdev.io/networks";

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(10);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A pod with the readiness gate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GatedPod {
    namespace: String,
    name: String,
    uses_host_network: bool,
    /// The published condition, if there is one.
    published: Option<ReadinessGate>,
}

/// Pods with the readiness gate, by uid.
#[derive(Debug, Default)]
pub(super) struct ReadinessGates {
    pods: Mutex<BTreeMap<String, GatedPod>>,
    changed: Notify,
}

impl ReadinessGates {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, GatedPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a watch event of pods.
    pub(super) fn handle(&self, seen: &WatchUpdate<ApiPod>) {
        let mut pods = self.pods();
        match seen {
            WatchUpdate::Listed(all) => *pods = all.iter().filter_map(gated).collect(),
            WatchUpdate::Applied(pod) | WatchUpdate::Deleted(pod) => {
                pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
            }
        }
        if let WatchUpdate::Applied(pod) = seen {
            pods.extend(gated(pod));
        }
        self.changed.notify_one();
    }
}

/// The pod and its uid, if it has the gate and has not ended.
fn gated(pod: &ApiPod) -> Option<(String, GatedPod)> {
    let spec = pod.spec.as_ref()?;
    let has_gate = |one: &k8s_openapi::api::core::v1::PodReadinessGate| one.condition_type == CONDITION;
    if !spec.readiness_gates.iter().flatten().any(has_gate) {
        return None;
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase)) {
        return None;
    }
    let uses_host_network = spec.host_network.unwrap_or_default();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let published =
        conditions.into_iter().flatten().find(|one| one.type_ == CONDITION).map(|one| ReadinessGate {
            is_open: one.status == "True",
            reason: one.reason.clone().unwrap_or_default(),
            message: one.message.clone().unwrap_or_default(),
        });
    let namespace = pod.metadata.namespace.clone()?;
    let name = pod.metadata.name.clone()?;
    Some((pod.metadata.uid.clone()?, GatedPod { namespace, name, uses_host_network, published }))
}

/// Keeps the condition of all gated pods up to date.
pub(super) async fn run(context: Context) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    loop {
        let done = write(&context).await;
        let retry = (!done).then(|| Instant::now() + RETRY_INTERVAL);
        if state.changed(notified(&context.readiness_gates.changed), retry).await.is_err() {
            return;
        }
    }
}

/// Writes the conditions that differ. Returns whether all writes succeeded.
async fn write(context: &Context) -> bool {
    let pods = context.readiness_gates.pods().clone();
    if pods.is_empty() {
        return true;
    }
    // Before all objects have synced, a pod would look complete without its interfaces.
    if !context.handle.has_synced() {
        return false;
    }
    let for_query = context.clone();
    let due = context.handle.query(move |node| {
        let state = node.state();
        let waiting = status_writer::waiting(&for_query, state);
        let due = pods.into_iter().filter_map(|(uid, gated)| {
            let gate = if gated.uses_host_network {
                ReadinessGate::host_network()
            } else {
                state.readiness_gate(&uid, &waiting)?
            };
            (gated.published.as_ref() != Some(&gate)).then_some((uid, gated, gate))
        });
        due.collect::<Vec<_>>()
    });
    let Ok(due) = due.await else { return false };
    let mut succeeded = true;
    for (uid, gated, gate) in due {
        match publish(context, &uid, &gated, &gate).await {
            Ok(()) => {
                if let Some(known) = context.readiness_gates.pods().get_mut(&uid) {
                    known.published = Some(gate);
                }
            }
            // The pod is gone, or replaced by another of the same name.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
            Err(why) => {
                tracing::warn!(namespace = gated.namespace, pod = gated.name, error = %why, "cannot write the pod's readiness condition");
                succeeded = false;
            }
        }
    }
    succeeded
}

async fn publish(context: &Context, uid: &str, gated: &GatedPod, gate: &ReadinessGate) -> kube::Result<()> {
    let api: Api<ApiPod> = Api::namespaced(context.client.clone(), &gated.namespace);
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    let mut condition = json!({
        "type": CONDITION,
        "status": if gate.is_open { "True" } else { "False" },
        "reason": gate.reason,
        "message": gate.message,
    });
    if gated.published.as_ref().is_none_or(|published| published.is_open != gate.is_open) {
        condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
    }
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
    api.patch_status(&gated.name, &params, &Patch::Strategic(&patch)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(gates: serde_json::Value, conditions: serde_json::Value) -> ApiPod {
        serde_json::from_value(json!({
            "metadata": {"uid": "u1", "name": "a", "namespace": "cnf"},
            "spec": {"containers": [], "readinessGates": gates},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn only_pods_with_the_gate_are_tracked_with_their_published_condition() {
        let gates = ReadinessGates::default();
        let ours = json!([{"conditionType": CONDITION}]);
        gates.handle(&WatchUpdate::Listed(vec![pod(json!([{"conditionType": "other"}]), json!([]))]));
        assert!(gates.pods().is_empty());
        gates.handle(&WatchUpdate::Applied(pod(ours.clone(), json!([]))));
        assert_eq!(gates.pods()["u1"].published, None);
        let condition =
            json!([{"type": CONDITION, "status": "True", "reason": "Configured", "message": "m"}]);
        gates.handle(&WatchUpdate::Applied(pod(ours, condition)));
        assert_eq!(gates.pods()["u1"].published.as_ref().map(|gate| gate.is_open), Some(true));
        gates.handle(&WatchUpdate::Deleted(pod(json!([]), json!([]))));
        assert!(gates.pods().is_empty());
    }
}
