//! Pods of a machine without a cluster: the container runtime is their only source.

use knit_engine::Event;
use knit_engine::pod_start::StartingSandbox;
use knit_engine::pods::{Pod, RunningSandbox, sandbox};
use knit_model::SandboxId;

use super::PodRegistry;
use crate::daemon::Handle;

/// Feeds the loop with sandboxes from the runtime.
pub(crate) struct StandaloneRegistry {
    handle: Handle,
}

impl StandaloneRegistry {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

impl PodRegistry for StandaloneRegistry {
    fn starting(&self, id: SandboxId, pod: Pod, running: RunningSandbox) -> StartingSandbox {
        StartingSandbox::Local(sandbox(id, &running, &pod))
    }

    fn sandbox_removed(&self, id: SandboxId) {
        self.handle.submit(Event::SandboxRemoved(id));
    }

    /// Removed sandboxes are detected by their namespaces.
    fn connection_reset(&self) -> bool {
        true
    }

    fn started(&self) {}

    fn started_early(&self, pod: Pod, objects: Vec<String>) {
        tracing::warn!(
            pod = pod.name,
            namespace = pod.namespace,
            objects = objects.join(", "),
            "the containers started before the pod's networks were ready"
        );
    }
}
