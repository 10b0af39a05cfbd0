//! Hands on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use knit_engine::Unit;
use knit_kernel::netns::may_visit;

use super::Message;
use crate::error::{Error, Result};
use crate::hands::{Done, Hands, Job, Task};

/// A bounded number of threads that do jobs, and how many jobs are under way.
pub(super) struct Pool {
    jobs: Sender<(u64, Job)>,
    pub(super) under_way: usize,
}

/// A job that was done.
pub(super) struct Finished {
    /// Which life of the node it was for.
    pub(super) life: u64,
    /// What was asked for.
    pub(super) errand: Errand,
    /// What came of it.
    pub(super) result: Result<Done>,
    /// How long it took.
    pub(super) took: Duration,
}

/// What a job is about, as far as the loop has to remember it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Observe(Unit),
    Apply(Unit),
    Call,
    Forward,
    Chain,
    Reap,
    Census,
}

impl Errand {
    pub(super) fn of(task: &Task) -> Self {
        match task {
            Task::Observe { unit, .. } => Self::Observe(unit.clone()),
            Task::Apply { unit, .. } => Self::Apply(unit.clone()),
            Task::Inspect { .. } | Task::MakeDomain { .. } | Task::RemoveDomain { .. } => Self::Call,
            Task::Forward(_) => Self::Forward,
            Task::Chain { .. } => Self::Chain,
            Task::Reap(_) => Self::Reap,
            Task::Census => Self::Census,
        }
    }
}

impl Pool {
    /// Starts a thread for each pair of hands.
    pub(super) fn start(hands: Vec<Hands>, to: &Sender<Message>) -> Result<Self> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for (number, hands) in hands.into_iter().enumerate() {
            let (queue, to) = (Arc::clone(&queue), to.clone());
            thread::Builder::new()
                .name(format!("knit-hands-{number}"))
                .spawn(move || serve(hands, &queue, &to))
                .map_err(|source| Error::File { path: "thread knit-hands".to_owned(), source })?;
        }
        Ok(Self { jobs, under_way: 0 })
    }

    /// Has a job done. The result comes as a message.
    pub(super) fn give(&mut self, life: u64, job: Job) {
        // The threads live as long as this end of the queue.
        if self.jobs.send((life, job)).is_ok() {
            self.under_way += 1;
        }
    }
}

/// Does one job; a panic is an error like any other.
pub(super) fn carry_out(life: u64, job: Job, work: impl FnOnce(Job) -> Result<Done>) -> Finished {
    let (errand, began) = (Errand::of(&job.task), Instant::now());
    let result = catch_unwind(AssertUnwindSafe(|| work(job))).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<&str>().map_or("a panic", |why| why);
        Err(Error::Panicked { what: format!("{errand:?}"), why: why.to_owned() })
    });
    Finished { life, errand, result, took: began.elapsed() }
}

fn serve(mut hands: Hands, queue: &Mutex<Receiver<(u64, Job)>>, to: &Sender<Message>) {
    if let Err(why) = may_visit() {
        tracing::error!(%why, "a thread cannot visit namespaces itself: another does it for this one");
    }
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((life, job)) = next else { return };
        let finished = carry_out(life, job, |job| hands.work(job));
        if to.send(Message::Done(finished)).is_err() {
            return;
        }
    }
}
