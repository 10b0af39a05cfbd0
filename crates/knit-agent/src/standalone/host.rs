//! Who has the node that objects and sandboxes are given to: a command in its own process, or an agent's loop.
//!
//! What is decided is decided once, in [`super::Standalone`]; a host only says how the node is reached and when a change has
//! come to its end.

use knit_engine::{Event, Record, State};

use crate::error::Result;
use crate::node::{Node, Repair};

/// What follows from a decision.
#[derive(Debug, Default)]
pub struct Decision {
    /// Written down first.
    pub record: Option<Record>,
    /// Heard then, in this order.
    pub events: Vec<Event>,
}

/// Who else brings objects and pods to the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// A folder is watched: what comes from its files is theirs.
    pub folder: bool,
    /// An agent runs: what its configuration asks for is its own.
    pub agent: bool,
}

/// Who has the node.
pub trait Host {
    /// Looks at the node.
    fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T>;

    /// The same while nothing is being worked on, so that what is half made is not taken for a difference.
    fn ask_at_rest<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T>;

    /// Decides by what is known at that moment, and has everything done that follows: changed, verified and cut-off links
    /// deleted. Returns what was told with the decision.
    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T>;

    /// Compares everything with the kernel, repairs what differs, and removes what has Knit's mark and no unit knows.
    fn repair(&mut self) -> Result<Vec<Repair>>;

    /// Who else brings objects and pods.
    fn others(&self) -> Others;
}

/// A command in its own process has the node to itself.
impl Host for Node {
    fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        question(self)
    }

    fn ask_at_rest<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        question(self)
    }

    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T> {
        let (told, Decision { record, events }) = decide(self.state())?;
        if let Some(record) = record {
            self.record(&record)?;
        }
        // What comes is made one after the other, so that what cannot be had takes nothing else with it. What goes may go
        // together.
        let mut going = Vec::new();
        for event in events {
            if matches!(event, Event::ObjectDeleted(_)) {
                going.push(event);
                continue;
            }
            self.hear_together(std::mem::take(&mut going))?;
            self.hear(event)?;
        }
        self.hear_together(going)?;
        self.tidy()?;
        Ok(told)
    }

    fn repair(&mut self) -> Result<Vec<Repair>> {
        Node::repair(self)
    }

    fn others(&self) -> Others {
        Others::default()
    }
}
