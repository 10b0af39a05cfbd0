//! Pods that the container runtime reports through NRI before their containers start, and those whose containers started too early.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use knit_engine::pod_start::StartingSandbox;
use knit_engine::pods::{Pod, PodEvent, RunningSandbox, RuntimePod};
use knit_ipam::Time;
use knit_kube::{EventRecorder, Severity};
use knit_model::SandboxId;
use tokio::sync::mpsc;

use super::Context;
use crate::nri::{self, PodRegistry};

/// The runtime lists a sandbox once all NRI plugins have answered: a list requested this long after the report contains it, or the sandbox
/// was never started.
const LIST_DELAY: Duration = Duration::from_secs(10);

/// A pod whose containers started too early, and the objects without an interface yet.
type EarlyStart = (Pod, Vec<String>);

struct ClusterRegistry {
    context: Context,
    started_early: mpsc::UnboundedSender<EarlyStart>,
}

/// Serves NRI.
pub(super) async fn run(context: Context, socket: PathBuf) {
    let (started_early, early_starts) = mpsc::unbounded_channel();
    tokio::spawn(report(context.clone(), early_starts));
    let handle = context.handle.clone();
    nri::run(socket, handle, Arc::new(ClusterRegistry { context, started_early })).await;
}

impl PodRegistry for ClusterRegistry {
    fn starting(&self, _id: SandboxId, pod: Pod, running: RunningSandbox) -> StartingSandbox {
        let delay = u64::try_from(LIST_DELAY.as_millis()).unwrap_or(u64::MAX);
        let until = Time(self.context.monotonic_now().0.saturating_add(delay));
        StartingSandbox::Announced(RuntimePod { pod, running, until })
    }

    fn sandbox_removed(&self, id: SandboxId) {
        self.context.submit_pods(PodEvent::Withdrawn(id));
        self.context.sandboxes_changed.notify_one();
    }

    /// The running sandboxes are listed through CRI.
    fn connection_reset(&self) -> bool {
        self.context.sandboxes_changed.notify_one();
        false
    }

    fn started(&self) {
        self.context.wake_pod_writers();
    }

    fn started_early(&self, pod: Pod, objects: Vec<String>) {
        // The receiver ends with the agent.
        let _ = self.started_early.send((pod, objects));
    }
}

/// Reports early starts as Events.
async fn report(context: Context, mut early_starts: mpsc::UnboundedReceiver<EarlyStart>) {
    let recorder = EventRecorder::new(context.client.clone(), "knit-agent", &context.node);
    while let Some((pod, objects)) = early_starts.recv().await {
        let note = note(&objects);
        tracing::warn!(pod = pod.name, namespace = pod.namespace, "{note}");
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace),
            name: Some(pod.name),
            uid: Some(pod.uid),
            ..ObjectReference::default()
        };
        recorder.publish(&about, Severity::Warning, "NetworksLate", &note).await;
    }
}

fn note(objects: &[String]) -> String {
    let of = if objects.is_empty() { String::new() } else { format!(" of {}", objects.join(", ")) };
    format!("containers started before the networks{of} were ready; they are attached while the pod runs")
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_early_start_names_the_objects() {
        let note = super::note(&["podconfig/a".to_owned(), "vlan/b".to_owned()]);
        assert!(note.contains("networks of podconfig/a, vlan/b were"), "{note}");
        assert!(super::note(&[]).contains("networks were"));
    }
}
