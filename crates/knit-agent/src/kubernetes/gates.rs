//! The readiness gate `knit.opdev.io/networks`: a pod that has it is not ready before all that objects ask for it is there.
//!
//! What each pod says is compared with what is so whenever either changes, so that it holds after a restart and whoever
//! else writes there. What is so is decided in [`knit_engine::starting`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_engine::starting::Gate;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use knit_kube::{MANAGER, Seen};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Shared, states};

/// The condition that a pod may ask for in `spec.readinessGates`.
pub(super) const CONDITION: &str = "knit.opdev.io/networks";

/// Changes often come in groups: so long after the first everything is compared.
const GROUP: Duration = Duration::from_millis(10);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);

/// A pod with the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gated {
    namespace: String,
    name: String,
    is_on_host: bool,
    /// What the pod says, if it has the condition.
    said: Option<Gate>,
}

/// Pods with the gate, by their uid.
#[derive(Debug, Default)]
pub(super) struct Gates {
    pods: Mutex<BTreeMap<String, Gated>>,
    changed: Notify,
}

impl Gates {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Gated>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the API server tells of pods.
    pub(super) fn hear(&self, seen: &Seen<ApiPod>) {
        let mut pods = self.pods();
        match seen {
            Seen::Listed(all) => *pods = all.iter().filter_map(gated).collect(),
            Seen::Applied(pod) | Seen::Deleted(pod) => {
                pods.remove(pod.metadata.uid.as_deref().unwrap_or_default());
            }
        }
        if let Seen::Applied(pod) = seen {
            pods.extend(gated(pod));
        }
        self.changed.notify_one();
    }
}

/// A pod that has the gate and runs on, by its uid.
fn gated(pod: &ApiPod) -> Option<(String, Gated)> {
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
    let is_on_host = spec.host_network.unwrap_or_default();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let said = conditions.into_iter().flatten().find(|one| one.type_ == CONDITION).map(|one| Gate {
        is_open: one.status == "True",
        reason: one.reason.clone().unwrap_or_default(),
        message: one.message.clone().unwrap_or_default(),
    });
    let namespace = pod.metadata.namespace.clone()?;
    let name = pod.metadata.name.clone()?;
    Some((pod.metadata.uid.clone()?, Gated { namespace, name, is_on_host, said }))
}

/// Has pods say what is so, for as long as it is polled.
pub(super) async fn follow(shared: Shared) {
    let mut version = shared.handle.version();
    loop {
        let done = write(&shared).await;
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = shared.gates.changed.notified() => {}
            () = sleep(AGAIN), if !done => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
}

/// Writes what pods do not say yet. Says whether everything could be written.
async fn write(shared: &Shared) -> bool {
    let pods = shared.gates.pods().clone();
    if pods.is_empty() {
        return true;
    }
    // An agent that has not heard of all objects would say that nothing is asked for.
    if !shared.handle.has_heard_all() {
        return false;
    }
    let asking = shared.clone();
    let asked = shared.handle.ask(move |node| {
        let state = node.state();
        let waiting = states::waiting(&asking, state);
        let due = pods.into_iter().filter_map(|(uid, gated)| {
            let gate = if gated.is_on_host { Gate::on_host() } else { state.gate(&uid, &waiting)? };
            (gated.said.as_ref() != Some(&gate)).then_some((uid, gated, gate))
        });
        due.collect::<Vec<_>>()
    });
    let Ok(due) = asked.await else { return false };
    let mut all = true;
    for (uid, gated, gate) in due {
        match say(shared, &uid, &gated, &gate).await {
            Ok(()) => {
                if let Some(known) = shared.gates.pods().get_mut(&uid) {
                    known.said = Some(gate);
                }
            }
            // It is gone, or another has come under its name.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
            Err(why) => {
                tracing::warn!(namespace = gated.namespace, pod = gated.name, %why, "the pod's readiness gate could not be written");
                all = false;
            }
        }
    }
    all
}

async fn say(shared: &Shared, uid: &str, gated: &Gated, gate: &Gate) -> kube::Result<()> {
    let api: Api<ApiPod> = Api::namespaced(shared.client.clone(), &gated.namespace);
    let params = PatchParams { field_manager: Some(format!("{MANAGER}-agent")), ..PatchParams::default() };
    let mut condition = json!({
        "type": CONDITION,
        "status": if gate.is_open { "True" } else { "False" },
        "reason": gate.reason,
        "message": gate.message,
    });
    if gated.said.as_ref().is_none_or(|said| said.is_open != gate.is_open) {
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
    fn only_pods_that_ask_for_the_gate_have_it_and_what_they_say_is_read() {
        let gates = Gates::default();
        let ours = json!([{"conditionType": CONDITION}]);
        gates.hear(&Seen::Listed(vec![pod(json!([{"conditionType": "other"}]), json!([]))]));
        assert!(gates.pods().is_empty());
        gates.hear(&Seen::Applied(pod(ours.clone(), json!([]))));
        assert_eq!(gates.pods()["u1"].said, None);
        let condition =
            json!([{"type": CONDITION, "status": "True", "reason": "Configured", "message": "m"}]);
        gates.hear(&Seen::Applied(pod(ours, condition)));
        assert_eq!(gates.pods()["u1"].said.as_ref().map(|gate| gate.is_open), Some(true));
        gates.hear(&Seen::Deleted(pod(json!([]), json!([]))));
        assert!(gates.pods().is_empty());
    }
}
