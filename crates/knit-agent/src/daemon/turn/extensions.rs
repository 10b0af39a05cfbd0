//! Extensions in the loop: what is called, and when something owed is due.

use std::time::{Duration, Instant};

use knit_engine::Event;
use knit_engine::extension::Invocation;

use super::Turn;
use crate::error::Result;
use crate::node::now;
use crate::services::outgoing;

impl Turn<'_> {
    /// Has extensions called. What they say comes as a message.
    pub(super) fn call_out(&mut self, invocations: Vec<Invocation>) {
        for invocation in invocations {
            self.node.moment("invoke");
            self.ends.callers.call(self.life, outgoing(self.node.state(), invocation));
        }
    }

    /// When something that extensions have to be told is due.
    pub(super) fn owed_at(&self) -> Option<Instant> {
        let wait = self.node.state().owed_in(now())?;
        Some(Instant::now() + Duration::from_millis(wait))
    }

    /// Has extensions told what is due.
    pub(super) fn tell_owed(&mut self) -> Result<()> {
        if self.stopping.is_none() && self.node.state().owed_in(now()) == Some(0) {
            return self.hear(Event::Woken);
        }
        Ok(())
    }
}
