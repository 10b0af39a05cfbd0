//! The readiness gate `knit.opdev.io/networks`: a pod with this gate is not ready before all its interfaces are.
//!
//! The condition in each pod's status is compared with the desired one whenever either changes, so it survives restarts and writes by
//! others. [`knit_engine::pod_start`] computes the desired condition.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_engine::pod_start::ReadinessGate;
use knit_engine::pods::Pod;
use knit_kube::FIELD_MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use serde_json::json;
use tokio::time::Instant;

use super::Context;
use super::state_follower::{StateFollower, notified};

/// The condition type in `spec.readinessGates`.
pub(super) const CONDITION: &str = "knit.opdev.io/networks";

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(10);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the pod has the gate.
pub(super) fn has_gate(pod: &ApiPod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    gates.into_iter().flatten().any(|gate| gate.condition_type == CONDITION)
}

/// The published condition, if there is one.
pub(super) fn published(pod: &ApiPod) -> Option<ReadinessGate> {
    let conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.into_iter().find(|condition| condition.type_ == CONDITION).map(|condition| ReadinessGate {
        is_open: condition.status == "True",
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    })
}

/// The gates that were written last, by the pods' uids, each with the condition that it replaced: until the watch delivers
/// another condition, it is not written again.
type WrittenGates = BTreeMap<String, (Option<ReadinessGate>, ReadinessGate)>;

/// Keeps the condition of all gated pods up to date.
pub(super) async fn run(context: Context) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    let mut written = WrittenGates::new();
    loop {
        let done = write(&context, &mut written).await;
        let retry = (!done).then(|| Instant::now() + RETRY_INTERVAL);
        if state.changed(notified(&context.gates_changed), retry).await.is_err() {
            return;
        }
    }
}

/// Writes the conditions that differ. Returns whether all writes succeeded.
async fn write(context: &Context, written: &mut WrittenGates) -> bool {
    let due = context.handle.query(|node| {
        let due = node.state().due_readiness_gates().into_iter();
        due.map(|(pod, gate)| (pod.clone(), gate)).collect::<Vec<(Pod, ReadinessGate)>>()
    });
    let Ok(due) = due.await else { return false };
    written.retain(|uid, _| due.iter().any(|(pod, _)| pod.uid == *uid));
    let is_written = |pod: &Pod, gate: &ReadinessGate| {
        written.get(&pod.uid).is_some_and(|(old, new)| *old == pod.published_gate && new == gate)
    };
    let due: Vec<_> = due.into_iter().filter(|(pod, gate)| !is_written(pod, gate)).collect();
    // Before all objects have synced, a pod would look complete without its interfaces.
    if !due.is_empty() && !context.handle.has_synced() {
        return false;
    }
    let mut succeeded = true;
    for (pod, gate) in due {
        match publish(context, &pod, &gate).await {
            Ok(()) => drop(written.insert(pod.uid, (pod.published_gate, gate))),
            // The pod is gone, or replaced by another of the same name.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
            Err(why) => {
                tracing::warn!(namespace = pod.namespace, pod = pod.name, error = %why, "cannot write the pod's readiness condition");
                succeeded = false;
            }
        }
    }
    succeeded
}

async fn publish(context: &Context, pod: &Pod, gate: &ReadinessGate) -> kube::Result<()> {
    let api: Api<ApiPod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    let mut condition = json!({
        "type": CONDITION,
        "status": if gate.is_open { "True" } else { "False" },
        "reason": gate.reason,
        "message": gate.message,
    });
    if pod.published_gate.as_ref().is_none_or(|published| published.is_open != gate.is_open) {
        condition["lastTransitionTime"] = json!(Time(jiff::Timestamp::now()));
    }
    let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    api.patch_status(&pod.name, &params, &Patch::Strategic(&patch)).await.map(|_| ())
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
    fn a_pod_has_the_gate_and_its_published_condition() {
        let ours = || json!([{"conditionType": CONDITION}]);
        assert!(!has_gate(&pod(json!([{"conditionType": "other"}]), json!([]))));
        let new = pod(ours(), json!([]));
        assert_eq!((has_gate(&new), published(&new)), (true, None));
        let condition =
            json!([{"type": CONDITION, "status": "True", "reason": "Configured", "message": "m"}]);
        assert_eq!(published(&pod(ours(), condition)).map(|gate| gate.is_open), Some(true));
    }
}
