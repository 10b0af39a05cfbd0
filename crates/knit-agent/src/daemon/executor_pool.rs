//! Executors on their own threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use knit_kernel::netns::allow_netns_switch;

use super::Message;
use crate::error::{Error, Result};
use crate::executor::{Completion, Executor, Work};

/// A fixed number of executor threads, and the number of work items in flight.
pub(super) struct ExecutorPool {
    queue: Sender<(u64, Work)>,
    pub(super) in_flight: usize,
}

impl ExecutorPool {
    /// Starts a thread for each executor.
    pub(super) fn start(executors: Vec<Box<dyn Executor>>, to: &Sender<Message>) -> Result<Self> {
        let (queue, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for (number, executor) in executors.into_iter().enumerate() {
            let (receiver, to) = (Arc::clone(&receiver), to.clone());
            thread::Builder::new()
                .name(format!("knit-exec-{number}"))
                .spawn(move || serve(executor, &receiver, &to))
                .map_err(|source| Error::File { path: "thread knit-exec".to_owned(), source })?;
        }
        Ok(Self { queue, in_flight: 0 })
    }

    /// Queues work. Its completion arrives as a message.
    pub(super) fn submit(&mut self, incarnation: u64, work: Work) {
        // The threads run as long as this sender exists.
        if self.queue.send((incarnation, work)).is_ok() {
            self.in_flight += 1;
        }
    }
}

/// Executes work and measures its duration. A panic becomes an error.
pub(super) fn run(
    work: &mut Work,
    execute: impl FnOnce(&mut Work) -> Result<Completion>,
) -> (Result<Completion>, Duration) {
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| execute(work))).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<&str>().map_or("unknown panic", |why| why);
        Err(Error::Panicked { what: work.to_string(), why: why.to_owned() })
    });
    (result, started.elapsed())
}

fn serve(mut executor: Box<dyn Executor>, queue: &Mutex<Receiver<(u64, Work)>>, to: &Sender<Message>) {
    if let Err(why) = allow_netns_switch() {
        tracing::error!(error = %why, "this thread cannot enter network namespaces; a helper thread does");
    }
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((incarnation, mut work)) = next else { return };
        let (result, took) = run(&mut work, |work| executor.execute(work));
        let work = Box::new(work);
        if to.send(Message::Completed { incarnation, work, result, took }).is_err() {
            return;
        }
    }
}
