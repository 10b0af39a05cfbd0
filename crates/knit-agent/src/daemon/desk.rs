//! The loop's node for whoever gives objects and sandboxes by hand: each change is decided and heard in one turn of the loop,
//! and has ended when everything that followed from it has.
//!
//! Only plain threads wait here, never one of an async runtime.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use knit_engine::{Event, State};
use tokio::sync::oneshot;

use super::{Handle, Message};
use crate::error::{Error, Result};
use crate::node::{Node, Plans, Repair};
use crate::standalone::{Decision, Host, Others};

/// Whoever wants to look while nothing is being worked on waits this long at most: there may always be something.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked whether something is.
const AGAIN: Duration = Duration::from_millis(10);

/// Decides by what is known; `None` if nothing is to be done. Whoever asks has been told why.
type Decide = Box<dyn FnOnce(&State) -> Option<Decision> + Send>;

/// A change that someone waits for.
pub(super) struct Work {
    /// What follows from what is known.
    pub(super) decide: Decide,
    /// Where the plans go that repaired what nobody had asked to change.
    pub(super) done: Sender<Plans>,
}

/// A question that waits for nothing to be worked on gets its asker back when something is.
enum Found<T, Q> {
    Answer(Result<T>),
    Busy(Q),
}

impl Handle {
    fn find<T: Send + 'static>(&self, question: impl FnOnce(&mut Node) -> T + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let ask = move |node: &mut Node| {
            // Whoever asked waits for it, on a thread of its own.
            let _ = answer.send(question(node));
        };
        self.sender.send(Message::Ask(Box::new(ask))).map_err(|_| Error::Ending)?;
        answered.blocking_recv().map_err(|_| Error::Ending)
    }

    /// Has a decision made and carried out. Returns what was told with it, and the plans that repaired something.
    fn carry_out<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<(T, Plans)> {
        let ((tell, told), (done, ended)) = (channel(), channel());
        let decide = move |state: &State| {
            let (told, decision) = match decide(state) {
                Ok((told, decision)) => (Ok(told), Some(decision)),
                Err(why) => (Err(why), None),
            };
            // Whoever asked waits for it, on a thread of its own.
            let _ = tell.send(told);
            decision
        };
        let work = Work { decide: Box::new(decide), done };
        self.sender.send(Message::Work(work)).map_err(|_| Error::Ending)?;
        let told = told.recv().map_err(|_| Error::Ending)??;
        Ok((told, ended.recv().map_err(|_| Error::Ending)?))
    }
}

impl Host for Handle {
    fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.find(question)?
    }

    fn ask_at_rest<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&mut Node) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        let mut question = question;
        loop {
            let last = Instant::now() >= until;
            let found = self.find(move |node| {
                if last || node.state().is_idle() {
                    Found::Answer(question(node))
                } else {
                    Found::Busy(question)
                }
            })?;
            question = match found {
                Found::Answer(answer) => return answer,
                Found::Busy(question) => question,
            };
            thread::sleep(AGAIN);
        }
    }

    fn change<T: Send + 'static>(
        &mut self,
        decide: impl FnOnce(&State) -> Result<(T, Decision)> + Send + 'static,
    ) -> Result<T> {
        self.carry_out(decide).map(|(told, _)| told)
    }

    fn repair(&mut self) -> Result<Vec<Repair>> {
        let everything = |_: &State| Ok(((), Decision { record: None, events: vec![Event::Resync] }));
        let ((), plans) = self.carry_out(everything)?;
        let mut repairs = Repair::of_plans(plans);
        repairs.extend(self.ask_at_rest(Node::repair_strays)?);
        // What was cut off is deleted before anyone is told.
        self.change(|_| Ok(((), Decision::default())))?;
        Ok(repairs)
    }

    fn others(&self) -> Others {
        Others { folder: self.watches, agent: true }
    }
}
