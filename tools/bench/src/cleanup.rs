//! Cleanup of a benchmark, however it ends: normally, with an error, or by Ctrl-C.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

type Task = Box<dyn FnOnce() + Send>;

/// Tasks that run once, the last first: when this is dropped, or on SIGINT and SIGTERM.
pub struct Cleanup {
    tasks: Arc<Mutex<Vec<Task>>>,
}

impl Cleanup {
    /// Starts a thread that handles SIGINT and SIGTERM. Must be called before other threads start, which would otherwise still
    /// receive these signals.
    pub fn new() -> Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("cannot block signals")?;
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let on_signal = Arc::clone(&tasks);
        std::thread::spawn(move || {
            let Ok(signal) = signals.wait() else { return };
            run_all(&on_signal);
            std::process::exit(128 + signal as i32);
        });
        Ok(Self { tasks })
    }

    /// Adds a task.
    pub fn defer(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(task));
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        run_all(&self.tasks);
    }
}

/// A second caller waits until the first one has finished.
fn run_all(tasks: &Mutex<Vec<Task>>) {
    let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(task) = tasks.pop() {
        task();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn tasks_run_once_and_the_last_first() {
        let (done, order) = channel();
        let cleanup = Cleanup { tasks: Arc::default() };
        for number in 1..=3 {
            let done = done.clone();
            cleanup.defer(move || done.send(number).unwrap());
        }
        drop((cleanup, done));
        assert_eq!(order.iter().collect::<Vec<_>>(), [3, 2, 1]);
    }
}
