//! Pods that the container runtime tells of before their containers start, and those whose containers did not wait.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use knit_engine::State;
use knit_engine::pods::{Pod, Running, Told};
use knit_ipam::Time;
use knit_kube::{Recorder, Severity};
use knit_model::SandboxId;
use tokio::sync::mpsc;

use super::{Shared, states};
use crate::nri::{self, Keeper};

/// The runtime lists a sandbox once all plugins have answered: a list that is asked for this long after it told has it, or the
/// sandbox never came to be.
const LISTED: Duration = Duration::from_secs(10);

/// A pod whose containers did not wait, and the objects that they did not wait for.
type Missed = (Pod, Vec<String>);

struct InCluster {
    shared: Shared,
    missed: mpsc::UnboundedSender<Missed>,
}

/// Answers the runtime for as long as it is polled.
pub(super) async fn follow(shared: Shared, socket: PathBuf) {
    let (missed, misses) = mpsc::unbounded_channel();
    tokio::spawn(tell(shared.clone(), misses));
    let handle = shared.handle.clone();
    nri::follow(socket, handle, Arc::new(InCluster { shared, missed })).await;
}

impl Keeper for InCluster {
    fn known(&self, uid: &str) -> Option<Pod> {
        self.shared.pods().get(uid).cloned()
    }

    fn seen(&self, id: SandboxId, pod: Pod, running: Running) {
        let until = Time(self.shared.moment().0 + u64::try_from(LISTED.as_millis()).unwrap_or(u64::MAX));
        self.shared.pods().tell(id, Told { pod, running, until });
        self.shared.feed_pods();
    }

    fn gone(&self, id: SandboxId) {
        self.shared.pods().untell(&id);
        self.shared.look.notify_one();
    }

    /// The runtime is asked about those that run.
    fn lost_sight(&self) -> bool {
        self.shared.look.notify_one();
        false
    }

    fn waiting(&self, state: &State) -> BTreeSet<SandboxId> {
        states::waiting(&self.shared, state)
    }

    fn missed(&self, pod: Pod, objects: Vec<String>) {
        // An agent that ends tells nothing any more.
        let _ = self.missed.send((pod, objects));
    }
}

/// Tells people of misses.
async fn tell(shared: Shared, mut misses: mpsc::UnboundedReceiver<Missed>) {
    let recorder = Recorder::new(shared.client.clone(), "knit-agent", &shared.node);
    while let Some((pod, objects)) = misses.recv().await {
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
        recorder.tell(&about, Severity::Warning, "NetworksLate", &note).await;
    }
}

fn note(objects: &[String]) -> String {
    let of = if objects.is_empty() { String::new() } else { format!(" of {}", objects.join(", ")) };
    format!("containers were started before the networks{of} were there; they follow while the pod runs")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_miss_names_the_objects_that_are_known() {
        let note = super::note(&["podconfig/a".to_owned(), "vlan/b".to_owned()]);
        assert!(note.contains("networks of podconfig/a, vlan/b were"), "{note}");
        assert!(super::note(&[]).contains("networks were"));
    }
}
