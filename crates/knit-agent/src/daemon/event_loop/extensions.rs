//! Calls to extensions and their pending notifications.

use std::time::{Duration, Instant};

use knit_engine::Event;
use knit_engine::extension::Invocation;

use super::EventLoop;
use crate::error::Result;
use crate::node::now;
use crate::services::outgoing_call;

impl EventLoop<'_> {
    /// Queues calls to extensions. Results arrive as messages.
    pub(super) fn call_extensions(&mut self, invocations: Vec<Invocation>) {
        for invocation in invocations {
            self.node.fault_point("invoke");
            self.channels.extensions.call(self.incarnation, outgoing_call(self.node.state(), invocation));
        }
    }

    /// When the next pending notification is due.
    pub(super) fn next_notification_at(&self) -> Option<Instant> {
        let wait = self.node.state().next_notification_in(now())?;
        Some(Instant::now() + Duration::from_millis(wait))
    }

    /// Sends pending notifications that are due.
    pub(super) fn send_due_notifications(&mut self) -> Result<()> {
        if self.stopping.is_none() && self.node.state().next_notification_in(now()) == Some(0) {
            return self.handle(Event::NotificationTimer);
        }
        Ok(())
    }
}
