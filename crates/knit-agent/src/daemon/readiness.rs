//! What prevents new pods on this node besides the engine's own problems, such as a foreign CNI configuration that shadows Knit's.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::Handle;

/// One reason why the node is not ready for new pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadinessBlocker {
    /// The condition's type.
    pub condition: &'static str,
    /// The stable CamelCase reason.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

/// All of them, by condition type.
pub(super) type Shared = Arc<RwLock<BTreeMap<&'static str, ReadinessBlocker>>>;

impl Handle {
    /// What prevents new pods now.
    pub fn readiness_blockers(&self) -> Vec<ReadinessBlocker> {
        self.blockers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Sets or clears a blocker.
    pub fn set_readiness_blocker(&self, condition: &'static str, blocker: Option<ReadinessBlocker>) {
        let mut all = self.blockers.write().unwrap_or_else(PoisonError::into_inner);
        match blocker {
            Some(blocker) => all.insert(condition, blocker),
            None => all.remove(condition),
        };
    }
}
