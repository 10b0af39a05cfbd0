//! What is in the way of new pods and lies outside of what the engine knows: someone else's CNI configuration, say.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use knit_model::problem::Problem;
use tokio::sync::oneshot;

use super::{Handle, Message, ended};
use crate::node::Node;

/// One thing that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// What is not as it should be, as a condition's type.
    pub what: &'static str,
    /// Why, as a stable word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// All of it, by what it is about.
pub(super) type Shared = Arc<RwLock<BTreeMap<&'static str, Outside>>>;

impl Handle {
    /// What is in the way now.
    pub fn outside(&self) -> Vec<Outside> {
        self.outside.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Something is in the way, or no longer.
    pub fn set_outside(&self, what: &'static str, outside: Option<Outside>) {
        let mut all = self.outside.write().unwrap_or_else(PoisonError::into_inner);
        match outside {
            Some(outside) => all.insert(what, outside),
            None => all.remove(what),
        };
    }

    /// Looks at the node from a plain thread.
    pub fn ask_blocking<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, answered) = oneshot::channel();
        let ask = move |node: &mut Node| {
            let _ = answer.send(question(node));
        };
        self.sender.send(Message::Ask(Box::new(ask))).map_err(|_| ended())?;
        answered.blocking_recv().map_err(|_| ended())
    }
}
