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
        self.handle.feed(move |state| {
            let new = sandbox(id, &running, &pod);
            let known = state.sandboxes.get(&new.id);
            match known {
                // Its labels may have been changed with `knit sandbox label`.
                Some(known) if known.instance == new.instance => Vec::new(),
                Some(known) => vec![Event::SandboxRemoved(known.id.clone()), Event::SandboxUpdated(new)],
                None => vec![Event::SandboxUpdated(new)],
            }
        });
    }

    fn sandbox_removed(&self, id: SandboxId) {
        self.handle.feed(move |state| {
            let is_known = state.sandboxes.contains_key(&id);
            if is_known { vec![Event::SandboxRemoved(id)] } else { Vec::new() }
        });
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
