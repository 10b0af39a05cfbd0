//! Events from watches: the API server, the container runtime.

use super::EventLoop;
use crate::daemon::EventSource;
use crate::error::Result;

impl EventLoop<'_> {
    /// Computes the events from the current state and handles them.
    pub(super) fn watch_events(&mut self, source: EventSource) -> Result<()> {
        let events = source(self.node.state());
        events.into_iter().try_for_each(|event| self.handle(event))
    }
}
