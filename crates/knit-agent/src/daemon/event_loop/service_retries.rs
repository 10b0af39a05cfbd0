//! What failed about Services is tried again when it is due.

use std::time::{Duration, Instant};

use knit_engine::Event;
use knit_engine::services::ServiceEvent;

use super::EventLoop;
use crate::error::Result;
use crate::node::now;

impl EventLoop<'_> {
    /// When the next attempt is due.
    pub(super) fn next_service_retry_at(&self) -> Option<Instant> {
        let wait = self.node.state().next_service_retry_in(now())?;
        Some(Instant::now() + Duration::from_millis(wait))
    }

    /// Tries again what is due.
    pub(super) fn retry_services(&mut self) -> Result<()> {
        match self.node.state().next_service_retry_in(now()) {
            Some(0) => self.handle(Event::Services(ServiceEvent::RetryTimer)),
            _ => Ok(()),
        }
    }
}
