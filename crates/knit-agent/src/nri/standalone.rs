//! Pods of a machine without a cluster: the container runtime is their only source.

use std::collections::BTreeSet;

use knit_engine::pods::{Pod, RunningSandbox, sandbox};
use knit_engine::{Event, State, Unit};
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
    fn pod(&self, _uid: &str) -> Option<Pod> {
        None
    }

    fn sandbox_started(&self, id: SandboxId, pod: Pod, running: RunningSandbox) {
        self.handle.submit(Event::SandboxStarted(sandbox(id, &running, &pod)));
    }

    fn sandbox_removed(&self, id: SandboxId) {
        self.handle.submit(Event::SandboxRemoved(id));
    }

    /// Removed sandboxes are detected by their namespaces.
    fn connection_reset(&self) -> bool {
        true
    }

    fn waiting(&self, state: &State) -> BTreeSet<SandboxId> {
        state.blocks.units_awaiting_claim().filter_map(Unit::sandbox).cloned().collect()
    }

    fn started_early(&self, pod: Pod, objects: Vec<String>) {
        tracing::warn!(
            pod = pod.name,
            namespace = pod.namespace,
            objects = objects.join(", "),
            "the containers started before the pod's networks were ready"
        );
    }
}
