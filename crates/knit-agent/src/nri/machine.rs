//! Pods of one machine without a cluster: what its container runtime tells is all there is to know.

use std::collections::BTreeSet;

use knit_engine::pods::{Pod, Running, sandbox};
use knit_engine::{Event, State, Unit};
use knit_model::SandboxId;

use super::Keeper;
use crate::daemon::Handle;

/// Has the loop hear of sandboxes as the runtime tells of them.
pub(crate) struct Machine {
    handle: Handle,
}

impl Machine {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

impl Keeper for Machine {
    fn known(&self, _uid: &str) -> Option<Pod> {
        None
    }

    fn seen(&self, id: SandboxId, pod: Pod, running: Running) {
        self.handle.feed(move |state| {
            let new = sandbox(id, &running, &pod);
            let known = state.sandboxes.get(&new.id);
            match known {
                // Its labels may have been changed by hand since.
                Some(known) if known.instance == new.instance => Vec::new(),
                Some(known) => vec![Event::SandboxGone(known.id.clone()), Event::SandboxSeen(new)],
                None => vec![Event::SandboxSeen(new)],
            }
        });
    }

    fn gone(&self, id: SandboxId) {
        self.handle.feed(move |state| {
            let is_known = state.sandboxes.contains_key(&id);
            if is_known { vec![Event::SandboxGone(id)] } else { Vec::new() }
        });
    }

    /// Sandboxes that are gone are found by their namespaces.
    fn lost_sight(&self) -> bool {
        true
    }

    fn waiting(&self, state: &State) -> BTreeSet<SandboxId> {
        state.blocks.soon().filter_map(Unit::sandbox).cloned().collect()
    }

    fn missed(&self, pod: Pod, objects: Vec<String>) {
        tracing::warn!(
            pod = pod.name,
            namespace = pod.namespace,
            objects = objects.join(", "),
            "the containers were started before the pod's networks were there"
        );
    }
}
