//! The local API on the node of the event loop: a change of objects or sandboxes is decided in one turn of the loop and completes when
//! everything that follows from it is done.
//!
//! All methods block: call them from plain threads, never from an async runtime.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use knit_engine::{Event, State};
use tokio::sync::oneshot;

use super::{Handle, Message};
use crate::error::{Error, Result};
use crate::node::{Node, Plans, Repair};
use crate::standalone::{Decision, NodeAccess, ObjectSources};

/// How long a query waits for the node to become idle before it runs anyway.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a waiting query checks whether the node is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Decides from the state; `None` if nothing is to be done, in which case the caller already has the error.
type Decide = Box<dyn FnOnce(&State) -> Option<Decision> + Send>;

/// A change whose caller waits for its end.
pub(super) struct ChangeRequest {
    /// Makes the decision.
    pub(super) decide: Decide,
    /// Receives the plans that repaired drift.
    pub(super) done: Sender<Plans>,
}

/// The result of a query that requires an idle node; a busy node returns the query.
enum QueryResult<T, Q> {
    Answer(Result<T>),
    Busy(Q),
}

impl Handle {
    fn run_query<T: Send + 'static>(&self, query: impl FnOnce(&mut Node) -> T + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let run = move |node: &mut Node| {
            // The caller blocks on its own thread.
            let _ = answer.send(query(node));
        };
        self.sender.send(Message::Query(Box::new(run))).map_err(|_| Error::Ending)?;
        answered.blocking_recv().map_err(|_| Error::Ending)
    }

    /// Decides and executes a change. Returns the decision's value and the plans that repaired drift.
    fn run_change<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<(T, Plans)> {
        let ((value_sender, value), (done, ended)) = (channel(), channel());
        let decide = move |state: &State| {
            let (value, decision) = match decide(state) {
                Ok((value, decision)) => (Ok(value), Some(decision)),
                Err(why) => (Err(why), None),
            };
            // The caller blocks on its own thread.
            let _ = value_sender.send(value);
            decision
        };
        let work = ChangeRequest { decide: Box::new(decide), done };
        self.sender.send(Message::Change(work)).map_err(|_| Error::Ending)?;
        let value = value.recv().map_err(|_| Error::Ending)??;
        Ok((value, ended.recv().map_err(|_| Error::Ending)?))
    }
}

impl NodeAccess for Handle {
    fn query<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_query(query)?
    }

    fn query_idle<T: Send + 'static>(
        &mut self,
        query: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let until = Instant::now() + IDLE_TIMEOUT;
        let mut query = query;
        loop {
            let last = Instant::now() >= until;
            let found = self.run_query(move |node| {
                if last || node.state().is_idle() {
                    QueryResult::Answer(query(node))
                } else {
                    QueryResult::Busy(query)
                }
            })?;
            query = match found {
                QueryResult::Answer(answer) => return answer,
                QueryResult::Busy(query) => query,
            };
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T> {
        self.run_change(decide).map(|(value, _)| value)
    }

    fn repair(&mut self) -> Result<Vec<Repair>> {
        let everything = |_: &State| Ok(((), Decision { record: None, events: vec![Event::Resync] }));
        let ((), plans) = self.run_change(everything)?;
        let mut repairs = Repair::of_plans(plans);
        repairs.extend(self.query_idle(Node::repair_strays)?);
        // Deferred deletions are done before the caller continues.
        self.change(|_| Ok(((), Decision::default())))?;
        Ok(repairs)
    }

    fn object_sources(&self) -> ObjectSources {
        ObjectSources { directory: self.watches_dir, agent: true }
    }
}
