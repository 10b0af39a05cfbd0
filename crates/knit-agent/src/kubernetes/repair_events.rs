//! Reports repaired drift as Events.

use k8s_openapi::api::core::v1::ObjectReference;
use knit_engine::Unit;
use knit_kube::{EventRecorder, Severity};
use tokio::sync::broadcast::error::RecvError;

use super::Context;
use crate::daemon::RepairNotice;

/// Reports repairs.
pub(super) async fn run(context: Context) {
    let recorder = EventRecorder::new(context.client.clone(), "knit-agent", &context.node);
    let mut repairs = context.handle.repairs();
    loop {
        match repairs.recv().await {
            Ok(repaired) => {
                if let Some(about) = about(&context, &repaired.unit).await {
                    let note = note(&repaired);
                    recorder.publish(&about, Severity::Warning, "NetworkRepaired", &note).await;
                }
            }
            // The log and the metric report repairs beyond the buffer.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

fn note(repaired: &RepairNotice) -> String {
    format!("{}: drift repaired: {}", repaired.unit, repaired.what)
}

/// The pod, or for units outside of pods the NodeNetwork.
async fn about(context: &Context, unit: &Unit) -> Option<ObjectReference> {
    let Unit::Sandbox(id) = unit else {
        return Some(ObjectReference {
            api_version: Some("podnetwork.opdev.io/v1alpha1".to_owned()),
            kind: Some("NodeNetwork".to_owned()),
            name: Some(context.node.to_string()),
            ..ObjectReference::default()
        });
    };
    let id = id.clone();
    let sandbox = context.handle.query(move |node| node.state().sandboxes.get(&id).cloned());
    let sandbox = sandbox.await.ok()??;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(sandbox.namespace),
        name: Some(sandbox.pod),
        uid: Some(sandbox.uid),
        ..ObjectReference::default()
    })
}
