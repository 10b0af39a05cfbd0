//! What a benchmark has to take away however it ends: well, with an error, or by Ctrl-C.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

type Work = Box<dyn FnOnce() + Send>;

/// Work that is done once, the last first: when this is dropped, or when the program is told to end.
pub struct Cleanup {
    left: Arc<Mutex<Vec<Work>>>,
}

impl Cleanup {
    /// From here on the signals that end a program are heard by a thread of this. Threads that run already must not be
    /// there: they would still hear them.
    pub fn new() -> Result<Self> {
        let mut ending = SigSet::empty();
        ending.add(Signal::SIGINT);
        ending.add(Signal::SIGTERM);
        ending.thread_block().context("cannot hold signals back")?;
        let left = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&left);
        std::thread::spawn(move || {
            let Ok(signal) = ending.wait() else { return };
            do_all(&heard);
            std::process::exit(128 + signal as i32);
        });
        Ok(Self { left })
    }

    /// Adds something to be done.
    pub fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        do_all(&self.left);
    }
}

/// Whoever comes second waits until the first is done.
fn do_all(left: &Mutex<Vec<Work>>) {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(work) = left.pop() {
        work();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn everything_is_done_once_and_the_last_first() {
        let (done, order) = channel();
        let cleanup = Cleanup { left: Arc::default() };
        for number in 1..=3 {
            let done = done.clone();
            cleanup.later(move || done.send(number).unwrap());
        }
        drop((cleanup, done));
        assert_eq!(order.iter().collect::<Vec<_>>(), [3, 2, 1]);
    }
}
