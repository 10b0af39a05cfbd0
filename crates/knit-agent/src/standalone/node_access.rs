//! Access to the node of the local API: in the process of a command, or in the loop of an agent.
//!
//! [`super::Standalone`] decides; an implementation only defines how the node is reached and when a change is complete.

use knit_engine::{Event, Record, State};

use crate::error::Result;
use crate::node::{Node, Repair};

/// A decision.
#[derive(Debug, Default)]
pub struct Decision {
    /// Journalled first.
    pub record: Option<Record>,
    /// Handled then, in this order.
    pub events: Vec<Event>,
}

/// Other sources of objects on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectSources {
    /// A watched directory: its objects can only be changed in its files.
    pub directory: bool,
    /// A running agent: the objects of its configuration can only be changed there.
    pub agent: bool,
}

/// Access to a node.
pub trait NodeAccess {
    /// Runs a query.
    fn query<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T>;

    /// Runs a query while no change is in flight, so that unfinished changes do not look like drift.
    fn query_idle<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T>;

    /// Decides from the current state and completes everything that follows: apply, verify, deferred deletions. Returns the decision's value.
    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T>;

    /// Compares everything with the kernel, repairs drift and removes strays.
    fn repair(&mut self) -> Result<Vec<Repair>>;

    /// Other sources of objects.
    fn object_sources(&self) -> ObjectSources;
}

/// A command owns the node in its process.
impl NodeAccess for Node {
    fn query<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        query(self)
    }

    fn query_idle<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        query(self)
    }

    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T> {
        let (value, Decision { record, events }) = decide(self.state())?;
        if let Some(record) = record {
            self.record(&record)?;
        }
        // Created one by one, so that one failure does not roll back the others. Deletions are batched.
        let mut deletions = Vec::new();
        for event in events {
            if matches!(event, Event::ObjectDeleted(_)) {
                deletions.push(event);
                continue;
            }
            self.handle_all(std::mem::take(&mut deletions))?;
            self.handle(event)?;
        }
        self.handle_all(deletions)?;
        self.clean_up()?;
        Ok(value)
    }

    fn repair(&mut self) -> Result<Vec<Repair>> {
        Node::repair(self)
    }

    fn object_sources(&self) -> ObjectSources {
        ObjectSources::default()
    }
}
