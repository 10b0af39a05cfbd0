//! Events from watches: the API server, the container runtime.

use knit_engine::Event;

use super::EventLoop;
use crate::daemon::EventSource;
use crate::error::Result;

impl EventLoop<'_> {
    /// Computes the events from the current state and handles them.
    pub(super) fn watch_events(&mut self, source: EventSource) -> Result<()> {
        let events = source(self.node.state());
        let of_objects = |event: &Event| matches!(event, Event::ObjectApplied(_) | Event::ObjectDeleted(_));
        let may_help = events.iter().any(of_objects);
        events.into_iter().try_for_each(|event| self.handle(event))?;
        // Units may wait for something that another object has just created.
        if may_help && !self.node.state().problems.is_empty() { self.handle(Event::Resync) } else { Ok(()) }
    }
}
