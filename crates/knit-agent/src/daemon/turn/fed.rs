//! What others tell who watch elsewhere: an API server, a container runtime.

use knit_engine::Event;

use super::Turn;
use crate::daemon::News;
use crate::error::Result;

impl Turn<'_> {
    /// Hears what the news mean for what is known now.
    pub(super) fn fed(&mut self, news: News) -> Result<()> {
        let events = news(self.node.state());
        let of_objects = |event: &Event| matches!(event, Event::ObjectApplied(_) | Event::ObjectDeleted(_));
        let may_help = events.iter().any(of_objects);
        events.into_iter().try_for_each(|event| self.hear(event))?;
        // What waits for something that another object may just have brought.
        if may_help && !self.node.state().problems.is_empty() { self.hear(Event::Resync) } else { Ok(()) }
    }
}
