//! Kubernetes Events.

use k8s_openapi::api::core::v1::ObjectReference;
use knit_crds::Severity;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as KubeRecorder, Reporter};

/// The maximum length of a note, which the API server enforces.
const MAX_NOTE: usize = 1_000;

/// Publishes Events. Repeated Events are aggregated.
#[derive(Clone)]
pub struct EventRecorder {
    recorder: KubeRecorder,
}

impl EventRecorder {
    /// A recorder for a reporting component (`knit-agent`) and instance (the node).
    pub fn new(client: Client, component: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: KubeRecorder::new(client, reporter) }
    }

    /// Publishes an Event about an object. Failures are only logged.
    pub async fn publish(&self, about: &ObjectReference, severity: Severity, reason: &str, note: &str) {
        let cut = note.char_indices().nth(MAX_NOTE).map_or(note.len(), |(end, _)| end);
        let event = Event {
            type_: match severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(note[..cut].to_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(why) = self.recorder.publish(&event, about).await {
            tracing::debug!(%why, reason, "cannot publish an Event");
        }
    }
}
