//! What someone changed by hand and Knit put right again, told as an Event.

use k8s_openapi::api::core::v1::ObjectReference;
use knit_engine::Unit;
use knit_kube::{Recorder, Severity};
use tokio::sync::broadcast::error::RecvError;

use super::Shared;
use crate::daemon::Repaired;

/// Tells for as long as it is polled.
pub(super) async fn follow(shared: Shared) {
    let recorder = Recorder::new(shared.client.clone(), "knit-agent", &shared.node);
    let mut repairs = shared.handle.repairs();
    loop {
        match repairs.recv().await {
            Ok(repaired) => {
                if let Some(about) = about(&shared, &repaired.unit).await {
                    let note = note(&repaired);
                    recorder.tell(&about, Severity::Warning, "NetworkRepaired", &note).await;
                }
            }
            // So many at once are told by the log and the metric.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

fn note(repaired: &Repaired) -> String {
    format!("{} was not as asked for, and was repaired: {}", repaired.unit, repaired.what)
}

/// The pod, or for what lies outside of pods the node's state.
async fn about(shared: &Shared, unit: &Unit) -> Option<ObjectReference> {
    let Unit::Sandbox(id) = unit else {
        return Some(ObjectReference {
            api_version: Some("podnetwork.opdev.io/v1alpha1".to_owned()),
            kind: Some("NodeNetwork".to_owned()),
            name: Some(shared.node.to_string()),
            ..ObjectReference::default()
        });
    };
    let id = id.clone();
    let asked = shared.handle.ask(move |node| node.state().sandboxes.get(&id).cloned());
    let sandbox = asked.await.ok()??;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(sandbox.namespace),
        name: Some(sandbox.pod),
        uid: Some(sandbox.uid),
        ..ObjectReference::default()
    })
}
